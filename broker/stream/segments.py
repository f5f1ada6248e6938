"""Segments: the files of a stream, and their indexes.

    <epoch>-<base offset>.arrow          schema, batch, batch, ...; end marker once it is full
    <epoch>-<base offset>.arrow.index    places of some batches, beside a full segment
    <epoch>-<base offset>.arrow.topics   a summary of the topics, beside a full segment

An offset is the number of a row in its stream. A place is the byte position of a batch in its
segment.

Format of an index: "TSIX", version u32; end, size, first and last time of the segment; number of
entries; for each entry offset, place and time; CRC-32 of all these bytes as u64. Times are in
microseconds. Numbers without a width have 8 bytes. All are little-endian.
"""

from __future__ import annotations

import re
import struct
from array import array
from bisect import bisect_right
from typing import Final
from urllib.parse import quote
from zlib import crc32

from mypy_extensions import i64

from broker.store.disk import Disk, File, TooNew
from broker.store.files import open_for_reading
from broker.stream.arrow import END_OF_STREAM, SCHEMA_SIZE
from broker.stream.open_files import FileUser

#: Smallest distance between two batches in the index, in bytes.
INDEX_STRIDE: Final[i64] = 64 << 10

#: Endings of the files that are derived from a segment, after the segment's name: the index, and
#: the summary of the topics (segment_topics.py).
INDEX: Final = ".index"
TOPICS: Final = ".topics"
DERIVED: Final = (INDEX, TOPICS)
#: Endings of the names of a stream's files.
SUFFIXES: Final = (
    ".arrow",
    *(f".arrow{derived}{written}" for derived in DERIVED for written in ("", ".tmp")),
)

#: Greatest length of an encoded name; a longer name is cut to this length and gets a checksum.
_DIRECTORY_NAME_MAX: Final = 120
_NAME: Final = re.compile(r"(\d{10})-(\d{20})\.arrow")
_MAGIC: Final = b"TSIX"
_VERSION: Final = 1
_HEAD: Final = struct.Struct("<4sIqqqqq")
_CHECKSUM: Final = struct.Struct("<Q")


def directory_name(name: str) -> str:
    """Return the name of the directory of a virtual host or a queue, unique and safe in a path."""
    directory = quote(name, safe="", errors="surrogateescape")
    if directory.startswith("."):
        directory = "%2E" + directory[1:]
    if len(directory) <= _DIRECTORY_NAME_MAX:
        return directory
    checksum = crc32(name.encode("utf-8", "surrogateescape"))
    return f"{directory[:_DIRECTORY_NAME_MAX]}~{checksum:08x}"


def segment_name(epoch: int, base: int) -> str:
    """Return the file name of the segment with this epoch and this base offset."""
    return f"{epoch:010d}-{base:020d}.arrow"


def parse_segment(name: str) -> tuple[int, int] | None:
    """Return (epoch, base) from a file name; None if it is not a segment's name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(match[1]), int(match[2]))


def derived_from(name: str) -> str:
    """Return the name of the segment from which the file `name` is derived; "" for other files."""
    for ending in DERIVED:
        if name.endswith(ending):
            return name[: -len(ending)]
    return ""


def derived_paths(path: str) -> list[str]:
    """Return the paths of the files that are derived from the segment at `path`."""
    return [f"{path}{ending}" for ending in DERIVED]


def remove_derived(disk: Disk, path: str) -> bool:
    """Remove the files that are derived from the segment at `path`; return True if any existed."""
    removed = False
    for derived in derived_paths(path):
        try:
            disk.remove(derived)
        except FileNotFoundError:
            continue
        removed = True
    return removed


class Segment(FileUser):
    """A segment: a file with the rows from offset `base` up to, but not including, `end`.

    `size` is the size of its durable part in bytes.
    """

    def __init__(self, disk: Disk, path: str, epoch: int, base: int) -> None:
        self.disk = disk
        self.path = path
        self.epoch = epoch
        self.base: i64 = base
        self.end: i64 = base
        self.size: i64 = SCHEMA_SIZE
        #: Times when the first and the last row were published, in microseconds.
        self.first_at: i64 = 0
        self.last_at: i64 = 0
        #: True if the segment is never written again.
        self.full = False
        #: True if this process wrote the segment. Then its checksums need not be checked.
        self.written_here = False
        #: `archived`: the archive has the segment. `waits`: the segment waits for its upload; or
        #: the segment was fetched, and the fetch of the next segment was requested (archived.py).
        self.archived = False
        self.waits = False
        self._offsets: array[int] = array("q")
        self._places: array[int] = array("q")
        self._times: array[int] = array("q")
        self._file: File | None = None

    @property
    def name(self) -> str:
        """The name of the segment's file."""
        return self.path.rpartition("/")[2]

    def add_batch(
        self, base: i64, count: i64, place: i64, size: i64, first_at: i64, last_at: i64
    ) -> None:
        """Add a batch of `count` rows from offset `base` on, which has `size` bytes at `place`.

        The index gets at most one batch for each INDEX_STRIDE bytes. `first_at` and `last_at` are
        the times, in microseconds, at which the first and the last row of the batch were published.
        """
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
        """Return the byte position of a batch from which to search for the row at `offset`."""
        at = bisect_right(self._offsets, offset)
        return SCHEMA_SIZE if at == 0 else self._places[at - 1]

    def offset_before(self, moment: i64) -> i64:
        """Return an offset before which all rows were published earlier than `moment`.

        `moment` is a Unix time in microseconds.
        """
        at = bisect_right(self._times, moment - 1)
        return self.base if at == 0 else self._offsets[at - 1]

    def batch_places(self) -> list[int]:
        """Return the places of the indexed batches: their byte positions in the segment's file."""
        return list(self._places)

    def file(self) -> File:
        """Return the file, open for reading. Raises StoreError if it cannot be opened."""
        if self._file is None:
            self._file = open_for_reading(self.disk, self.path)
        return self._file

    def close(self) -> None:
        """Drop the reference to the open file, which is closed with its last reference."""
        self._file = None

    def close_idle(self) -> bool:
        self.close()
        return True

    # -- index

    def encode_index(self) -> bytes:
        """Return the bytes of the index file for this segment."""
        entries = b"".join(
            struct.pack("<qqq", *entry)
            for entry in zip(self._offsets, self._places, self._times, strict=True)
        )
        data = (
            _HEAD.pack(
                _MAGIC,
                _VERSION,
                self.end,
                self.size,
                self.first_at,
                self.last_at,
                len(self._offsets),
            )
            + entries
        )
        return data + _CHECKSUM.pack(crc32(data))

    def load_index(self, data: bytes, size: int) -> bool:
        """Load an index. Return False if the index is damaged, or belongs to a file that does not
        have `size` bytes.

        Raises TooNew for an unknown version.
        """
        if len(data) < _HEAD.size + _CHECKSUM.size or _CHECKSUM.unpack(data[-_CHECKSUM.size :])[
            0
        ] != crc32(data[: -_CHECKSUM.size]):
            return False
        magic, version, end, known, first_at, last_at, count = _HEAD.unpack_from(data)
        if magic != _MAGIC or len(data) != _HEAD.size + 24 * count + _CHECKSUM.size:
            return False
        if version > _VERSION:
            raise TooNew(
                f"'{self.path}.index' has format version {version}, and this version of Trellis"
                f" reads only versions up to {_VERSION}"
            )
        if not known <= size <= known + len(END_OF_STREAM):
            return False
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
