"""The segment log: octets of batches go to its end, recovery reads it from the beginning, paging
reads single records.

    log/   checkpoint-00..0420.log     what is live of all up to position 420
           00..0421.log                a segment, full: it is never written again
           00..0977.log                the segment that is written
           quarantine/                 copies of what could not be read

    open(replay) --> Recovery        append(records), sync()         reader().read(position)
    (any thread, first)              (the writer thread)             (any thread)

After an append one sync must come before the next append: the first record of every batch says so
on disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.store.disk import DamagedStore, Disk, File, Poisoned, StoreError, WriteFailed
from broker.store.files import DATA, SEGMENT, FileScan, Head, LogFile, complaint, seed_of
from broker.store.layout import HEADER, MANY
from broker.store.reading import BAD, RecordReader, parts
from broker.store.records import Records, closing
from broker.store.recovery import Recoverer, Recovery, Replay, holding, settle

#: Octets after which a segment is full.
SEGMENT_OCTETS: Final = 64 << 20
#: Sealed files that stay open for reading.
_OPEN_MAX: Final = 64
#: Octets that are read at once for paging: somewhere, and going on from there.
_PAGE: Final[i64] = 8_192
_PAGES: Final[i64] = 65_536


def _quietly(recovery: Recovery) -> None:
    """Tells nobody about the progress."""


class SegmentLog:
    """A directory of segments.

    `salt` is any number below 2**32, for a log that has no file yet: different for every log.
    """

    def __init__(
        self, disk: Disk, directory: str, segment_octets: int = SEGMENT_OCTETS, salt: int = 0
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.segment_octets: i64 = segment_octets
        #: Files in the order of their positions: a checkpoint perhaps, then segments.
        self.files: list[LogFile] = []
        #: The last position in the log.
        self.last: i64 = 0
        #: Why nothing is written any more; empty: all is well.
        self.poisoned = ""
        #: Why there is no checkpoint any more: damage that was not copied aside must not go with
        #: its file.
        self.unsaved = ""
        #: When somebody should find out exactly what is live, for `LogFile.waste` may be far off:
        #: at so many octets of full files, or at so much waste. (Large messages go and small ones
        #: stay, or the other way round.)
        self.look_at: i64 = 0
        self.look_beyond: i64 = 0
        #: Of the files that are there, once the log is open.
        self.salt: i64 = salt
        self._active: LogFile | None = None
        self._handle: File | None = None
        self._unsynced = False
        self._reading: list[LogFile] = []

    @property
    def seed(self) -> int:
        """What the checksums of a Recorder start from. Known when the log is open."""
        return int(seed_of(self.salt))

    @property
    def octets(self) -> int:
        """Octets of all files."""
        return sum(int(file.size) for file in self.files)

    @property
    def active(self) -> LogFile | None:
        """The segment that is written: all others are never written again."""
        return self._active

    def sealed(self) -> list[LogFile]:
        """The files that are never written again."""
        return [file for file in self.files if file is not self._active]

    # -- opening and closing

    def open(self, replay: Replay, progress: Callable[[Recovery], None] = _quietly) -> Recovery:
        """Read all of the log, and be ready to append. Raises StoreError, TooNew."""
        try:
            self.disk.make_directory(self.directory)
            self.disk.sync_directory(self.directory.rpartition("/")[0] or ".")
        except OSError as error:
            raise StoreError(complaint(self.directory, "make", error)) from error
        recoverer = Recoverer(self.disk, self.directory, self.salt, replay, progress)
        recoverer.run()
        self.files = recoverer.files
        self.salt = recoverer.salt
        self.last = recoverer.report.last
        for file in self.files:
            if not file.saved:
                self.unsaved = f"damage in '{file.path}' could not be copied to the quarantine"
        return recoverer.report

    def close(self) -> None:
        """Write that all is in order, and let go of the files. Raises StoreError."""
        file, handle = self._active, self._handle
        if file is not None and handle is not None and file.records and not self.poisoned:
            end = closing(self.last, file.records, file.size - DATA, file.salt, file.seed)
            try:
                handle.write(file.size, end)
                handle.sync()
            except OSError as error:
                raise StoreError(complaint(file.path, "finish", error)) from error
            file.size += len(end)
            file.closed = True
        self._active = self._handle = None
        for file in self.files:
            file.close_scan()

    # -- writing

    def append(self, records: Records) -> None:
        """Write the records of a batch to the end.

        Raises WriteFailed, when they may be appended again later; Poisoned.
        """
        self._check()
        assert not self._unsynced, "a batch was not synced before the next"
        if records.count == 0:
            return
        assert records.first > self.last, "positions must grow"
        file, handle = self._active, self._handle
        if (
            file is None
            or handle is None
            or (file.records and file.size + records.octets > self.segment_octets)
        ):
            file, handle = self._roll(records.first)
        start: i64 = file.size
        at: i64 = start
        try:
            for part in records.parts:
                handle.write(at, part)
                at += len(part)
        except OSError as error:
            self._cut_back(file, handle, error)
        self._unsynced = True
        for position, offset in records.marks:
            file.mark(position, start + offset)
        file.size = at
        file.records += records.count
        file.copies += records.copies
        file.kept_octets += records.kept_octets
        file.passing += records.passing
        file.last = self.last = records.last
        found: LogFile | None = None
        for position in records.settled:
            if found is None or not found.first <= position <= found.last:
                found = holding(self.files, position)
            if found is not None:
                found.fresh += 1

    def sync(self) -> None:
        """Returns when everything appended is durable. Raises Poisoned."""
        self._check()
        file, handle = self._active, self._handle
        if not self._unsynced or file is None or handle is None:
            return
        try:
            handle.sync()
        except OSError as error:
            self.poison(complaint(file.path, "sync", error))
        self._unsynced = False

    def settle(self, position: i64) -> None:
        """A copy of the message at the position is dead, and no Settled says so: its queue was
        deleted.
        """
        settle(self.files, position)

    def poison(self, reason: str) -> None:
        """Write nothing any more. Raises Poisoned."""
        self.poisoned = reason
        self._check()

    def _check(self) -> None:
        if self.poisoned:
            raise Poisoned(
                f"{self.poisoned}. The store writes nothing any more: see to the disk, then start the broker again"
            )

    def _cut_back(self, file: LogFile, handle: File, error: OSError) -> None:
        """A write failed: what it left must not stand before the next batch."""
        reason = complaint(file.path, "write", error)
        try:
            handle.truncate(file.size)
        except OSError as failure:
            self.poison(f"{reason}, and cannot cut it back: {failure.strerror or failure}")
        raise WriteFailed(reason, error.errno or 0) from error

    def _roll(self, first: i64) -> tuple[LogFile, File]:
        """Begin a segment: durable, with its name, before anything is written in it."""
        head = Head(SEGMENT, self.salt, first, self.last)
        file = LogFile(self.disk, self.directory, head)
        try:
            handle = self.disk.create(file.path)
        except OSError as error:
            raise WriteFailed(complaint(file.path, "make", error), error.errno or 0) from error
        try:
            handle.write(0, head.octets())
        except OSError as error:
            reason = complaint(file.path, "write", error)
            try:
                self.disk.remove(file.path)
            except OSError as failure:
                self.poison(f"{reason}, and cannot remove it: {failure.strerror or failure}")
            raise WriteFailed(reason, error.errno or 0) from error
        try:
            handle.sync()
            self.disk.sync_directory(self.directory)
        except OSError as error:
            self.poison(complaint(file.path, "sync", error))
        file.take(handle)
        if self._active is not None:
            self._active.close_scan()
        for full in self.files:
            full.dead += full.fresh
            full.fresh = 0
        self.files.append(file)
        self._active, self._handle = file, handle
        return file, handle

    # -- reading

    def reader(self) -> LogReader:
        """For reading records by their positions, best in rising order."""
        return LogReader(self)

    def read(self, position: i64) -> tuple[int, bytes] | None:
        """(kind, payload) of the record at a position; None when the log has none.

        Raises Damaged, StoreError.
        """
        reader = LogReader(self)
        if not reader.read(position):
            return None
        return int(reader.kind), reader.octets[reader.start : reader.end]

    def opened(self, file: LogFile) -> File:
        """The file, open for reading; not too many at once."""
        if not file.is_open:
            self._reading.append(file)
            if len(self._reading) > _OPEN_MAX:
                oldest = self._reading.pop(0)
                if oldest is not self._active:
                    oldest.close_scan()
        return file.file()

    # -- checkpoints

    def measured(self, live: i64) -> None:
        """So many octets of the full files are live, and that is too much for a checkpoint: look
        again when there is much more.
        """
        total: i64 = sum(int(file.size) for file in self.sealed())
        self.look_at = max(2 * live, total + total // 4)
        gone = sum(file.waste for file in self.sealed())
        self.look_beyond = gone + (total - gone) // 2

    def replace(self, replaced: list[LogFile], checkpoint: LogFile) -> None:
        """A checkpoint, durable under its name, speaks for the first files now.

        One step for whoever looks on.
        """
        count = len(replaced)
        assert self.files[:count] == replaced
        copies = dead = fresh = 0
        for file in replaced:
            copies += int(file.copies)
            dead += int(file.dead)
            fresh += int(file.fresh)
        # What was settled while it was written, it still holds.
        checkpoint.dead = max(dead - (copies - int(checkpoint.copies)), 0)
        checkpoint.fresh = fresh
        self.files[:count] = [checkpoint]


class LogReader:
    """Reads records by position.

    After `read` has said True, `kind` and `octets[start:end]` are the record's.
    """

    def __init__(self, log: SegmentLog) -> None:
        self.kind: i64 = 0
        self.octets = b""
        self.start: i64 = 0
        self.end: i64 = 0
        self._log = log
        self._file: LogFile | None = None
        self._reader = RecordReader(0, 0)
        #: The last position that was read: records before it are behind the reader.
        self._reached: i64 = 0

    def read(self, position: i64) -> bool:
        """Go to the record at a position, also one in a Many; False when the log has none.

        Raises Damaged, StoreError.
        """
        log, reader = self._log, self._reader
        file = holding(log.files, position)
        while file is not None and position <= file.last:
            try:
                return self._read(file, position)
            except FileNotFoundError:
                pass
            except OSError as error:
                raise StoreError(complaint(file.path, "read", error)) from error
            except StoreError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
            # A checkpoint took the file's place while we looked.
            known, file = file, holding(log.files, position)
            if file is known:
                raise StoreError(f"the file '{known.path}' is gone")
        reader.load(b"", 0)
        return False

    def _read(self, file: LogFile, position: i64) -> bool:
        reader = self._reader
        start: i64 = file.offset_of(position)
        if (
            file is not self._file
            or start < reader.base
            or start > reader.base + len(reader.octets)
        ):
            self._file = file
            self._reader = reader = RecordReader(file.seed, 0)
            reader.base = start
        elif position <= self._reached or start > reader.base + reader.at:
            reader.at = start - reader.base
        self._reached = position
        while not reader.hop(position):
            if len(reader.octets) - reader.at >= HEADER + 4 or not self._more(
                file, _PAGES if reader.octets else _PAGE
            ):
                return self._absent(file, start, position)
        began: i64 = reader.base + reader.at
        while not reader.advance():
            if reader.stop == BAD or not self._more(file, max(reader.needed, _PAGE)):
                raise self._damaged(file, position, began, reader.reason or "it is cut off")
        self.octets, self.kind = reader.octets, reader.kind
        self.start, self.end = reader.start, reader.end
        if self.kind == MANY:
            for part in parts(self.octets, reader.position, self.start, self.end):
                if part.position == position:
                    self.kind, self.start, self.end = part.kind, part.start, part.end
                    # The next one asked for may be in the same record.
                    reader.at = reader.began
                    return True
            return False
        return reader.position == position

    def _absent(self, file: LogFile, start: i64, position: i64) -> bool:
        """False, if the way to where the position would be is whole: heads alone may lie."""
        self._file = None
        scan = FileScan(self._log.opened(file), start, file.size, file.seed, 0, _PAGE)
        while scan.advance():
            if scan.reader.last >= position:
                return False
        if scan.reader.stop == BAD:
            raise self._damaged(file, position, scan.offset, scan.reader.reason)
        return False

    def _damaged(self, file: LogFile, position: i64, offset: i64, reason: str) -> DamagedStore:
        return DamagedStore(
            f"the record at position {position} cannot be read ('{file.path}' at {offset}): {reason}"
        )

    def _more(self, file: LogFile, count: i64) -> bool:
        """Read on in the file; False at its end."""
        reader = self._reader
        offset: i64 = reader.base + reader.at
        had: i64 = len(reader.octets) - reader.at
        if offset + had >= file.size:
            return False
        reader.load(self._log.opened(file).read(offset, min(count, file.size - offset)), offset)
        return len(reader.octets) > had
