"""`trellis ask traffic` and `trellis ask unroutable`: published messages, and messages that reached
no queue, as the journal recorded them.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_trellis.arrow_topics import ArrowTopics
from pyspark_trellis.counts import COUNTS, KEYS, Span, added
from pyspark_trellis.definitions import DefinitionsFile
from pyspark_trellis.nearest import NearestBindings
from pyspark_trellis.routing import BatchRouters
from pyspark_trellis.topics import MOST

#: The columns that identify a row of the answer to `traffic`, for each value of --by.
GROUPS: Final = {
    "topic": KEYS,
    "exchange": ("vhost", "exchange"),
    "vhost": ("vhost",),
    "minute": ("minute",),
    "hour": ("hour",),
    "day": ("day",),
}
#: The values of --by that are units of time.
TIMES: Final = ("minute", "hour", "day")


@dataclass(frozen=True)
class TrafficRow:
    """The numbers of messages and bytes of one topic, exchange, virtual host or unit of time.

    `name` has the values of the columns that identify the row (GROUPS).
    """

    name: tuple[str | datetime, ...]
    messages: int
    size: int
    fanout: int
    unroutable: int


@dataclass(frozen=True)
class TrafficTable:
    """The numbers of published messages by topic, exchange, virtual host or unit of time.

    `by` names the kind of group (a key of GROUPS). Groups by time are in the order of time; other
    groups are in descending order of messages.
    """

    span: Span
    by: str
    rows: list[TrafficRow]

    def document(self) -> dict[str, object]:
        """Return the table as a JSON document: each row has its columns by name."""
        names = GROUPS[self.by]
        rows = [
            dict(zip(names, row.name, strict=True))
            | {count: getattr(row, count) for count in COUNTS}
            for row in self.rows
        ]
        return {"span": self.span, "by": self.by, "rows": rows}


def traffic_table(sums: pa.Table, by: str) -> TrafficTable:
    """Return the numbers of published messages, grouped by one of the keys of GROUPS."""
    names = GROUPS[by]
    if by in ("hour", "day"):
        sums = sums.append_column(by, pc.floor_temporal(sums.column("minute"), unit=by))
    table = added(sums, *names).select([*names, *COUNTS])
    order = [] if by in TIMES else [("messages", "descending")]
    table = table.sort_by([*order, *((name, "ascending") for name in names)])
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    return TrafficTable(
        ArrowTopics(sums).span(),
        by,
        [TrafficRow(row[: len(names)], *row[len(names) :]) for row in rows],
    )


@dataclass(frozen=True)
class UnroutableTopic:
    """A topic with messages that reached no queue when they were published.

    `messages` is the number of all messages of the topic, `unroutable` the number of its messages
    that reached no queue.

    `now` says where a message would go by the bindings that the command knows: "queue" (a queue or
    a session), "nowhere", or "unknown" if its destinations depend on more than the topic. `now` is
    None if the command knows no bindings.

    `nearest` is the key of the exchange's binding that is most similar to the topic. `words` is the
    number of words in which this key and the topic differ.
    """

    vhost: str
    exchange: str
    topic: str
    messages: int
    unroutable: int
    now: str | None = None
    nearest: str | None = None
    words: int = 0


@dataclass(frozen=True)
class UnroutableTopics:
    """The topics with messages that reached no queue, the topic with the most such messages first.

    `unroutable` is the number of these messages, and `topics` the number of these topics. `rows`
    has at most MOST topics.
    """

    span: Span
    unroutable: int
    topics: int
    rows: list[UnroutableTopic]


def unroutable_topics(sums: pa.Table, definitions: DefinitionsFile | None) -> UnroutableTopics:
    """Return the topics with messages that reached no queue according to the journal."""
    published = ArrowTopics(sums)
    lost = published.table.filter(pc.greater(published.table.column("unroutable"), 0))
    total = pc.sum(lost.column("unroutable")).as_py() or 0
    count = lost.num_rows
    order = [("unroutable", "descending"), *((name, "ascending") for name in KEYS)]
    lost = lost.sort_by(order).slice(0, MOST).combine_chunks()
    columns = [lost.column(name).to_pylist() for name in (*KEYS, "messages", "unroutable")]
    rows = [UnroutableTopic(*row) for row in zip(*columns, strict=True)]
    if definitions is not None:
        now = _present_verdicts(lost, definitions)
        nearest = NearestBindings(definitions)
        rows = [
            UnroutableTopic(
                row.vhost,
                row.exchange,
                row.topic,
                row.messages,
                row.unroutable,
                where,
                *nearest.key(row.vhost, row.exchange, row.topic),
            )
            for row, where in zip(rows, now, strict=True)
        ]
    return UnroutableTopics(published.span(), total, count, rows)


def _present_verdicts(topics: pa.Table, definitions: DefinitionsFile) -> list[str]:
    """Return for each topic where a message would go now: "queue", "nowhere" or "unknown"."""
    verdicts = np.full(topics.num_rows, "nowhere", object)
    for group in BatchRouters(definitions.hosts).groups(topics):
        verdicts[group.rows[group.routed.unknown]] = "unknown"
        verdicts[group.rows[group.routed.receivers[0]]] = "queue"
    return [str(each) for each in verdicts]
