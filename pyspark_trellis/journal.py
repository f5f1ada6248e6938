"""Defines how a stream is read: its range of offsets is divided into pieces, one for each task.

    JournalStream.bounds()            first and next offset, and the epoch
    JournalStream.pieces(low, high)   pieces, each read by one task; segments without a matching
                                      topic are left out
    Piece.batches(columns)            the rows of a piece, within a task

This module reads from a directory; `remote` reads over HTTP.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote, unquote
from zlib import crc32

import pyarrow as pa
import pyarrow.compute as pc

from matching.topic_summary import TopicSummary
from pyspark_trellis.errors import PipelineError, lost_rows
from pyspark_trellis.segment_topics import TOPICS, TopicCondition, summary_of
from pyspark_trellis.segments import Cut, SegmentName, SegmentScan, name_of, rows_of, scan_file

#: Approximate number of rows that one task reads. A task costs Spark 0.06 CPU seconds, so fewer and
#: larger tasks are cheaper; `minPartitions` makes more tasks for more processors.
ROWS_PER_TASK: Final = 1_000_000
#: The broker cuts a longer directory name to this length, and adds a checksum of the whole name.
_DIRECTORY_NAME_MAX: Final = 120


class OffsetRange(NamedTuple):
    """The offsets that a stream has: from `first` up to, not including, `next`.

    `epoch` is the epoch of the last row. A crash of the broker may remove unconfirmed rows from the
    end of a stream; the rows that are written afterwards have a higher epoch.
    """

    first: int
    next: int
    epoch: int


def journal_name(vhost: str, queue: str) -> str:
    """Return the name of a stream for users: QUEUE in the vhost /, else VHOST/QUEUE.

    The characters `%`, `/` and `,` of the vhost and of the queue are encoded as in URLs.
    """
    parts = [quote(part, safe=" !\"#$&'()*+-.:;<=>?@[\\]^_`{|}~") for part in (vhost, queue)]
    return parts[1] if vhost == "/" else "/".join(parts)


def name_parts(journal: str) -> tuple[str, str]:
    """Return the vhost and the queue of a stream's name: see `journal_name`."""
    vhost, _, queue = journal.rpartition("/")
    return unquote(vhost) or "/", unquote(queue)


def directory_name(name: str) -> str:
    """Return the name of the directory of a vhost or a queue in the broker's data directory."""
    quoted = quote(name, safe="", errors="surrogateescape")
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    if len(quoted) <= _DIRECTORY_NAME_MAX:
        return quoted
    return f"{quoted[:_DIRECTORY_NAME_MAX]}~{crc32(name.encode('utf-8', 'surrogateescape')):08x}"


@dataclass(frozen=True)
class JournalSpan:
    """The valid part of a segment: offsets from `low` up to, not including, `high`.

    `first_at` and `last_at` are the times of the segment's first and last rows, in microseconds
    since 1970; None if they are not known.
    """

    name: SegmentName
    low: int
    high: int
    first_at: int | None = None
    last_at: int | None = None


class SelectedOffsets(NamedTuple):
    """Offsets of one segment that a query reads, from `low` up to, not including, `high`."""

    span: JournalSpan
    low: int
    high: int


@dataclass(frozen=True)
class Piece:
    """Rows of one segment, which one task reads. The driver sends pieces to the workers, pickled.

    `journal` is the name of the journal.
    """

    cut: Cut
    journal: str = field(default="", kw_only=True)

    @property
    def where(self) -> str:
        """The name of the segment, for error texts."""
        raise NotImplementedError

    def data(self) -> pa.Buffer:
        """Return the segment's bytes with the rows of this piece. Raises PipelineError."""
        raise NotImplementedError

    def batches(self, columns: Sequence[str], verify: bool = True) -> Iterator[pa.RecordBatch]:
        """Iterate over the piece's rows, with these columns only.

        With `verify`, checksums are checked. Raises PipelineError.
        """
        return rows_of(self.cut, self.data(), self.where, columns, verify)


@dataclass(frozen=True)
class FilePiece(Piece):
    """Rows of a file, which is memory-mapped.

    If checksums are not verified, the data of columns that the query does not need is not read from
    disk.
    """

    path: str

    @property
    def where(self) -> str:
        return self.path

    def data(self) -> pa.Buffer:
        try:
            with pa.memory_map(self.path) as file:
                file.seek(self.cut.start)
                # The returned buffer keeps the memory map open.
                return file.read_buffer(self.cut.end - self.cut.start)
        except FileNotFoundError:
            raise lost_rows(
                f"retention removed {self.path} while the query read its offsets {self.cut.low} to "
                f"{self.cut.high - 1}; continue with startingOffsets=earliest and a new "
                "checkpoint, or increase retention"
            ) from None


class JournalStream:
    """A stream whose segments are read from a directory (Directory) or over HTTP (Remote).

    The subclasses differ only in the methods that find and read segments, because the segments have
    the same format in both places.
    """

    #: The name of the stream for users: QUEUE in the vhost /, else VHOST/QUEUE.
    journal: str
    #: The name of the stream, for error texts.
    name: str

    def spans(self) -> list[JournalSpan]:
        """Return the valid parts of the segments that the stream has at present, by offset.

        Raises PipelineError.
        """
        raise NotImplementedError

    def scanned(self, span: JournalSpan, until: int) -> SegmentScan:
        """Return the known positions of batches of a segment, at least up to the offset `until`.

        `span` must come from the last call of `spans`. Raises PipelineError.
        """
        raise NotImplementedError

    def piece(self, span: JournalSpan, cut: Cut) -> Piece:
        """Return rows of a segment as a piece. `span` must come from the last call of `spans`."""
        raise NotImplementedError

    def summary(self, span: JournalSpan) -> TopicSummary | None:
        """Return the summary of the topics of a segment; None if the segment must be read.

        `span` must come from the last call of `spans`.
        """
        raise NotImplementedError

    def rewritten(self, offset: int, epoch: int) -> int | None:
        """Return the first offset whose row was replaced after it had been read in `epoch`; None
        if no row before `offset` was replaced.

        Rows were replaced if a later epoch begins before the offset: a crash removed them, and
        other rows got their offsets. A query that read the removed rows has rows that the stream no
        longer has. The result is computed from the segments that the last call of `bounds` found.
        """
        raise NotImplementedError

    def bounds(self) -> OffsetRange:
        """Return the range of offsets that the stream has at present. Raises PipelineError."""
        spans = self.spans()
        if not spans:
            return OffsetRange(0, 0, 0)
        return OffsetRange(spans[0].low, spans[-1].high, spans[-1].name.epoch)

    def pieces(
        self,
        low: int,
        high: int,
        rows: int = ROWS_PER_TASK,
        first: int | None = None,
        whole: bool = True,
        topics: TopicCondition | None = None,
    ) -> list[Piece]:
        """Return the offsets from `low` up to, not including, `high`, as pieces.

        For `whole` and `topics`, see `parts`; for `rows` and `first`, `divided`. Raises
        PipelineError.
        """
        return self.divided(self.parts(low, high, whole, topics), rows, first)

    def parts(
        self, low: int, high: int, whole: bool = True, topics: TopicCondition | None = None
    ) -> list[SelectedOffsets]:
        """Return the offsets from `low` up to, not including, `high`, as parts of segments.

        A segment in which no row matches the condition `topics` is left out. Raises PipelineError
        if an offset is missing; if `whole` is false, missing offsets are left out.
        """
        if high <= low:
            return []
        spans = [span for span in self.spans() if span.low < high and span.high > low]
        if whole:
            check_whole(self.name, spans, low, high)
        return [
            SelectedOffsets(span, max(low, span.low), min(high, span.high))
            for span in spans
            if topics is None or topics.may_hold(self.summary(span))
        ]

    def divided(
        self, parts: list[SelectedOffsets], rows: int, first: int | None = None
    ) -> list[Piece]:
        """Return parts of segments as pieces. `parts` must come from the last call of `parts`.

        A new piece begins after each `rows` rows (for the first time after `first` rows, if given),
        and at the beginning of each segment. Raises PipelineError.
        """
        pieces: list[Piece] = []
        room = rows if first is None else first
        for span, at, end in parts:
            scan = self.scanned(span, end)
            while at < end:
                stop = min(at + room, end)
                pieces.append(self.piece(span, scan.cut(at, stop)))
                room = room - (stop - at) or rows
                at = stop
        return pieces

    def end_within(self, low: int, high: int, size: int) -> int:
        """Return the end of a range of rows that begins at `low`, ends at `high` or before, and
        whose batches have at most `size` bytes.

        The range has at least one batch, or one group of batches that the index combines, even if
        this batch or group is larger than `size`. Raises PipelineError.
        """
        used = 0
        for span in self.spans():
            begin, end = max(low, span.low), min(high, span.high)
            if begin >= end:
                continue
            for stop, bytes_ in self.scanned(span, end).sizes(begin, end):
                if used and used + bytes_ > size:
                    return begin
                used += bytes_
                begin = stop
        return high

    def first_since(self, micros: int) -> int:
        """Return an offset such that all rows with lower offsets are older than the time `micros`.

        `micros` is in microseconds since 1970. The offset is the beginning of a segment, or the end
        of the stream. Raises PipelineError.
        """
        spans = self.spans()
        for span in spans:
            if span.last_at is None or span.last_at >= micros:
                return span.low
        return spans[-1].high if spans else 0

    def offset_at(self, micros: int) -> int:
        """Return the offset of the first row that was published at the time `micros` or later;
        the end of the stream if there is none.

        `micros` is in microseconds since 1970. The search assumes that the times of the rows
        ascend. Raises PipelineError.
        """
        end = 0
        for span in self.spans():
            end = span.high
            if span.last_at is not None and span.last_at < micros:
                continue
            if span.first_at is not None and span.first_at >= micros:
                return span.low
            scan = self.scanned(span, end)
            # A file in the archive counts as one batch.
            starts = scan.offsets or [span.low]
            group = bisect_left(
                starts,
                True,
                1,
                key=lambda at: at >= end or self._times(span, scan.cut(at, at + 1))[0] >= micros,
            )
            begin = starts[group - 1]
            stop = min(starts[group], end) if group < len(starts) else end
            for at, time in enumerate(self._times(span, scan.cut(begin, stop)), begin):
                if time >= micros:
                    return at
            if stop < end:
                return stop
        return end

    def time_of(self, offset: int) -> int:
        """Return the time at which a row was published, in microseconds since 1970.

        The offset must be in the stream. Raises PipelineError.
        """
        [span] = (span for span in self.spans() if span.low <= offset < span.high)
        cut = self.scanned(span, offset + 1).cut(offset, offset + 1)
        return self._times(span, cut)[0]

    def _times(self, span: JournalSpan, cut: Cut) -> list[int]:
        """Return the times, in microseconds since 1970, at which the cut's rows were published."""
        return [
            time
            for batch in self.piece(span, cut).batches(["published_at"], verify=False)
            for time in pc.cast(batch.column("published_at"), pa.int64()).to_pylist()
        ]


class Directory(JournalStream):
    """A stream in a directory, to which a broker may be writing.

    All complete batches are read as if they were durable. They are durable if the broker is
    stopped, or if the directory is a copy. Read the stream of a running broker over HTTP instead,
    which returns durable rows only. If rows are read from the directory before they are durable, a
    failure of the machine may remove them from the stream (`offsets.resumed` reports this loss).
    """

    def __init__(self, path: str, journal: str | None = None) -> None:
        self._path: Final = Path(path)
        self.name = str(self._path)
        where = self._path.absolute()
        self.journal = journal or journal_name(unquote(where.parent.name), unquote(where.name))
        self._scans: dict[SegmentName, SegmentScan] = {}
        self._files: dict[SegmentName, str] = {}

    def scanned(self, span: JournalSpan, until: int) -> SegmentScan:
        return self._scans[span.name]

    def piece(self, span: JournalSpan, cut: Cut) -> Piece:
        return FilePiece(cut, str(self._path / self._files[span.name]), journal=self.journal)

    def summary(self, span: JournalSpan) -> TopicSummary | None:
        path = self._path / f"{self._files[span.name]}{TOPICS}"
        try:
            data = path.read_bytes()
        except OSError:
            return None
        scan = self._scans[span.name]
        return summary_of(data, span.name.epoch, span.name.base, scan.end, scan.schema)

    def rewritten(self, offset: int, epoch: int) -> int | None:
        later = [name.base for name in self._files if name.epoch > epoch and name.base < offset]
        return min(later, default=None)

    def spans(self) -> list[JournalSpan]:
        try:
            files = {
                name: file.name
                for file in self._path.iterdir()
                if (name := name_of(file.name)) is not None
            }
        except OSError as error:
            raise PipelineError(
                f"cannot read the journal {self._path}: {error.strerror}; name the directory of a "
                "stream, <data directory>/streams/<vhost>/<queue>"
            ) from None
        if not files:
            inside = sorted(file.name for file in self._path.iterdir() if file.is_dir())
            hint = (
                f", but directories ({', '.join(inside[:3])}); name the directory of one stream"
                if inside
                else ""
            )
            raise PipelineError(
                f"{self._path} is not a journal: it has no files <epoch>-<offset>.arrow{hint}"
            )
        self._files = files
        names: list[SegmentName] = []
        for name in sorted(files, key=lambda name: (name.epoch, name.base)):
            scan = self._scans.setdefault(name, SegmentScan(name.base))
            try:
                scan_file(self._path / files[name], scan)
            except FileNotFoundError:
                continue
            names.append(name)
        return _valid_spans(names, self._scans)


def _valid_spans(
    names: list[SegmentName], scans: dict[SegmentName, SegmentScan]
) -> list[JournalSpan]:
    """Return the parts of the segments whose rows are valid, sorted by epoch and base offset.

    If an offset is in two segments, it is valid only in the later segment. `names` must be sorted
    by epoch and base offset.
    """
    spans: list[JournalSpan] = []
    limit: int | None = None
    for name in reversed(names):
        high = scans[name].end if limit is None else min(scans[name].end, limit)
        if high > name.base:
            scan = scans[name]
            spans.append(JournalSpan(name, name.base, high, scan.first_at, scan.last_at))
        limit = name.base if limit is None else min(limit, name.base)
    spans.reverse()
    return spans


def check_whole(name: str, spans: list[JournalSpan], low: int, high: int) -> None:
    """Raise PipelineError unless the spans contain every offset from `low` to before `high`."""
    if not spans or spans[0].low > low:
        first = spans[0].low if spans else high
        raise lost_rows(
            f"retention removed offset {low} of {name}: the first remaining offset is {first}; "
            "read from startingOffsets=earliest (with a new checkpoint), or increase retention"
        )
    for one, other in pairwise(spans):
        if one.high < other.low:
            raise lost_rows(
                f"offsets {one.high} to {other.low - 1} of {name} are lost: their data was "
                f"damaged, and is in the stream's quarantine; read up to endingOffsets={one.high}, "
                f"and continue from startingOffsets={other.low}"
            )
    if spans[-1].high < high:
        raise lost_rows(
            f"{name} ends at offset {spans[-1].high}, before the requested end {high}: rows were "
            "lost, or the path names another journal; check it, or start with a new checkpoint"
        )
