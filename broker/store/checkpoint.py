"""Checkpoints give space back: what is still live of the first files of the log, in one file, at
its old positions.

    mark     read the files: which copies are not settled, which identifiers are held, which retained message is the last
    copy     read them again: write what is live into checkpoint-P.log.tmp
    finish   sync it, rename it, sync the directory: from now on it speaks for everything up to P
    remove   the files that it replaced

Two ways that look simpler lose or revive messages (tests/store/test_powerloss.py keeps them as
controls): moving stragglers to the end under new positions, and writing over the last checkpoint in
place.

A crash anywhere leaves the old files or the new one. Work is done in steps of about a millisecond,
or one call of the operating system, so that a thread can do it and others run in between. It reads
the disk, not the broker's memory.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from mypy_extensions import i32, i64

from broker.store.disk import DamagedStore, File, StoreError, WriteFailed
from broker.store.files import CHECKPOINT, DATA, FileScan, Head, LogFile, complaint
from broker.store.layout import (
    CLOSED,
    EXTENDED,
    HOLDER,
    KEPT,
    MANY,
    RECEIVED,
    RETAINED,
    SEQUENCED,
    STEPPED,
    VERSION,
    VERSION_2,
)
from broker.store.reading import END, RecordPart, RecordReader, parts
from broker.store.records import closing, header
from broker.store.segments import SegmentLog
from broker.store.survivors import Survivors, producer_key, retained_key

#: Records, and octets, of one step.
STEP_RECORDS: Final[i64] = 400
STEP_OCTETS: Final[i64] = 1 << 18
#: Octets that are read at once: after each reading the thread waits for the interpreter, for 5 ms
#: where the loop is at full speed.
READ_OCTETS: Final[i64] = 4 << 20
#: Octets that are written before the disk is asked to have them: so that the last sync has little
#: left to do.
SYNC_OCTETS: Final[i64] = 32 << 20
#: So many small files pay for a checkpoint too.
FILES_MAX: Final = 64

#: What a Checkpointing does next.
MARK: Final[i64] = 0
COPY: Final[i64] = 1
FINISH: Final[i64] = 2
REMOVE: Final[i64] = 3
DONE: Final[i64] = 4

_U32: Final[i64] = 0xFFFFFFFF
_NOWHERE: Final = (0, 0)


def begin(log: SegmentLog, exist: set[int]) -> Checkpointing | None:
    """A checkpoint of the files that are full, if one may be worth it.

    It finds out, and ends early if it is not.
    """
    sealed = worth(log)
    if sealed:
        return Checkpointing(
            log, sealed, set(exist), 0 if _many_small(log, sealed) else _half(sealed)
        )
    sealed = log.sealed()
    if (
        log.poisoned
        or log.unsaved
        or not sealed
        or sealed[-1].checkpoint
        or sum(int(file.size) for file in sealed) < log.look_at
    ):
        return None
    return Checkpointing(log, sealed, set(exist), _half(sealed))


def worth(log: SegmentLog) -> list[LogFile]:
    """The files of the log that are full, if a checkpoint of them seems to give back half of their
    octets; else none.

    So the log is never much larger than twice what is live, and no octet is copied for which
    another was not given back. Fewer files would not do: queues are read from their oldest
    messages, and those are settled in the newest files.
    """
    sealed = log.sealed()
    if log.poisoned or log.unsaved or not sealed or sealed[-1].checkpoint:
        return []
    gone = sum(file.waste for file in sealed)
    return (
        sealed
        if _many_small(log, sealed) or gone >= max(_half(sealed), int(log.look_beyond))
        else []
    )


def _many_small(log: SegmentLog, sealed: list[LogFile]) -> bool:
    return (
        len(sealed) > FILES_MAX
        and sum(int(file.size) for file in sealed) < len(sealed) * int(log.segment_octets) // 8
    )


def _half(files: list[LogFile]) -> int:
    """Octets that must be given back, if no more are copied."""
    return (sum(int(file.size) for file in files) + 1) // 2


class Checkpointing:
    """Makes a checkpoint of the first files of a log, step by step.

    `exist` holds the numbers of all queues and sessions that exist, and must not change. One whose
    deletion is not durable yet exists: after a crash it would be there, without its messages. If it
    gives back less than `least` octets, none is made.
    """

    def __init__(
        self, log: SegmentLog, files: list[LogFile], exist: set[int], least: int = 0
    ) -> None:
        assert files and not files[-1].checkpoint
        self.stage: i64 = MARK
        self.octets: i64 = 0
        #: Octets of all steps: each file is read twice.
        self.octets_total: i64 = 2 * sum(int(file.size) for file in files)
        self._log = log
        self._files = files
        self._live = Survivors(exist)
        self._least = least
        #: Whether it took effect.
        self.made = False
        self._file_at = 0
        self._range_at = 0
        self._scan: FileScan | None = None
        self._made = LogFile(log.disk, log.directory, Head(CHECKPOINT, log.salt, files[-1].last, 0))
        self._temporary = self._made.path + ".tmp"
        self._handle: File | None = None
        self._out = BytesWriter()
        self._written: i64 = 0
        self._synced: i64 = 0

    def step(self) -> bool:
        """Do a little; False when all is done.

        Raises StoreError: then it is over, and the log is as it was before.
        """
        try:
            self._step()
        except StoreError:
            self.abandon()
            raise
        return self.stage != DONE

    def run(self) -> None:
        """Do it all."""
        while self.step():
            pass

    def abandon(self) -> None:
        """Leave the log as it is."""
        if self._handle is not None and self.stage < REMOVE:
            self._handle = None
            try:
                self._log.disk.remove(self._temporary)
            except OSError:
                pass  # Opening the log removes it.
        self.stage = DONE

    def _step(self) -> None:
        if self.stage == MARK:
            if not self._read():
                self._decide()
        elif self.stage == COPY:
            if not self._read():
                self.stage = FINISH
        elif self.stage == FINISH:
            self._finish()
        elif self.stage == REMOVE:
            self._remove()

    # -- reading, twice

    def _read(self) -> bool:
        """Some records; False when there are no more."""
        scan = self._scan
        if scan is None:
            scan = self._scan = self._next_range()
            if scan is None:
                return False
        reader = scan.reader
        left: i64 = STEP_RECORDS
        start: i64 = scan.offset
        file = self._files[self._file_at]
        try:
            while left > 0 and scan.offset - start < STEP_OCTETS:
                if not scan.advance():
                    if reader.stop != END:
                        raise self._damaged(file, f"at {scan.offset} {reader.reason}")
                    self._scan = None
                    self._range_at += 1
                    break
                left -= 1
                if self.stage == MARK:
                    self._live.record(
                        reader.kind, reader.position, reader.octets, reader.start, reader.end
                    )
                else:
                    self._copy_record(file, reader)
        except OSError as error:
            raise StoreError(complaint(file.path, "read", error)) from error
        self.octets += scan.offset - start
        if self.stage == COPY and len(self._out) >= STEP_OCTETS:
            self._flush()
        return True

    def _damaged(self, file: LogFile, reason: str) -> DamagedStore:
        """Damage that recovery did not see: only recovery may deal with it."""
        self._log.unsaved = f"'{file.path}' {reason}"
        return DamagedStore(
            f"no checkpoint is made, for '{file.path}' is damaged: {reason}. Nothing was removed; "
            "a restart, or `trellis store repair`, puts the damage aside"
        )

    def _next_range(self) -> FileScan | None:
        """What can be read next of the files: they may have holes, which recovery has put aside."""
        while self._file_at < len(self._files):
            file = self._files[self._file_at]
            ranges = file.ranges()
            if self._range_at < len(ranges):
                start, end = ranges[self._range_at]
                scan = FileScan(file.file(), start, end, file.seed, 0, READ_OCTETS)
                scan.reader.trusting = (
                    self.stage == COPY
                )  # It was marked: only what is copied is looked at again.
                return scan
            file.close_scan()
            self._file_at += 1
            self._range_at = 0
        self._file_at = 0
        return None

    def _decide(self) -> None:
        """What is live is known."""
        live = self._live.copies.octets
        if self.octets_total // 2 - live < self._least:
            self._log.measured(live)
            self.stage = DONE
        else:
            self.stage = COPY
            self._begin()

    # -- writing

    def _begin(self) -> None:
        try:
            if self._temporary.rpartition("/")[2] in self._log.disk.list(self._log.directory):
                self._log.disk.remove(self._temporary)
            self._handle = self._log.disk.create(self._temporary)
        except OSError as error:
            raise StoreError(complaint(self._temporary, "make", error)) from error
        self._out.write(self._made_head())

    def _made_head(self) -> bytes:
        return Head(CHECKPOINT, self._log.salt, self._made.last, 0).octets()

    def _copy_record(self, file: LogFile, reader: RecordReader) -> None:
        if reader.kind == MANY:
            # Its entries took effect together; from here on each stands for itself.
            for part in parts(reader.octets, reader.position, reader.start, reader.end):
                self._copy(part, file, reader, False)
        elif reader.kind != CLOSED:
            self._copy(
                RecordPart(reader.kind, reader.position, reader.start, reader.end),
                file,
                reader,
                file.seed == self._made.seed,
            )

    def _copy(self, part: RecordPart, file: LogFile, reader: RecordReader, verbatim: bool) -> None:
        """Write the entry if it is live. Hot path."""
        octets, live = reader.octets, self._live
        kind, position, start = part.kind, part.position, part.start
        head = b""
        if kind == KEPT:
            queues = live.copies.next()
            if not queues:
                return
            count: i64 = i64(read_i32_be(octets, start)) & _U32
            self._made.copies += len(queues)
            if count != len(queues):
                holders: i64 = start + 4 + count * HOLDER
                head = _remaining(octets, start + 4, holders, queues)
                start, verbatim = holders, False
        elif kind == STEPPED:
            if not live.copies.held(read_i64_be(octets, start), read_i64_be(octets, start + 8)):
                return
        elif kind == RECEIVED:
            if not live.holds(octets, start, position):
                return
        elif kind == RETAINED:
            if live.retained.get(retained_key(octets, start)) != position:
                return
        elif kind == EXTENDED:
            if live.streams.get(read_i64_be(octets, start), _NOWHERE)[1] != position:
                return
        elif kind == SEQUENCED:
            if live.sequences.get(producer_key(octets, start, part.end), _NOWHERE)[1] != position:
                return
        else:
            return
        if not reader.right(reader.began, reader.end):
            raise self._damaged(
                file, f"at {reader.base + reader.began} a record's checksum is wrong now"
            )
        if verbatim:
            self._put(kind, position, octets, reader.began, reader.end)
        else:
            self._write(kind, position, head, octets, start, part.end)

    def _write(
        self, kind: i64, position: i64, head: bytes, octets: bytes, start: i64, end: i64
    ) -> None:
        """A record whose payload is `head` and these octets."""
        before = BytesWriter()
        write_i32_be(before, i32((VERSION_2 if kind > CLOSED else VERSION) << 24 | kind << 16))
        write_i32_be(before, 0)
        write_i64_be(before, position)
        before.write(head)
        fixed = before.getvalue()
        rest = memoryview(octets)[start:end]
        self._note(kind, position, 8 + len(fixed) + len(rest))
        header(8 + len(fixed) + len(rest), crc32(rest, crc32(fixed, self._made.seed)), self._out)
        self._out.write(fixed)
        self._append(octets, start, end)

    def _put(self, kind: i64, position: i64, octets: bytes, start: i64, end: i64) -> None:
        """A record as it is."""
        self._note(kind, position, end - start)
        self._append(octets, start, end)

    def _append(self, octets: bytes, start: i64, end: i64) -> None:
        if end - start < STEP_OCTETS:
            self._out.write(octets[start:end])
        else:
            self._flush()
            self._write_out(memoryview(octets)[start:end])

    def _note(self, kind: i64, position: i64, size: i64) -> None:
        made = self._made
        made.mark(position, self._written + len(self._out))
        made.records += 1
        if kind == KEPT:
            made.kept_octets += size

    def _flush(self) -> None:
        octets = self._out.getvalue()
        self._out = BytesWriter()
        self._write_out(octets)
        if self._written - self._synced >= SYNC_OCTETS:
            self._sync()

    def _write_out(self, octets: bytes | memoryview) -> None:
        handle = self._handle
        assert handle is not None
        try:
            handle.write(self._written, octets)
        except OSError as error:
            raise WriteFailed(
                complaint(self._temporary, "write", error), error.errno or 0
            ) from error
        self._written += len(octets)

    def _sync(self) -> None:
        handle = self._handle
        assert handle is not None
        try:
            handle.sync()
        except OSError as error:
            self._log.poison(complaint(self._temporary, "sync", error))
        self._synced = self._written

    # -- taking effect

    def _finish(self) -> None:
        made, log = self._made, self._log
        self._out.write(
            closing(
                made.last, made.records, self._written + len(self._out) - DATA, made.salt, made.seed
            )
        )
        self._flush()
        made.size = self._written
        self._sync()
        try:
            log.disk.rename(self._temporary, made.path)
        except OSError as error:
            raise StoreError(complaint(self._temporary, "rename", error)) from error
        self._handle = None
        self._settle_directory()
        log.replace(self._files, made)
        log.look_at = 2 * made.size
        log.look_beyond = 0
        self.made = True
        self.stage = REMOVE
        self._file_at = 0

    def _remove(self) -> None:
        """One file a step: they are large, and removing them takes time."""
        if self._file_at < len(self._files):
            file = self._files[self._file_at]
            self._file_at += 1
            file.close_scan()
            try:
                self._log.disk.remove(file.path)
            except OSError as error:
                raise StoreError(complaint(file.path, "remove", error)) from error
        else:
            self._settle_directory()
            self.stage = DONE

    def _settle_directory(self) -> None:
        try:
            self._log.disk.sync_directory(self._log.directory)
        except OSError as error:
            self._log.poison(complaint(self._log.directory, "sync", error))


def _remaining(octets: bytes, start: i64, end: i64, queues: list[int]) -> bytes:
    """Those of the queues of a Kept that still hold it, as they stood there."""
    head = BytesWriter()
    write_i32_be(head, i32(len(queues)))
    while start < end:
        if read_i64_be(octets, start) in queues:
            head.write(octets[start : start + HOLDER])
        start += HOLDER
    return head.getvalue()
