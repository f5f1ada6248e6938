"""Segments of a stream as they stand in files: where their batches begin, and their rows.

    <epoch>-<base offset>.arrow      schema | batch | batch | ... | end of stream, once it is full

A batch is FFFFFFFF, the size of its metadata, the metadata (a flatbuffer), and the buffers. Where the batches begin is read
from their heads alone, so a segment that is being written is read as far as it is whole. A crash may leave rows that were
promised to nobody; the broker begins the next epoch where the promised ones end, and what an earlier epoch has behind that is
passed over.
"""

from __future__ import annotations

import mmap
import re
import struct
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa

from pyspark_trellis.errors import PipelineError

_NAME: Final = re.compile(r"(\d+)-(\d+)\.arrow")
_CONTINUES: Final = b"\xff\xff\xff\xff"
#: What the metadata of a message may be: more is no message.
_METADATA_MAX: Final = 1 << 24


@dataclass(frozen=True)
class Name:
    """A segment by its name."""

    epoch: int
    base: int


def name_of(file: str) -> Name | None:
    """What a segment's file name says; None when it is none."""
    found = _NAME.fullmatch(file)
    return None if found is None else Name(int(found[1]), int(found[2]))


@dataclass
class Scan:
    """Where the batches of one segment begin, as far as they are whole: asked again, it goes on where it was."""

    base: int
    #: The octets of the schema, once they are there.
    head: int = 0
    #: Of each batch: its first offset, and its place.
    offsets: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    end: int = 0
    size: int = 0

    def __post_init__(self) -> None:
        self.end = self.base

    def go_on(self, octets: mmap.mmap | bytes) -> None:
        """Read the heads of what was added. Raises PipelineError."""
        size = len(octets)
        if not self.head:
            self.head = _message(octets, 0, size)
            self.size = self.head
            if not self.head:
                return
        at = self.size
        while at < size:
            after = _message(octets, at, size)
            if not after:
                return
            rows = _rows(octets, at)
            self.offsets.append(self.end)
            self.places.append(at)
            self.end += rows
            self.size = at = after

    def step(self, octets: bytes, left: int) -> bool:
        """One message more: `octets` are its head at least, of the `left` octets from `size` on. False when there is none."""
        after = _message(octets, 0, left)
        if not after:
            return False
        if not self.head:
            self.head = after
        else:
            self.offsets.append(self.end)
            self.places.append(self.size)
            self.end += _rows(octets, 0)
        self.size += after
        return True

    def cut(self, low: int, high: int, rows: int) -> Iterator[tuple[int, int, int, int, int]]:
        """(start, end, first, low, high): octets with these offsets, about so many rows each, and the first one that stands there."""
        at = bisect_right(self.offsets, low) - 1
        while low < high:
            stop = at + 1
            while stop < len(self.offsets) and self.offsets[stop] < high and self.offsets[stop] - low < rows:
                stop += 1
            after = self.offsets[stop] if stop < len(self.offsets) else self.end
            place = self.places[stop] if stop < len(self.places) else self.size
            yield self.places[at], place, self.offsets[at], low, min(after, high)
            low, at = after, stop


def _message(octets: mmap.mmap | bytes, at: int, size: int) -> int:
    """Where the message ends that begins there; 0 when it is not whole, or the stream ends. Raises PipelineError."""
    if at + 8 > size:
        return 0
    if octets[at:at + 4] != _CONTINUES:
        raise PipelineError(f"at octet {at} there is no Arrow message")
    metadata: int = struct.unpack_from("<i", octets, at + 4)[0]
    if metadata == 0:
        return 0
    if not 0 < metadata < _METADATA_MAX:
        raise PipelineError(f"at octet {at} there is no Arrow message")
    start = at + 8
    if start + metadata > size:
        return 0
    place = _field(octets, start + _u32(octets, start), 3)
    body = struct.unpack_from("<q", octets, place)[0] if place else 0
    end = start + metadata + int(body)
    return end if end <= size else 0


def _rows(octets: mmap.mmap | bytes, at: int) -> int:
    """Rows of the record batch that begins there."""
    root = at + 8 + _u32(octets, at + 8)
    header = _field(octets, root, 2)
    batch = header + _u32(octets, header)
    length = _field(octets, batch, 0)
    return int(struct.unpack_from("<q", octets, length)[0]) if length else 0


def _u32(octets: mmap.mmap | bytes, at: int) -> int:
    return int(struct.unpack_from("<I", octets, at)[0])


def _field(octets: mmap.mmap | bytes, table: int, number: int) -> int:
    """Where a field of a flatbuffer's table stands; 0 when it has its default."""
    vtable = table - int(struct.unpack_from("<i", octets, table)[0])
    if 4 + 2 * number >= struct.unpack_from("<H", octets, vtable)[0]:
        return 0
    inside = int(struct.unpack_from("<H", octets, vtable + 4 + 2 * number)[0])
    return table + inside if inside else 0


def scan_file(path: Path, scan: Scan) -> None:
    """Read the heads that were added to a file. Raises PipelineError, and FileNotFoundError when it is gone."""
    size = path.stat().st_size
    if size <= scan.size:
        return
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as octets:
            scan.go_on(octets)
    except (PipelineError, struct.error) as error:
        raise PipelineError(f"{path} is damaged: {error}; `trellis store verify` says more") from error


def schema_of(octets: pa.Buffer) -> pa.Schema:
    """The schema that a segment begins with."""
    return pa.ipc.read_schema(pa.BufferReader(octets))


def rows_between(octets: pa.Buffer, schema: pa.Schema, first: int, low: int, high: int) -> Iterator[pa.RecordBatch]:
    """The rows with offsets from `low` up to, not including, `high`, of batches that stand one behind the other, the first
    with the offset `first`."""
    reader = pa.BufferReader(octets)
    at = first
    while at < high:
        batch = pa.ipc.read_record_batch(pa.ipc.read_message(reader), schema)
        start, end = max(low - at, 0), min(high - at, batch.num_rows)
        at += batch.num_rows
        if start < end:
            yield batch if end - start == batch.num_rows else batch.slice(start, end - start)
