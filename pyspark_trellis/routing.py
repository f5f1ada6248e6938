"""Computes the destinations of topics according to a definitions file: applies the broker's rules
to batches of topics. The destinations are found as follows:

    topic exchange        `matching.batch`, of each grammar
    direct exchange       a dict
    fanout exchange       all bindings
    default exchange      the queue whose name is the topic
    exchange as target    a message goes on to a bound exchange, or, if no binding matches, to the
                          alternate exchange; the rules of that exchange then route the message

A journal has topics in AMQP notation. MQTT sessions are matched in their own grammar and notation;
they do not receive topics that MQTT cannot represent.

Exchanges of other types (headers, hash, delay) route by more than the topic. A topic that reaches
such an exchange is `unknown`: the result has only the destinations that the topic alone decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from matching.batch import Batch
from matching.grammar import AMQP, MQTT, InvalidTopic, swap
from pyspark_trellis.counts import PERIOD, PUBLISHER
from pyspark_trellis.definitions import BY_NAME, BoundQueue, DefinedHost
from pyspark_trellis.errors import PipelineError

Rows = NDArray[np.int64]
_NONE: Final = np.empty(0, np.int64)
#: The MQTT topic trees of the broker itself, in which clients cannot publish.
_RESERVED: Final = ("$SYS", "$share")


class Routed:
    """The destinations of a batch of topics.

    A row is the index of a topic in the batch. `bindings` has pairs (row, number of a binding that
    matches the topic). `receivers` has pairs (row, index in `BatchRouter.names` of a queue or MQTT
    session that the topic goes to). Each pair occurs once; the pairs are stored as two columns, in
    any order.

    `unknown` is true for the topics whose destinations depend on more than the topic; `receivers`
    may lack some of these destinations.
    """

    def __init__(self, count: int) -> None:
        self.bindings: tuple[Rows, Rows] = (_NONE, _NONE)
        self.receivers: tuple[Rows, Rows] = (_NONE, _NONE)
        self.unknown = np.zeros(count, bool)


@dataclass(frozen=True)
class TopicParts:
    """Parts into which the messages of topics are divided, in columns.

    For each part, `topics` has the index of its topic, `periods` the period in which its messages
    were received, and `publishers` their publisher. If `periods` is None, all bindings exist.
    """

    topics: Rows
    periods: Rows | None
    publishers: list[str] | None

    @classmethod
    def of(cls, topics: Any, periods: Any, publishers: Any) -> tuple[pa.Array, TopicParts]:
        """Return the distinct topics, and the parts; each row of the three columns is one part."""
        encoded = _whole(topics).dictionary_encode()
        # A dictionary of the whole table may have topics of other exchanges, too.
        there, codes = np.unique(encoded.indices.to_numpy(), return_inverse=True)
        names = _whole(publishers).dictionary_encode()
        only = len(names.dictionary) == 1 and names.dictionary[0].as_py() == ""
        return encoded.dictionary.take(pa.array(there)), cls(
            codes.astype(np.int64),
            _whole(periods).to_numpy().astype(np.int64),
            None if only else names.to_pylist(),
        )

    def publisher(self, row: int) -> str:
        """Return the publisher of a part's messages; "" if parts are not divided by publisher."""
        return "" if self.publishers is None else self.publishers[row]


class _RowsOfTopics:
    """Rows of topic parts, grouped by topic, so that each topic is matched once."""

    def __init__(self, rows: Rows, codes: Rows) -> None:
        """Sort `rows` by their topics; `codes[row]` is the number of the topic of each row."""
        own = codes[rows]
        order = np.argsort(own, kind="stable")
        distinct_codes, starts = np.unique(own[order], return_index=True)
        #: The topics of the rows, each once.
        self.codes: Final[list[int]] = distinct_codes.tolist()
        self._rows: Final = rows[order]
        self._starts: Final = np.append(starts, len(rows))

    def rows(self, matched: Rows) -> Rows:
        """Return all rows of the topics `matched`, which are indexes in the attribute `codes`."""
        if len(self.codes) == len(self._rows):
            return self._rows[matched]
        counts = self._starts[matched + 1] - self._starts[matched]
        ends = np.cumsum(counts)
        first = np.repeat(self._starts[matched] - ends + counts, counts)
        return self._rows[first + np.arange(len(first))]


class _RowsOfReceivers:
    """The rows that go to each queue and session, by the number of the receiver."""

    def __init__(self, count: int) -> None:
        #: The number of rows of the batch: every row is below this number.
        self._count: Final = count
        self._rows: Final[dict[int, list[Rows]]] = {}

    def add(self, receiver: int, rows: Rows) -> None:
        """Add rows, all different, that go to a receiver. Rows that it has already are ignored."""
        self._rows.setdefault(receiver, []).append(rows)

    def add_pairs(self, pairs: list[tuple[int, int]]) -> None:
        """Add pairs of a row and the number of a receiver to which the row goes."""
        if not pairs:
            return
        rows, receivers = np.array(pairs, np.int64).T
        order = np.argsort(receivers, kind="stable")
        distinct_receivers, begins = np.unique(receivers[order], return_index=True)
        for receiver, part in zip(
            distinct_receivers.tolist(), np.split(rows[order], begins[1:]), strict=True
        ):
            self.add(receiver, part)

    def pairs(self) -> tuple[Rows, Rows]:
        """Return each pair (row, receiver) once."""
        once = {receiver: self._once(lists) for receiver, lists in self._rows.items()}
        return _joined([(rows, np.full(len(rows), receiver)) for receiver, rows in once.items()])

    def _once(self, lists: list[Rows]) -> Rows:
        if len(lists) == 1:
            return lists[0]
        total = sum(map(len, lists))
        if total * 16 < self._count:
            return np.unique(np.concatenate(lists))
        # If there are many rows, marking them takes less time than sorting them.
        marked = np.zeros(self._count, bool)
        for rows in lists:
            marked[rows] = True
        return np.nonzero(marked)[0]


def _whole(column: Any) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


class BatchRouter:
    """Computes the destinations of topics in one virtual host of a definitions file."""

    def __init__(self, host: DefinedHost) -> None:
        self._host = host
        #: The names of all queues and sessions; `Routed.receivers` has indexes in this list.
        self.names: Final = host.receivers
        self._numbers: Final = {name: number for number, name in enumerate(self.names)}
        self._batches: dict[str, list[tuple[list[BoundQueue], Batch]]] = {}

    def route(
        self,
        exchange: str,
        topics: list[str],
        parts: TopicParts | None = None,
    ) -> Routed:
        """Return the destinations of topics published to this exchange.

        With `parts`, a row of the result is a part of a topic's messages instead of a topic, and is
        routed by the bindings of the part's period. Raises PipelineError if the exchange does not
        exist.
        """
        if exchange not in self._host.types:
            raise PipelineError(f"the definitions have no exchange '{exchange}'")
        if parts is None:
            every = np.arange(len(topics))
            parts = TopicParts(every, None, None)
        codes, periods = parts.topics, parts.periods
        routed = Routed(len(codes))
        bindings: list[tuple[Rows, Rows]] = []
        receivers = _RowsOfReceivers(len(codes))
        seen: dict[str, NDArray[np.bool_]] = {}
        ahead = [(exchange, np.arange(len(codes)))]
        while ahead:
            name, rows = ahead.pop()
            routed_before = seen.setdefault(name, np.zeros(len(codes), bool))
            rows = rows[~routed_before[rows]]
            routed_before[rows] = True
            if not len(rows) or name not in self._host.types:
                continue
            if name == "":
                pairs = [
                    (row, number)
                    for row in rows.tolist()
                    if (number := self._numbers.get(topics[codes[row]])) is not None
                    and (
                        periods is None
                        or existing(
                            self._host.lifetimes.get(topics[codes[row]], ()), periods[row : row + 1]
                        )[0]
                    )
                ]
                receivers.add_pairs(pairs)
                continue
            if self._host.types[name] not in BY_NAME:
                routed.unknown[rows] = True
                continue
            hit = np.zeros(len(codes), bool)
            group = _RowsOfTopics(rows, codes)
            for bound, matched in self._matched(name, [topics[code] for code in group.codes]):
                which = group.rows(matched)
                if periods is not None and bound.lifetimes:
                    which = which[existing(bound.lifetimes, periods[which])]
                hit[which] = True
                if bound.kind == "session":
                    which = which[
                        [
                            representable(topics[codes[row]])
                            and _receives(bound, topics[codes[row]], parts.publisher(row))
                            for row in which.tolist()
                        ]
                    ]
                bindings.append((which, np.full(len(which), bound.number)))
                if bound.to_exchange:
                    ahead.append((bound.destination, which))
                else:
                    receivers.add(self._numbers[bound.receiver], which)
            alternate = self._host.alternates.get(name)
            if alternate is not None:
                ahead.append((alternate, rows[~hit[rows]]))
        # A binding belongs to one exchange, which routes each row once, so no pair occurs twice.
        routed.bindings, routed.receivers = _joined(bindings), receivers.pairs()
        return routed

    def _matched(self, exchange: str, topics: list[str]) -> Iterator[tuple[BoundQueue, Rows]]:
        """Iterate over the bindings of the exchange that match a topic.

        Each binding comes with the indexes of the topics that it matches.
        """
        outgoing = self._host.outgoing.get(exchange, [])
        kind = self._host.types[exchange]
        if not outgoing:
            return
        if kind == "fanout":
            for bound in outgoing:
                yield bound, np.arange(len(topics))
            return
        if kind == "direct":
            keys: dict[str, list[int]] = {}
            for at, topic in enumerate(topics):
                keys.setdefault(topic, []).append(at)
            for bound in outgoing:
                if bound.key in keys:
                    yield bound, np.array(keys[bound.key], np.int64)
            return
        batches = self._batches.get(exchange)
        if batches is None:
            batches = self._batches[exchange] = [
                (group, Batch([bound.key for bound in group], grammar))
                for grammar in (AMQP, MQTT)
                if (group := [bound for bound in outgoing if bound.grammar == grammar.name])
            ]
        for group, batch in batches:
            matches = batch.match(
                topics if group[0].grammar == AMQP.name else [swap(topic) for topic in topics]
            )
            rows, numbers = (
                np.frombuffer(matches.topics, np.int64),
                np.frombuffer(matches.patterns, np.int64),
            )
            if not len(rows):
                continue
            order = np.argsort(numbers, kind="stable")
            rows, numbers = rows[order], numbers[order]
            hit, begins = np.unique(numbers, return_index=True)
            for number, part in zip(hit.tolist(), np.split(rows, begins[1:]), strict=True):
                yield group[number], part


@dataclass(frozen=True)
class RoutedGroup:
    """The destinations of the topics that were published to one exchange.

    `rows` has the indexes of these topics in the batch. `names` are the queues and sessions that
    can be reached. `routed` has pairs of a topic k and a destination m: k stands for the topic at
    index `rows[k]` of the batch, and m for `names[m]`. `missing` is True if the definitions lack
    the exchange.
    """

    vhost: str
    rows: Rows
    routed: Routed
    names: list[str]
    missing: bool


class BatchRouters:
    """Computes the destinations of topics in all virtual hosts of a definitions file."""

    def __init__(self, hosts: Mapping[str, DefinedHost]) -> None:
        self._hosts: Final = hosts
        self._routers: Final[dict[str, BatchRouter]] = {}

    def groups(self, batch: pa.RecordBatch | pa.Table) -> Iterator[RoutedGroup]:
        """Iterate over the topics of a batch, grouped by virtual host and exchange.

        The batch has the columns vhost, exchange and topic. If it has the columns PERIOD and
        PUBLISHER, each part of a topic's messages is routed by the bindings of the part's period.
        """
        for vhost, exchange, rows in _by_exchange(batch):
            host = self._hosts.get(vhost)
            if host is None or exchange not in host.types:
                yield RoutedGroup(vhost, rows, Routed(len(rows)), [], True)
                continue
            router = self._routers.get(vhost) or self._routers.setdefault(vhost, BatchRouter(host))
            taken = pa.array(rows)
            topics, parts = batch.column("topic").take(taken), None
            if PERIOD in batch.schema.names:
                topics, parts = TopicParts.of(
                    topics, batch.column(PERIOD).take(taken), batch.column(PUBLISHER).take(taken)
                )
            routed = router.route(exchange, topics.to_pylist(), parts)
            yield RoutedGroup(vhost, rows, routed, router.names, False)


def _by_exchange(batch: pa.RecordBatch | pa.Table) -> Iterator[tuple[str, str, Rows]]:
    """Iterate over the exchanges of a batch: (vhost, exchange, indexes of the exchange's rows)."""
    if not batch.num_rows:
        return
    codes, names = [], []
    for column in ("vhost", "exchange"):
        values = batch.column(column)
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        encoded = values.dictionary_encode()
        codes.append(encoded.indices.to_numpy().astype(np.int64))
        names.append(encoded.dictionary.to_pylist())
    both = codes[0] * len(names[1]) + codes[1]
    order = np.argsort(both, kind="stable")
    groups, begins = np.unique(both[order], return_index=True)
    for group, rows in zip(groups.tolist(), np.split(order, begins[1:]), strict=True):
        vhost, exchange = divmod(group, len(names[1]))
        yield names[0][vhost], names[1][exchange], rows


def existing(lifetimes: tuple[int, ...], periods: Rows) -> NDArray[np.bool_]:
    """Return an array with True for each period in which a binding with `lifetimes` exists."""
    if not lifetimes:
        return np.ones(len(periods), bool)
    exists: NDArray[np.bool_] = np.searchsorted(np.array(lifetimes), periods, side="right") % 2 == 1
    return exists


def _receives(bound: BoundQueue, topic: str, publisher: str) -> bool:
    """True if a session receives a message that matches its subscription `bound`.

    The scope of the subscription may exclude the message's topic or publisher.
    """
    scope = bound.scope
    return scope is None or (
        scope.allows(swap(topic)) and (scope.not_of is None or scope.not_of != publisher)
    )


@lru_cache(maxsize=100_000)
def representable(topic: str) -> bool:
    """True if MQTT can represent this topic of a journal and clients may receive it."""
    name = swap(topic)
    try:
        MQTT.check_topic(name)
    except InvalidTopic:
        return False
    return name.partition("/")[0] not in _RESERVED


def _joined(parts: list[tuple[Rows, Rows]]) -> tuple[Rows, Rows]:
    """Return the pairs (row, value) in all `parts`."""
    if not parts:
        return _NONE, _NONE
    rows, values = (np.concatenate(column) for column in zip(*parts, strict=True))
    return rows, values
