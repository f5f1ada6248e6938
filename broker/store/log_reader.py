"""Reading records of the segment log by their positions."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.store.disk import (
    DamagedStore,
    StoreError,
)
from broker.store.files import (
    FileScan,
    LogFile,
    file_holding,
    os_error_text,
)
from broker.store.layout import GROUP, HEADER_SIZE
from broker.store.reading import BAD, RecordReader, group_members
from broker.store.segments import SegmentLog

#: Number of bytes that a read by position loads first, and number of bytes of each further load.
_FIRST_READ_SIZE: Final[i64] = 8_192
_NEXT_READ_SIZE: Final[i64] = 65_536


class LogReader:
    """A reader of records by position.

    After `read` returned True, `kind` and the payload `data[start:end]` belong to the record.
    """

    def __init__(self, log: SegmentLog) -> None:
        self.kind: i64 = 0
        self.data = b""
        self.start: i64 = 0
        self.end: i64 = 0
        self._log = log
        self._file: LogFile | None = None
        self._reader = RecordReader(0, 0)
        #: The last position that was asked for. The reader has passed the records up to this
        #: position.
        self._reached: i64 = 0

    def read(self, position: i64) -> bool:
        """Go to the record or group member at a position; return False if there is none.

        Raises DamagedStore if the record is damaged, another StoreError if the file cannot be read.
        """
        log, reader = self._log, self._reader
        file = file_holding(log.files, position)
        while file is not None and position <= file.last:
            try:
                return self._read(file, position)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise StoreError(os_error_text(file.path, "read", error)) from error
            except StoreError as failed:
                if not isinstance(failed.__cause__, FileNotFoundError):
                    raise
            # A checkpoint replaced the file meanwhile.
            known, file = file, file_holding(log.files, position)
            if file is known:
                raise StoreError(f"the file '{known.path}' is missing")
        reader.load(b"", 0)
        return False

    def _read(self, file: LogFile, position: i64) -> bool:
        reader = self._reader
        start: i64 = file.offset_of(position)
        size: i64 = _NEXT_READ_SIZE
        if file is not self._file or start < reader.base or start > reader.base + len(reader.data):
            self._file = file
            self._reader = reader = RecordReader(file.seed, 0)
            reader.base = start
            size = _FIRST_READ_SIZE
        elif position <= self._reached or start > reader.base + reader.at:
            reader.at = start - reader.base
        self._reached = position
        while not reader.seek(position):
            if len(reader.data) - reader.at >= HEADER_SIZE + 4 or not self._more(
                file, _NEXT_READ_SIZE if reader.data else _FIRST_READ_SIZE
            ):
                return self._absent(file, start, position)
        began: i64 = reader.base + reader.at
        while not reader.advance():
            if reader.stop == BAD or not self._more(file, max(reader.needed, size)):
                raise self._damaged(file, position, began, reader.reason or "the record is cut off")
        self.data, self.kind = reader.data, reader.kind
        self.start, self.end = reader.start, reader.end
        if self.kind == GROUP:
            for member in group_members(self.data, reader.position, self.start, self.end):
                if member.position == position:
                    self.kind, self.start, self.end = member.kind, member.start, member.end
                    # Stay at the group: the next position that is asked for may be in it.
                    reader.at = reader.record_start
                    return True
            return False
        return reader.position == position

    def _absent(self, file: LogFile, start: i64, position: i64) -> bool:
        """Return False, the result of `read` if no record holds the position.

        Raises DamagedStore if the record may exist, but damage hides it. Called when `seek` has
        found no record with the position. `seek` reads only headers, so a damaged header may have
        led it past the record. Therefore this method reads all records from offset `start` on with
        their checksums, up to the first record with this or a later position.
        """
        self._file = None
        scan = FileScan(self._log.open_file(file), start, file.size, file.seed, 0, _FIRST_READ_SIZE)
        while scan.advance():
            if scan.reader.last >= position:
                return False
        if scan.reader.stop == BAD:
            raise self._damaged(file, position, scan.offset, scan.reader.reason)
        return False

    def _damaged(self, file: LogFile, position: i64, offset: i64, reason: str) -> DamagedStore:
        return DamagedStore(
            f"the record at position {position} cannot be read ('{file.path}' at offset {offset}):"
            f" {reason}"
        )

    def _more(self, file: LogFile, count: i64) -> bool:
        """Load `count` bytes from the next record on; return False at the end of the file."""
        reader = self._reader
        offset: i64 = reader.base + reader.at
        had: i64 = len(reader.data) - reader.at
        if offset + had >= file.size:
            return False
        reader.load(self._log.open_file(file).read(offset, min(count, file.size - offset)), offset)
        return len(reader.data) > had


def read_record(log: SegmentLog, position: i64) -> tuple[int, bytes] | None:
    """Return (kind, payload) of the record at a position; None if there is no such record.

    Raises DamagedStore if the record is damaged, another StoreError if the file cannot be read.
    """
    reader = LogReader(log)
    if not reader.read(position):
        return None
    return int(reader.kind), reader.data[reader.start : reader.end]
