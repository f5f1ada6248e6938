"""Files of the log: their heads, the index and the counts of each file, scanning for records.

    head      magic "TLOG" | format u16 | kind u16 | salt u32 | crc u32 | first u64 |
              previous_last u64
    file      head, a copy of the head, record, record, ...

`first` is the first position in a segment, and `previous_last` the last position in the file
before, so that a missing file is noticed. `first` of a checkpoint is the last position that the
checkpoint covers. The seed of all checksums is derived from the salt.
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

from broker.store.disk import NO_DESCRIPTORS, Disk, File, OutOfDescriptors, StoreError, TooNew
from broker.store.layout import (
    CLOSED,
    CLOSING_SIZE,
    HEADER_SIZE,
    INDEX_STRIDE,
    PAYLOAD_MAX,
    RECORD_PATTERN,
)
from broker.store.reading import BAD, END, RecordReader

MAGIC: Final = b"TLOG"
#: The format of most heads, and the format of a segment's head if files before it were dropped.
FORMAT: Final[i64] = 1
FORMAT_GAP: Final[i64] = 2
SEGMENT: Final[i64] = 1
CHECKPOINT: Final[i64] = 2
#: Size of a head, and offset of the first record, in bytes.
HEAD_SIZE: Final[i64] = 32
DATA_START: Final[i64] = 64
#: Number of bytes that recovery reads at once.
CHUNK_SIZE: Final[i64] = 1 << 20
#: A search for records after damage checks at most this multiple of the size of the file in bytes.
#: Without a limit the search could take very long, because a message may be full of bytes that look
#: like records.
_SEARCH_BUDGET: Final[i64] = 16

_NAME: Final = re.compile(r"(checkpoint-)?(\d{20})\.log")
_U32: Final[i64] = 0xFFFFFFFF
_U31: Final[i64] = 0x7FFFFFFF
#: Sums of `entry_hash` are kept modulo 2**62.
SUM_MASK: Final[i64] = (1 << 62) - 1


class Head:
    """The head of a file: kind, salt, first position, last position of the previous file.

    `follows_gap` is True if all files between `previous_last` and `first` were dropped. The dropped
    files may still be in the directory.
    """

    def __init__(
        self, kind: i64, salt: i64, first: i64, previous_last: i64, follows_gap: bool = False
    ) -> None:
        self.kind: i64 = kind
        self.salt: i64 = salt
        self.first: i64 = first
        self.previous_last: i64 = previous_last
        self.follows_gap = follows_gap

    def encode(self) -> bytes:
        """Return the head twice, so that one damaged byte does not lose the salt."""
        out = BytesWriter()
        out.write(MAGIC)
        write_i16_be(out, i16(FORMAT_GAP if self.follows_gap else FORMAT))
        write_i16_be(out, i16(self.kind))
        write_i32_be(out, i32(self.salt - (1 << 32) if self.salt >= 1 << 31 else self.salt))
        start = out.getvalue()
        rest = BytesWriter()
        write_i64_be(rest, self.first)
        write_i64_be(rest, self.previous_last)
        end = rest.getvalue()
        head = start + int(crc32(end, crc32(start))).to_bytes(4, "big") + end
        return head + head

    @property
    def name(self) -> str:
        """The file name that belongs to this head, such as `checkpoint-...420.log`."""
        return f"{'checkpoint-' if self.kind == CHECKPOINT else ''}{self.first:020d}.log"


def read_head(data: bytes) -> Head | None:
    """Return the head of a file from its first bytes; None if both copies are damaged.

    Raises TooNew for an unknown format.
    """
    at: i64 = 0
    while at + HEAD_SIZE <= len(data):
        copy = data[at : at + HEAD_SIZE]
        if copy[:4] == MAGIC and crc32(copy[16:], crc32(copy[:12])) == int.from_bytes(
            copy[12:16], "big"
        ):
            version: i64 = i64(read_i16_be(copy, 4))
            if version < FORMAT or version > FORMAT_GAP:
                raise TooNew(
                    f"the file's log format is {version}, and this version of Trellis reads only "
                    f"formats {FORMAT} to {FORMAT_GAP}"
                )
            return Head(
                i64(read_i16_be(copy, 6)),
                i64(read_i32_be(copy, 8)) & _U32,
                read_i64_be(copy, 16),
                read_i64_be(copy, 24),
                version == FORMAT_GAP,
            )
        at += HEAD_SIZE
    return None


def parse_name(name: str) -> tuple[int, int] | None:
    """Return the kind and the position in the name of a file of the log.

    The kind is SEGMENT or CHECKPOINT. The position is the first position in a segment, or the last
    position that a checkpoint covers. Return None if no file of the log can have this name.
    """
    match = _NAME.fullmatch(name)
    return None if match is None else (int(CHECKPOINT if match[1] else SEGMENT), int(match[2]))


def seed_of(salt: i64) -> i64:
    """Return the number from which all checksums of a log with this salt start."""
    return crc32(int(salt).to_bytes(4, "big"))


def os_error_text(path: str, verb: str, error: OSError) -> str:
    """Return an error text about a file; `verb` is the failed operation, such as "read"."""
    return f"cannot {verb} '{path}': {error.strerror or error}"


def open_error(path: str, verb: str, error: OSError) -> StoreError:
    """Return the error for a file that cannot be opened: OutOfDescriptors or another StoreError."""
    text = os_error_text(path, verb, error)
    return OutOfDescriptors(text) if error.errno in NO_DESCRIPTORS else StoreError(text)


def open_for_reading(disk: Disk, path: str) -> File:
    """Open a file for reading. Raises OutOfDescriptors or another StoreError if that fails."""
    try:
        return disk.open(path, False)
    except OSError as error:
        raise open_error(path, "open", error) from error


def _drop(file: File | None) -> None:
    """Do nothing. A caller passes a file to keep it open until the caller's attribute is None.

    Without this call, compiled code would close the file when it sets the attribute, while the
    attribute still refers to the file. Another thread that runs during the close could read from
    the closed file.
    """


class LogFile:
    """A file of the log, with its index and counts of its records.

    `size` is the size of the completely written part in bytes. The file covers the positions
    `first` to `last`. The index has one entry of 16 bytes for each INDEX_STRIDE bytes (4 KiB) of
    the file.
    """

    def __init__(self, disk: Disk, directory: str, head: Head) -> None:
        self.disk = disk
        self.name = head.name
        self.path = f"{directory}/{head.name}"
        self.checkpoint = head.kind == CHECKPOINT
        self.salt: i64 = head.salt
        self.seed: i64 = seed_of(head.salt)
        self.first: i64 = 0 if self.checkpoint else head.first
        self.last: i64 = head.first if self.checkpoint else head.previous_last
        self.previous_last: i64 = head.previous_last
        self.size: i64 = DATA_START
        self.records: i64 = 0
        #: Number of (message, queue) pairs in this file, and how many of these are settled.
        self.copies: i64 = 0
        self.settled: i64 = 0
        #: Number of live entries in this file, and the sum of their `entry_hash`: see liveness.py.
        #: `counted` is False if these two values are unknown.
        self.live: i64 = 0
        self.balance: i64 = 0
        self.counted = False
        #: Name of another file -> number of entries in this file about entries in that file.
        self.needs: dict[str, int] = {}
        #: Size of the records of messages, and of the other records, in bytes.
        self.stored_size: i64 = 0
        self.transient_size: i64 = 0
        #: True if the file ends with a closing record.
        self.closed = False
        #: (offset, size) of damaged parts. `damage_saved` is True if all are in the quarantine.
        self.holes: list[tuple[int, int]] = []
        self.damage_saved = True
        self._positions: array[int] = array("q")
        self._offsets: array[int] = array("q")
        self._last_indexed: i64 = -INDEX_STRIDE
        self._file: File | None = None

    def add_to_index(self, position: i64, offset: i64, always: bool = False) -> None:
        """Index a record if it is INDEX_STRIDE bytes or more after the last indexed record.

        `position` is the record's position in the log, `offset` its byte offset in this file. If
        `always` is True, add the record in any case.
        """
        if always or offset - self._last_indexed >= INDEX_STRIDE:
            self._last_indexed = offset
            self._offsets.append(offset)
            # Append the position last: a thread that reads the position also finds its offset.
            self._positions.append(position)

    def offset_of(self, position: i64) -> i64:
        """Return the offset at which to begin a search for the record at a position."""
        at = bisect_right(self._positions, position)
        return DATA_START if at == 0 else self._offsets[at - 1]

    @property
    def is_dead(self) -> bool:
        """True if no entry in this file is live, and its damaged parts are in the quarantine."""
        return self.counted and self.live == 0 and self.balance == 0 and self.damage_saved

    @property
    def reclaimable(self) -> int:
        """The estimated number of bytes in this file that a checkpoint would free."""
        dead = (
            int(self.stored_size)
            * min(int(self.settled), int(self.copies))
            // max(int(self.copies), 1)
        )
        return dead if self.checkpoint else dead + int(self.transient_size)

    def file(self) -> File:
        """Return the file, open for reading. Raises StoreError if it cannot be opened.

        The result stays readable after the file is removed.
        """
        file = self._file
        if file is None:
            file = open_for_reading(self.disk, self.path)
            if self._file is None:  # No other thread has opened it meanwhile.
                self._file = file
        return file

    def attach(self, file: File) -> None:
        """From now on, read from `file`, which the caller has opened for this file of the log."""
        self._file = file

    @property
    def is_open(self) -> bool:
        """True if the file is open for reading."""
        return self._file is not None

    def close_scan(self) -> None:
        """Drop the reference to the open file. The file is closed with the last reference to it."""
        file = self._file
        self._file = None
        _drop(file)

    def readable_ranges(self) -> list[tuple[int, int]]:
        """Return the (start, end) offsets of the undamaged parts of the file."""
        ranges: list[tuple[int, int]] = []
        start = int(DATA_START)
        for offset, size in self.holes:
            ranges.append((start, offset))
            start = offset + size
        ranges.append((start, int(self.size)))
        return [(begin, end) for begin, end in ranges if end > begin]


def file_holding(files: list[LogFile], position: i64) -> LogFile | None:
    """Return the file that covers a position, or else the last file before the position.

    Return None if the position comes before all files.
    """
    low: i64 = 0
    high: i64 = len(files)
    try:
        while low < high:
            middle: i64 = (low + high) >> 1
            if files[middle].first <= position:
                low = middle + 1
            else:
                high = middle
        return files[low - 1] if low > 0 else None
    except IndexError:
        # Another thread removed some files from the list meanwhile.
        return file_holding(files, position)


def entry_hash(holder: i64, position: i64) -> i64:
    """Return a hash of the message at a position in the queue `holder`, for `LogFile.balance`.

    For an entry that is not a message, `holder` is 0. Hot path: the factors are small, so that each
    product fits into 63 bits.
    """
    mixed: i64 = (position & _U32) * 0x7FEB352D & SUM_MASK
    mixed += (position >> 32) * 0x1B873593 & SUM_MASK
    mixed = (mixed ^ (holder & _U32) * 0x2C1B3C6D) & SUM_MASK
    mixed ^= mixed >> 29
    return ((mixed & _U31) * 0x5BD1E995 ^ (mixed >> 31) * 0x27D4EB2F) & SUM_MASK


def total_balance(files: list[LogFile]) -> i64:
    """Return the sum of the attribute `balance` of files, modulo SUM_MASK + 1.

    The balance of a file is the sum of the hashes of its live entries (`entry_hash`). Each addition
    is masked, because the plain sum of three balances does not fit into 64 bits.
    """
    total: i64 = 0
    for file in files:
        total = (total + file.balance) & SUM_MASK
    return total


#: Results of `FileScan.find_next_record`.
FOUND: Final[i64] = 0
NOTHING: Final[i64] = 1
GAVE_UP: Final[i64] = 2


class FileScan:
    """A scan over the records of a file from `start` to `size`.

    After each `advance`, `reader` has the record.
    """

    def __init__(
        self, file: File, start: i64, size: i64, seed: i64, last: i64, chunk: i64 = CHUNK_SIZE
    ) -> None:
        self.reader = RecordReader(seed, last)
        self.reader.base = start
        self.size: i64 = size
        self._file = file
        self._chunk: i64 = chunk
        self._search_budget: i64 = _SEARCH_BUDGET * size

    @property
    def offset(self) -> i64:
        """The offset of the next record, or of the damage at which `advance` stopped."""
        return self.reader.base + self.reader.at

    @property
    def record_start(self) -> i64:
        """The offset in the file at which the current record begins, in bytes."""
        return self.reader.base + self.reader.record_start

    def advance(self) -> bool:
        """Go to the next record. Return False if there is none: `reader.stop` is END or BAD.
        Raises TooNew for an unknown format, OSError if the file cannot be read.
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
            if len(reader.data) < need:
                self.size = offset + len(reader.data)
        return True

    def _load(self, offset: i64, need: i64) -> None:
        self.reader.load(
            self._file.read(offset, min(max(self._chunk, need), self.size - offset)), offset
        )

    def find_next_record(self) -> i64:
        """Search for the next intact record after damage, and continue there if it exists.

        Return FOUND if an intact record follows, NOTHING if none follows, or GAVE_UP if the search
        took too long. Raises TooNew for an unknown format, OSError if the file cannot be read.
        """
        offset: i64 = self.offset + 1
        while offset + HEADER_SIZE <= self.size:
            data = self._file.read(offset, min(self._chunk, self.size - offset))
            at: i64 = 8
            match = RECORD_PATTERN.search(data, at)
            while match is not None:
                at = match.start()
                if self._record_begins_at(offset + at - 8):
                    self._load(offset + at - 8, HEADER_SIZE)
                    return FOUND
                if self._search_budget <= 0:
                    return GAVE_UP
                match = RECORD_PATTERN.search(data, at + 1)
            if len(data) < 16 or offset + len(data) >= self.size:
                break
            offset += len(data) - 15
        return NOTHING

    def _record_begins_at(self, offset: i64) -> bool:
        """True if an intact record begins at an offset."""
        head = self._file.read(offset, min(HEADER_SIZE, self.size - offset))
        self._search_budget -= HEADER_SIZE
        if len(head) < HEADER_SIZE or read_i64_be(head, 16) < self.reader.last:
            return False
        size: i64 = HEADER_SIZE + (i64(read_i32_be(head, 0)) & _U32)
        if size > HEADER_SIZE + PAYLOAD_MAX or offset + size > self.size:
            return False
        self._search_budget -= size
        probe = RecordReader(self.reader.seed, self.reader.last)
        probe.load(self._file.read(offset, size), offset)
        return probe.advance()


def is_closed(file: File, size: i64, seed: i64) -> bool:
    """True if a file of `size` bytes ends with a closing record."""
    if size < DATA_START + CLOSING_SIZE:
        return False
    reader = RecordReader(seed, 0)
    reader.load(file.read(size - CLOSING_SIZE, CLOSING_SIZE), size - CLOSING_SIZE)
    return reader.advance() and reader.at == CLOSING_SIZE and reader.kind == CLOSED


def read_closing_salt(file: File, size: i64) -> i64:
    """Return the salt in the closing record of a file of `size` bytes; -1 if there is none."""
    if size < DATA_START + CLOSING_SIZE:
        return -1
    salt: i64 = i64(read_i32_be(file.read(size - 4, 4), 0)) & _U32
    return salt if is_closed(file, size, seed_of(salt)) else -1
