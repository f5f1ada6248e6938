"""Reads segments of a stream: finds where their batches begin, and returns their rows.

    <epoch>-<base offset>.arrow          schema | batch | batch | ... | end of stream, once full
    <epoch>-<base offset>.arrow.index    beside a full segment: where some of its batches begin
    <epoch>-<base offset>.arrow.topics   beside a full segment: see segment_topics

The positions of batches come from the message headers (`messages`) or from the index, so no rows
are read to plan a query. Of a segment that is still being written, the complete batches are read.
After a crash a segment may end with rows that were never confirmed. The broker then begins a new
epoch at the end of the confirmed rows, and readers skip the older epoch's rows from there on.

    SegmentScan                where the batches of one segment begin; on the driver
    Cut                        rows of a segment, for one task
    rows_of(cut, data, ...)    the rows of a cut, in batches of an efficient size
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

#: Smaller batches are combined until they have this many rows. A batch of any size costs Spark 0.1
#: ms, and copying a row costs 0.1 us. So batches of more than some 2,000 rows bring no further
#: gain.
GATHERED_ROWS: Final = 2_048
#: Smaller batches are combined up to this many bytes.
GATHERED_BYTES: Final = 4 << 20
#: The key that marks the schema of a segment written by the broker; its batches have checksums.
_FORMAT_KEY: Final = b"trellis.format"

_NAME: Final = re.compile(r"(\d+)-(\d+)\.arrow")
_INDEX_HEAD: Final = struct.Struct("<4sIqqqqq")
_INDEX_MARK: Final = struct.Struct("<qqq")
_INDEX_SUM: Final = struct.Struct("<Q")


@dataclass(frozen=True)
class SegmentName:
    """The parts of a segment's file name."""

    epoch: int
    base: int


def name_of(file: str) -> SegmentName | None:
    """Return the parts of a segment's file name, or None if `file` is not a segment's name."""
    match = _NAME.fullmatch(file)
    return None if match is None else SegmentName(int(match[1]), int(match[2]))


@dataclass(frozen=True)
class Cut:
    """Rows of a segment: the offsets from `low` up to, not including, `high`.

    The rows are in the segment's bytes from `start` to `end`. The batch that begins at `start` has
    the first offset `first`, which may be before `low`. `schema` is the beginning of the segment.
    """

    schema: bytes
    start: int
    end: int
    first: int
    low: int
    high: int


@dataclass
class SegmentScan:
    """The positions of the complete batches of one segment.

    A repeated scan continues where the previous scan ended.
    """

    base: int
    #: The bytes of the schema, once they are present.
    schema: bytes = b""
    #: The first offset of each known batch; an index gives only some of the batches.
    offsets: list[int] = field(default_factory=list)
    #: The position of each known batch in the segment, in bytes.
    positions: list[int] = field(default_factory=list)
    #: The offset after the last row of the complete batches.
    end: int = 0
    #: The size of the complete batches and of the schema before them, in bytes.
    size: int = 0
    #: The times of the first and the last published row in microseconds, if an index has them.
    first_at: int | None = None
    last_at: int | None = None

    def __post_init__(self) -> None:
        self.end = self.base

    def read_headers(self, data: mmap.mmap | bytes, origin: int, size: int) -> None:
        """Read the headers of further messages in `data`.

        `data` begins at `origin` in a segment of `size` bytes. Raises DamagedSegment, struct.error.
        """
        at = self.size - origin
        while after := messages.end_of(data, at, size - origin):
            if not self.schema:
                self.schema = bytes(data[at:after])
            else:
                self.offsets.append(self.end)
                self.positions.append(origin + at)
                self.end += messages.rows_of(data, at)
            at = after
            self.size = origin + at

    def take_index(self, data: bytes, size: int) -> None:
        """Take the positions of batches from the index of a full segment.

        An index that is damaged, or does not fit a segment of `size` bytes, is ignored.
        """
        marks = len(data) - _INDEX_HEAD.size - _INDEX_SUM.size
        if marks < 0 or _INDEX_SUM.unpack(data[-_INDEX_SUM.size :])[0] != crc32(
            data[: -_INDEX_SUM.size]
        ):
            return
        magic, version, end, known, first_at, last_at, count = _INDEX_HEAD.unpack_from(data)
        if (magic, version) != (b"TSIX", 1) or known > size or marks != count * _INDEX_MARK.size:
            return
        for offset, position, _ in _INDEX_MARK.iter_unpack(
            data[_INDEX_HEAD.size : -_INDEX_SUM.size]
        ):
            self.offsets.append(offset)
            self.positions.append(position)
        self.end, self.size = end, known
        self.first_at, self.last_at = first_at, last_at

    def cut(self, low: int, high: int) -> Cut:
        """Return the offsets from `low` up to, not including, `high`, as a cut."""
        at, after = bisect_right(self.offsets, low) - 1, bisect_left(self.offsets, high)
        stop = self.positions[after] if after < len(self.positions) else self.size
        return Cut(self.schema, self.positions[at], stop, self.offsets[at], low, high)

    def sizes(self, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Iterate over the known batches with offsets from `low` to before `high`.

        Yield pairs: the offset after the last row of a batch, at most `high`, and the batch's size
        in bytes.
        """
        for at in range(bisect_right(self.offsets, low) - 1, bisect_left(self.offsets, high)):
            last = at + 1 == len(self.offsets)
            stop = self.end if last else self.offsets[at + 1]
            yield (
                min(stop, high),
                (self.size if last else self.positions[at + 1]) - self.positions[at],
            )


def scan_file(path: Path, scan: SegmentScan) -> None:
    """Scan the bytes that were added to a file since the last scan.

    Raises PipelineError, and FileNotFoundError if the file was removed.
    """
    size = path.stat().st_size
    if size <= scan.size:
        return
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
        ):
            if not scan.size and (after := messages.end_of(data, 0, size)):
                scan.schema, scan.size = data[:after], after
                index = path.with_name(f"{path.name}.index")
                if index.exists():
                    scan.take_index(index.read_bytes(), size)
            scan.read_headers(data, 0, size)
    except (messages.DamagedSegment, struct.error) as error:
        raise damaged(str(path), error) from error


def damaged(where: str, error: Exception | str) -> PipelineError:
    """Return the error for a damaged segment."""
    return PipelineError(f"{where} is damaged: {error}; run `trellis store verify` for details")


def rows_of(
    cut: Cut, data: pa.Buffer, where: str, names: Sequence[str], verify: bool
) -> Iterator[pa.RecordBatch]:
    """Iterate over the cut's rows in batches, with only the columns `names`; small batches are
    combined.

    `data` is the bytes of the cut. With `verify`, checksums are checked. Raises PipelineError,
    whose text names `where`.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(cut.schema))
    check_segment(schema, names, where)
    group: list[pa.RecordBatch] = []
    rows = begun = 0
    for batch, end in _batches(
        cut, data, schema, where, verify and _FORMAT_KEY in (schema.metadata or {})
    ):
        group.append(batch)
        rows += batch.num_rows
        if rows >= GATHERED_ROWS or end - begun >= GATHERED_BYTES:
            yield _combined(group, names)
            group, rows, begun = [], 0, end
    if group:
        yield _combined(group, names)


def _combined(group: list[pa.RecordBatch], names: Sequence[str]) -> pa.RecordBatch:
    if len(group) == 1:
        return group[0].select(names)
    # A group is smaller than the 2 GiB that a column of texts may have, so each column stays in one
    # chunk.
    [batch] = pa.Table.from_batches(group).select(names).combine_chunks().to_batches()
    return batch


def _batches(
    cut: Cut, data: pa.Buffer, schema: pa.Schema, where: str, summed: bool
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Iterate over the record batches in `data`, each with the position of its end in `data`.

    Rows of the first and last batch with offsets outside the cut are left out.
    """
    view = memoryview(data)
    reader = pa.BufferReader(data)
    at, end = cut.first, 0
    while at < cut.high:
        begin = end
        try:
            message = pa.ipc.read_message(reader)
            end = reader.tell()
            if summed and not messages.checksum_ok(view[begin:end]):
                raise messages.DamagedSegment("the checksum is wrong")
            batch = pa.ipc.read_record_batch(message, schema)
        except (pa.ArrowInvalid, EOFError, OSError, messages.DamagedSegment) as error:
            raise damaged(
                where, f"the batch at byte {cut.start + begin}, with offset {at}: {error}"
            ) from error
        low, high = max(cut.low - at, 0), min(cut.high - at, batch.num_rows)
        at += batch.num_rows
        if low < high:
            yield (batch if high - low == batch.num_rows else batch.slice(low, high - low)), end
