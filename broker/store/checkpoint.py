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

from librt.strings import (
    BytesWriter,
    read_i16_be,
    read_i32_be,
    read_i64_be,
    write_i32_be,
)
from mypy_extensions import i32, i64

from broker.store.checkpoint_file import CheckpointFile
from broker.store.disk import DamagedStore, OutOfDescriptors, StoreError
from broker.store.files import (
    SUM_MASK,
    FileScan,
    LogFile,
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
)
from broker.store.live_messages import ScannedMessages
from broker.store.reading import END, GroupMember, RecordReader, group_members
from broker.store.segments import SegmentLog
from broker.store.survivors import Survivors, producer_key, retained_key

#: Largest number of records, and of bytes, that one step reads.
STEP_RECORDS: Final[i64] = 400
STEP_SIZE: Final[i64] = 1 << 18
#: Number of bytes read at once. After each read the thread waits for the interpreter lock, for 5 ms
#: if the event loop is busy.
READ_SIZE: Final[i64] = 4 << 20


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
        self._copies = ScannedMessages()
        self._survivors = Survivors(holder_numbers, 0, self._copies)
        self._least = least
        #: The value of `log.reclaimable` when the checkpoint began, in bytes.
        self._reclaimable = log.reclaimable
        #: True once the checkpoint has replaced the files.
        self.completed = False
        #: The first error that the removal of a replaced file raised.
        self._failure: StoreError | None = None
        #: The files that the present stage reads, and the size up to which it reads each of them.
        self._sources = files
        self._sizes = [int(file.size) for file in files]
        self._file_at = 0
        self._range_at = 0
        self._scan: FileScan | None = None
        #: Set in the stage LOOK. `_late_needs` has for each later file, by name, the number of its
        #: entries about the replaced files. The others are the sums of `live` and of `balance` of
        #: the replaced files.
        self._late_needs: dict[str, int] = {}
        self._late_live: i64 = 0
        self._late_balance: i64 = 0
        self._target = CheckpointFile(log, files[-1].last)
        self._checkpoint = self._target.file

    def step(self) -> bool:
        """Do one step. Return True if more steps are needed, False if the checkpoint has ended.

        After OutOfDescriptors the step can be repeated. After another StoreError the checkpoint has
        ended: either the log is unchanged (`completed` is False), or some of the replaced files
        could not be removed (`completed` is True).
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
        """Do all steps of the checkpoint. Raises StoreError as `step` does."""
        while self.step():
            pass

    def cancel(self) -> None:
        """Cancel the checkpoint, and leave the log unchanged."""
        if self.stage < REMOVE:
            self._target.remove()
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
            if not self._target.begun:
                self._target.begin()
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
        if self.stage == COPY and self._target.is_full:
            self._target.flush()
        return True

    def _damaged(self, file: LogFile, reason: str) -> DamagedStore:
        """Disable checkpoints until the next start, as a file is damaged, and return the error."""
        self._log.no_checkpoint_reason = f"'{file.path}' {reason}"
        return DamagedStore(
            f"no checkpoint is made, because '{file.path}' is damaged: {reason}. Nothing was "
            "removed; restart the broker or run `trellis store repair` to quarantine the damage"
        )

    def _next_range(self) -> FileScan | None:
        """Return a scan of the next undamaged part of the files; None after the last part."""
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
        """Find the later files whose entries refer to entries of the files to replace.

        For example, a later file may have the settlement of a message in a file to replace. The
        next stage reads the files that were found.
        """
        log = self._log
        before = log.liveness.changes
        names = [file.name for file in self._files]
        sources: list[LogFile] = []
        needs: dict[str, int] = {}
        sizes: list[int] = []
        for file in log.files[len(self._files) :]:
            # Read the number of entries before the size of the file: the writer may add entries in
            # between, and the size must include all counted entries.
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

    def _copy_record(self, file: LogFile, reader: RecordReader) -> None:
        if reader.kind == GROUP:
            # All members of the group have taken effect, so each live member can become a record of
            # its own.
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

        If `verbatim` is True, copy the record unchanged. But for a message that some of its queues
        have settled, always write a new record, which names only the other queues.
        """
        data, live = reader.data, self._survivors
        kind, position, start = member.kind, member.position, member.start
        head = b""
        if kind == STORED:
            queues = self._copies.next_holders()
            if not queues:
                return
            self._target.count_live(position, queues)
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
            self._target.count_live(position, [0])
        if verbatim:
            self._target.write_verbatim(kind, position, data, reader.record_start, reader.end)
        else:
            self._target.write_record(kind, position, head, data, start, member.end)

    # -- taking effect

    def _finish(self) -> None:
        checkpoint, log = self._checkpoint, self._log
        self._target.finish()
        log.replace(self._files, checkpoint)
        log.check_size = 2 * checkpoint.size
        log.check_reclaimable = 0
        self.completed = True
        self.stage = CARRY
        self._file_at = 0

    def _carry_over(self) -> None:
        """Move the counts of the replaced files to the checkpoint (see liveness.py for the counts).

        Entries that were settled since `_begin_late` have changed the counts of the replaced files.
        Add these changes to the counts of the checkpoint.

        The attribute `needs` of each later file has, for each replaced file, the number of entries
        that refer to the replaced file. Replace these numbers by one number for the checkpoint.
        This number leaves out the entries that the stage LATE has read, except PUBRECs and delivery
        counts of messages in the checkpoint.

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
    """Return the queues of a STORED record, encoded in data[start:end], that are in `queues`."""
    head = BytesWriter()
    write_i32_be(head, i32(len(queues)))
    while start < end:
        if read_i64_be(data, start) in queues:
            head.write(data[start : start + QUEUE_SIZE])
        start += QUEUE_SIZE
    return head.getvalue()
