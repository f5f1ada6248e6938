"""The file of a checkpoint while it is written.

The file is named checkpoint-P.log.tmp, where P is the last position that the checkpoint covers.
When the file is complete, it is renamed to checkpoint-P.log.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from broker.store.disk import File, StoreError, WriteFailed
from broker.store.files import (
    CHECKPOINT,
    DATA_START,
    SUM_MASK,
    Head,
    LogFile,
    entry_hash,
    open_error,
    os_error_text,
)
from broker.store.layout import STORED, version_of
from broker.store.record_parts import closing_record, write_header
from broker.store.segments import SegmentLog

#: Largest number of bytes that are collected before they are written.
OUT_SIZE: Final[i64] = 1 << 18
#: Number of bytes written between two syncs, so that the last sync is short.
SYNC_SIZE: Final[i64] = 32 << 20


class CheckpointFile:
    """A checkpoint file while it is written; it covers the positions of the log up to `last`.

    The records go to the file `temporary`, which `finish` renames. `file` describes the finished
    file: its path, and the counts and the index of the records.
    """

    def __init__(self, log: SegmentLog, last: i64) -> None:
        self.file = LogFile(log.disk, log.directory, Head(CHECKPOINT, log.salt, last, 0))
        self.temporary = self.file.path + ".tmp"
        self._log = log
        self._handle: File | None = None
        self._out = BytesWriter()
        self._written: i64 = 0
        self._synced: i64 = 0

    @property
    def begun(self) -> bool:
        """True while the temporary file exists."""
        return self._handle is not None

    @property
    def is_full(self) -> bool:
        """True if OUT_SIZE bytes are collected, so that `flush` must be called."""
        return len(self._out) >= OUT_SIZE

    def remove(self) -> None:
        """Remove the temporary file, if it exists."""
        if self._handle is not None:
            self._handle = None
            try:
                self._log.disk.remove(self.temporary)
            except OSError:
                pass  # The next opening of the log removes the file.

    def begin(self) -> None:
        """Create the temporary file, and write its head."""
        self._log.remove_leftover()
        try:
            if self.temporary.rpartition("/")[2] in self._log.disk.list(self._log.directory):
                self._log.disk.remove(self.temporary)
            self._handle = self._log.disk.create(self.temporary)
        except OSError as error:
            raise open_error(self.temporary, "create", error) from error
        self._out.write(self._encode_head())

    def _encode_head(self) -> bytes:
        return Head(CHECKPOINT, self._log.salt, self.file.last, 0).encode()

    def count_live(self, position: i64, holders: list[int]) -> None:
        """Count an entry as live in this file: once for each queue that holds its message."""
        file = self.file
        file.live += len(holders)
        for holder in holders:
            file.balance = (file.balance + entry_hash(holder, position)) & SUM_MASK

    def write_record(
        self, kind: i64, position: i64, head: bytes, data: bytes, start: i64, end: i64
    ) -> None:
        """Collect a record with the payload `head + data[start:end]`; `flush` writes it."""
        before = BytesWriter()
        write_i32_be(before, i32(version_of(kind) << 24 | kind << 16))
        write_i32_be(before, 0)
        write_i64_be(before, position)
        before.write(head)
        fixed = before.getvalue()
        rest = memoryview(data)[start:end]
        self._count(kind, position, 8 + len(fixed) + len(rest))
        write_header(
            8 + len(fixed) + len(rest), crc32(rest, crc32(fixed, self.file.seed)), self._out
        )
        self._out.write(fixed)
        self._append(data, start, end)

    def write_verbatim(self, kind: i64, position: i64, data: bytes, start: i64, end: i64) -> None:
        """Collect the record `data[start:end]` unchanged; `flush` writes it."""
        self._count(kind, position, end - start)
        self._append(data, start, end)

    def _append(self, data: bytes, start: i64, end: i64) -> None:
        if end - start < OUT_SIZE:
            self._out.write(data[start:end])
        else:
            self.flush()
            self._write_out(memoryview(data)[start:end])

    def _count(self, kind: i64, position: i64, size: i64) -> None:
        checkpoint = self.file
        checkpoint.add_to_index(position, self._written + len(self._out))
        checkpoint.records += 1
        if kind == STORED:
            checkpoint.stored_size += size

    def flush(self) -> None:
        """Write the collected records; sync the file if SYNC_SIZE bytes or more are not synced."""
        data = self._out.getvalue()
        self._out = BytesWriter()
        self._write_out(data)
        if self._written - self._synced >= SYNC_SIZE:
            self._sync()

    def _write_out(self, data: bytes | memoryview) -> None:
        handle = self._handle
        assert handle is not None
        try:
            handle.write(self._written, data)
        except OSError as error:
            raise WriteFailed(
                os_error_text(self.temporary, "write", error), error.errno or 0
            ) from error
        self._written += len(data)

    def _sync(self) -> None:
        handle = self._handle
        assert handle is not None
        try:
            handle.sync()
        except OSError as error:
            self._log.poison(os_error_text(self.temporary, "sync", error))
        self._synced = self._written

    def finish(self) -> None:
        """Write the closing record, sync the file, and rename it to its final name, durably."""
        file, log = self.file, self._log
        self._out.write(
            closing_record(
                file.last,
                file.records,
                self._written + len(self._out) - DATA_START,
                file.salt,
                file.seed,
            )
        )
        self.flush()
        file.size = self._written
        self._sync()
        try:
            log.disk.rename(self.temporary, file.path)
        except OSError as error:
            raise StoreError(os_error_text(self.temporary, "rename", error)) from error
        self._handle = None
        log.sync_directory()
        file.counted = True
