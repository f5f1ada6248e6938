"""Checkpoints: free the disk space of settled messages.

A checkpoint replaces the first files of the log by one file with their live records, at their old
positions.

    mark     read the files, to find the live records (survivors.py)
    look     find the later files with durable entries about these records, such as settlements
    late     read these later files
    copy     read the files again, and write the live records to checkpoint-P.log.tmp
    finish   sync the file, rename it, sync the directory: the file now covers the positions to P
    carry    carry over the counts by which dead files are found (liveness.py)
    remove   remove the replaced files

Without the stage `late`, the checkpoint would hold messages that a later file settles. Then this
later file, and each file after it, could not be dropped (dropping.py).

Two simpler designs would lose or revive messages (tests/store/test_powerloss.py tests both as
controls): moving live records to the end under new positions, and overwriting the last checkpoint
in place.

A crash at any point leaves either the old files or the new file. A separate thread makes the
checkpoint, in steps of about a millisecond or one system call; other threads run between the steps.
The thread finds the live records by reading the files, not in the memory of the broker.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i32_be,
    write_i64_be,
)
from mypy_extensions import i32, i64

from broker.store.disk import DamagedStore, File, OutOfDescriptors, StoreError, WriteFailed
from broker.store.files import (
    CHECKPOINT,
    DATA_START,
    SUM_MASK,
    FileScan,
    Head,
    LogFile,
    entry_hash,
    open_error,
    os_error_text,
    total_balance,
)
from broker.store.layout import (
    CLOSED,
    DELIVERY_COUNTED,
    DELIVERY_MARK,
    GROUP,
    PACKET_ID_HELD,
    PUBREC_RECEIVED,
    QUEUE_SIZE,
    RETAINED,
    SEQUENCED,
    STORED,
    STREAM_EXTENDED,
    version_of,
)
from broker.store.reading import END, GroupMember, RecordReader, group_members
from broker.store.record_parts import closing_record, write_header
from broker.store.segments import SegmentLog
from broker.store.survivors import Survivors, producer_key, retained_key

#: Largest number of records, and of bytes, that one step reads.
STEP_RECORDS: Final[i64] = 400
STEP_SIZE: Final[i64] = 1 << 18
#: Number of bytes read at once. After each read the thread waits for the interpreter lock, for 5 ms
#: if the event loop is busy.
READ_SIZE: Final[i64] = 4 << 20
#: Number of bytes written between two syncs, so that the last sync is short.
SYNC_SIZE: Final[i64] = 32 << 20
#: If there are more small files than this, a checkpoint is made to merge them.
FILES_MAX: Final = 64

#: Total size of the dead records that the full files of a busy log may keep, in segments. Also the
#: largest number of the newest full files that a checkpoint may leave out.
SLACK_SEGMENTS: Final = 2

#: Stages of a Checkpointing.
MARK: Final[i64] = 0
LOOK: Final[i64] = 1
LATE: Final[i64] = 2
COPY: Final[i64] = 3
FINISH: Final[i64] = 4
CARRY: Final[i64] = 5
REMOVE: Final[i64] = 6
DONE: Final[i64] = 7

_U16: Final[i64] = 0xFFFF
_U32: Final[i64] = 0xFFFFFFFF
_NO_ENTRY: Final = (0, 0)


def begin_checkpoint(
    log: SegmentLog, holder_numbers: set[int], idle: bool = False
) -> Checkpointing | None:
    """Begin a checkpoint of the full files; return None if it would certainly free too little.

    A Checkpointing measures the size of the live records, and ends early if too little space would
    be freed. The Checkpointing gets a copy of `holder_numbers`.

    Unless the log is `idle` or has many small files, a checkpoint must free at least SLACK_SEGMENTS
    segments, and leaves out up to SLACK_SEGMENTS of the newest full files while they have live
    records. The reason: most files soon have no live record, and are dropped without being read. If
    a checkpoint copied a message just before it is settled, the file with the settlement could not
    be dropped, nor could any later file.
    """
    sealed = log.sealed()
    many_small = _many_small(log, sealed)
    slack = 0
    if not idle and not many_small:
        slack = SLACK_SEGMENTS * int(log.segment_size)
        oldest = max(len(sealed) - SLACK_SEGMENTS, 0)
        while len(sealed) > oldest and sealed[-1].live > 0:
            sealed.pop()
    if _is_barred(log) or not sealed or sealed[-1].checkpoint:
        return None
    if many_small:
        return Checkpointing(log, sealed, set(holder_numbers))
    size = sum(int(file.size) for file in sealed)
    gone = sum(file.reclaimable for file in sealed)
    least = _half_size(sealed)
    if gone < max(least, int(log.check_reclaimable), slack) and (
        size < max(int(log.check_size), 2 * slack)
    ):
        return None
    return Checkpointing(log, sealed, set(holder_numbers), least)


def files_worth_checkpoint(log: SegmentLog) -> list[LogFile]:
    """Return all full files if a checkpoint of them is worth it, else an empty list.

    A checkpoint is worth it if it seems to free half of the files' bytes, or if it merges many
    small files. So the log is at most about twice as large as its live records, and each copied
    byte frees another one. A checkpoint of fewer files would not help: consumers settle the oldest
    messages, and the entries that record the settlements are in the newest files.
    """
    sealed = log.sealed()
    if _is_barred(log) or not sealed or sealed[-1].checkpoint:
        return []
    gone = sum(file.reclaimable for file in sealed)
    return (
        sealed
        if _many_small(log, sealed) or gone >= max(_half_size(sealed), int(log.check_reclaimable))
        else []
    )


def _is_barred(log: SegmentLog) -> bool:
    """True if no checkpoint may begin now."""
    return bool(log.poisoned or log.no_checkpoint_reason) or log.unsure_head is not None


def live_estimate(log: SegmentLog) -> int:
    """Return the estimated size of a checkpoint of all full files, in bytes.

    The estimate may be too low. If the disk is full before the checkpoint is finished, the
    checkpoint is cancelled, and its file removed.
    """
    return sum(int(file.size) - file.reclaimable for file in log.sealed())


def _many_small(log: SegmentLog, sealed: list[LogFile]) -> bool:
    return (
        len(sealed) > FILES_MAX
        and sum(int(file.size) for file in sealed) < len(sealed) * int(log.segment_size) // 8
    )


def _half_size(files: list[LogFile]) -> int:
    """Return half of the total size of the files in bytes, rounded up.

    A checkpoint that frees this many bytes copies no more than it frees.
    """
    return (sum(int(file.size) for file in files) + 1) // 2


class Checkpointing:
    """Makes one checkpoint of the first files of a log, step by step.

    `holder_numbers` are the numbers of all existing queues, sessions, streams and delayed
    exchanges. The set must not change. The set must contain the number of each queue whose deletion
    is not durable yet: a crash would restore the queue, but the checkpoint would have removed its
    messages. A checkpoint that would free fewer than `least` bytes is not made.
    """

    def __init__(
        self, log: SegmentLog, files: list[LogFile], holder_numbers: set[int], least: int = 0
    ) -> None:
        assert files and not files[-1].checkpoint
        self.stage: i64 = MARK
        self.bytes_done: i64 = 0
        #: Number of bytes to read in all steps: each file is read twice.
        self.bytes_total: i64 = 2 * sum(int(file.size) for file in files)
        self._log = log
        self._files = files
        self._survivors = Survivors(holder_numbers)
        self._least = least
        #: The value of `log.reclaimable` when the checkpoint began, in bytes.
        self._reclaimable = log.reclaimable
        #: True once the checkpoint has replaced the files.
        self.completed = False
        #: The first error of removing a replaced file.
        self._failure: StoreError | None = None
        #: The files that the present stage reads, and the size up to which it reads each of them.
        self._sources = files
        self._sizes = [int(file.size) for file in files]
        self._file_at = 0
        self._range_at = 0
        self._scan: FileScan | None = None
        #: Name of a later file -> number of its entries about the replaced files. Then the sums of
        #: `live` and of `balance` of the replaced files. The stage LOOK sets all three.
        self._late_needs: dict[str, int] = {}
        self._late_live: i64 = 0
        self._late_balance: i64 = 0
        self._checkpoint = LogFile(
            log.disk, log.directory, Head(CHECKPOINT, log.salt, files[-1].last, 0)
        )
        self._temporary = self._checkpoint.path + ".tmp"
        self._handle: File | None = None
        self._out = BytesWriter()
        self._written: i64 = 0
        self._synced: i64 = 0

    def step(self) -> bool:
        """Do one step. Return True if steps are left, False if the checkpoint is done.

        After OutOfDescriptors the step can be repeated. After another StoreError the checkpoint has
        ended. If `completed` is False, the log is unchanged; if True, some replaced files could not
        be removed.
        """
        try:
            self._step()
        except OutOfDescriptors:
            raise
        except StoreError:
            self.cancel()
            raise
        return self.stage != DONE

    def run(self) -> None:
        """Run all steps of the checkpoint."""
        while self.step():
            pass

    def cancel(self) -> None:
        """Cancel the checkpoint, and leave the log unchanged."""
        if self._handle is not None and self.stage < REMOVE:
            self._handle = None
            try:
                self._log.disk.remove(self._temporary)
            except OSError:
                pass  # The next opening of the log removes the file.
        self.stage = DONE

    def _step(self) -> None:
        if self.stage == MARK:
            if not self._read():
                self.stage = LOOK
        elif self.stage == LOOK:
            self._begin_late()
        elif self.stage == LATE:
            if not self._read():
                self._sources, self._sizes = self._files, [int(file.size) for file in self._files]
                self._decide()
        elif self.stage == COPY:
            if self._handle is None:
                self._begin()
            elif not self._read():
                self.stage = FINISH
        elif self.stage == FINISH:
            self._finish()
        elif self.stage == CARRY:
            self._carry_over()
        elif self.stage == REMOVE:
            self._remove()

    @property
    def can_cancel(self) -> bool:
        """True while the checkpoint has not replaced any file."""
        return self.stage < FINISH

    # -- reading, twice

    def _read(self) -> bool:
        """Read some records for the present stage; return False if there are no more."""
        scan = self._scan
        if scan is None:
            scan = self._scan = self._next_range()
            if scan is None:
                return False
        reader = scan.reader
        left: i64 = STEP_RECORDS
        start: i64 = scan.offset
        file = self._sources[self._file_at]
        try:
            while left > 0 and scan.offset - start < STEP_SIZE:
                if not scan.advance():
                    if reader.stop != END:
                        raise self._damaged(file, f"at offset {scan.offset}, {reader.reason}")
                    self._scan = None
                    self._range_at += 1
                    break
                left -= 1
                if self.stage == MARK:
                    self._survivors.record(
                        reader.kind, reader.position, reader.data, reader.start, reader.end
                    )
                elif self.stage == LATE:
                    self._survivors.late(
                        file,
                        self._checkpoint.last,
                        reader.kind,
                        reader.position,
                        reader.data,
                        reader.start,
                        reader.end,
                    )
                else:
                    self._copy_record(file, reader)
        except OSError as error:
            raise StoreError(os_error_text(file.path, "read", error)) from error
        if self.stage != LATE:
            self.bytes_done += scan.offset - start
        if self.stage == COPY and len(self._out) >= STEP_SIZE:
            self._flush()
        return True

    def _damaged(self, file: LogFile, reason: str) -> DamagedStore:
        """Disable checkpoints, and return the error: only recovery can quarantine the damage."""
        self._log.no_checkpoint_reason = f"'{file.path}' {reason}"
        return DamagedStore(
            f"no checkpoint is made, because '{file.path}' is damaged: {reason}. Nothing was "
            "removed; restart the broker or run `trellis store repair` to quarantine the damage"
        )

    def _next_range(self) -> FileScan | None:
        """Return a scan of the next undamaged part of the files; None after the last one."""
        while self._file_at < len(self._sources):
            file = self._sources[self._file_at]
            ranges = file.readable_ranges()
            if self._range_at < len(ranges):
                start, end = ranges[self._range_at]
                end = min(end, self._sizes[self._file_at])
                scan = FileScan(file.file(), start, end, file.seed, 0, READ_SIZE)
                # The mark stage checked all checksums. `_copy_if_live` checks copied records again.
                scan.reader.skip_checksums = self.stage == COPY
                return scan
            file.close_scan()
            self._file_at += 1
            self._range_at = 0
        self._file_at = 0
        return None

    # -- deciding

    def _begin_late(self) -> None:
        """Find the later files that have entries about the files of this checkpoint.

        The next stage reads the durable part of these later files.
        """
        log = self._log
        before = log.liveness.changes
        names = [file.name for file in self._files]
        sources: list[LogFile] = []
        needs: dict[str, int] = {}
        sizes: list[int] = []
        for file in log.files[len(self._files) :]:
            # The number is read before the size: the writer may add entries between the two.
            number = sum(file.needs.get(name, 0) for name in names)
            if number:
                needs[file.name] = number
                sources.append(file)
                sizes.append(int(log.synced_size if file is log.active else file.size))
        live = sum(int(file.live) for file in self._files)
        balance = total_balance(self._files)
        if before % 2 or before != log.liveness.changes:
            return  # The writer was counting a batch: the next step tries again.
        self._late_needs, self._late_live, self._late_balance = needs, live, balance
        self._sources, self._sizes = sources, sizes
        self.stage = LATE

    def _decide(self) -> None:
        """Begin to copy, or end the checkpoint if it would free too little space."""
        live = self._survivors.copies.size
        if self.bytes_total // 2 - live < self._least:
            self._log.postpone_checkpoint(live, self._reclaimable)
            self.stage = DONE
        else:
            self.stage = COPY

    # -- writing

    def _begin(self) -> None:
        self._log.remove_leftover()
        try:
            if self._temporary.rpartition("/")[2] in self._log.disk.list(self._log.directory):
                self._log.disk.remove(self._temporary)
            self._handle = self._log.disk.create(self._temporary)
        except OSError as error:
            raise open_error(self._temporary, "make", error) from error
        self._out.write(self._encode_head())

    def _encode_head(self) -> bytes:
        return Head(CHECKPOINT, self._log.salt, self._checkpoint.last, 0).encode()

    def _copy_record(self, file: LogFile, reader: RecordReader) -> None:
        if reader.kind == GROUP:
            # The members have taken effect together, so each live one can be a record of its own.
            for member in group_members(reader.data, reader.position, reader.start, reader.end):
                self._copy_if_live(member, file, reader, False)
        elif reader.kind != CLOSED:
            self._copy_if_live(
                GroupMember(reader.kind, reader.position, reader.start, reader.end),
                file,
                reader,
                file.seed == self._checkpoint.seed,
            )

    def _copy_if_live(
        self, member: GroupMember, file: LogFile, reader: RecordReader, verbatim: bool
    ) -> None:
        """Write an entry to the checkpoint if it is live. Hot path.

        If `verbatim` is True, the record is copied unchanged, except if some of its queues no
        longer hold the message.
        """
        data, live = reader.data, self._survivors
        kind, position, start = member.kind, member.position, member.start
        head = b""
        if kind == STORED:
            queues = live.copies.next_holders()
            if not queues:
                return
            self._count_live(position, queues)
            count: i64 = i64(read_i32_be(data, start)) & _U32
            self._checkpoint.copies += len(queues)
            if count != len(queues):
                holders: i64 = start + 4 + count * QUEUE_SIZE
                head = _remaining_queues(data, start + 4, holders, queues)
                start, verbatim = holders, False
        elif kind == PUBREC_RECEIVED:
            if not live.copies.is_held(read_i64_be(data, start), read_i64_be(data, start + 8)):
                return
        elif kind == PACKET_ID_HELD:
            if not live.holds_packet_id(data, start, position):
                return
        elif kind == RETAINED:
            if live.retained.get(retained_key(data, start)) != position:
                return
        elif kind == STREAM_EXTENDED:
            if live.streams.get(read_i64_be(data, start), _NO_ENTRY)[1] != position:
                return
        elif kind == DELIVERY_MARK:
            marks = live.marks.get(read_i64_be(data, start), {})
            rank: i64 = i64(read_i16_be(data, start + 16)) & _U16
            if marks.get(rank, _NO_ENTRY)[1] != position:
                return
        elif kind == DELIVERY_COUNTED:
            message = read_i64_be(data, start), read_i64_be(data, start + 8)
            if (
                not live.copies.is_held(*message)
                or live.counts.get(message, _NO_ENTRY)[1] != position
            ):
                return
        elif kind == SEQUENCED:
            if live.sequences.get(producer_key(data, start, member.end), _NO_ENTRY)[1] != position:
                return
        else:
            return
        if not reader.is_intact(reader.record_start, reader.end):
            raise self._damaged(
                file,
                f"the record at offset {reader.base + reader.record_start} has a wrong checksum",
            )
        if kind > PUBREC_RECEIVED and kind != DELIVERY_COUNTED:
            self._count_live(position, [0])
        if verbatim:
            self._copy_verbatim(kind, position, data, reader.record_start, reader.end)
        else:
            self._write_record(kind, position, head, data, start, member.end)

    def _count_live(self, position: i64, holders: list[int]) -> None:
        checkpoint = self._checkpoint
        checkpoint.live += len(holders)
        for holder in holders:
            checkpoint.balance = (checkpoint.balance + entry_hash(holder, position)) & SUM_MASK

    def _write_record(
        self, kind: i64, position: i64, head: bytes, data: bytes, start: i64, end: i64
    ) -> None:
        """Write a record with the payload `head + data[start:end]`."""
        before = BytesWriter()
        write_i32_be(before, i32(version_of(kind) << 24 | kind << 16))
        write_i32_be(before, 0)
        write_i64_be(before, position)
        before.write(head)
        fixed = before.getvalue()
        rest = memoryview(data)[start:end]
        self._count(kind, position, 8 + len(fixed) + len(rest))
        write_header(
            8 + len(fixed) + len(rest), crc32(rest, crc32(fixed, self._checkpoint.seed)), self._out
        )
        self._out.write(fixed)
        self._append(data, start, end)

    def _copy_verbatim(self, kind: i64, position: i64, data: bytes, start: i64, end: i64) -> None:
        """Write the record `data[start:end]` unchanged."""
        self._count(kind, position, end - start)
        self._append(data, start, end)

    def _append(self, data: bytes, start: i64, end: i64) -> None:
        if end - start < STEP_SIZE:
            self._out.write(data[start:end])
        else:
            self._flush()
            self._write_out(memoryview(data)[start:end])

    def _count(self, kind: i64, position: i64, size: i64) -> None:
        checkpoint = self._checkpoint
        checkpoint.add_to_index(position, self._written + len(self._out))
        checkpoint.records += 1
        if kind == STORED:
            checkpoint.stored_size += size

    def _flush(self) -> None:
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
                os_error_text(self._temporary, "write", error), error.errno or 0
            ) from error
        self._written += len(data)

    def _sync(self) -> None:
        handle = self._handle
        assert handle is not None
        try:
            handle.sync()
        except OSError as error:
            self._log.poison(os_error_text(self._temporary, "sync", error))
        self._synced = self._written

    # -- taking effect

    def _finish(self) -> None:
        checkpoint, log = self._checkpoint, self._log
        self._out.write(
            closing_record(
                checkpoint.last,
                checkpoint.records,
                self._written + len(self._out) - DATA_START,
                checkpoint.salt,
                checkpoint.seed,
            )
        )
        self._flush()
        checkpoint.size = self._written
        self._sync()
        try:
            log.disk.rename(self._temporary, checkpoint.path)
        except OSError as error:
            raise StoreError(os_error_text(self._temporary, "rename", error)) from error
        self._handle = None
        log.sync_directory()
        checkpoint.counted = True
        log.replace(self._files, checkpoint)
        log.check_size = 2 * checkpoint.size
        log.check_reclaimable = 0
        self.completed = True
        self.stage = CARRY
        self._file_at = 0

    def _carry_over(self) -> None:
        """Update the checkpoint's counts by the changes since `_begin_late`.

        Meanwhile, entries of the replaced files were settled: `live` and `balance` of these files
        have changed. Add the differences to the checkpoint, and adjust its `settled`. In the later
        files, replace the needs of the replaced files by needs of the checkpoint. The entries that
        the stage LATE has read are not counted, except a PUBREC or a delivery count of a copy that
        is still held.

        Do nothing while the writer counts a batch; the next step tries again.
        """
        log, checkpoint = self._log, self._checkpoint
        if log.liveness.changes % 2:
            return  # The writer still counts a batch in the replaced files.
        live = sum(int(file.live) for file in self._files) - int(self._late_live)
        balance = total_balance(self._files) - self._late_balance
        checkpoint.live += live
        checkpoint.balance = (checkpoint.balance + balance) & SUM_MASK
        checkpoint.settled -= live
        names = {file.name for file in self._files}
        needs = {name: -number for name, number in self._late_needs.items()}
        for name, queue, position in self._survivors.late_notes:
            if self._survivors.copies.is_held(queue, position):
                needs[name] = needs.get(name, 0) + 1
        for file in log.files[1:]:
            number = needs.get(file.name, 0)
            for name in names:
                number += file.needs.pop(name, 0)
            if number > 0:
                file.needs[checkpoint.name] = file.needs.get(checkpoint.name, 0) + number
        self.stage = REMOVE

    def _remove(self) -> None:
        """Remove the next replaced file. A call removes only one, because a large file takes time.

        If a file cannot be removed, the other files are still removed. The first error is raised
        after the last file.
        """
        if self._file_at < len(self._files):
            file = self._files[self._file_at]
            self._file_at += 1
            try:
                self._log.remove(file)
            except StoreError as error:
                self._failure = self._failure or error
        else:
            self._log.sync_directory()
            self.stage = DONE
            if self._failure is not None:
                raise self._failure


def _remaining_queues(data: bytes, start: i64, end: i64, queues: list[int]) -> bytes:
    """Return the encoded queues of a STORED record, reduced to those in `queues`."""
    head = BytesWriter()
    write_i32_be(head, i32(len(queues)))
    while start < end:
        if read_i64_be(data, start) in queues:
            head.write(data[start : start + QUEUE_SIZE])
        start += QUEUE_SIZE
    return head.getvalue()
