"""Defines how a stream is read: its range of offsets is divided into pieces, one for each task.

    JournalStream.bounds()            first and next offset, and the epoch
    JournalStream.pieces(low, high)   pieces, each read by one task
    Piece.batches(columns)            the rows of a piece, within a task

This module reads from a directory; `remote` reads over HTTP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa

from pyspark_trellis.errors import PipelineError
from pyspark_trellis.segments import Cut, SegmentName, SegmentScan, name_of, rows_of, scan_file

#: Approximate number of rows that one task reads.
ROWS_PER_TASK: Final = 200_000


class OffsetRange(NamedTuple):
    """The offsets that a stream has: from `first` up to, not including, `next`.

    `epoch` is the epoch of the last row. A crash of the broker may remove unconfirmed rows from the
    end of a stream; the rows that are written afterwards have a higher epoch.
    """

    first: int
    next: int
    epoch: int


@dataclass(frozen=True)
class JournalSpan:
    """The valid part of a segment: offsets from `low` up to, not including, `high`.

    `first_at` and `last_at` are the times of its first and last rows in microseconds, None if they
    are not known.
    """

    name: SegmentName
    low: int
    high: int
    first_at: int | None = None
    last_at: int | None = None


@dataclass(frozen=True)
class Piece:
    """The rows that one task reads. The driver sends pieces to the workers, pickled."""

    cut: Cut

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
            raise PipelineError(
                f"{self.path} was removed: retention removed offsets {self.cut.low} to "
                f"{self.cut.high - 1} while they were "
                "read; continue with startingOffsets=earliest and a new checkpoint, or increase "
                "retention"
            ) from None


class JournalStream:
    """A stream, in a directory or remote. Its segments are the same for both, so that only the
    methods that read them differ.
    """

    def spans(self) -> list[JournalSpan]:
        """Return the valid parts of the segments that the stream has at present, by offset.

        Raises PipelineError.
        """
        raise NotImplementedError

    def scanned(self, span: JournalSpan, until: int) -> SegmentScan:
        """Return the positions of the batches of a segment, at least up to the offset `until`.

        `span` must be of the last call of `spans`. Raises PipelineError.
        """
        raise NotImplementedError

    def piece(self, span: JournalSpan, cut: Cut) -> Piece:
        """Return rows of a segment as a piece. `span` must be of the last call of `spans`."""
        raise NotImplementedError

    def bounds(self) -> OffsetRange:
        """Return the range of offsets that the stream has at present. Raises PipelineError."""
        spans = self.spans()
        if not spans:
            return OffsetRange(0, 0, 0)
        return OffsetRange(spans[0].low, spans[-1].high, spans[-1].name.epoch)

    def pieces(self, low: int, high: int, rows: int = ROWS_PER_TASK) -> list[Piece]:
        """Return the offsets from `low` up to, not including, `high`, as pieces.

        A piece has `rows` rows; the last piece of a segment may have fewer. The pieces do not
        depend on the index, because Spark may repeat a batch after a crash and must then get the
        same pieces (see `sink`). Raises PipelineError if an offset is missing.
        """
        if high <= low:
            return []
        spans = [span for span in self.spans() if span.low < high and span.high > low]
        check_whole(self.name, spans, low, high)
        pieces: list[Piece] = []
        for span in spans:
            at, end = max(low, span.low), min(high, span.high)
            scan = self.scanned(span, end)
            while at < end:
                stop = min(at + rows, end)
                pieces.append(self.piece(span, scan.cut(at, stop)))
                at = stop
        return pieces

    def first_since(self, micros: int) -> int:
        """Return an offset before which all rows were published before a time in microseconds.

        Only whole segments are before the offset. Raises PipelineError.
        """
        spans = self.spans()
        for span in spans:
            if span.last_at is None or span.last_at >= micros:
                return span.low
        return spans[-1].high if spans else 0

    def rewritten(self, offset: int, epoch: int) -> bool:
        """True if a crash replaced rows before this offset after they had been read in `epoch`.

        In this case, a later epoch begins before the offset: the crash removed rows that were read,
        and other rows got their offsets. A query that read the removed rows has data that is no
        longer in the stream. The answer is as of the last call of `bounds`.
        """
        raise NotImplementedError

    @property
    def name(self) -> str:
        """The name of the stream, for error texts."""
        raise NotImplementedError


class Directory(JournalStream):
    """A stream in a directory, to which a broker may be writing.

    All complete batches are read as if they were durable. That is correct if the broker is stopped,
    or if the directory is a copy. If the broker runs and its machine fails, rows that were read may
    be lost (`offsets.remembered` reports that). So read the stream of a running broker over HTTP,
    which returns durable rows only.
    """

    def __init__(self, path: str) -> None:
        self._path: Final = Path(path)
        self._scans: dict[SegmentName, SegmentScan] = {}
        self._files: dict[SegmentName, str] = {}

    @property
    def name(self) -> str:
        return str(self._path)

    def scanned(self, span: JournalSpan, until: int) -> SegmentScan:
        return self._scans[span.name]

    def piece(self, span: JournalSpan, cut: Cut) -> Piece:
        return FilePiece(cut, str(self._path / self._files[span.name]))

    def rewritten(self, offset: int, epoch: int) -> bool:
        return any(name.epoch > epoch and name.base < offset for name in self._files)

    def spans(self) -> list[JournalSpan]:
        try:
            files = {
                name: file.name
                for file in self._path.iterdir()
                if (name := name_of(file.name)) is not None
            }
        except OSError as error:
            raise PipelineError(
                f"there is no journal in {self._path}: {error.strerror}; name the directory of a "
                "stream, "
                "<data directory>/streams/<vhost>/<queue>"
            ) from None
        if not files:
            inside = sorted(file.name for file in self._path.iterdir() if file.is_dir())
            hint = (
                f"; it holds directories ({', '.join(inside[:3])}): name the directory of one "
                "stream"
                if inside
                else ""
            )
            raise PipelineError(
                f"there is no journal in {self._path}: no file is called "
                f"<epoch>-<offset>.arrow{hint}"
            )
        self._files = files
        found: list[SegmentName] = []
        for name in sorted(files, key=lambda name: (name.epoch, name.base)):
            scan = self._scans.setdefault(name, SegmentScan(name.base))
            try:
                scan_file(self._path / files[name], scan)
            except FileNotFoundError:
                continue
            found.append(name)
        return _counting(found, self._scans)


def _counting(names: list[SegmentName], scans: dict[SegmentName, SegmentScan]) -> list[JournalSpan]:
    """Return the parts of the segments whose rows are valid, sorted by epoch and base offset.

    If two segments have the same offset, only the row in the later segment is valid. `names` must
    be sorted by epoch and base offset.
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
        raise PipelineError(
            f"offset {low} of {name} was removed by retention: the first offset there is {first}; "
            "read from startingOffsets=earliest (with a new checkpoint), or increase retention"
        )
    for one, other in pairwise(spans):
        if one.high < other.low:
            raise PipelineError(
                f"offsets {one.high} to {other.low - 1} of {name} are lost: unreadable data is in "
                "the stream's "
                f"quarantine; read up to endingOffsets={one.high}, and continue from "
                f"startingOffsets={other.low}"
            )
    if spans[-1].high < high:
        raise PipelineError(
            f"{name} ends at offset {spans[-1].high}, before the requested end {high}; is it the "
            "same journal as before?"
        )
