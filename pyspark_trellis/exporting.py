"""Reads the rows that `trellis stream export` writes to a file: by offset, time, topic and column.

    selection = RowSelection(stream, columns, ...)
    for batch in selection.batches():
        ...

The rows have the types of the journal, not the types of Spark. The stream is read in parts of
PART_BYTES, and the batches are copies, so that no part stays in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from pyspark_trellis.columns import ARROW
from pyspark_trellis.errors import PipelineError
from pyspark_trellis.grammars import checked, grammar_of
from pyspark_trellis.journal import Directory, JournalSpan, JournalStream
from pyspark_trellis.remote import Remote, RemoteBroker
from pyspark_trellis.segment_topics import condition_of
from pyspark_trellis.segments import SegmentScan
from pyspark_trellis.topic_filter import TopicFilter

#: Size in bytes of the batches that are read at once. A larger batch is read alone.
PART_BYTES: Final = 4 << 20


def stream_in(directory: str) -> JournalStream:
    """Return the stream in a directory."""
    return Directory(directory)


def stream_at(url: str, vhost: str, queue: str, login: Mapping[str, str]) -> JournalStream:
    """Return a stream of a running broker; `login` has `user` and `password`."""
    return Remote(RemoteBroker.of(url, login), vhost, queue)


class RowSelection:
    """The rows of a stream that an export selects.

    `first` and `end` are offsets, `since` and `until` times in microseconds since 1970: rows from
    `first` and `since` on, before `end` and `until`. None means no bound. `pattern` is a binding
    key or topic filter and the name of its grammar; None selects all topics.

    `share` is the part of the offsets that were examined so far, from 0 to 1.
    """

    def __init__(
        self,
        stream: JournalStream,
        columns: Sequence[str],
        first: int | None = None,
        end: int | None = None,
        since: int | None = None,
        until: int | None = None,
        pattern: tuple[str, str] | None = None,
    ) -> None:
        self.share = 0.0
        #: The offsets of the first and the last row yielded so far; None before the first row.
        self.first_offset: int | None = None
        self.last_offset: int | None = None
        self._stream: Final = stream
        self._columns: Final = list(columns)
        self._first: Final = first
        self._end: Final = end
        self._times: Final = (since, until)
        self._topics: Final = None if pattern is None else _filter_of(*pattern)
        self._condition: Final = None if pattern is None else condition_of(*pattern)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the selected rows, in the order of their offsets. Raises PipelineError.

        For each part of the stream without a selected row, an empty batch is yielded, so that a
        caller can show progress.
        """
        try:
            spans = self._spans()
            rows = sum(high - low for _, low, high in spans)
            done = 0
            for span, low, high in spans:
                scan = self._stream.scanned(span, high)
                for at, stop in _parts(scan, low, high):
                    yield from self._part(span, scan, at, stop)
                    done += stop - at
                    self.share = done / rows
        except OSError as error:
            reason = error.strerror or error
            raise PipelineError(f"cannot read {self._stream.name}: {reason}") from None

    def _spans(self) -> list[tuple[JournalSpan, int, int]]:
        """Return the segments that may have selected rows, each with the offsets to read.

        Raises PipelineError if the first selected offset is not in the stream, or if selected rows
        are lost. Rows are lost if there is a gap between two segments. Lost rows count as selected
        if their offsets are selected and, if times are selected, the segments before and after the
        gap have rows within these times. The topics of lost rows are unknown, so the pattern makes
        no difference.
        """
        stream, since, until = self._stream, *self._times
        spans = stream.spans()
        first, following = (spans[0].low, spans[-1].high) if spans else (0, 0)
        if self._first is not None and self._first < first:
            raise PipelineError(
                f"offset {self._first} of {stream.name} does not exist any more, because retention "
                f"removed it: begin with --from {first} or later"
            )
        if self._first is not None and self._first > following:
            raise PipelineError(
                f"offset {self._first} of {stream.name} is not written yet: begin with --from "
                f"{following} or lower"
            )
        ranges: list[tuple[JournalSpan, int, int]] = []
        after: int | None = None  # The offset after the previous segment.
        lost: tuple[int, int] | None = None
        begun = False  # True once a segment within the bounds was found.
        for span in spans:
            # If the segments before and after a gap have selected rows, then the times of the lost
            # rows are within the selected times too.
            if after is not None and lost is None and self._selects(after, span.low, begun):
                lost = (after, span.low)
            after = span.high
            low = max(span.low, self._first or 0)
            high = span.high if self._end is None else min(span.high, self._end)
            selected = low < high and not (
                since is not None
                and span.last_at is not None
                and span.last_at < since
                or until is not None
                and self._first_at(span) >= until
            )
            if lost is not None and (selected or self._times == (None, None)):
                raise PipelineError(
                    f"offsets {lost[0]} to {lost[1] - 1} of {stream.name} are lost, because a "
                    "segment is damaged or missing: export the rows before them with --until "
                    f"{lost[0]}, and the rows after them with --from {lost[1]}"
                )
            begun = begun or selected
            if selected and (
                self._condition is None or self._condition.may_hold(stream.summary(span))
            ):
                ranges.append((span, low, high))
        return ranges

    def _selects(self, low: int, high: int, after_selected: bool) -> bool:
        """True if an offset from `low` up to, not including, `high` is within the selected offsets.

        If times are selected too, `after_selected` must also be True. It tells that a segment
        before `low` has selected rows.
        """
        begin = max(low, self._first or 0)
        end = high if self._end is None else min(high, self._end)
        return begin < end and (after_selected or self._times == (None, None))

    def _first_at(self, span: JournalSpan) -> int:
        """Return the time of the first row of a segment, in microseconds since 1970.

        A full segment has an index with this time. In any other segment, the first row is read.
        """
        if span.first_at is not None:
            return span.first_at
        cut = self._stream.scanned(span, span.high).cut(span.low, span.low + 1)
        [batch] = self._stream.piece(span, cut).batches(["published_at"], verify=False)
        return int(pc.cast(batch.column("published_at"), pa.int64())[0].as_py())

    def _part(
        self, span: JournalSpan, scan: SegmentScan, low: int, high: int
    ) -> Iterator[pa.RecordBatch]:
        """Iterate over the selected rows of a segment from offset `low` to before `high`.

        Raises PipelineError.
        """
        needed = [*dict.fromkeys(("offset", "published_at", "topic", *self._columns))]
        try:
            batches = list(self._stream.piece(span, scan.cut(low, high)).batches(needed))
        except PipelineError:
            first = self._stream.bounds().first
            if first <= low:
                raise
            raise PipelineError(
                f"retention removed offsets {low} to {first - 1} of {self._stream.name} while it "
                f"was exported: export again, beginning with --from {first} or later"
            ) from None
        for batch in batches:
            batch = self._selected(batch)
            if batch.num_rows:
                offsets = batch.column("offset")
                self.last_offset = offsets[-1].as_py()
                if self.first_offset is None:
                    self.first_offset = offsets[0].as_py()
            yield _copied(batch.select(self._columns))

    def _selected(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        for at, compare in zip(self._times, (pc.greater_equal, pc.less), strict=True):
            if at is not None:
                limit = pa.scalar(at, ARROW["timestamp"])
                batch = batch.filter(compare(batch.column("published_at"), limit))
        return batch if self._topics is None else self._topics.filtered(batch)


def _filter_of(pattern: str, grammar: str) -> TopicFilter:
    """Return the filter for a pattern; `grammar` is a name. Raises PipelineError."""
    rules = grammar_of(grammar)
    return TopicFilter(checked([pattern], rules)[0], rules)


def _parts(scan: SegmentScan, low: int, high: int) -> Iterator[tuple[int, int]]:
    """Divide the offsets of a segment from `low` to before `high` into parts of whole batches.

    A part has at most PART_BYTES, but at least one batch. Yield the first offset of each part, and
    the offset after its last.
    """
    at = stop = low
    used = 0
    for after, size in scan.sizes(low, high):
        if used and used + size > PART_BYTES:
            yield at, stop
            at, used = stop, 0
        stop = after
        used += size
    if at < stop:
        yield at, stop


def _copied(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a copy of the batch, which does not keep the bytes of a segment in memory."""
    # Two arrays are always copied to a new one, even if one of them is empty.
    columns = [pa.concat_arrays([column, column[:0]]) for column in batch.columns]
    schema = batch.schema.remove_metadata()
    return pa.RecordBatch.from_arrays(columns, schema=schema)
