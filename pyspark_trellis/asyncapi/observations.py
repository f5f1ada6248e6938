"""Reads the published messages of a journal: topics, publishers, content types and samples.

The journal is read twice. The first pass counts the messages of each combination of topic,
protocol, publisher, QoS, content type and AMQP property `type`. The second pass samples the bodies
and headers of each message of the AsyncAPI document. The samples are spread evenly over the
journal.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from pyspark_trellis.arrow_feed import JournalRange
from pyspark_trellis.asyncapi.addresses import Template, queue_templates, templates
from pyspark_trellis.asyncapi.schemas import InferredSchema, NotJson, SchemaBudget, decoded
from pyspark_trellis.columns import projection
from pyspark_trellis.rows import SelectedRows

#: Largest number of combinations of topic, protocol, publisher, QoS, content type and type in
#: memory. If there are more, the most frequent ones are kept: half of this number.
COMBINATIONS_MAX: Final = 500_000
#: Largest number of addresses of the document. The addresses with the fewest messages are left out.
ADDRESSES_MAX: Final = 1_000
#: Largest number of messages (content types and types) of an address.
MESSAGES_MAX: Final = 20
#: Approximate number of sampled bodies of a message, and the largest sampled body in bytes.
SAMPLES: Final = 200
BODY_MAX: Final = 64 << 10

_KEYS: Final = (
    "vhost",
    "exchange",
    "topic",
    "protocol",
    "publisher",
    "qos",
    "content_type",
    "type",
)
_SAMPLED: Final = ("published_at", "vhost", "exchange", "topic", "content_type", "type", "size")
#: The protocol of messages that the broker itself published, such as dead letters.
INTERNAL: Final = "internal"


@dataclass
class ObservedMessage:
    """The messages of an address with one content type and one type (AMQP's property `type`).

    `body` is the schema of the sampled bodies; None if a body is not JSON, or if the content type
    names another format. `headers` is the schema of the sampled headers.
    """

    content_type: str
    kind: str
    body: InferredSchema | None
    headers: InferredSchema
    count: int = 0
    seen: int = 0

    @classmethod
    def of(cls, content_type: str, kind: str, budget: SchemaBudget) -> ObservedMessage:
        """Return a message without counts and samples; `budget` is the document's budget."""
        other = content_type and "json" not in content_type.lower()
        body = None if other else InferredSchema(budget)
        return cls(content_type, kind, body, InferredSchema(budget))

    def sample(self, body: bytes, headers: str | None) -> None:
        """Take the body and the headers of one message into account."""
        if self.body is not None:
            try:
                self.body.add(decoded(body))
            except NotJson:
                self.body = None
        if headers:
            try:
                self.headers.add(decoded(headers))
            except NotJson:
                pass  # The broker writes JSON; a fault of one row must not end the export.


@dataclass
class ObservedAddress:
    """An address in an exchange of a virtual host, with the messages that were published to it."""

    vhost: str
    exchange: str
    template: Template
    budget: SchemaBudget
    topics: list[str] = field(default_factory=list)
    count: int = 0
    #: Number of messages by protocol: amqp091, http, mqtt310, mqtt311, mqtt50 or internal.
    protocols: Counter[str] = field(default_factory=Counter)
    #: The users that published, by protocol: "amqp" or "mqtt".
    publishers: dict[str, dict[str, None]] = field(default_factory=lambda: defaultdict(dict))
    #: The quality of service of the messages, by protocol: 0 (transient), 1 (persistent) or 2.
    qos: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    messages: dict[tuple[str, str], ObservedMessage] = field(default_factory=dict)

    def message(self, content_type: str, kind: str) -> ObservedMessage | None:
        """Return the message of a content type and property `type`; None above MESSAGES_MAX."""
        key = content_type, kind
        if key not in self.messages and len(self.messages) < MESSAGES_MAX:
            self.messages[key] = ObservedMessage.of(content_type, kind, self.budget)
        return self.messages.get(key)

    def add(self, protocol: str, publisher: str, qos: int, count: int) -> None:
        """Count `count` messages that a publisher sent over a protocol with the QoS `qos`."""
        self.count += count
        self.protocols[protocol] += count
        if protocol != INTERNAL:
            self.qos[family(protocol)].add(qos)
            self.publishers[family(protocol)][publisher] = None


@dataclass(frozen=True)
class Observations:
    """The observed addresses, most messages first, with the numbers of messages.

    `messages` counts all messages, also the messages of addresses that were left out.
    """

    addresses: list[ObservedAddress]
    messages: int = 0
    messages_left_out: int = 0
    addresses_left_out: int = 0


def family(protocol: str) -> str:
    """Return "mqtt" for each version of MQTT, else "amqp".

    A message that was published over the HTTP API has a routing key, as in AMQP.
    """
    return "mqtt" if protocol.startswith("mqtt") else "amqp"


def observe(journal: JournalRange, most: int) -> Observations:
    """Read a journal, and return the observations. Raises PipelineError.

    A level with more than `most` different words becomes a parameter (addresses.py).
    """
    low, high = journal.bounds()
    counted, left_out = _counted(journal, low, high)
    by_template = _addresses(counted, most)
    kept = sorted(by_template.values(), key=lambda each: (-each.count, each.vhost, each.exchange))
    addresses = kept[:ADDRESSES_MAX]
    observations = Observations(
        addresses,
        sum(each.count for each in kept) + left_out,
        left_out + sum(each.count for each in kept[ADDRESSES_MAX:]),
        len(kept) - len(addresses),
    )
    _sample(journal, low, high, addresses)
    return observations


def _counted(journal: JournalRange, low: int, high: int) -> tuple[list[dict[str, Any]], int]:
    """Return the combinations of values of the columns _KEYS in the rows from `low` to `high`.

    Each combination has its number of messages; the most frequent is the first. The second value is
    the number of messages whose combinations were left out.
    """
    selected = SelectedRows(projection(("published_at", *_KEYS)), journal.options)
    total: pa.Table | None = None
    left_out = 0
    for rows in journal.tables(selected, low, high):
        one = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
        table = _summed(rows.append_column("n", one))
        total = table if total is None else _summed(pa.concat_tables([total, table]))
        if total.num_rows > COMBINATIONS_MAX:
            total = total.sort_by([("n", "descending")])
            left_out += sum(total.column("n").slice(COMBINATIONS_MAX // 2).to_pylist())
            total = total.slice(0, COMBINATIONS_MAX // 2)
    if total is None:
        return [], 0
    order = [("n", "descending"), *((name, "ascending") for name in _KEYS)]
    return total.sort_by(order).to_pylist(), left_out


def _summed(table: pa.Table) -> pa.Table:
    grouped = table.group_by(list(_KEYS)).aggregate([("n", "sum")])
    return pa.table({name: grouped.column(name) for name in _KEYS} | {"n": grouped.column("n_sum")})


def _addresses(
    rows: list[dict[str, Any]], most: int
) -> dict[tuple[str, str, Template], ObservedAddress]:
    """Return the addresses by (vhost, exchange, template), from the counted combinations `rows`.

    `most` is as in `observe`.
    """
    topics: dict[tuple[str, str], dict[str, Template | None]] = defaultdict(dict)
    for row in rows:
        topics[row["vhost"], row["exchange"]][row["topic"]] = None
    for (_, exchange), by_topic in topics.items():
        names = list(by_topic)
        # The routing key of the default exchange is the name of a queue.
        topic_templates = templates(names, most) if exchange else queue_templates(names)
        by_topic.update(zip(names, topic_templates, strict=True))
    addresses: dict[tuple[str, str, Template], ObservedAddress] = {}
    budget = SchemaBudget()
    for row in rows:
        template = topics[row["vhost"], row["exchange"]][row["topic"]]
        assert template is not None, "each topic has a template"
        key = row["vhost"], row["exchange"], template
        if key not in addresses:
            addresses[key] = ObservedAddress(*key, budget)
        address = addresses[key]
        address.add(row["protocol"], row["publisher"] or "", row["qos"], row["n"])
        message = address.message(row["content_type"] or "", row["type"] or "")
        if message is not None:
            message.count += row["n"]
    for (vhost, exchange), by_topic in topics.items():
        for topic, template in by_topic.items():
            assert template is not None, "each topic has a template"
            addresses[vhost, exchange, template].topics.append(topic)
    return addresses


def _sample(journal: JournalRange, low: int, high: int, addresses: list[ObservedAddress]) -> None:
    """Sample the bodies and headers of each ObservedMessage, from about SAMPLES of its rows.

    The rows have the offsets from `low` to before `high`.
    """
    owners: dict[tuple[str, str, str], ObservedAddress] = {
        (each.vhost, each.exchange, topic): each for each in addresses for topic in each.topics
    }
    columns = (*_SAMPLED, "body", "headers")
    selected = SelectedRows(projection(columns), journal.options)
    for batch in journal.batches(selected, low, high):
        keys = zip(*(batch.column(name).to_pylist() for name in _SAMPLED[1:]), strict=True)
        bodies, headers = batch.column("body"), batch.column("headers")
        for at, (vhost, exchange, topic, content_type, kind, size) in enumerate(keys):
            owner = owners.get((vhost, exchange, topic))
            if owner is None:
                continue
            message = owner.messages.get((content_type or "", kind or ""))
            if message is None:
                continue
            message.seen += 1
            step = -(-message.count // SAMPLES)
            if (message.seen - 1) % step == 0 and size <= BODY_MAX:
                message.sample(bodies[at].as_py(), headers[at].as_py())
