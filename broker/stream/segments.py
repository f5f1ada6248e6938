"""Segments: the files of a stream, and what is known of each.

    <epoch>-<base offset>.arrow          schema, batch, batch, ...; end of stream once it is full
    <epoch>-<base offset>.arrow.index    beside a full one: where some of its batches begin

An index: "TSIX", version u32, and then of the segment end, size, first and last time (us), how many
marks, of each mark the offset and the place; then the CRC-32 of all that as u64. Every number takes
8 octets, little-endian.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_right
from typing import Final
from zlib import crc32

from mypy_extensions import i64

from broker.store.disk import Disk, File, TooNew
from broker.store.files import open_for_reading
from broker.stream.arrow import SCHEMA_SIZE

#: Octets of a segment between two places that its index knows.
INDEX_STRIDE: Final[i64] = 64 << 10

#: How names of files end that belong to a stream.
SUFFIXES: Final = (".arrow", ".arrow.index", ".arrow.index.tmp")

_NAME: Final = re.compile(r"(\d{10})-(\d{20})\.arrow")
_MAGIC: Final = b"TSIX"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIqqqqq")
_CHECKSUM: Final = struct.Struct("<Q")


def segment_name(epoch: int, base: int) -> str:
    return f"{epoch:010d}-{base:020d}.arrow"


def parse_segment(name: str) -> tuple[int, int] | None:
    """(epoch, base) of a segment's name; None when it is none."""
    found = _NAME.fullmatch(name)
    return None if found is None else (int(found[1]), int(found[2]))


class Segment:
    """A file with the rows from `base` up to, not including, `end`.

    `size` is what is durable of it.
    """

    def __init__(self, disk: Disk, path: str, epoch: int, base: int) -> None:
        self.disk = disk
        self.path = path
        self.epoch = epoch
        self.base: i64 = base
        self.end: i64 = base
        self.size: i64 = SCHEMA_SIZE
        #: Microseconds between which its rows were published.
        self.first_at: i64 = 0
        self.last_at: i64 = 0
        #: Never written again.
        self.full = False
        #: This process wrote it: what is read of it need not be checked.
        self.written_here = False
        self._offsets: array[int] = array("q")
        self._places: array[int] = array("q")
        self._times: array[int] = array("q")
        self._file: File | None = None

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2]

    def add_batch(
        self, base: i64, count: i64, place: i64, size: i64, first_at: i64, last_at: i64
    ) -> None:
        """A batch stands behind the others."""
        if not self._places or place - self._places[-1] >= INDEX_STRIDE:
            self._offsets.append(base)
            self._places.append(place)
            self._times.append(first_at)
        if self.end == self.base:
            self.first_at = first_at
        self.end = base + count
        self.size = place + size
        self.last_at = max(self.last_at, last_at)

    def place_of(self, offset: i64) -> i64:
        """Where a batch begins, at or before the one that holds the offset."""
        at = bisect_right(self._offsets, offset)
        return SCHEMA_SIZE if at == 0 else self._places[at - 1]

    def offset_before(self, moment: i64) -> i64:
        """An offset of a batch before which nothing was published at that microsecond, or later."""
        at = bisect_right(self._times, moment - 1)
        return self.base if at == 0 else self._offsets[at - 1]

    def batch_places(self) -> list[int]:
        """Where batches begin: those that an index would say."""
        return list(self._places)

    def file(self) -> File:
        """Open for reading. Raises StoreError."""
        if self._file is None:
            self._file = open_for_reading(self.disk, self.path)
        return self._file

    def close(self) -> None:
        """Close the file when nobody reads it any more."""
        self._file = None

    # -- its index

    def encode_index(self) -> bytes:
        marks = b"".join(
            struct.pack("<qqq", *mark)
            for mark in zip(self._offsets, self._places, self._times, strict=True)
        )
        size = (
            _HEAD.pack(
                _MAGIC,
                _VERSION,
                self.end,
                self.size,
                self.first_at,
                self.last_at,
                len(self._offsets),
            )
            + marks
        )
        return size + _CHECKSUM.pack(crc32(size))

    def load_index(self, data: bytes, size: int) -> bool:
        """Know what an index says; False when it is not whole, or not that of a file of this size.

        Raises TooNew.
        """
        if len(data) < _HEAD.size + _CHECKSUM.size or _CHECKSUM.unpack(data[-_CHECKSUM.size :])[
            0
        ] != crc32(data[: -_CHECKSUM.size]):
            return False
        magic, version, end, known, first_at, last_at, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or known > size or len(data) != _HEAD.size + 24 * count + _CHECKSUM.size:
            return False
        if version > _VERSION:
            raise TooNew(
                f"'{self.path}.index' has version {version}, and this version knows {_VERSION}"
            )
        for offset, place, moment in struct.iter_unpack("<qqq", data[_HEAD.size : -_CHECKSUM.size]):
            self._offsets.append(offset)
            self._places.append(place)
            self._times.append(moment)
        self.end, self.size, self.first_at, self.last_at, self.full = (
            end,
            known,
            first_at,
            last_at,
            True,
        )
        return True
