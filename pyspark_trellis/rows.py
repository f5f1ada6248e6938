"""Finds the stream that options name, and reads its rows with the columns of a query."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_trellis import offsets
from pyspark_trellis.columns import COLUMNS, JOURNAL, check_column, conform, projection
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.grammars import checked, grammar_of
from pyspark_trellis.journal import JournalStream, Piece
from pyspark_trellis.journals import QueryJournals, one_stream
from pyspark_trellis.options import READING, known
from pyspark_trellis.segment_topics import TopicCondition, condition_of
from pyspark_trellis.topic_filter import TopicFilter

_LOG: Final = logging.getLogger("pyspark_trellis")


def stream_of(options: Mapping[str, str]) -> JournalStream:
    """Return the only stream that the options name; the names of options are in lowercase.

    Raises PipelineError.
    """
    return one_stream(known(options, READING))


def read_table(place: str, columns: Sequence[str] = tuple(COLUMNS), **options: str) -> pa.Table:
    """Return the rows of a journal, or of several, as an Arrow table with these columns.

        read_table("/var/lib/trellis/streams/%2F/journal", ["topic", "size"])
        read_table("http://127.0.0.1:15672", ["topic", "size"], journal="journal")

    `options` are the options of the Spark source, such as startingOffsets and pattern. From a
    segment that is being written, only complete batches are read. Raises PipelineError.
    """
    for name in columns:
        check_column(name)
    named = known({**options, "path": place}, READING)
    named = {name: str(value) for name, value in named.items()}
    streams = QueryJournals(named).streams()
    selected = SelectedRows(projection(columns), named)
    low, high = offsets.first_offsets(named, streams), offsets.last_offsets(named, streams)
    batches = (
        batch
        for name, stream in streams.items()
        for piece in stream.pieces(
            low[name], high[name], whole=selected.whole, topics=selected.condition
        )
        for batch in selected.batches(piece)
    )
    return pa.Table.from_batches(batches, selected.wanted)


class SelectedRows:
    """The rows of a journal that a query selects: columns, and the topics that match a pattern.

    Spark sends the object, pickled, to the tasks, which read the rows.
    """

    def __init__(self, wanted: pa.Schema, options: Mapping[str, str]) -> None:
        self.wanted: Final = wanted
        self.pattern: Final = options.get("pattern")
        self.grammar: Final = options.get("grammar", "amqp")
        self.verify: Final = offsets.switch(options, "verify", True)
        self.whole: Final = offsets.switch(options, "failOnDataLoss", True)
        grammar = grammar_of(self.grammar)
        if self.pattern is not None:
            checked([self.pattern], grammar)
        #: If not None, only the rows with one of these topics are read.
        self.topics: frozenset[str] | None = None

    @property
    def condition(self) -> TopicCondition | None:
        """The condition on topics, by which segments are skipped; None if there is none."""
        return condition_of(self.pattern, self.grammar, self.topics)

    def batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        """Iterate over the selected rows of a piece.

        With failOnDataLoss=false, rows that were removed meanwhile are left out, with a warning in
        the log. Raises PipelineError.
        """
        try:
            yield from self._batches(piece)
        except PipelineError as error:
            if self.whole or not error.rows_lost:
                raise
            _LOG.warning("failOnDataLoss=false: %s", error)

    def _batches(self, piece: Piece) -> Iterator[pa.RecordBatch]:
        pattern_filter = (
            TopicFilter(self.pattern, grammar_of(self.grammar))
            if self.pattern is not None
            else None
        )
        # A batch without any column would have no number of rows.
        columns = [name for name in self.wanted.names if name != JOURNAL] or ["offset"]
        if (pattern_filter is not None or self.topics is not None) and "topic" not in columns:
            columns = [*columns, "topic"]
        topics = None if self.topics is None else pa.array(sorted(self.topics), pa.string())
        for batch in piece.batches(columns, self.verify):
            if topics is not None:
                batch = batch.filter(pc.is_in(batch.column("topic"), topics))
            if pattern_filter is not None:
                batch = pattern_filter.filtered(batch)
            if batch.num_rows:
                yield conform(batch, self.wanted, piece.journal)
