"""A stream to read: which offsets there are, cut into pieces that tasks read. Here from a
directory; `remote` over HTTP.

Stream.bounds()            first and next offset, and the epoch       Stream.pieces(low, high)
what tasks read Piece.batches(columns)     the rows of one, in a task
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

#: Rows that one task reads, about.
ROWS_PER_TASK: Final = 200_000


class OffsetRange(NamedTuple):
    """The first offset that is there, the one after the last, and the epoch in which that was
    written.
    """

    first: int
    next: int
    epoch: int


@dataclass(frozen=True)
class JournalSpan:
    """The part of a segment that counts: offsets from `low` up to, not including, `high`."""

    name: SegmentName
    low: int
    high: int


@dataclass(frozen=True)
class Piece:
    """Rows that one task reads. Pickled from the driver to the workers."""

    cut: Cut

    @property
    def where(self) -> str:
        """The segment, for people."""
        raise NotImplementedError

    def octets(self) -> pa.Buffer:
        """The octets of the cut. Raises PipelineError."""
        raise NotImplementedError

    def batches(self, columns: Sequence[str], verify: bool = True) -> Iterator[pa.RecordBatch]:
        """These columns of its rows. `verify`: look at the checksums. Raises PipelineError."""
        return rows_of(self.cut, self.octets(), self.where, columns, verify)


@dataclass(frozen=True)
class FilePiece(Piece):
    """Rows of a file, which is mapped: what no column needs is not even read, unless checksums are
    looked at.
    """

    path: str

    @property
    def where(self) -> str:
        return self.path

    def octets(self) -> pa.Buffer:
        try:
            with pa.memory_map(self.path) as file:
                file.seek(self.cut.start)
                return file.read_buffer(self.cut.end - self.cut.start)  # It keeps the mapping.
        except FileNotFoundError:
            raise PipelineError(
                f"{self.path} is gone: retention removed offsets {self.cut.low} to {self.cut.high - 1} while they were "
                "read; read on with startingOffsets=earliest and a new checkpoint, or keep more"
            ) from None


class JournalStream:
    """What can be asked of a stream, wherever it is."""

    def bounds(self) -> OffsetRange:
        """What is there now. Raises PipelineError."""
        raise NotImplementedError

    def pieces(self, low: int, high: int, rows: int = ROWS_PER_TASK) -> list[Piece]:
        """The offsets from `low` up to, not including, `high`, in pieces of `rows`, fewer at the
        end of a segment. Raises PipelineError when one is not there."""
        raise NotImplementedError

    def rewritten(self, offset: int, epoch: int) -> bool:
        """Whether a later epoch begins before this offset, so that who read up to it then has read
        what nobody else will: by what `bounds` saw last."""
        raise NotImplementedError

    @property
    def name(self) -> str:
        """Which stream, for people."""
        raise NotImplementedError


class Directory(JournalStream):
    """A stream's directory, also while the broker writes there: all whole batches are taken for
    durable.

    That is right for a broker that has stopped, and for a copy. While it runs, use HTTP, which
    shows durable rows only: should the machine fail, rows that were read here too early are not
    there any more, and `offsets.remembered` says so.
    """

    def __init__(self, path: str) -> None:
        self._path: Final = Path(path)
        self._scans: dict[SegmentName, SegmentScan] = {}
        self._files: dict[SegmentName, str] = {}

    @property
    def name(self) -> str:
        return str(self._path)

    def bounds(self) -> OffsetRange:
        spans = self._spans()
        if not spans:
            return OffsetRange(0, 0, 0)
        return OffsetRange(spans[0].low, spans[-1].high, spans[-1].name.epoch)

    def pieces(self, low: int, high: int, rows: int = ROWS_PER_TASK) -> list[Piece]:
        if high <= low:
            return []
        spans = [span for span in self._spans() if span.low < high and span.high > low]
        check_whole(self.name, spans, low, high)
        pieces: list[Piece] = []
        for span in spans:
            scan = self._scans[span.name]
            path = str(self._path / self._files[span.name])
            for cut in scan.cut(max(low, span.low), min(high, span.high), rows):
                pieces.append(FilePiece(cut, path))
        return pieces

    def rewritten(self, offset: int, epoch: int) -> bool:
        return any(name.epoch > epoch and name.base < offset for name in self._files)

    def _spans(self) -> list[JournalSpan]:
        try:
            files = {
                name: file.name
                for file in self._path.iterdir()
                if (name := name_of(file.name)) is not None
            }
        except OSError as error:
            raise PipelineError(
                f"there is no journal in {self._path}: {error.strerror}; name the directory of a stream, "
                "<data directory>/streams/<vhost>/<queue>"
            ) from None
        if not files:
            inside = sorted(file.name for file in self._path.iterdir() if file.is_dir())
            hint = (
                f"; it holds directories ({', '.join(inside[:3])}): name that of one stream"
                if inside
                else ""
            )
            raise PipelineError(
                f"there is no journal in {self._path}: no file is called <epoch>-<offset>.arrow{hint}"
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
    """What counts of the segments, by rising epoch and base: what a later one has over, is that
    one's.
    """
    spans: list[JournalSpan] = []
    limit: int | None = None
    for name in reversed(names):
        high = scans[name].end if limit is None else min(scans[name].end, limit)
        if high > name.base:
            spans.append(JournalSpan(name, name.base, high))
        limit = name.base if limit is None else min(limit, name.base)
    spans.reverse()
    return spans


def check_whole(name: str, spans: list[JournalSpan], low: int, high: int) -> None:
    """Raises PipelineError unless the spans have every offset from `low` up to, not including,
    `high`.
    """
    if not spans or spans[0].low > low:
        first = spans[0].low if spans else high
        raise PipelineError(
            f"offset {low} of {name} is below its retention: the first one there is {first}; "
            "read from startingOffsets=earliest (with a new checkpoint), or keep more"
        )
    for one, other in pairwise(spans):
        if one.high < other.low:
            raise PipelineError(
                f"offsets {one.high} to {other.low - 1} of {name} are lost: what could not be read is in the stream's "
                f"quarantine; read up to endingOffsets={one.high}, and on from startingOffsets={other.low}"
            )
    if spans[-1].high < high:
        raise PipelineError(
            f"{name} ends at offset {spans[-1].high}, and {high} was asked for; is it the same journal as before?"
        )
