"""`format("trellis")`: a journal as a table, read once or followed, and the sink beside it.

    spark.read.format("trellis").option("pattern", "stock.#").load(path)
    spark.readStream.format("trellis").option("maxRowsPerTrigger", 100_000).load(path)

A schema given is a projection: `.schema("offset long, topic string")` reads two columns only. Rows
come as Arrow batches. Nothing is ever
acknowledged: what a query has read its own checkpoint says, which is what makes it exactly once.
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
from pyspark_trellis import offsets
from pyspark_trellis.bulk import checked, grammar_of
from pyspark_trellis.columns import DDL, arrow_schema, conform
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.journal import ROWS_PER_TASK, Directory, JournalStream, Piece

#: Options of a source, as they are written.
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
)


def stream_of(options: dict[str, str]) -> JournalStream:
    """The stream that the options name. Raises PipelineError."""
    path = options.get("path", "")
    if not path:
        raise PipelineError(
            "name the journal: .load(<directory of the stream, or http://USER:PASSWORD@HOST:15672>)"
        )
    if path.startswith(("http://", "https://")):
        from pyspark_trellis.remote import Remote

        return Remote.of(path, options)
    return Directory(path.removeprefix("file://"))


@dataclass
class JournalTask(InputPartition):
    """What one task reads."""

    piece: Piece


class JournalRows:
    """What makes Spark's batches of a piece's rows: in the tasks, so it is pickled."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self.wanted: Final[pa.Schema] = arrow_schema(schema)
        self.pattern: Final = options.get("pattern")
        self.grammar: Final = options.get("grammar", "amqp")
        self.verify: Final = offsets.switch(options, "verify", True)
        grammar = grammar_of(self.grammar)
        if self.pattern is not None:
            checked([self.pattern], grammar)
        #: A topic that alone is read.
        self.topic: str | None = None

    def of(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        """What one task reads.

        Where there is nothing to read, Spark asks for that once, with None.
        """
        return self._batches(partition.piece) if isinstance(partition, JournalTask) else iter(())

    def _batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        asked = _Asked(self.pattern, grammar_of(self.grammar)) if self.pattern is not None else None
        columns = self.wanted.names
        if (asked is not None or self.topic is not None) and "topic" not in columns:
            columns = [*columns, "topic"]
        for batch in piece.batches(columns, self.verify):
            if self.topic is not None:
                batch = batch.filter(pc.equal(batch.column("topic"), self.topic))
            if asked is not None:
                batch = asked.filtered(batch)
            if batch.num_rows:
                yield conform(batch, self.wanted)


class _Asked:
    """A pattern, and which topics it was asked for."""

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
    """A journal once: between two offsets."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._rows: Final = JournalRows(schema, options)
        self._options: Final = options
        self._low = 0
        self._high = (1 << 63) - 1

    def partitions(self) -> Sequence[InputPartition]:
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
        return self._rows.of(partition)


class PushingReader(JournalReader):
    """The same, that takes conditions on `offset`, and a `topic`, over from Spark. (Spark refuses a
    reader with `pushFilters` unless spark.sql.python.filterPushdown.enabled is set, so that it is
    one behind an option.)
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
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
    """A journal as it grows."""

    def __init__(self, schema: StructType, options: dict[str, str]) -> None:
        self._rows: Final = JournalRows(schema, options)
        self._options: Final = options
        self._most: Final = offsets.number(options, "maxRowsPerTrigger", 0)
        self._per_task: Final = max(offsets.number(options, "rowsPerTask", ROWS_PER_TASK), 1)
        self._stream: JournalStream | None = None
        #: Where to stop, for Trigger.AvailableNow.
        self._target: int | None = None
        if "endingoffsets" in options:
            raise PipelineError(
                "a stream that is followed has no end: endingOffsets is for spark.read only"
            )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stream": None}  # Tasks ask for nothing.

    @property
    def stream(self) -> JournalStream:
        if self._stream is None:
            self._stream = stream_of(self._options)
        return self._stream

    def initialOffset(self) -> dict[str, int]:
        bounds = self.stream.bounds()
        first = offsets.starting(
            self._options.get("startingoffsets", offsets.EARLIEST), bounds, self.stream.name
        )
        return {"next": first, "epoch": bounds.epoch}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._most) if self._most else ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        bounds = self.stream.bounds()
        offsets.remembered(start, self.stream, bounds)
        end = bounds.next if self._target is None else min(self._target, bounds.next)
        if isinstance(limit, ReadMaxRows):
            end = min(end, start["next"] + limit.max_rows)
        if end <= start["next"]:
            return start  # A new epoch without rows is nothing new.
        return {"next": end, "epoch": bounds.epoch}

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self.stream.bounds().next

    def reportLatestOffset(self) -> dict[str, int]:
        bounds = self.stream.bounds()
        return {"next": bounds.next, "epoch": bounds.epoch}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [
            JournalTask(piece)
            for piece in self.stream.pieces(start["next"], end["next"], self._per_task)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.of(partition)


class DefaultSource(DataSource):
    """PySpark finds it by its name in this package."""

    @classmethod
    def name(cls) -> str:
        return "trellis"

    def schema(self) -> str:
        return DDL

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._read()
        return (PushingReader if offsets.switch(options, "pushdown", False) else JournalReader)(
            schema, options
        )

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return JournalStreamReader(schema, self._read())

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_trellis.sink import StreamWriter

        return StreamWriter(schema, {name.lower(): value for name, value in self.options.items()})

    def _read(self) -> dict[str, str]:
        options = {name.lower(): value for name, value in self.options.items()}
        known = {name.lower(): name for name in OPTIONS}
        for name in options:
            if name not in known:
                raise PipelineError(
                    f"format(\"trellis\") has no option '{name}'; it has {', '.join(OPTIONS)}"
                )
        return options
