"""Reading the log when the store is opened: which files count, where the tail is cut, what is
quarantined.

    names --> heads --> the newest checkpoint and the segments behind it --> records --> Replay
                            |                                                  |
                     what it replaced is removed            bad in the last segment, nothing durable behind it: cut
                                                            bad elsewhere: copied to quarantine/, and read on behind it

A record that was the first of its batch says that all before it in the file was durable already:
damage before it is damage, and not the torn end of a batch that nobody was promised. Nothing is
skipped without a Finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import read_i32_be, read_i64_be
from mypy_extensions import i64, mypyc_attr

from broker.store.contract import StoreEntry
from broker.store.disk import DamagedStore, Disk, StoreError, TooNew
from broker.store.files import (
    CHECKPOINT,
    DATA,
    FOUND,
    GAVE_UP,
    SEGMENT,
    FileScan,
    Head,
    LogFile,
    closed,
    complaint,
    last_salt,
    parse_name,
    read_head,
    seed_of,
)
from broker.store.findings import CUT, IGNORED, MISSING, QUARANTINED, WRONG, Finding, Quarantine
from broker.store.layout import CLOSED, KEPT, MANY, RETAINED, SETTLED
from broker.store.reading import END, Decoder, RecordReader, parts
from broker.store.records import closing

_U32: Final[i64] = 0xFFFFFFFF


class Recovery:
    """What recovery has read so far, and what it found."""

    def __init__(self) -> None:
        self.files = 0
        self.octets: i64 = 0
        self.octets_total: i64 = 0
        self.records: i64 = 0
        self.messages: i64 = 0
        #: The last position in the log, and the first that is certainly free.
        self.last: i64 = 0
        self.next: i64 = 1
        #: Files removed because a checkpoint had replaced them, or because nothing was written in
        #: them yet.
        self.removed: list[str] = []
        self.findings: list[Finding] = []

    def found(self, what: str) -> list[Finding]:
        """Findings of this kind."""
        return [finding for finding in self.findings if finding.what == what]

    @property
    def lost(self) -> int:
        """Octets that could not be read, the cut tail among them."""
        return sum(finding.octets for finding in self.findings)


@mypyc_attr(allow_interpreted_subclasses=True)
class Replay:
    """Who is told the records of the log, in order."""

    def record(self, kind: i64, position: i64, octets: bytes, start: i64, end: i64) -> None:
        """A record; its payload is `octets[start:end]`."""
        raise NotImplementedError

    def batch(self) -> None:
        """The next record is the first of its batch: all before it was durable, and the catalog
        written, when it was.
        """


class Applying(Replay):
    """Makes entries of the records, and applies them."""

    def __init__(self, decoder: Decoder, apply: Callable[[i64, StoreEntry], None]) -> None:
        self._decoder = decoder
        self._apply = apply

    def record(self, kind: i64, position: i64, octets: bytes, start: i64, end: i64) -> None:
        self._apply(position, self._decoder.entry(kind, position, octets, start, end))


def _quietly(recovery: Recovery) -> None:
    """Tells nobody about the progress."""


class Recoverer:
    """Opens a directory once. `changing` False only looks: `trellis store verify`."""

    def __init__(
        self,
        disk: Disk,
        directory: str,
        salt: i64,
        replay: Replay,
        progress: Callable[[Recovery], None] = _quietly,
        changing: bool = True,
    ) -> None:
        self.disk = disk
        self.directory = directory
        self.salt: i64 = salt
        self.report = Recovery()
        self.files: list[LogFile] = []
        self.replay = replay
        self._progress = progress
        self._changing = changing
        self._kept = Quarantine(disk, directory)
        self._heads: dict[str, Head] = {}
        #: Files whose heads are damaged: their names must do.
        self._headless: dict[str, Head] = {}
        self._sizes: dict[str, int] = {}
        self._names: list[str] = []
        self._at = 0
        self._last: i64 = 0

    def run(self) -> None:
        """Read everything. Raises StoreError, TooNew."""
        self.start()
        while self.next():
            pass

    def start(self) -> None:
        """Find out which files to read."""
        try:
            self._look()
            self._names = self._choose()
        except OSError as error:
            raise self._refused(error) from error
        self.report.files = len(self._names)
        self.report.octets_total = sum(self._sizes[name] for name in self._names)

    def next(self) -> bool:
        """Read a file; False when there are no more."""
        report = self.report
        if self._at < len(self._names):
            self._at += 1
            try:
                self._read(self._names[self._at - 1], self._at == len(self._names))
            except OSError as error:
                raise self._refused(error) from error
            except TooNew as error:
                raise self._too_new(self._names[self._at - 1], error) from error
            return True
        try:
            self._finish()
        except OSError as error:
            raise self._refused(error) from error
        report.last = self._last
        # What was lost had positions: none of them is used again. (No entry takes less than an
        # octet.)
        report.next = self._last + report.lost + 1
        return False

    def _too_new(self, name: str, error: TooNew) -> TooNew:
        return TooNew(
            f"cannot read '{self.directory}/{name}': {error}; use the version that wrote it"
        )

    def _refused(self, error: OSError) -> StoreError:
        return StoreError(
            f"cannot open the log in '{self.directory}': {error.strerror or error}"
            f"{f': {error.filename}' if error.filename else ''}"
        )

    # -- which files

    def _look(self) -> None:
        """Read all heads."""
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
                head = read_head(file.read(0, DATA))
            except TooNew as error:
                raise self._too_new(name, error) from error
            if head is None:
                self._headless[name] = Head(parsed[0], 0, parsed[1], -1)
            elif head.name != name:
                raise StoreError(
                    f"the file '{path}' was called '{head.name}' when it was written: give it its name back"
                )
            else:
                self._heads[name] = head
        if self._heads:
            # One salt for all files of a log: so a file without a head can be read.
            self.salt = self._heads[max(self._heads)].salt
        for name, head in self._headless.items():
            salt = last_salt(disk.open(f"{self.directory}/{name}", False), self._sizes[name])
            head.salt = self.salt if salt < 0 else salt
            if not self._heads:
                self.salt = head.salt

    def _choose(self) -> list[str]:
        """Files to read, in order; what a checkpoint has replaced goes."""
        heads = {**self._heads, **self._headless}
        checkpoints = sorted(name for name, head in heads.items() if head.kind == CHECKPOINT)
        segments = sorted(name for name, head in heads.items() if head.kind == SEGMENT)
        if segments and segments[-1] in self._headless and self._sizes[segments[-1]] <= DATA:
            # The crash came before its head was durable, hence before its first record.
            self._remove(segments.pop())
        if not checkpoints:
            return segments
        newest = checkpoints.pop()
        whole = newest in self._heads and self._closed(newest)
        replaced = [
            *checkpoints,
            *(name for name in segments if heads[name].first <= heads[newest].first),
        ]
        if not whole and self._complete(checkpoints, segments):
            # Its predecessors are all there still: it never took effect.
            self._set_aside(
                newest, IGNORED, "this checkpoint is not whole, but what it replaces is still there"
            )
            return [*checkpoints[-1:], *segments]
        for name in replaced:
            if whole:
                self._remove(name)
            else:
                self._set_aside(
                    name, IGNORED, "a checkpoint replaced this file, but is damaged itself"
                )
        return [newest, *(name for name in segments if heads[name].first > heads[newest].first)]

    def _closed(self, name: str) -> bool:
        head = self._heads[name]
        return closed(
            self.disk.open(f"{self.directory}/{name}", False), self._sizes[name], seed_of(head.salt)
        )

    def _complete(self, checkpoints: list[str], segments: list[str]) -> bool:
        """Whether these files follow each other from the beginning of the log."""
        last: i64 = 0
        for name in [*checkpoints[-1:], *segments]:
            head = self._heads.get(name)
            if head is None:
                return False
            if head.kind == CHECKPOINT:
                if not self._closed(name):
                    return False
                last = head.first
                continue
            if head.after != last:
                return False
            scan = FileScan(
                self.disk.open(f"{self.directory}/{name}", False),
                DATA,
                self._sizes[name],
                seed_of(head.salt),
                last,
            )
            while scan.advance():
                pass
            if scan.reader.stop != END and name != segments[-1]:
                return False
            last = scan.reader.last
        return bool(segments)

    # -- one file

    def _read(self, name: str, is_last: bool) -> None:
        head = self._heads.get(name) or self._headless[name]
        file = LogFile(self.disk, self.directory, head)
        report = self.report
        size: i64 = self._sizes[name]
        if name in self._headless:
            file.after = self._last
            if not file.checkpoint:
                file.last = self._last
            self._quarantine(file, 0, min(DATA, size), "both heads are damaged")
            file.holes.clear()  # The records behind them are read all the same.
        elif not file.checkpoint and head.after != self._last and not self._explained():
            report.findings.append(
                Finding(
                    MISSING,
                    name,
                    0,
                    0,
                    f"the log goes from position {self._last} to {head.first}, but the file before ended at {head.after}",
                )
            )
        covered: i64 = file.last
        # A checkpoint's positions begin anywhere; a segment's behind those of the file before.
        scan = FileScan(
            file.file(),
            DATA,
            size,
            file.seed,
            0 if file.checkpoint else max(self._last, head.first - 1),
        )
        self.files.append(file)
        self._walk(file, scan, is_last and not file.checkpoint and name in self._heads)
        file.close_scan()
        if file.checkpoint and not file.closed and not file.holes:
            report.findings.append(Finding(MISSING, name, 0, 0, "the end of this checkpoint"))
        if file.checkpoint:
            file.last = max(scan.reader.last, covered)
        elif file.records or file.holes or file.closed:
            file.last = scan.reader.last
        # Else nothing was ever written in it, and the log ends where it ended before: its first
        # position may be one that was never written.
        self._last = max(self._last, file.last)

    def _finish(self) -> None:
        """Nothing is appended to these files any more, so what is damaged in them from now on is
        never the torn end of a batch.
        """
        if (
            self.files
            and not self.files[-1].checkpoint
            and self.files[-1].records == 0
            and not self.files[-1].holes
        ):
            # So that the next one may have its name; and before the one before is closed, which is
            # not the last while this one is there: what a crash leaves of the closing would be
            # taken for damage.
            self._remove(self.files.pop().name)
        if (
            self.files
            and not self.files[-1].checkpoint
            and not self.files[-1].closed
            and self._changing
        ):
            self._close(self.files[-1])

    def _close(self, file: LogFile) -> None:
        writable = self.disk.open(file.path, True)
        end = closing(file.last, file.records, file.size - DATA, file.salt, file.seed)
        try:
            writable.write(file.size, end)
        except OSError:
            writable.truncate(file.size)  # A full disk; it can do without.
        else:
            file.size += len(end)
        writable.sync()
        writable.close()

    def _explained(self) -> bool:
        """Whether the file before has damage, where its last records may have been."""
        return bool(self.files) and bool(self.files[-1].holes)

    def _walk(self, file: LogFile, scan: FileScan, may_cut: bool) -> None:
        """Read the file's records, and past its damage."""
        report, reader = self.report, scan.reader
        replay = self.replay
        base: i64 = -1
        #: Everything before it was durable. Not known yet: -1.
        vouched: i64 = -1
        behind_damage = False
        while True:
            while scan.advance():
                if reader.base != base:
                    base = reader.base
                    report.octets += len(reader.octets)
                    self._progress(report)
                if reader.kind == CLOSED:
                    file.closed = True
                    continue
                file.mark(reader.position, reader.base + reader.began, behind_damage)
                behind_damage = False
                try:
                    self._count(file, reader)
                    if reader.first_of_batch:
                        replay.batch()
                    replay.record(
                        reader.kind, reader.position, reader.octets, reader.start, reader.end
                    )
                except (DamagedStore, ValueError) as error:
                    reason = f"the record at position {reader.position}: {error}"
                    report.findings.append(Finding(WRONG, file.name, int(scan.began), 0, reason))
            file.size = scan.offset
            if reader.stop == END:
                return
            bad, why = scan.offset, reader.reason
            found = scan.find()
            end: i64 = scan.offset if found == FOUND else scan.size
            if may_cut and found != GAVE_UP:
                if vouched < 0:
                    vouched = (
                        self._vouched(file, end, scan.size, reader.last) if found == FOUND else 0
                    )
                if vouched < end:
                    self._cut(file, bad, scan.size, why)
                    return
            self._quarantine(file, bad, end, why)
            file.size = end
            if found != FOUND:
                return
            behind_damage = True

    def _vouched(self, file: LogFile, start: i64, size: i64, last: i64) -> i64:
        """Where the last record begins that was the first of its batch; 0: nowhere behind `start`."""
        scan = FileScan(file.file(), start, size, file.seed, last)
        vouched: i64 = 0
        while True:
            while scan.advance():
                if scan.reader.first_of_batch:
                    vouched = scan.began
            if scan.reader.stop == END or scan.find() != FOUND:
                return vouched

    def _count(self, file: LogFile, reader: RecordReader) -> None:
        report = self.report
        kind = reader.kind
        size: i64 = reader.end - reader.began
        report.records += 1
        file.records += 1
        if kind == MANY:
            for part in parts(reader.octets, reader.position, reader.start, reader.end):
                self._count_one(file, part.kind, reader.octets, part.start, part.end - part.start)
        else:
            self._count_one(file, kind, reader.octets, reader.start, size)

    def _count_one(self, file: LogFile, kind: i64, octets: bytes, start: i64, size: i64) -> None:
        if kind == KEPT:
            self.report.messages += 1
            file.copies += i64(read_i32_be(octets, start)) & _U32
            file.kept_octets += size
        elif not file.checkpoint or kind < RETAINED:
            file.passing += size
            if kind == SETTLED:
                settle(self.files, read_i64_be(octets, start + 8))

    # -- what is done about damage

    def _cut(self, file: LogFile, offset: i64, size: i64, reason: str) -> None:
        """The end of a batch that was being written when the end came."""
        self.report.findings.append(
            Finding(CUT, file.name, int(offset), int(size - offset), reason)
        )
        if self._changing:
            writable = self.disk.open(file.path, True)
            try:
                writable.truncate(
                    offset
                )  # Synced when the file is closed; if nothing is left of it, it goes.
            except OSError as error:
                raise StoreError(complaint(file.path, "cut the tail of", error)) from error
            writable.close()

    def _quarantine(self, file: LogFile, start: i64, end: i64, reason: str) -> None:
        """Copy damage aside: it stays in its file until a checkpoint replaces that."""
        finding = Finding(QUARANTINED, file.name, int(start), int(end - start), reason)
        self.report.findings.append(finding)
        file.holes.append((int(start), int(end - start)))
        if not self._changing:
            return
        try:
            finding.copy = self._kept.copy(
                file.file(), int(start), int(end), f"{file.name}-{start}-{end - start}.bad"
            )
        except OSError as error:
            file.saved = False
            finding.reason += f" (not copied: {error.strerror or error})"

    def _set_aside(self, name: str, what: str, reason: str) -> None:
        """Move a whole file to the quarantine."""
        finding = Finding(what, name, 0, 0, reason)
        self.report.findings.append(finding)
        if self._changing:
            finding.copy = self._kept.take(name)

    def _remove(self, name: str) -> None:
        self.report.removed.append(name)
        if self._changing:
            self.disk.remove(f"{self.directory}/{name}")
            self.disk.sync_directory(self.directory)


def holding(files: list[LogFile], position: i64) -> LogFile | None:
    """The file that speaks for the position."""
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
        return holding(files, position)  # Another thread put a checkpoint in the place of some.


def settle(files: list[LogFile], position: i64) -> None:
    """A copy of the message at the position is settled, or its queue is gone: count it where the
    message is.
    """
    file = holding(files, position)
    if file is not None:
        file.dead += 1
