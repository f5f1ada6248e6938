"""Files of the log: their headers, what is known of each, and the walk over one.

    head      magic "TLOG" | format u16 | kind u16 | salt u32 | crc u32 | first u64 | after u64
    file      head, the same head again, record, record, ...

A segment's `first` is the first position in it, `after` the last one in the file before it, so that
a missing file is noticed. A checkpoint's `first` is the last position it speaks for. The seed of
all checksums comes from the salt.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_right
from typing import Final
from zlib import crc32

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i16_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i16, i32, i64

from broker.store.disk import Disk, File, StoreError, TooNew
from broker.store.layout import CLOSED, CLOSING, HEADER, LIKENESS, PAYLOAD_MAX, STRIDE
from broker.store.reading import BAD, END, RecordReader

MAGIC: Final = b"TLOG"
FORMAT: Final[i64] = 1
SEGMENT: Final[i64] = 1
CHECKPOINT: Final[i64] = 2
#: Octets of a head, and of what stands before the records.
HEAD: Final[i64] = 32
DATA: Final[i64] = 64
#: Octets that are read at once in recovery.
CHUNK: Final[i64] = 1 << 20
#: A search behind damage checks at most so many times the octets of the file: a message may be full
#: of what looks like records.
_PATIENCE: Final[i64] = 16

_NAME: Final = re.compile(r"(checkpoint-)?(\d{20})\.log")
_U32: Final[i64] = 0xFFFFFFFF


class Head:
    """What a file says of itself."""

    def __init__(self, kind: i64, salt: i64, first: i64, after: i64) -> None:
        self.kind: i64 = kind
        self.salt: i64 = salt
        self.first: i64 = first
        self.after: i64 = after

    def octets(self) -> bytes:
        """Twice the same, so that the salt is not lost with one octet."""
        out = BytesWriter()
        out.write(MAGIC)
        write_i16_be(out, i16(FORMAT))
        write_i16_be(out, i16(self.kind))
        write_i32_be(out, i32(self.salt - (1 << 32) if self.salt >= 1 << 31 else self.salt))
        start = out.getvalue()
        rest = BytesWriter()
        write_i64_be(rest, self.first)
        write_i64_be(rest, self.after)
        end = rest.getvalue()
        head = start + int(crc32(end, crc32(start))).to_bytes(4, "big") + end
        return head + head

    @property
    def name(self) -> str:
        return f"{'checkpoint-' if self.kind == CHECKPOINT else ''}{self.first:020d}.log"


def read_head(octets: bytes) -> Head | None:
    """The head of a file that begins so; None when neither copy is whole. Raises TooNew."""
    at: i64 = 0
    while at + HEAD <= len(octets):
        copy = octets[at : at + HEAD]
        if copy[:4] == MAGIC and crc32(copy[16:], crc32(copy[:12])) == int.from_bytes(
            copy[12:16], "big"
        ):
            version: i64 = i64(read_i16_be(copy, 4))
            if version != FORMAT:
                raise TooNew(f"it has format {version}, and this version knows {FORMAT}")
            return Head(
                i64(read_i16_be(copy, 6)),
                i64(read_i32_be(copy, 8)) & _U32,
                read_i64_be(copy, 16),
                read_i64_be(copy, 24),
            )
        at += HEAD
    return None


def parse_name(name: str) -> tuple[int, int] | None:
    """(kind, first) of a file of the log; None when it is none."""
    match = _NAME.fullmatch(name)
    return None if match is None else (int(CHECKPOINT if match[1] else SEGMENT), int(match[2]))


def seed_of(salt: i64) -> i64:
    """What the checksums start from."""
    return crc32(int(salt).to_bytes(4, "big"))


def complaint(path: str, verb: str, error: OSError) -> str:
    """A line about what the operating system refused."""
    return f"cannot {verb} '{path}': {error.strerror or error}"


def opened(disk: Disk, path: str) -> File:
    """The file, open for reading. Raises StoreError."""
    try:
        return disk.open(path, False)
    except OSError as error:
        raise StoreError(complaint(path, "open", error)) from error


class LogFile:
    """A file of the log. `size` is what is written in order; `first` to `last` the positions it
    speaks for.

    The index knows every record that begins STRIDE octets or more behind the one before: 16 octets
    of memory for 4 KiB.
    """

    def __init__(self, disk: Disk, directory: str, head: Head) -> None:
        self.disk = disk
        self.name = head.name
        self.path = f"{directory}/{head.name}"
        self.checkpoint = head.kind == CHECKPOINT
        self.salt: i64 = head.salt
        self.seed: i64 = seed_of(head.salt)
        self.first: i64 = 0 if self.checkpoint else head.first
        self.last: i64 = head.first if self.checkpoint else head.after
        self.after: i64 = head.after
        self.size: i64 = DATA
        self.records: i64 = 0
        #: Copies of messages; how many of them are settled in files that are full, and in the one
        #: that is written.
        self.copies: i64 = 0
        self.dead: i64 = 0
        self.fresh: i64 = 0
        #: Octets of the records of messages; octets of the others.
        self.kept_octets: i64 = 0
        self.passing: i64 = 0
        #: Ends with the record that says so.
        self.closed = False
        #: (offset, octets) of damage; whether all of it was copied aside.
        self.holes: list[tuple[int, int]] = []
        self.saved = True
        self._positions: array[int] = array("q")
        self._offsets: array[int] = array("q")
        self._marked: i64 = -STRIDE
        self._file: File | None = None

    def mark(self, position: i64, offset: i64, always: bool = False) -> None:
        """Let the index know where a record begins, if it is time."""
        if always or offset - self._marked >= STRIDE:
            self._marked = offset
            self._offsets.append(offset)
            self._positions.append(position)  # Last: another thread that finds it finds its offset.

    def offset_of(self, position: i64) -> i64:
        """Where a record begins from which one comes to the position."""
        at = bisect_right(self._positions, position)
        return DATA if at == 0 else self._offsets[at - 1]

    def index_octets(self) -> int:
        """Memory that the index takes."""
        return 16 * len(self._positions)

    @property
    def waste(self) -> int:
        """About how many of its octets a checkpoint of all full files would not copy."""
        dead = (
            int(self.kept_octets)
            * min(int(self.dead), int(self.copies))
            // max(int(self.copies), 1)
        )
        return dead if self.checkpoint else dead + int(self.passing)

    def file(self) -> File:
        """The file, open for reading.

        Whoever holds the result may go on reading when the file is removed. Raises StoreError.
        """
        if self._file is None:
            self._file = opened(self.disk, self.path)
        return self._file

    def take(self, file: File) -> None:
        """This is the file, open."""
        self._file = file

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def close_scan(self) -> None:
        """Close the file when nobody reads it any more."""
        self._file = None

    def ranges(self) -> list[tuple[int, int]]:
        """(from, to) of what can be read."""
        found: list[tuple[int, int]] = []
        start = int(DATA)
        for offset, octets in self.holes:
            found.append((start, offset))
            start = offset + octets
        found.append((start, int(self.size)))
        return [(begin, end) for begin, end in found if end > begin]


#: What `Scan.find` says.
FOUND: Final[i64] = 0
NOTHING: Final[i64] = 1
GAVE_UP: Final[i64] = 2


class FileScan:
    """Walks over the records of a file, from `start` to `size`.

    `reader` holds the record after each `advance`.
    """

    def __init__(
        self, file: File, start: i64, size: i64, seed: i64, last: i64, chunk: i64 = CHUNK
    ) -> None:
        self.reader = RecordReader(seed, last)
        self.reader.base = start
        self.size: i64 = size
        self._file = file
        self._chunk: i64 = chunk
        self._patience: i64 = _PATIENCE * size

    @property
    def offset(self) -> i64:
        """Where the next record begins, or what cannot be read."""
        return self.reader.base + self.reader.at

    @property
    def began(self) -> i64:
        """Where this record began."""
        return self.reader.base + self.reader.began

    def advance(self) -> bool:
        """Go to the next record.

        False at the END, or where something is BAD. Raises TooNew, OSError.
        """
        reader = self.reader
        while not reader.advance():
            if reader.stop == BAD:
                return False
            offset: i64 = reader.base + reader.at
            need: i64 = reader.needed
            if offset >= self.size:
                reader.stop = END
                return False
            if offset + need > self.size:
                reader.stop = BAD
                reader.reason = "a record is cut off"
                return False
            self._load(offset, need)
            if len(reader.octets) < need:
                self.size = offset + len(reader.octets)
        return True

    def _load(self, offset: i64, need: i64) -> None:
        self.reader.load(
            self._file.read(offset, min(max(self._chunk, need), self.size - offset)), offset
        )

    def find(self) -> i64:
        """Go to the next record behind what is BAD: FOUND, NOTHING, or GAVE_UP.

        Raises TooNew, OSError.
        """
        offset: i64 = self.offset + 1
        while offset + HEADER <= self.size:
            octets = self._file.read(offset, min(self._chunk, self.size - offset))
            at: i64 = 8
            match = LIKENESS.search(octets, at)
            while match is not None:
                at = match.start()
                if self._holds(offset + at - 8):
                    self._load(offset + at - 8, HEADER)
                    return FOUND
                if self._patience <= 0:
                    return GAVE_UP
                match = LIKENESS.search(octets, at + 1)
            if len(octets) < 16 or offset + len(octets) >= self.size:
                break
            offset += len(octets) - 15
        return NOTHING

    def _holds(self, offset: i64) -> bool:
        """Whether a record begins there."""
        head = self._file.read(offset, min(HEADER, self.size - offset))
        self._patience -= HEADER
        if len(head) < HEADER or read_i64_be(head, 16) < self.reader.last:
            return False
        size: i64 = HEADER + (i64(read_i32_be(head, 0)) & _U32)
        if size > HEADER + PAYLOAD_MAX or offset + size > self.size:
            return False
        self._patience -= size
        probe = RecordReader(self.reader.seed, self.reader.last)
        probe.load(self._file.read(offset, size), offset)
        return probe.advance()


def closed(file: File, size: i64, seed: i64) -> bool:
    """Whether a file ends as one does that was finished in order."""
    if size < DATA + CLOSING:
        return False
    reader = RecordReader(seed, 0)
    reader.load(file.read(size - CLOSING, CLOSING), size - CLOSING)
    return reader.advance() and reader.at == CLOSING and reader.kind == CLOSED


def last_salt(file: File, size: i64) -> i64:
    """The salt as the end of a file says it; -1: it says nothing."""
    if size < DATA + CLOSING:
        return -1
    salt: i64 = i64(read_i32_be(file.read(size - 4, 4), 0)) & _U32
    return salt if closed(file, size, seed_of(salt)) else -1
