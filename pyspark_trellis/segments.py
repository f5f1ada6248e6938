"""Segments of a stream: where their batches begin, and their rows.

    <epoch>-<base offset>.arrow          schema | batch | batch | ... | end of stream, once it is full
    <epoch>-<base offset>.arrow.index    beside a full one: where some of its batches begin (broker/stream/segments.py)

Where batches begin is read from their heads alone (`messages`), or from the index, so a segment
that is being written is read as far as it is whole, and to plan a query nobody reads a journal. A
crash may leave rows that were promised to nobody; the broker begins the next epoch where the
promised ones end, and what an earlier epoch has behind that is passed over.

    Scan     where the batches of one segment begin: the driver has it
    Cut      rows of a segment, for one task               rows_of(cut, octets)   these rows, in batches that are worth their while
"""

from __future__ import annotations

import mmap
import re
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from zlib import crc32

import pyarrow as pa

from pyspark_trellis import messages
from pyspark_trellis.columns import check_segment
from pyspark_trellis.errors import PipelineError

#: Smaller batches are put together until they have so many rows, or octets. A batch costs Spark 0.1
#: ms, whatever is in it, and copying a row 0.1 us; above some 2,000 rows nothing is gained any
#: more.
GATHERED_ROWS: Final = 2_048
GATHERED_OCTETS: Final = 4 << 20
#: What a segment of the broker's says of itself: there, each batch has a checksum.
_OURS: Final = b"trellis.format"

_NAME: Final = re.compile(r"(\d+)-(\d+)\.arrow")
_INDEX_HEAD: Final = struct.Struct("<4sIqqqqq")
_INDEX_MARK: Final = struct.Struct("<qqq")
_INDEX_SUM: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class SegmentName:
    """A segment by its name."""

    epoch: int
    base: int


def name_of(file: str) -> SegmentName | None:
    """What a segment's file name says; None when it is none."""
    found = _NAME.fullmatch(file)
    return None if found is None else SegmentName(int(found[1]), int(found[2]))


@dataclass(frozen=True)
class Cut:
    """Rows of a segment: the offsets from `low` up to, not including, `high`, in its octets from
    `start` to `end`, where a batch begins whose first offset is `first`. `schema` is what the
    segment begins with.
    """

    schema: bytes
    start: int
    end: int
    first: int
    low: int
    high: int


@dataclass
class SegmentScan:
    """Where the batches of one segment begin, as far as they are whole: asked again, it goes on
    where it was.
    """

    base: int
    #: The octets of the schema, once they are there.
    schema: bytes = b""
    #: Of each batch, or of some: its first offset, and its place.
    offsets: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    #: The offset after the last row, and the octets up to there.
    end: int = 0
    size: int = 0

    def __post_init__(self) -> None:
        self.end = self.base

    def go_on(self, octets: mmap.mmap | bytes, origin: int, size: int) -> None:
        """Read the heads of what was added, as far as they stand in `octets`, which begin at
        `origin` in a segment of `size` octets. Raises messages.Damaged, struct.error."""
        at = self.size - origin
        while after := messages.end_of(octets, at, size - origin):
            if not self.schema:
                self.schema = bytes(octets[at:after])
            else:
                self.offsets.append(self.end)
                self.places.append(origin + at)
                self.end += messages.rows_of(octets, at)
            at = after
            self.size = origin + at

    def take_index(self, octets: bytes, size: int) -> None:
        """Know what the index of a full segment says, if it is whole, and that of a segment of this
        size.
        """
        marks = len(octets) - _INDEX_HEAD.size - _INDEX_SUM.size
        if marks < 0 or _INDEX_SUM.unpack(octets[-_INDEX_SUM.size :])[0] != crc32(
            octets[: -_INDEX_SUM.size]
        ):
            return
        magic, version, end, known, _, _, count = _INDEX_HEAD.unpack_from(octets)
        if (magic, version) != (b"TSIX", 1) or known > size or marks != count * _INDEX_MARK.size:
            return
        for offset, place, _ in _INDEX_MARK.iter_unpack(
            octets[_INDEX_HEAD.size : -_INDEX_SUM.size]
        ):
            self.offsets.append(offset)
            self.places.append(place)
        self.end, self.size = end, known

    def cut(self, low: int, high: int, rows: int) -> Iterator[Cut]:
        """The offsets from `low` up to, not including, `high`, so many rows each: the same cuts
        whether an index says where batches begin, or all of them are known, for what is done again
        must be divided as before (sink).
        """
        while low < high:
            stop = min(low + rows, high)
            at, after = bisect_right(self.offsets, low) - 1, bisect_left(self.offsets, stop)
            place = self.places[after] if after < len(self.places) else self.size
            yield Cut(self.schema, self.places[at], place, self.offsets[at], low, stop)
            low = stop


def scan_file(path: Path, scan: SegmentScan) -> None:
    """Know what was added to a file.

    Raises PipelineError, and FileNotFoundError when it is gone.
    """
    size = path.stat().st_size
    if size <= scan.size:
        return
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as octets,
        ):
            if not scan.size and (after := messages.end_of(octets, 0, size)):
                scan.schema, scan.size = octets[:after], after
                index = path.with_name(f"{path.name}.index")
                if index.exists():
                    scan.take_index(index.read_bytes(), size)
            scan.go_on(octets, 0, size)
    except (messages.DamagedSegment, struct.error) as error:
        raise damaged(str(path), error) from error


def damaged(where: str, error: Exception | str) -> PipelineError:
    """What is said of a segment that is not what was written."""
    return PipelineError(f"{where} is damaged: {error}; `trellis store verify` says more")


def rows_of(
    cut: Cut, octets: pa.Buffer, where: str, names: Sequence[str], verify: bool
) -> Iterator[pa.RecordBatch]:
    """These columns of the rows of a cut, whose octets these are: many small batches come as one.
    `verify`: checksums are looked at. Raises PipelineError, with `where` it stands."""
    schema = pa.ipc.read_schema(pa.py_buffer(cut.schema))
    check_segment(schema, names, where)
    group: list[pa.RecordBatch] = []
    rows = begun = 0
    for batch, end in _batches(
        cut, octets, schema, where, verify and _OURS in (schema.metadata or {})
    ):
        group.append(batch)
        rows += batch.num_rows
        if rows >= GATHERED_ROWS or end - begun >= GATHERED_OCTETS:
            yield _one(group, names)
            group, rows, begun = [], 0, end
    if group:
        yield _one(group, names)


def _one(group: list[pa.RecordBatch], names: Sequence[str]) -> pa.RecordBatch:
    if len(group) == 1:
        return group[0].select(names)
    # These octets are below the 2 GiB that a column of texts may have, so that each column is one
    # piece.
    [batch] = pa.Table.from_batches(group).select(names).combine_chunks().to_batches()
    return batch


def _batches(
    cut: Cut, octets: pa.Buffer, schema: pa.Schema, where: str, summed: bool
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """The batches as they were written, and where each ends; of the first and the last only the
    rows that were asked for.
    """
    view = memoryview(octets)
    reader = pa.BufferReader(octets)
    at, end = cut.first, 0
    while at < cut.high:
        begin = end
        try:
            message = pa.ipc.read_message(reader)
            end = reader.tell()
            if summed and not messages.sound(view[begin:end]):
                raise messages.DamagedSegment("its checksum is wrong")
            batch = pa.ipc.read_record_batch(message, schema)
        except (pa.ArrowInvalid, EOFError, OSError, messages.DamagedSegment) as error:
            raise damaged(
                where, f"the batch at octet {cut.start + begin}, with offset {at}: {error}"
            ) from error
        low, high = max(cut.low - at, 0), min(cut.high - at, batch.num_rows)
        at += batch.num_rows
        if low < high:
            yield (batch if high - low == batch.num_rows else batch.slice(low, high - low)), end
