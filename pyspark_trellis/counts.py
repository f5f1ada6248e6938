"""Sums of published messages by topic, computed on Arrow tables.

    vhost, exchange, topic     each combination once
    messages, size             number, and bytes of bodies
    fanout                     copies delivered to queues and sessions
    unroutable                 messages that reached no queue
    first_at, last_at          event time

The event time is the publisher's `timestamp`; if the message has none, it is the time at which the
broker received the message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pyspark_trellis.periods import RowSplits

KEYS: Final = ("vhost", "exchange", "topic")
#: The columns that divide the messages of a topic by time and publisher (`RowSplits`).
PERIOD: Final = "period"
PUBLISHER: Final = "publisher"
SPLIT_KEYS: Final = (*KEYS, PERIOD, PUBLISHER)
COUNTS: Final = ("messages", "size", "fanout", "unroutable")
#: The columns of a journal from which the sums are computed.
NEEDED: Final = (
    "offset",
    "published_at",
    "vhost",
    "exchange",
    "topic",
    "publisher",
    "routed",
    "size",
    "timestamp",
)
#: A list of partial sums is added up when it has this many rows.
_ADDED_ABOVE: Final = 200_000
#: The limit in place of _ADDED_ABOVE if rows are divided by period, because adding up then saves
#: few rows.
_DIVIDED_ABOVE: Final = 1_000_000
#: If there are at most this many possible combinations of keys for each row, all combinations get
#: memory for their sums. Otherwise, only the combinations that occur, which sorting finds, get it.
_SPARSE: Final = 4
#: The largest integer that may stand for a combination of keys.
_MOST_CODES: Final = 1 << 62


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
    """Partial sums of journal rows by the columns `keys`, which may include `minute`.

    Sums with equal keys are added up when there are more than _ADDED_ABOVE rows (_DIVIDED_ABOVE for
    keys with PERIOD), so the memory grows with the number of different keys, not with the number of
    messages. With PERIOD, text columns are dictionary-encoded.
    """

    def __init__(self, *keys: str) -> None:
        self._keys: Final = keys
        self._divided: Final = PERIOD in keys
        self._sums: list[pa.Table] = []
        self._rows = 0

    def add(self, batch: pa.RecordBatch | pa.Table, splits: RowSplits | None = None) -> None:
        """Add the rows of a journal, which have the columns NEEDED.

        If the keys contain PERIOD and PUBLISHER, `splits` says how to divide the rows.
        """
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
        if not self._divided:
            self.add_sums(added(pa.table(columns), *self._keys))
            return
        columns |= split_columns(batch, "published_at", splits or RowSplits())
        for name in (*KEYS, PUBLISHER):
            texts = columns[name]
            # Arrow would encode each chunk with another dictionary, so the chunks are combined
            # first.
            whole = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
            columns[name] = whole.dictionary_encode()
        self.add_sums(pa.table(columns))

    def add_sums(self, sums: pa.Table) -> None:
        """Add a table of sums, in the form that `table` returns."""
        self._sums.append(sums)
        self._rows += sums.num_rows
        if self._rows > (_DIVIDED_ABOVE if self._divided else _ADDED_ABOVE):
            self._sums = [added(pa.concat_tables(self._sums), *self._keys)]
            # If all topics differ, adding does not reduce the rows: do not try again at once.
            self._rows = self._sums[0].num_rows // 2

    def table(self) -> pa.Table | None:
        """Return one row for each combination of keys; None if no rows were added."""
        if not self._sums:
            return None
        self._sums = [added(pa.concat_tables(self._sums), *self._keys)]
        return self._sums[0]


def split_columns(
    batch: pa.RecordBatch | pa.Table, time: str, splits: RowSplits
) -> dict[str, pa.Array]:
    """Return the columns PERIOD and PUBLISHER of rows. `time` is the column with their times.

    PUBLISHER is "" for each publisher that is not in `splits.users`.
    """
    periods = pa.array(splits.periods.numbers(batch.column(time)), pa.int32())
    if not splits.users or "publisher" not in batch.schema.names:
        return {PERIOD: periods, PUBLISHER: pa.repeat(pa.scalar("", pa.string()), batch.num_rows)}
    publishers = batch.column("publisher")
    named = pc.is_in(publishers, pa.array(sorted(splits.users), pa.string()))
    return {PERIOD: periods, PUBLISHER: pc.if_else(named, publishers, "")}


def added(table: pa.Table, *keys: str) -> pa.Table:
    """Return the sums of the rows with equal values in the columns `keys`.

    Text columns that are dictionary-encoded remain so in the result.
    """
    if any(pa.types.is_dictionary(table.schema.field(name).type) for name in keys):
        codes = KeyCodes(table, keys)
        if codes.numbers is not None:
            return codes.sums(table)
        table = decoded(table)
    grouped = table.group_by(list(keys)).aggregate(
        [(name, "sum") for name in COUNTS] + [("first_at", "min"), ("last_at", "max")]
    )
    names = [
        *((name, name) for name in keys),
        *((name, f"{name}_sum") for name in COUNTS),
        ("first_at", "first_at_min"),
        ("last_at", "last_at_max"),
    ]
    return pa.table({name: grouped.column(column) for name, column in names})


class KeyCodes:
    """The combinations of keys in a table's rows, as one integer for each row.

    Adding up rows by these integers takes a third of the time that Arrow takes to group rows by
    texts.
    """

    def __init__(self, table: pa.Table, keys: Sequence[str]) -> None:
        """Compute the integer of each row from its values in the columns `keys`."""
        self._keys: Final = keys
        self._values: Final[list[pa.Array]] = []
        #: The integer of each row; None if there are too many combinations.
        self.numbers: NDArray[np.int64] | None = None
        self._size = 1
        numbers = np.zeros(table.num_rows, np.int64)
        for column in table.select(list(keys)).unify_dictionaries().itercolumns():
            encoded = column.combine_chunks()
            if not pa.types.is_dictionary(encoded.type):
                encoded = encoded.dictionary_encode()
            size = max(len(encoded.dictionary), 1)
            self._size *= size
            if self._size > _MOST_CODES:
                return
            self._values.append(encoded.dictionary)
            numbers *= size
            numbers += encoded.indices.to_numpy(zero_copy_only=False)
        self.numbers = numbers

    def sums(self, table: pa.Table) -> pa.Table:
        """Return the sums of the rows with equal keys."""
        numbers, size = self.numbers, self._size
        assert numbers is not None
        there: NDArray[np.int64] | None = None
        if size > _SPARSE * (table.num_rows + 1):
            there, numbers = np.unique(numbers, return_inverse=True)
            size = len(there)
        known = np.zeros(size, bool)
        known[numbers] = True
        columns = self._columns(np.nonzero(known)[0] if there is None else there)
        for name in COUNTS:
            total = np.zeros(size, np.int64)
            np.add.at(total, numbers, table.column(name).to_numpy())
            columns[name] = pa.array(total[known])
        for name, ufunc, start in (
            ("first_at", np.minimum, np.iinfo(np.int64).max),
            ("last_at", np.maximum, np.iinfo(np.int64).min),
        ):
            kind = table.schema.field(name).type
            times = np.full(size, start)
            ufunc.at(times, numbers, pc.cast(table.column(name), pa.int64()).to_numpy())
            columns[name] = pc.cast(pa.array(times[known]), kind)
        return pa.table(columns)

    def _columns(self, numbers: NDArray[np.int64]) -> dict[str, pa.Array]:
        """Return the keys for which these integers stand, with dictionary-encoded texts."""
        columns: dict[str, pa.Array] = {}
        for name, values in zip(reversed(self._keys), reversed(self._values), strict=True):
            numbers, codes = np.divmod(numbers, max(len(values), 1))
            indices = pa.array(codes.astype(np.int32))
            if pa.types.is_string(values.type):
                columns[name] = pa.DictionaryArray.from_arrays(indices, values)
            else:
                columns[name] = values.take(indices)
        return {name: columns[name] for name in self._keys}


def decoded(table: pa.Table) -> pa.Table:
    """Return the table with plain text columns in place of dictionary-encoded ones."""
    for number, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            texts = pc.cast(table.column(number), field.type.value_type)
            table = table.set_column(number, field.name, texts)
    return table


def partial(
    batches: Iterator[pa.RecordBatch], splits: RowSplits | None = None
) -> Iterator[pa.RecordBatch]:
    """Iterate over the sums of one task's journal rows by minute, vhost, exchange and topic.

    With `splits`, the rows are divided by PERIOD and PUBLISHER, too. The same minute and topic may
    occur in several tasks: `history.summed` adds up the tasks' sums.
    """
    sums = TopicSums("minute", *(KEYS if splits is None else SPLIT_KEYS))
    for each in batches:
        sums.add(each, splits)
    table = sums.table()
    if table is not None:
        yield from decoded(table).to_batches()


def instant(micros: int | None) -> datetime | None:
    """Return the time that is `micros` microseconds after 1970; None for None."""
    return (
        None
        if micros is None
        else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)
    )
