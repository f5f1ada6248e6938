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
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
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
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from matching.grammar import Grammar
from matching.trie import Trie
from pyspark_trellis import credentials, offsets
from pyspark_trellis.bulk import checked, grammar_of
from pyspark_trellis.columns import DDL, arrow_schema, conform
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import ROWS_PER_TASK, Directory, JournalStream, Piece

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


def stream_of(options: dict[str, str]) -> JournalStream:
    """Return the stream that the options name. Raises PipelineError."""
    path = options.get("path", "")
    if not path:
        raise PipelineError(
            "the query names no journal: use .load(<directory of the stream, or http://HOST:15672>)"
        )
    if path.startswith(("http://", "https://")):
        from pyspark_trellis.remote import Remote

        return Remote.of(path, options)
    return Directory(path.removeprefix("file://"))


@dataclass
class JournalTask(InputPartition):
    """The piece of a journal that one task reads, as Spark's partition."""

    piece: Piece


class JournalRows:
    """The conversion of a piece's rows to Spark's batches. Spark sends the object, pickled, to the
    tasks, which convert the rows.
    """

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self.wanted: Final[pa.Schema] = arrow_schema(schema)
        self.pattern: Final = options.get("pattern")
        self.grammar: Final = options.get("grammar", "amqp")
        self.verify: Final = offsets.switch(options, "verify", True)
        grammar = grammar_of(self.grammar)
        if self.pattern is not None:
            checked([self.pattern], grammar)
        #: If not None, only the rows with this topic are read.
        self.topic: str | None = None

    def of(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """Return the rows of a task's partition.

        If there are no partitions, Spark calls this method once with None.
        """
        return self._batches(partition.piece) if isinstance(partition, JournalTask) else iter(())

    def _batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        pattern_filter = (
            _PatternFilter(self.pattern, grammar_of(self.grammar))
            if self.pattern is not None
            else None
        )
        columns = self.wanted.names
        if (pattern_filter is not None or self.topic is not None) and "topic" not in columns:
            columns = [*columns, "topic"]
        for batch in piece.batches(columns, self.verify):
            if self.topic is not None:
                batch = batch.filter(pc.equal(batch.column("topic"), self.topic))
            if pattern_filter is not None:
                batch = pattern_filter.filtered(batch)
            if batch.num_rows:
                yield conform(batch, self.wanted)


class _PatternFilter:
    """A filter for the rows whose topics match a pattern; it caches the result for each topic."""

    def __init__(self, pattern: str, grammar: Grammar) -> None:
        self._trie: Trie[int] = Trie(grammar)
        self._trie.subscribe(pattern, 0)
        self._known: dict[str, bool] = {}

    def filtered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        topics = batch.column("topic").dictionary_encode()
        known = self._known
        right = []
        for topic in topics.dictionary.to_pylist():
            answer = known.get(topic)
            if answer is None:
                if len(known) >= 1_000_000:
                    known.clear()
                answer = known[topic] = self._trie.matches_any(topic)
            right.append(answer)
        return batch.filter(pa.array(right, pa.bool_()).take(topics.indices))


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
                and self._rows.topic is None
            ):
                self._rows.topic = each.value
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
