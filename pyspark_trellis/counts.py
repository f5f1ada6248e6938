"""Sums: the numbers of published messages by topic, as Arrow tables with these columns.

    vhost, exchange, topic     each combination once
    messages, size             number, and bytes of bodies
    fanout                     copies delivered to queues and sessions
    unroutable                 messages that reached no queue
    first_at, last_at          event time

The event time is the publisher's `timestamp`; if the message has none, it is the time at which the
broker received the message.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

KEYS: Final = ("vhost", "exchange", "topic")
COUNTS: Final = ("messages", "size", "fanout", "unroutable")
#: The columns of a journal from which the sums are computed.
NEEDED: Final = (
    "offset",
    "published_at",
    "vhost",
    "exchange",
    "topic",
    "routed",
    "size",
    "timestamp",
)
#: A list of partial sums is added up when it has this many rows.
_ADDED_ABOVE: Final = 200_000


class Span(NamedTuple):
    """The number of messages and topics in a history, and the times of its first and last
    message.
    """

    messages: int
    topics: int
    first: datetime | None
    last: datetime | None

    @property
    def seconds(self) -> float:
        """The duration from the first to the last message in seconds; at least 1, so that rates
        stay finite.
        """
        return (
            max((self.last - self.first).total_seconds(), 1.0)
            if self.first is not None and self.last is not None
            else 1.0
        )


class TopicSums:
    """The numbers of messages, bytes and copies in journal rows, summed by the columns `keys`.

    `keys` may include `minute`. The number of rows in memory is at most a multiple of the number of
    different keys.
    """

    def __init__(self, *keys: str) -> None:
        self._keys: Final = keys
        self._sums: list[pa.Table] = []
        self._rows = 0

    def add(self, batch: pa.RecordBatch | pa.Table) -> None:
        """Add the rows of a journal, which have the columns NEEDED."""
        at = pc.coalesce(batch.column("timestamp"), batch.column("published_at"))
        routed = batch.column("routed")
        columns = {name: batch.column(name) for name in KEYS} | {
            "messages": pa.repeat(pa.scalar(1, pa.int64()), batch.num_rows),
            "size": batch.column("size"),
            "fanout": pc.cast(routed, pa.int64()),
            "unroutable": pc.cast(pc.equal(routed, 0), pa.int64()),
            "first_at": at,
            "last_at": at,
        }
        if "minute" in self._keys:
            columns["minute"] = pc.floor_temporal(at, unit="minute")
        self.add_sums(added(pa.table(columns), *self._keys))

    def add_sums(self, sums: pa.Table) -> None:
        """Add a table of sums, with the columns that `table` returns."""
        self._sums.append(sums)
        self._rows += sums.num_rows
        if self._rows > _ADDED_ABOVE:
            self._sums = [added(pa.concat_tables(self._sums), *self._keys)]
            # If all topics differ, adding does not reduce the rows: do not try again at once.
            self._rows = self._sums[0].num_rows // 2

    def table(self) -> pa.Table | None:
        """Return the sums, one row for each combination of keys; None if no rows were added."""
        if not self._sums:
            return None
        self._sums = [added(pa.concat_tables(self._sums), *self._keys)]
        return self._sums[0]


def added(table: pa.Table, *keys: str) -> pa.Table:
    """Return a table with one row for each combination of values in the columns `keys`.

    The other columns are the sums of the rows in `table` with these values.
    """
    found = table.group_by(list(keys)).aggregate(
        [(name, "sum") for name in COUNTS] + [("first_at", "min"), ("last_at", "max")]
    )
    names = [
        *((name, name) for name in keys),
        *((name, f"{name}_sum") for name in COUNTS),
        ("first_at", "first_at_min"),
        ("last_at", "last_at_max"),
    ]
    return pa.table({name: found.column(column) for name, column in names})


def partial(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the sums of one task's journal rows by minute, vhost, exchange and topic.

    Several tasks may yield a row for the same minute and topic; `history.summed` adds up these
    rows.
    """
    sums = TopicSums("minute", *KEYS)
    for each in batches:
        sums.add(each)
    table = sums.table()
    if table is not None:
        yield from table.to_batches()


def instant(micros: int | None) -> datetime | None:
    """Return the time that is `micros` microseconds after 1970; None for None."""
    return (
        None
        if micros is None
        else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    )
