"""Recovery: reads the log when the store is opened, after a crash too.

    1. read the heads of all files
    2. choose the newest checkpoint and the segments after it; remove the files that it replaced,
       and the files that were dropped (dropping.py)
    3. read the records of each chosen file, and pass them to a Replay
       bad data at the end of the last segment, with nothing durable after it: cut the file there
       bad data elsewhere: copy it to quarantine/, and continue after it

The first record of a batch has a mark. All bytes before a marked record were durable when the
record was written. So bad data before a marked record is damage; other bad data is the torn end of
the last batch, which was never confirmed. All skipped data is reported as a Finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64

from broker.store.disk import DamagedStore, Disk, StoreError, TooNew
from broker.store.file_order import FileOrder, dropped_files
from broker.store.files import (
    CHECKPOINT,
    DATA_START,
    FOUND,
    GAVE_UP,
    SEGMENT,
    FileScan,
    Head,
    LogFile,
    file_holding,
    os_error_text,
    parse_name,
    read_closing_salt,
    read_head,
)
from broker.store.findings import CUT, IGNORED, MISSING, QUARANTINED, WRONG, Finding, Quarantine
from broker.store.layout import CLOSED, GROUP, RETAINED, SETTLED, STORED
from broker.store.reading import END, MEMBER_HEADER_SIZE, RecordReader, group_members
from broker.store.record_parts import closing_record
from broker.store.replay import Recovery, Replay, ignore_progress

_U32: Final[i64] = 0xFFFFFFFF


class Recoverer:
    """The recovery of the log in one directory; `report` has its progress and its result.

    If `changes_files` is False, the recovery changes no file, as `trellis store verify` requires.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        salt: i64,
        replay: Replay,
        progress: Callable[[Recovery], None] = ignore_progress,
        changes_files: bool = True,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.salt: i64 = salt
        self.report = Recovery()
        self.files: list[LogFile] = []
        self.replay = replay
        self._progress = progress
        self._changes_files = changes_files
        self._quarantine_directory = Quarantine(disk, directory)
        self._heads: dict[str, Head] = {}
        #: File name -> head made from the name, for files whose own heads are damaged.
        self._headless: dict[str, Head] = {}
        self._sizes: dict[str, int] = {}
        self._names: list[str] = []
        self._next_name = 0
        self._last: i64 = 0

    def run(self) -> None:
        """Read the whole log. Raises TooNew for an unknown format, or another StoreError."""
        self.start()
        while self.next():
            pass

    def start(self) -> None:
        """Read the heads of all files, and choose the files to read."""
        try:
            self._read_heads()
            self._names = self._choose_files()
        except OSError as error:
            raise self._open_error(error) from error
        self.report.files = len(self._names)
        self.report.bytes_total = sum(self._sizes[name] for name in self._names)

    def next(self) -> bool:
        """Recover the next file of the log; return False after the last file."""
        report = self.report
        if self._next_name < len(self._names):
            self._next_name += 1
            try:
                self._read(self._names[self._next_name - 1], self._next_name == len(self._names))
            except OSError as error:
                raise self._open_error(error) from error
            except TooNew as newer:
                raise self._too_new(self._names[self._next_name - 1], newer) from newer
            return True
        try:
            self._finish()
        except OSError as error:
            raise self._open_error(error) from error
        report.last = self._last
        # The lost records had positions, which must not be used again. Each record has more than
        # one byte, so there were fewer positions than lost bytes.
        report.next = self._last + report.lost_bytes + 1
        return False

    def _too_new(self, name: str, error: TooNew) -> TooNew:
        return TooNew(
            f"cannot read '{self.directory}/{name}': {error}; use the version that wrote the file"
        )

    def _open_error(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot open the log in '{self.directory}': {error.strerror or error}"
            f"{f': {error.filename}' if error.filename else ''}"
        )

    # -- which files

    def _read_heads(self) -> None:
        """Read the heads of all files of the log; note files with damaged heads."""
        disk = self.disk
        for name in disk.list(self.directory):
            path = f"{self.directory}/{name}"
            if name.endswith(".tmp"):
                self._remove(name)
                continue
            parsed = parse_name(name)
            if parsed is None:
                continue
            file = disk.open(path, False)
            self._sizes[name] = int(file.size())
            try:
                head = read_head(file.read(0, DATA_START))
            except TooNew as error:
                raise self._too_new(name, error) from error
            if head is None:
                self._headless[name] = Head(parsed[0], 0, parsed[1], -1)
            elif head.name != name:
                raise StoreError(
                    f"the file '{path}' has a wrong name: rename it to '{head.name}', the name"
                    " under which the broker wrote it"
                )
            else:
                self._heads[name] = head
        if self._heads:
            # All files of a log have one salt, so a file with damaged heads can be read.
            self.salt = self._heads[max(self._heads)].salt
        for name, head in self._headless.items():
            salt = read_closing_salt(
                disk.open(f"{self.directory}/{name}", False), self._sizes[name]
            )
            head.salt = self.salt if salt < 0 else salt
            if not self._heads:
                self.salt = head.salt

    def _choose_files(self) -> list[str]:
        """Return the names of the files to read, in order.

        Remove the files that a checkpoint replaced, and the files that were dropped.
        """
        for name in dropped_files(self._heads, self._headless):
            self._remove(name)
            self._heads.pop(name, None)
            self._headless.pop(name, None)
        heads = {**self._heads, **self._headless}
        checkpoints = sorted(name for name, head in heads.items() if head.kind == CHECKPOINT)
        segments = sorted(name for name, head in heads.items() if head.kind == SEGMENT)
        if segments and segments[-1] in self._headless and self._sizes[segments[-1]] <= DATA_START:
            # A crash came before the head of this file was durable, hence before its first record.
            self._remove(segments.pop())
        if not checkpoints:
            return segments
        newest = checkpoints.pop()
        order = FileOrder(self.disk, self.directory, self._heads, self._sizes)
        whole = newest in self._heads and order.is_closed(newest)
        replaced = [
            *checkpoints,
            *(name for name in segments if heads[name].first <= heads[newest].first),
        ]
        if not whole and order.follow_each_other(checkpoints, segments):
            # All files that the checkpoint replaces still exist, so it never took effect.
            self._move_to_quarantine(
                newest,
                IGNORED,
                "this checkpoint is incomplete, but the files that it replaces still exist",
            )
            return [*checkpoints[-1:], *segments]
        for name in replaced:
            if whole:
                self._remove(name)
            else:
                self._move_to_quarantine(
                    name, IGNORED, "the checkpoint that replaced this file is damaged"
                )
        return [newest, *(name for name in segments if heads[name].first > heads[newest].first)]

    # -- one file

    def _read(self, name: str, is_last: bool) -> None:
        head = self._heads.get(name) or self._headless[name]
        file = LogFile(self.disk, self.directory, head)
        report = self.report
        size: i64 = self._sizes[name]
        if name in self._headless:
            file.previous_last = self._last
            if not file.checkpoint:
                file.last = self._last
            self._quarantine(file, 0, min(DATA_START, size), "both headers are damaged")
            # Only the heads are damaged: the records after them can be read.
            file.holes.clear()
        elif (
            not file.checkpoint and head.previous_last != self._last and not self._follows_damage()
        ):
            report.findings.append(
                Finding(
                    MISSING,
                    name,
                    0,
                    0,
                    f"this file continues the log after position {head.previous_last}, "
                    f"but the files before it end at position {self._last}",
                )
            )
        covered: i64 = file.last
        # A checkpoint may begin at any position, a segment only after the end of the file before.
        scan = FileScan(
            file.file(),
            DATA_START,
            size,
            file.seed,
            0 if file.checkpoint else max(self._last, head.first - 1),
        )
        self.files.append(file)
        self.replay.file(self.files)
        self._walk(file, scan, is_last and not file.checkpoint and name in self._heads)
        file.close_scan()
        if file.checkpoint and not file.closed and not file.holes:
            report.findings.append(
                Finding(MISSING, name, 0, 0, "the end of this checkpoint is missing")
            )
        if file.checkpoint:
            file.last = max(scan.reader.last, covered)
        elif file.records or file.holes or file.closed:
            file.last = scan.reader.last
        # A segment without records, damage or closing record is skipped: the position in its head
        # may never have been written.
        self._last = max(self._last, file.last)

    def _finish(self) -> None:
        """Append a closing record to the segment that was read last, or remove an empty segment.

        A torn batch is possible only at the end of the log. New records go to a new segment, so bad
        data in this segment will count as damage.
        """
        if (
            self.files
            and not self.files[-1].checkpoint
            and self.files[-1].records == 0
            and not self.files[-1].holes
        ):
            # Remove the empty last file, so that the next segment can have its name. Do this before
            # the previous file is closed: a closing record torn by a crash is taken for damage
            # unless it is in the last file.
            self._remove(self.files.pop().name)
        if (
            self.files
            and not self.files[-1].checkpoint
            and not self.files[-1].closed
            and self._changes_files
        ):
            self._close(self.files[-1])

    def _close(self, file: LogFile) -> None:
        writable = self.disk.open(file.path, True)
        end = closing_record(file.last, file.records, file.size - DATA_START, file.salt, file.seed)
        try:
            writable.write(file.size, end)
        except OSError:
            # The disk is full: leave out the closing record, which is optional.
            writable.truncate(file.size)
        else:
            file.size += len(end)
        writable.sync()
        writable.close()

    def _follows_damage(self) -> bool:
        """True if the previous file has damage, which may have destroyed the missing records."""
        return bool(self.files) and bool(self.files[-1].holes)

    def _walk(self, file: LogFile, scan: FileScan, may_cut: bool) -> None:
        """Read the records of a file, skipping damage.

        If `may_cut` is True, the torn end of the last batch is cut off the file.
        """
        report, reader = self.report, scan.reader
        replay = self.replay
        base: i64 = -1
        #: All bytes before this offset were durable. -1: unknown yet.
        durable_before: i64 = -1
        behind_damage = False
        while True:
            while scan.advance():
                if reader.base != base:
                    base = reader.base
                    report.bytes_read += len(reader.data)
                    self._progress(report)
                if reader.kind == CLOSED:
                    file.closed = True
                    continue
                file.add_to_index(reader.position, reader.base + reader.record_start, behind_damage)
                behind_damage = False
                try:
                    self._count(file, reader)
                    if reader.first_of_batch:
                        replay.batch()
                    replay.record(
                        reader.kind, reader.position, reader.data, reader.start, reader.end
                    )
                except (DamagedStore, ValueError) as error:
                    reason = f"the record at position {reader.position}: {error}"
                    report.findings.append(
                        Finding(WRONG, file.name, int(scan.record_start), 0, reason)
                    )
            file.size = scan.offset
            if reader.stop == END:
                return
            bad, reason = scan.offset, reader.reason
            outcome = scan.find_next_record()
            end: i64 = scan.offset if outcome == FOUND else scan.size
            if may_cut and outcome != GAVE_UP:
                if durable_before < 0:
                    durable_before = (
                        self._find_durable_before(file, end, scan.size, reader.last)
                        if outcome == FOUND
                        else 0
                    )
                if durable_before < end:
                    self._cut(file, bad, scan.size, reason)
                    return
            self._quarantine(file, bad, end, reason)
            file.size = end
            if outcome != FOUND:
                return
            behind_damage = True

    def _find_durable_before(self, file: LogFile, start: i64, size: i64, last: i64) -> i64:
        """Find the last record from `start` on that begins a batch; return its offset in the file.

        All bytes before that offset were durable. Return 0 if there is no such record. `size` is
        the size of the file, `last` the last position before `start`.
        """
        scan = FileScan(file.file(), start, size, file.seed, last)
        durable_before: i64 = 0
        while True:
            while scan.advance():
                if scan.reader.first_of_batch:
                    durable_before = scan.record_start
            if scan.reader.stop == END or scan.find_next_record() != FOUND:
                return durable_before

    def _count(self, file: LogFile, reader: RecordReader) -> None:
        report = self.report
        kind = reader.kind
        size: i64 = reader.end - reader.record_start
        report.records += 1
        file.records += 1
        if kind == GROUP:
            for member in group_members(reader.data, reader.position, reader.start, reader.end):
                size = MEMBER_HEADER_SIZE + member.end - member.start
                self._count_one(file, member.kind, reader.data, member.start, size)
        else:
            self._count_one(file, kind, reader.data, reader.start, size)

    def _count_one(self, file: LogFile, kind: i64, data: bytes, start: i64, size: i64) -> None:
        if kind == STORED:
            self.report.messages += 1
            file.copies += i64(read_i32_be(data, start)) & _U32
            file.stored_size += size
        elif not file.checkpoint or kind < RETAINED:
            file.transient_size += size
            if kind == SETTLED:
                count_settled(self.files, read_i64_be(data, start + 8))

    # -- damage

    def _cut(self, file: LogFile, offset: i64, size: i64, reason: str) -> None:
        """Cut the torn end of the last batch off the file, which has `size` bytes, at `offset`."""
        self.report.findings.append(
            Finding(CUT, file.name, int(offset), int(size - offset), reason)
        )
        if self._changes_files:
            writable = self.disk.open(file.path, True)
            try:
                # `_finish` syncs the file, or removes it if it has no record.
                writable.truncate(offset)
            except OSError as error:
                raise StoreError(os_error_text(file.path, "truncate", error)) from error
            writable.close()

    def _quarantine(self, file: LogFile, start: i64, end: i64, reason: str) -> None:
        """Copy the damage from offset `start` to `end` to the quarantine.

        The damage stays in the file until a checkpoint replaces the file.
        """
        finding = Finding(QUARANTINED, file.name, int(start), int(end - start), reason)
        self.report.findings.append(finding)
        file.holes.append((int(start), int(end - start)))
        if not self._changes_files:
            return
        try:
            finding.copy = self._quarantine_directory.copy(
                file.file(), int(start), int(end), f"{file.name}-{start}-{end - start}.bad"
            )
        except OSError as error:
            file.damage_saved = False
            finding.reason += f" (not copied to the quarantine: {error.strerror or error})"

    def _move_to_quarantine(self, name: str, kind: str, reason: str) -> None:
        """Move a whole file of the log to the quarantine, and add a finding of this kind."""
        finding = Finding(kind, name, 0, 0, reason)
        self.report.findings.append(finding)
        if self._changes_files:
            finding.copy = self._quarantine_directory.move(name)

    def _remove(self, name: str) -> None:
        self.report.removed.append(name)
        if self._changes_files:
            self.disk.remove(f"{self.directory}/{name}")
            self.disk.sync_directory(self.directory)


def count_settled(files: list[LogFile], position: i64) -> None:
    """Add a settled message to the count of the file that holds the message."""
    file = file_holding(files, position)
    if file is not None and position <= file.last:
        file.settled += 1
