"""`format("trellis")`: reads a journal as a table, in batch and streaming queries, and gives Spark
the sink.

    spark.read.format("trellis").option("pattern", "stock.#").load(path)
    spark.readStream.format("trellis").option("maxRowsPerTrigger", 100_000).load(path)

A schema that the query sets is a projection: `.schema("offset long, topic string")` reads only two
columns. Rows are passed as Arrow batches. The broker does not know how far a query has read: the
position is in the query's own checkpoint, so the query reads each row exactly once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from pyspark_trellis import credentials, offsets
from pyspark_trellis.columns import COLUMNS, DDL
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import ROWS_PER_TASK, JournalStream, Piece
from pyspark_trellis.rows import SelectedRows, stream_of

#: The options of a source, in their usual spelling.
OPTIONS: Final = (
    "path",
    "startingOffsets",
    "endingOffsets",
    "pattern",
    "grammar",
    "maxRowsPerTrigger",
    "rowsPerTask",
    "pushdown",
    "stream",
    "verify",
    *credentials.OPTIONS,
)


#: The names of types in the texts of a schema, where they differ from those in DDL.
_SIMPLE: Final = {"long": "bigint", "short": "smallint"}


@dataclass
class JournalTask(InputPartition):
    """The piece of a journal that one task reads, as Spark's partition."""

    piece: Piece


class JournalRows:
    """The conversion of a piece's rows to Spark's batches. Spark sends the object, pickled, to the
    tasks, which convert the rows.
    """

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self.selected: Final = SelectedRows(arrow_schema(schema), options)

    def of(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Return the rows of a task's partition.

        If there are no partitions, Spark calls this method once with None, and gets no rows.
        """
        if isinstance(partition, JournalTask):
            return self.selected.batches(partition.piece)
        return iter(())


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema of batches for this projection.

    Raises PipelineError for a column that a journal does not have.
    """
    for field in schema.fields:
        kind = COLUMNS.get(field.name)
        if kind is None:
            near = get_close_matches(field.name, COLUMNS, n=1, cutoff=0)[0]
            raise PipelineError(f"a journal has no column '{field.name}'; the nearest is '{near}'")
        wanted = _SIMPLE.get(kind, kind)
        if field.dataType.simpleString() != wanted:
            raise PipelineError(
                f"column '{field.name}' of a journal is {kind}, not "
                f"{field.dataType.simpleString()}; "
                f"ask for it as {kind} and cast it afterwards"
            )
    return to_arrow_schema(schema, timezone="UTC")


class JournalReader(DataSourceReader):
    """A batch query over a journal, between two offsets."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._rows: Final = JournalRows(schema, options)
        self._options: Final = options
        self._low = 0
        self._high = (1 << 63) - 1

    def partitions(self) -> Sequence[InputPartition]:
        """Divide the offsets of the query into partitions, one for each task."""
        stream = stream_of(self._options)
        bounds = stream.bounds()
        low = max(
            offsets.starting(
                self._options.get("startingoffsets", offsets.EARLIEST), bounds, stream.name
            ),
            self._low,
        )
        high = min(
            offsets.ending(self._options.get("endingoffsets", offsets.LATEST), bounds, stream.name),
            self._high,
        )
        rows = offsets.number(self._options, "rowsPerTask", ROWS_PER_TASK)
        return (
            [JournalTask(piece) for piece in stream.pieces(low, high, max(rows, 1))]
            if low < high
            else []
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return self._rows.of(partition)


class PushingReader(JournalReader):
    """A batch query that applies conditions on `offset` and `topic` while reading.

    If spark.sql.python.filterPushdown.enabled is not set, Spark refuses a reader with
    `pushFilters`. So this class is used only if the option `pushdown` is true.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Keep the conditions on offset and topic, which this reader applies.

        Return the other conditions, which Spark applies.
        """
        for each in filters:
            if (
                isinstance(each, EqualTo)
                and each.attribute == ("topic",)
                and self._rows.selected.topic is None
            ):
                self._rows.selected.topic = each.value
            elif isinstance(each, GreaterThanOrEqual) and each.attribute == ("offset",):
                self._low = max(self._low, each.value)
            elif isinstance(each, GreaterThan) and each.attribute == ("offset",):
                self._low = max(self._low, each.value + 1)
            elif isinstance(each, LessThan) and each.attribute == ("offset",):
                self._high = min(self._high, each.value)
            elif isinstance(each, LessThanOrEqual) and each.attribute == ("offset",):
                self._high = min(self._high, each.value + 1)
            else:
                yield each


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A streaming query over a growing journal."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._rows: Final = JournalRows(schema, options)
        self._options: Final = options
        self._most: Final = offsets.number(options, "maxRowsPerTrigger", 0)
        self._per_task: Final = max(offsets.number(options, "rowsPerTask", ROWS_PER_TASK), 1)
        self._stream: JournalStream | None = None
        #: The offset at which Trigger.AvailableNow stops.
        self._target: int | None = None
        if "endingoffsets" in options:
            raise PipelineError(
                "a streaming query has no end: endingOffsets is for spark.read only"
            )

    def __getstate__(self) -> dict[str, Any]:
        # Tasks do not use the stream, so it is not sent to them.
        return self.__dict__ | {"_stream": None}

    @property
    def stream(self) -> JournalStream:
        """The stream that the options name. The object is created at the first use."""
        if self._stream is None:
            self._stream = stream_of(self._options)
        return self._stream

    def initialOffset(self) -> dict[str, int]:
        """Return the position at which a new query starts: the first offset and the epoch."""
        bounds = self.stream.bounds()
        first = offsets.starting(
            self._options.get("startingoffsets", offsets.EARLIEST), bounds, self.stream.name
        )
        return {"next": first, "epoch": bounds.epoch}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the maximum number of rows per batch (option maxRowsPerTrigger)."""
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the position at the end of the next batch; `start` if there are no new rows."""
        bounds = self.stream.bounds()
        offsets.remembered(start, self.stream, bounds)
        end = bounds.next if self._target is None else min(self._target, bounds.next)
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["next"] + limit.max_rows)
        if end <= start["next"]:
            return start  # A new epoch without new rows needs no batch.
        return {"next": end, "epoch": bounds.epoch}

    def prepareForTriggerAvailableNow(self) -> None:
        """Make the query stop at the present end of the journal."""
        self._target = self.stream.bounds().next

    def reportLatestOffset(self) -> dict[str, int]:
        """Return the end of the journal, for progress reports."""
        bounds = self.stream.bounds()
        return {"next": bounds.next, "epoch": bounds.epoch}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Divide the offsets of one batch into partitions, one for each task."""
        return [
            JournalTask(piece)
            for piece in self.stream.pieces(start["next"], end["next"], self._per_task)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Return the rows of a partition."""
        return self._rows.of(partition)


class DefaultSource(DataSource):
    """The data source "trellis", which PySpark finds by its name in this package."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "trellis"

    def schema(self) -> str:
        """Return the schema of a journal with all columns, in Spark's DDL."""
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return the reader of a batch query."""
        options = self._read()
        return (PushingReader if offsets.switch(options, "pushdown", False) else JournalReader)(
            schema, options
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader of a streaming query."""
        return JournalStreamReader(schema, self._read())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of a streaming query."""
        from pyspark_trellis.sink import StreamWriter

        return StreamWriter(schema, {name.lower(): value for name, value in self.options.items()})

    def _read(self) -> dict[str, str]:
        options = {name.lower(): value for name, value in self.options.items()}
        known = {name.lower(): name for name in OPTIONS}
        for name in options:
            if name not in known:
                raise PipelineError(
                    f"format(\"trellis\") has no option '{name}'; the options are "
                    f"{', '.join(OPTIONS)}"
                )
        return options
