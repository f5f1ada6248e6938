"""`format("trellis")`: reads journals as a table, in batch and streaming queries, and gives Spark
the sink.

    spark.read.format("trellis").option("pattern", "stock.#").load(path)
    spark.readStream.format("trellis").option("maxRowsPerTrigger", 100_000).load(path)

A schema that the query sets is a projection: `.schema("offset long, topic string")` reads only two
columns. Rows are passed as Arrow batches. The broker does not know how far a query has read: the
position is in the query's own checkpoint, so the query reads each row exactly once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    Filter,
    InputPartition,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_trellis import offsets, query_lag
from pyspark_trellis.columns import DDL, DDL_OF_SEVERAL, check_column
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import ROWS_PER_TASK, JournalStream, OffsetRange, Piece
from pyspark_trellis.journals import QueryJournals
from pyspark_trellis.offsets import Position
from pyspark_trellis.options import READING, known
from pyspark_trellis.pushdown import PushedConditions, PushFilters
from pyspark_trellis.rows import SelectedRows
from pyspark_trellis.trigger import OffsetSpan, shares, tasks_of

#: The names of types in the texts of a schema, where they differ from the names in DDL.
_SIMPLE: Final = {"long": "bigint", "short": "smallint"}
_LOG: Final = logging.getLogger("pyspark_trellis")


@dataclass
class JournalTask(InputPartition):
    """The pieces of journals that one task reads, as Spark's partition."""

    pieces: tuple[Piece, ...]


class JournalRows:
    """The conversion of a task's rows to Spark's batches. Spark sends the object, pickled, to the
    tasks, which convert the rows.
    """

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self.selected: Final = SelectedRows(arrow_schema(schema), options)

    def of(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Iterate over the rows of a task's partition.

        If there are no partitions, Spark calls this method once with None, and gets no rows.
        """
        if not isinstance(partition, JournalTask):
            return
        for piece in partition.pieces:
            yield from self.selected.batches(piece)


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of batches for this projection.

    Raises PipelineError for a column that a journal does not have.
    """
    for field in schema.fields:
        kind = check_column(field.name)
        wanted = _SIMPLE.get(kind, kind)
        if field.dataType.simpleString() != wanted:
            raise PipelineError(
                f"column '{field.name}' of a journal has the type {kind}, but the query's schema "
                f"has {field.dataType.simpleString()}: use {kind} in the schema, and cast the "
                "column afterwards"
            )
    return to_arrow_schema(schema, timezone="UTC")


class JournalReader(DataSourceReader):
    """A batch query over journals, between a first and a last offset in each journal."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._rows: Final = JournalRows(schema, options)
        self._options: Final = options
        self._conditions: Final = PushedConditions()
        self._pushed: Final = offsets.switch(options, "pushdown", True)

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:
        """The method that Spark calls to push conditions down into this reader."""
        if not self._pushed:
            return super().pushFilters
        return PushFilters(self._conditions, self._rows.selected)

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the rows of the query into partitions, one for each task."""
        streams = QueryJournals(self._options).streams()
        low = offsets.first_offsets(self._options, streams)
        high = offsets.last_offsets(self._options, streams)
        spans = {
            name: self._conditions.within(stream, OffsetSpan(low[name], high[name]))
            for name, stream in streams.items()
        }
        return _partitions(streams, spans, self._options, self._rows.selected)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return self._rows.of(partition)


def _partitions(
    streams: dict[str, JournalStream],
    spans: dict[str, OffsetSpan],
    options: dict[str, str],
    selected: SelectedRows,
) -> list[JournalTask]:
    rows = offsets.number(options, "rowsPerTask", ROWS_PER_TASK, least=1)
    least = offsets.number(options, "minPartitions", 1)
    whole = offsets.switch(options, "failOnDataLoss", True)
    tasks = tasks_of(streams, spans, rows, least, whole, selected.condition)
    return [JournalTask(task) for task in tasks]


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query over growing journals."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._rows: Final = JournalRows(schema, options)
        self._options: Final = options
        self._most_rows: Final = offsets.number(options, "maxRowsPerTrigger", 0)
        self._most_bytes: Final = offsets.number(options, "maxBytesPerTrigger", 0)
        self._whole: Final = offsets.switch(options, "failOnDataLoss", True)
        self._journals: QueryJournals | None = None
        #: The offset in each journal at which Trigger.AvailableNow stops.
        self._targets: dict[str, int] | None = None
        #: For each journal: the end of the last planned batch, and the range of offsets that the
        #: journal had when this batch was planned.
        self._planned: dict[str, tuple[int, OffsetRange]] = {}
        for name in ("endingOffsets", "endingTimestamp"):
            if name.lower() in options:
                raise PipelineError(
                    f"option {name} is for spark.read only: remove it, because a streaming query "
                    "has no end"
                )

    def __getstate__(self) -> dict[str, Any]:
        # Tasks do not use the journals, so they are not sent to the tasks.
        return self.__dict__ | {"_journals": None}

    @property
    def journals(self) -> QueryJournals:
        """The journals that the options name. The object is created at the first use."""
        if self._journals is None:
            self._journals = QueryJournals(self._options)
        return self._journals

    def initialOffset(self) -> dict[str, Any]:
        """Return the position at which a new query starts: the offset and epoch in each journal."""
        streams = self.journals.streams()
        first = offsets.first_offsets(self._options, streams)
        return self._document(
            {name: Position(first[name], stream.bounds().epoch) for name, stream in streams.items()}
        )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit of a batch: maxRowsPerTrigger, or if absent maxBytesPerTrigger.

        If both options are set, `latestOffset` also applies maxBytesPerTrigger. Without these
        options, a batch has no limit.
        """
        if self._most_rows:
            return ReadMaxRows(self._most_rows)
        return ReadMaxBytes(self._most_bytes) if self._most_bytes else ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the position at the end of the next batch; `start` if there are no new rows."""
        streams = self.journals.streams()
        positions = offsets.positions_of(start, streams)
        self._check_present(positions, streams)
        bounds = {name: stream.bounds() for name, stream in streams.items()}
        begins = {
            name: self._begin(positions.get(name), stream, bounds[name])
            for name, stream in streams.items()
        }
        backlog = {name: max(self._last(name, bounds[name]) - begins[name], 0) for name in streams}
        rows = self._limited(streams, begins, backlog, limit)
        ends = {}
        for name, count in rows.items():
            position, begin = positions.get(name), begins[name]
            if count:
                jumped = position is None or position.next != begin
                ends[name] = Position(begin + count, bounds[name].epoch, begin if jumped else None)
            elif position is not None:
                ends[name] = Position(position.next, position.epoch)
        self._planned = {name: (begins[name] + rows[name], bounds[name]) for name in streams}
        # A new epoch without new rows needs no batch.
        return self._document(ends) if any(rows.values()) else start

    def _check_present(
        self, positions: dict[str, Position], streams: dict[str, JournalStream]
    ) -> None:
        """Raise PipelineError if a journal that the query has read no longer exists, or its name no
        longer matches the option `journalPattern`.

        Do nothing if the query names its journals one by one, or if failOnDataLoss is false.
        """
        if not self._whole or "journalpattern" not in self._options:
            return
        for name in positions:
            if name not in streams:
                raise PipelineError(
                    f"journal '{name}', which this query has read, does not exist any more, or "
                    "does not match journalPattern: set failOnDataLoss=false to continue without "
                    "it, or start with a new checkpoint"
                )

    def _begin(self, position: Position | None, stream: JournalStream, bounds: OffsetRange) -> int:
        if position is None:  # The journal was declared, or added to the options, later.
            return bounds.first
        begin = offsets.resumed(position, stream, bounds, self._whole)
        if begin != position.next:
            _LOG.warning(
                "failOnDataLoss=false: %s: rows were lost; the query has read up to offset %d, and "
                "continues at offset %d",
                stream.name,
                position.next,
                begin,
            )
        return begin

    def _last(self, name: str, bounds: OffsetRange) -> int:
        if self._targets is None:
            return bounds.next
        return min(self._targets.get(name, bounds.first), bounds.next)

    def _limited(
        self,
        streams: dict[str, JournalStream],
        begins: dict[str, int],
        backlog: dict[str, int],
        limit: ReadLimit,
    ) -> dict[str, int]:
        """Return how many rows of each journal the next batch reads, at most its `backlog`.

        `begins` has the first offset of the batch in each journal.
        """
        if isinstance(limit, ReadAllAvailable):
            return backlog
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._most_rows
        rows = shares(backlog, most) if most else backlog
        if not self._most_bytes:
            return rows
        total = sum(rows.values()) or 1
        return {
            name: stream.end_within(
                begins[name], begins[name] + rows[name], self._most_bytes * rows[name] // total
            )
            - begins[name]
            if rows[name]
            else 0
            for name, stream in streams.items()
        }

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query stop at the present ends of the journals."""
        self._targets = {
            name: stream.bounds().next for name, stream in self.journals.streams().items()
        }

    def reportLatestOffset(self) -> dict[str, Any]:
        """Return the ends of the journals and the query's lag, for progress reports.

        Spark calls this method after `latestOffset`. The lag is the lag after the batch that
        `latestOffset` planned.
        """
        streams = self.journals.streams()
        positions: dict[str, dict[str, Any]] = {}
        for name, stream in streams.items():
            end, bounds = self._planned.get(name) or (None, stream.bounds())
            positions[name] = Position(bounds.next, bounds.epoch).document()
            if end is not None:
                positions[name] |= {
                    query_lag.ROWS: bounds.next - end,
                    query_lag.SECONDS: _age(stream, end) if bounds.next > end else 0.0,
                }
        if not self.journals.single:
            return positions
        [(name, position)] = positions.items()
        return position | {"journal": name}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Divide the rows of one batch into partitions, one for each task."""
        streams = self.journals.streams()
        begins = offsets.positions_of(start, streams)
        ends = offsets.positions_of(end, streams)
        self._check_present(ends, streams)
        spans = {}
        for name, position in ends.items():
            begin = position.begin if position.begin is not None else begins[name].next
            if name in streams and begin < position.next:
                spans[name] = OffsetSpan(begin, position.next)
        return _partitions(streams, spans, self._options, self._rows.selected)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return self._rows.of(partition)

    def _document(self, positions: dict[str, Position]) -> dict[str, Any]:
        return offsets.document_of(positions, self.journals.single)


def _age(stream: JournalStream, offset: int) -> float | None:
    """Return the age of a row in seconds; None if the row was removed meanwhile."""
    try:
        return round(max(time.time() - stream.time_of(offset) / 1e6, 0.0), 3)
    except (PipelineError, ValueError):
        return None


class DefaultSource(DataSource):
    """The data source "trellis", which PySpark finds by its name in this package."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "trellis"

    def schema(self) -> str:
        """Return the schema of a journal with all columns, in Spark's DDL.

        If the query reads several journals, the schema has the column `journal`.
        """
        return DDL if QueryJournals(self._read()).single else DDL_OF_SEVERAL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        return JournalReader(schema, self._read())

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return JournalStreamReader(schema, self._read())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        from pyspark_trellis.sink import StreamWriter

        return StreamWriter(schema, dict(self.options.items()))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a batch query."""
        from pyspark_trellis.sink import BatchWriter

        return BatchWriter(schema, dict(self.options.items()), overwrite)

    def _read(self) -> dict[str, str]:
        return known(dict(self.options.items()), READING)
