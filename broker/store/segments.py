"""The segment log: batches are appended, recovery reads the whole log, queues read records.

    log/   checkpoint-00..0420.log     the live entries up to position 420
           00..0421.log                a full segment, which gets no more records
           00..0977.log                the active segment
           quarantine/                 copies of damaged data

    open(replay) --> Recovery        append(records), sync()         reader().read(position)
    (any thread, first)              (the writer thread)             (any thread)

Each append must be followed by a sync before the next append. So all bytes before the first record
of a batch were durable when that record was written. Recovery relies on this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from mypy_extensions import i64

from broker.store.batch_records import Records
from broker.store.disk import (
    Disk,
    File,
    StoreError,
    WriteFailed,
)
from broker.store.files import (
    DATA_START,
    SEGMENT,
    SUM_MASK,
    Head,
    LogFile,
    entry_hash,
    file_holding,
    os_error_text,
    seed_of,
)
from broker.store.liveness import Liveness
from broker.store.poison import PoisonableWriter
from broker.store.record_parts import closing_record
from broker.store.recovery import Recoverer
from broker.store.replay import Recovery, Replay, ignore_progress

#: Size at which a segment is full, in bytes.
SEGMENT_SIZE: Final = 64 << 20
#: Default for the number of sealed files that stay open for reading.
OPEN_MAX: Final = 64
#: Largest number of consecutive batches for which a node of a cluster does not store its state.
#: After a crash, the node reads at most this number of batches again.
STATE_BATCHES: Final = 100


class SegmentLog(PoisonableWriter):
    """A log in a directory of segments.

    `salt` is a random number below 2**32, used for a new log. An existing log keeps its salt.
    """

    def __init__(
        self, disk: Disk, directory: str, segment_size: int = SEGMENT_SIZE, salt: int = 0
    ) -> None:
        super().__init__(disk)
        self.directory = directory
        self.segment_size: i64 = segment_size
        #: Files in the order of their positions: at most one checkpoint, then segments.
        self.files: list[LogFile] = []
        #: The last position in the log.
        self.last: i64 = 0
        #: The reason for which checkpoints are disabled; empty if they are enabled. Checkpoints are
        #: disabled once damage is found that is not in the quarantine, because a checkpoint would
        #: remove the damaged file.
        self.no_checkpoint_reason = ""
        #: The segment whose head may or may not record that the files before it are dropped,
        #: because a write of the head failed; None if there is none. No checkpoint begins
        #: meanwhile: recovery could take the checkpoint for a dropped file.
        self.unsure_head: LogFile | None = None
        #: Thresholds in bytes. The full files are read, to measure the size of their live records,
        #: once their total size reaches `check_size`, or the sum of their `reclaimable` reaches
        #: `check_reclaimable`. (`reclaimable` is an estimate: it assumes messages of equal size.)
        self.check_size: i64 = 0
        self.check_reclaimable: i64 = 0
        #: While disk space is short, the size of the live records is measured again once the sum of
        #: `reclaimable` has this value, in bytes.
        self.short_check_reclaimable: i64 = 0
        #: The salt in the heads of the log's files; valid once the log is open.
        self.salt: i64 = salt
        #: Counts the live entries of each file.
        self.liveness = Liveness()
        #: Number of segments that were begun, and that number when the catalog was last written.
        self.rolls = 0
        self.noted_rolls = 0
        #: Number of batches since the state of this node of a cluster was last stored, and the
        #: largest permitted value of this number.
        self.unstored_batches = 0
        self.unstored_batches_max = STATE_BATCHES
        #: Size of the active segment at the last sync, in bytes.
        self.synced_size: i64 = 0
        #: Number of bytes appended since the log was opened.
        self.written: i64 = 0
        #: Files that are no longer part of the log, and could not be removed yet.
        self.leftover: list[LogFile] = []
        self._active: LogFile | None = None
        self._handle: File | None = None
        #: The directory of the log, which stays open, so that a sync of the directory needs no
        #: descriptor.
        self._directory: File | None = None
        self._unsynced = False
        self._appended: Records | None = None
        #: Number of sealed files that stay open for reading.
        self.open_max = OPEN_MAX
        self._open_files: list[LogFile] = []

    @property
    def seed(self) -> int:
        """The seed for the checksums of a Recorder. Known once the log is open."""
        return int(seed_of(self.salt))

    @property
    def size(self) -> int:
        """Total size of the log's files in bytes."""
        return sum(int(file.size) for file in self.files)

    @property
    def live_size(self) -> int:
        """The estimated total size of the log's live records in bytes."""
        return sum(int(file.size) - file.reclaimable for file in self.files)

    @property
    def active(self) -> LogFile | None:
        """The segment to which records are appended; None until the first append."""
        return self._active

    def sealed(self) -> list[LogFile]:
        """Return all files except the active segment. These files get no more records."""
        return [file for file in self.files if file is not self._active]

    # -- opening and closing

    def open(
        self, replay: Replay, progress: Callable[[Recovery], None] = ignore_progress
    ) -> Recovery:
        """Recover the log, passing all records to `replay`, and get ready to append. Return the
        report.

        `progress` is called with the report of the recovery while the log is read.

        Raises TooNew if the log has an unknown format, another StoreError if it cannot be opened.
        """
        try:
            self.disk.make_directory(self.directory)
            self.disk.sync_directory(self.directory.rpartition("/")[0] or ".")
        except OSError as error:
            raise StoreError(os_error_text(self.directory, "create", error)) from error
        try:
            self._directory = self.disk.open_directory(self.directory)
        except OSError as error:
            raise StoreError(os_error_text(self.directory, "open", error)) from error
        recoverer = Recoverer(self.disk, self.directory, self.salt, replay, progress)
        recoverer.run()
        self.files = recoverer.files
        self.salt = recoverer.salt
        self.last = recoverer.report.last
        for file in self.files:
            if not file.damage_saved:
                self.no_checkpoint_reason = (
                    f"damage in '{file.path}' could not be copied to the quarantine"
                )
        return recoverer.report

    def close(self) -> None:
        """Write a closing record, and close the files. Raises StoreError if the write fails."""
        file, handle = self._active, self._handle
        if file is not None and handle is not None and file.records and not self.poisoned:
            end = closing_record(
                self.last, file.records, file.size - DATA_START, file.salt, file.seed
            )
            try:
                handle.write(file.size, end)
                handle.sync()
            except OSError as error:
                raise StoreError(os_error_text(file.path, "finish", error)) from error
            file.size += len(end)
            file.closed = True
        self._active = self._handle = None
        for file in self.files:
            file.close_scan()

    # -- writing

    def append(self, records: Records) -> None:
        """Write the records of a batch to the end of the log.

        Raises WriteFailed if the batch can be appended again later, Poisoned if it cannot.
        """
        self.check_poisoned()
        assert not self._unsynced, "the previous batch is not synced"
        if records.count == 0:
            return
        records.complete(self.seed)
        assert records.first > self.last, "positions of records must increase"
        file, handle = self._active, self._handle
        if (
            file is None
            or handle is None
            or (file.records and file.size + records.size > self.segment_size)
        ):
            file, handle = self._roll(records.first)
        start: i64 = file.size
        at: i64 = start
        try:
            for member in records.parts:
                handle.write(at, member)
                at += len(member)
        except OSError as error:
            self._cut_back(file, handle, error)
        self._unsynced = True
        for position, offset in records.marks:
            file.add_to_index(position, start + offset)
        file.size = at
        self.written += records.size
        file.records += records.count
        file.copies += records.copies
        file.stored_size += records.stored_size
        file.transient_size += records.transient_size
        file.last = self.last = records.last
        self._appended = records

    def sync(self) -> None:
        """Make all appended records durable. Raises Poisoned if this fails, or has failed before.

        After the sync, the appended entries are counted as live or settled. These counts decide
        which files are dropped.
        """
        self.check_poisoned()
        file, handle = self._active, self._handle
        if not self._unsynced or file is None or handle is None:
            return
        try:
            handle.sync()
        except OSError as error:
            self.poison(os_error_text(file.path, "sync", error))
        self._unsynced = False
        records, self._appended = self._appended, None
        self.liveness.changes += 1
        self.synced_size = file.size
        if records is not None:
            self.liveness.count(self.files, file, records)
        self.liveness.changes += 1

    def count_live(self, positions: Iterable[int]) -> None:
        """Count the entries at these positions as live, after recovery.

        The entries must not be messages.
        """
        for position in positions:
            file = file_holding(self.files, position)
            if file is not None:
                file.live += 1
                file.balance = (file.balance + entry_hash(0, position)) & SUM_MASK

    def settle(self, queue: i64, position: i64) -> None:
        """Count a message of a deleted queue as settled, without an entry in the log.

        The deletion must be durable.
        """
        self.liveness.settle(self.files, queue, position)

    def sync_directory(self) -> None:
        """Make creations, renames and removals of files durable. Raises Poisoned if this fails."""
        directory = self._directory
        assert directory is not None
        try:
            directory.sync()
        except OSError as error:
            self.poison(os_error_text(self.directory, "sync", error))

    def _cut_back(self, file: LogFile, handle: File, error: OSError) -> None:
        """Remove the bytes that a failed write has appended, and raise WriteFailed."""
        reason = os_error_text(file.path, "write", error)
        try:
            handle.truncate(file.size)
        except OSError as failure:
            self.poison(f"{reason}, and cannot truncate the file: {failure.strerror or failure}")
        raise WriteFailed(reason, error.errno or 0) from error

    def _roll(self, first: i64) -> tuple[LogFile, File]:
        """Create the next segment, make it durable, and return it with its open file.

        `first` is the position of the first record that the segment gets. Raises WriteFailed if the
        segment can be created later, Poisoned if it cannot.
        """
        head = Head(SEGMENT, self.salt, first, self.last)
        file = LogFile(self.disk, self.directory, head)
        try:
            handle = self.disk.create(file.path)
        except OSError as error:
            raise WriteFailed(
                os_error_text(file.path, "create", error), error.errno or 0
            ) from error
        try:
            handle.write(0, head.encode())
        except OSError as error:
            self.discard(file.path, os_error_text(file.path, "write", error), error)
        try:
            handle.sync()
        except OSError as error:
            self.poison(os_error_text(file.path, "sync", error))
        self.sync_directory()
        file.attach(handle)
        if self._active is not None:
            self._active.close_scan()
        file.counted = True
        self.files.append(file)
        self.rolls += 1
        self.synced_size = DATA_START
        self._active, self._handle = file, handle
        return file, handle

    # -- reading

    def open_file(self, file: LogFile) -> File:
        """Return a file of the log, open for reading; close another file if too many are open."""
        if not file.is_open:
            self._open_files.append(file)
            if len(self._open_files) > self.open_max:
                oldest = self._open_files.pop(0)
                if oldest is not self._active:
                    oldest.close_scan()
        return file.file()

    # -- checkpoints

    @property
    def reclaimable(self) -> int:
        """The estimated number of bytes in the full files that a checkpoint would free."""
        return sum(file.reclaimable for file in self.sealed())

    def postpone_checkpoint(self, live: i64, measured: i64) -> None:
        """Set the log sizes at which the next checkpoint is considered: now it frees too little.

        A checkpoint is considered when the full files have grown to `check_size` bytes, or their
        reclaimable part to `check_reclaimable` bytes. While disk space is short, the lower limit
        `short_check_reclaimable` replaces `check_reclaimable`: the reclaimable part must grow by an
        eighth of the live part.

        `live` is the size of the live records in bytes, measured by reading the files. `measured`
        is the value of `reclaimable` when that reading began, because entries that were settled
        during the reading may have been read as live.
        """
        total: i64 = sum(int(file.size) for file in self.sealed())
        self.check_size = max(2 * live, total + total // 4)
        reclaimable: i64 = self.reclaimable
        self.check_reclaimable = reclaimable + (total - reclaimable) // 2
        self.short_check_reclaimable = measured + max((total - measured) // 8, 1)

    def replace(self, replaced: list[LogFile], checkpoint: LogFile) -> None:
        """Replace the first files by a durable checkpoint, atomically for threads that read."""
        count = len(replaced)
        assert self.files[:count] == replaced
        self.files[:count] = [checkpoint]

    def unlist(self, dropped: list[LogFile]) -> None:
        """Remove dropped files from `files`, atomically for threads that read."""
        at = self.files.index(dropped[0])
        assert self.files[at : at + len(dropped)] == dropped
        self.files[at : at + len(dropped)] = []

    def remove(self, file: LogFile) -> int:
        """Remove a file that is no longer part of the log, and return its size in bytes.

        Raises StoreError if the removal fails; `remove_leftover` tries it again. May block.
        """
        file.close_scan()
        try:
            return self._unlink(file)
        except OSError as error:
            self.leftover.append(file)
            raise StoreError(os_error_text(file.path, "remove", error)) from error

    def remove_leftover(self) -> int:
        """Try again to remove the files whose removal failed; return the bytes that this frees.

        Files that still cannot be removed are not reported again. May block.
        """
        size = 0
        for file in list(self.leftover):
            try:
                size += self._unlink(file)
            except OSError:
                continue
            self.leftover.remove(file)
        return size

    def _unlink(self, file: LogFile) -> int:
        try:
            self.disk.remove(file.path)
        except FileNotFoundError:
            return 0
        return int(file.size)
