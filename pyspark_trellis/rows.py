"""Finds the stream that options name, and reads its rows with the columns of a query."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_trellis import offsets
from pyspark_trellis.columns import COLUMNS, conform, projection
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.grammars import checked, grammar_of
from pyspark_trellis.journal import Directory, JournalStream, Piece
from pyspark_trellis.topic_filter import TopicFilter


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


def read_table(place: str, columns: Sequence[str] = tuple(COLUMNS), **options: str) -> pa.Table:
    """Return the rows of a journal as an Arrow table with these columns.

        read_table("/var/lib/trellis/streams/%2F/journal", ["topic", "size"])
        read_table("http://127.0.0.1:15672", ["topic", "size"], stream="journal")

    `options` are those of the Spark source, such as startingOffsets and pattern. Of a segment that
    is being written, the complete batches are read. Raises PipelineError.
    """
    for name in columns:
        if name not in COLUMNS:
            near = get_close_matches(name, COLUMNS, n=1, cutoff=0)[0]
            raise PipelineError(f"a journal has no column '{name}'; the nearest is '{near}'")
    named = {name.lower(): str(value) for name, value in options.items()} | {"path": place}
    stream, selected = stream_of(named), SelectedRows(projection(columns), named)
    bounds = stream.bounds()
    low = offsets.starting(named.get("startingoffsets", offsets.EARLIEST), bounds, stream.name)
    high = offsets.ending(named.get("endingoffsets", offsets.LATEST), bounds, stream.name)
    batches = (batch for piece in stream.pieces(low, high) for batch in selected.batches(piece))
    return pa.Table.from_batches(batches, selected.wanted)


class SelectedRows:
    """The rows of a journal that a query selects: columns, and the topics that match a pattern.

    Spark sends the object, pickled, to the tasks, which read the rows.
    """

    def __init__(self, wanted: pa.Schema, options: dict[str, str]) -> None:
        self.wanted: Final = wanted
        self.pattern: Final = options.get("pattern")
        self.grammar: Final = options.get("grammar", "amqp")
        self.verify: Final = offsets.switch(options, "verify", True)
        grammar = grammar_of(self.grammar)
        if self.pattern is not None:
            checked([self.pattern], grammar)
        #: If not None, only the rows with this topic are read.
        self.topic: str | None = None

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Iterate over the selected rows of a piece. Raises PipelineError."""
        pattern_filter = (
            TopicFilter(self.pattern, grammar_of(self.grammar))
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
