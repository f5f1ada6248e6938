"""Power loss: confirmed messages survive any loss of writes, and settled messages stay settled.

The tests record the writes of a log to its disk. For each moment of this history, they make the
disk as a power loss leaves it: each unsynced write is kept, lost or torn. Then they check the log
on this disk. The tests must find the mistakes of stores that are wrong on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from random import Random

import pytest

from broker.store.checkpoint import Checkpointing
from broker.store.checkpoint_file import CheckpointFile
from broker.store.dropping import dead_files, drop_dead_files, mark_gap
from broker.store.entries import MessageSettled, MessageStored
from broker.store.files import CHECKPOINT, Head, LogFile
from broker.store.segments import SegmentLog
from broker.store.state import State
from tests.store.logs import QUEUES, Digest, Log, digest, message, random_entry
from tests.store.simulated import SimulatedDisk

EXIST = {*QUEUES, 9}
#: A copy of a message: (queue, content). Contents are unique, while positions may depend on the
#: design.
Copy = tuple[int, bytes]


def copies(state: State) -> set[Copy]:
    return {
        (queue, live.message.content) for live in state.messages.values() for queue in live.queues
    }


class History:
    """The changes that a log has made to its disk, and the entries confirmed after each change."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        #: (number of events, position): from this step on, all entries up to the position were
        #: confirmed.
        self.confirmed: list[tuple[int, int]] = [(0, 0)]
        #: (number of events, position): from this step on, entries up to the position were being
        #: written.
        self.begun: list[tuple[int, int]] = [(0, 0)]
        #: The state after each position.
        self.digests: dict[int, Digest] = {}
        self.copies: dict[int, set[Copy]] = {0: set()}
        self.ever: dict[int, set[Copy]] = {0: set()}

    def note(self, log: Log) -> None:
        """Remember the expected state of the log after the entry that was added last."""
        self.digests[log.position] = digest(log.state)
        now = self.copies[log.position] = copies(log.state)
        self.ever[log.position] = self.ever[max(self.ever)] | now

    def writes(self, log: Log) -> None:
        """Write and sync the added entries, and remember that they are confirmed."""
        self.begun.append((len(self.disk.events), log.position))
        log.write()
        self.confirmed.append((len(self.disk.events), log.position))

    def owed(self, events: int) -> tuple[int, int]:
        """Return two positions after a number of disk events.

        The first is the position of the last confirmed entry; the second is the position of the
        last entry whose write had begun.
        """
        return (
            max(position for at, position in self.confirmed if at <= events),
            max(position for at, position in self.begun if at <= events),
        )

    def complaints(self, events: int, recovered: State) -> list[str]:
        """Return the violations in a log that was recovered after a number of events."""
        confirmed, begun = self.owed(events)
        now = copies(recovered)
        wanted = set.intersection(
            *(self.copies[position] for position in self.copies if confirmed <= position <= begun)
        )
        settled = self.ever[confirmed] - self.copies[confirmed]
        return [
            *("confirmed and lost" for _ in wanted - now),
            *("settled and back" for _ in settled & now),
        ]


Drop = Callable[[SegmentLog], int]
Stepper = Callable[[Log, list[LogFile]], Iterator[None]]


def right(log: Log, files: list[LogFile]) -> Iterator[None]:
    """Make a checkpoint of these files as the broker does."""
    checkpointing = Checkpointing(log.log, files, EXIST)
    while checkpointing.step():
        yield


def moved_forward(log: Log, files: list[LogFile]) -> Iterator[None]:
    """Wrong on purpose: a checkpoint appends live messages to the log again, at new positions."""
    last = files[-1].last
    live = [
        (live.message, list(live.queues))
        for position, live in log.state.messages.items()
        if position <= last
    ]
    yield
    for stray, queues in live:
        log.recorder.add(log.position + 1, MessageStored("/", stray, queues))
        log.position += 1
    yield
    log.write()
    yield
    del log.log.files[: len(files)]
    for file in files:
        log.log.disk.remove(file.path)
    log.log.disk.sync_directory(log.log.directory)
    yield


class OverwrittenFile(CheckpointFile):
    """Wrong on purpose: a checkpoint's file that overwrites the file of the previous checkpoint."""

    def __init__(self, log: SegmentLog, last: LogFile, end: int) -> None:
        super().__init__(log, end)
        self._head = Head(CHECKPOINT, log.salt, int(last.name[-24:-4]), 0)
        self.file = LogFile(log.disk, log.directory, self._head)
        self.file.last = end
        self.temporary = last.path

    def begin(self) -> None:
        self._handle = self._log.disk.open(self.temporary, True)
        self._handle.truncate(0)
        self._out.write(self._head.encode())


class InPlace(Checkpointing):
    """Wrong on purpose: a checkpoint that overwrites the previous checkpoint."""

    def __init__(self, log: SegmentLog, files: list[LogFile], holder_numbers: set[int]) -> None:
        super().__init__(log, files, holder_numbers)
        if files[0].checkpoint:
            self._target = OverwrittenFile(log, files[0], int(files[-1].last))
            self._checkpoint = self._target.file

    def _remove(self) -> None:
        if self._file_at == 0 and self._files[0].checkpoint:
            self._file_at = 1
        super()._remove()


def overwritten(log: Log, files: list[LogFile]) -> Iterator[None]:
    checkpointing = InPlace(log.log, files, EXIST)
    # The files are read before they are overwritten, so only a crash does harm.
    kept = {file: log.log.disk.names[file.path] for file in files}  # type: ignore[attr-defined]
    for file, inode in kept.items():
        copy = SimulatedDisk({file.path: bytes(inode.now)})
        file.attach(copy.open(file.path, False))
    while checkpointing.step():
        yield


def live_through(
    seed: int, stepper: Stepper, batches: int = 40, drop: Drop = drop_dead_files
) -> History:
    """Write `batches` batches to a log; in between, make checkpoints and drop dead files."""
    random, disk = Random(seed), SimulatedDisk()
    log, history = Log(disk, random.choice((400, 1_500))), History(disk)
    steps: Iterator[None] = iter(())
    for _ in range(batches):
        for _ in range(random.randrange(1, 4)):
            log.add(random_entry(random, log))
            history.note(log)
        history.writes(log)
        for _ in range(random.randrange(4)):
            if next(steps, steps) is steps:
                if random.random() < 0.5:
                    drop(log.log)
                    continue
                files = log.log.sealed()
                if files and not files[-1].checkpoint:
                    steps = stepper(log, files)
    return history


def crashes(history: History, seed: int, every: int = 1) -> Iterator[tuple[int, Log]]:
    """Simulate power losses before each `every`-th disk event, and after the last one.

    For each power loss, yield (number of the disk events before it, log recovered from the disk).
    """
    random, disk = Random(seed), SimulatedDisk()
    for events, event in enumerate(history.disk.events):
        if events % every == 0:
            for kept in (0.0, 1.0, 0.5, 0.5, 0.9):
                yield events, Log(disk.crashed(random, kept))
        disk.replay(event)
    yield len(history.disk.events), Log(disk)


def check_every_prefix(seed: int) -> None:
    history = live_through(seed, right)
    for events, log in crashes(history, seed):
        confirmed, begun = history.owed(events)
        assert not history.complaints(events, log.state), (seed, events)
        last = int(log.log.last)
        assert confirmed <= last <= begun and last < log.recovery.next, (seed, events)
        if last:
            assert log.recovered == history.digests[last], (seed, events)
        # The cut tail was never confirmed, so it is not damage.
        assert not [finding for finding in log.recovery.findings if finding.kind != "cut"], (
            seed,
            events,
        )


@pytest.mark.parametrize("seed", range(6))
def test_after_a_power_loss_the_log_equals_a_state_not_before_the_last_confirmed_entry(
    seed: int,
) -> None:
    check_every_prefix(seed)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 200))
def test_the_same_with_many_seeds(seed: int) -> None:
    check_every_prefix(seed)


def generations(seed: int, lives: int) -> None:
    """Crash one log repeatedly, during recoveries, writes and checkpoints; check it each time."""
    random = Random(seed)
    disk = SimulatedDisk()
    expected: Digest | None = None
    used = 0
    for life in range(lives):
        before = SimulatedDisk(disk.contents())
        log = Log(disk, random.choice((400, 1_500)))
        assert expected is None or log.recovered == expected, (seed, life)
        assert log.position >= used
        history = History(disk)
        history.begun, history.confirmed = [(0, log.position)], [(0, log.position)]
        history.copies, history.ever = (
            {log.position: copies(log.state)},
            {log.position: copies(log.state)},
        )
        history.digests[log.position] = digest(log.state)
        start = log.position
        steps: Iterator[None] = iter(())
        for _ in range(random.randrange(8)):
            for _ in range(random.randrange(1, 4)):
                log.add(random_entry(random, log))
                history.note(log)
            history.writes(log)
            for _ in range(random.randrange(8)):
                if next(steps, steps) is steps:
                    if random.random() < 0.5:
                        drop_dead_files(log.log)
                        continue
                    files = log.log.sealed()
                    if files and not files[-1].checkpoint:
                        steps = right(log, files)
        events = random.randrange(len(disk.events) + 1)
        for event in disk.events[:events]:
            before.replay(event)
        disk = before.crashed(random, random.choice((0.0, 0.5, 1.0)))
        confirmed, begun = history.owed(events)
        if confirmed > start:
            used = confirmed
        probe = Log(SimulatedDisk(disk.contents()))
        last = max(int(probe.log.last), start)
        assert confirmed <= last <= begun, (seed, life)
        expected = history.digests[last]
        assert probe.recovered == expected, (seed, life)


@pytest.mark.parametrize("seed", range(10))
def test_a_log_survives_crash_after_crash(seed: int) -> None:
    generations(seed, 15)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 300))
def test_a_log_survives_crash_after_crash_with_many_seeds(seed: int) -> None:
    generations(seed, 40)


def complaints(
    stepper: Stepper, seeds: int, drop: Drop = drop_dead_files, enough: int = 1 << 30
) -> dict[str, int]:
    """Return the kinds of violations of a design, each with the number of its occurrences.

    End as soon as one kind occurred `enough` times.
    """
    violations: dict[str, int] = {}
    for seed in range(seeds):
        history = live_through(seed, stepper, drop=drop)
        for events, log in crashes(history, seed, 3):
            for complaint in history.complaints(events, log.state):
                violations[complaint] = violations.get(complaint, 0) + 1
                if violations[complaint] == enough:
                    return violations
    return violations


def test_stragglers_moved_to_the_end_come_back_after_they_were_settled() -> None:
    assert complaints(moved_forward, 3).get("settled and back", 0) > 10


def test_checkpoint_written_over_the_last_one_loses_confirmed_messages() -> None:
    assert complaints(overwritten, 3).get("confirmed and lost", 0) > 10


def never(log: Log, files: list[LogFile]) -> Iterator[None]:
    """Make no checkpoint: in this run, only dead files are dropped."""
    return iter(())


def drop_early(log: SegmentLog) -> int:
    """Wrong on purpose: drop a dead file although it settles messages of a file that stays.

    After a restart, these messages are live again.
    """
    for file in log.files:
        file.needs.clear()
    return drop_dead_files(log)


def remove_before_the_mark(log: SegmentLog) -> int:
    """Wrong on purpose: remove dead files before the log has a durable mark of the gap.

    The mark says that these files were dropped on purpose.
    """
    dropped = 0
    for run in dead_files(log):
        for file in run:
            log.disk.remove(file.path)
            dropped += int(file.size)
        mark_gap(log, run)
        log.unlist(run)
    return dropped


def test_a_file_that_is_dropped_before_the_messages_it_settles_brings_them_back() -> None:
    assert complaints(never, 30, drop_early, 11).get("settled and back", 0) > 10


def test_files_that_are_removed_before_they_are_marked_bring_messages_back() -> None:
    assert complaints(never, 60, remove_before_the_mark, 1).get("settled and back", 0) > 0


def test_the_same_search_finds_nothing_wrong_with_drops_as_they_are() -> None:
    assert complaints(never, 10) == {}


def test_the_same_search_finds_nothing_wrong_with_checkpoints_as_they_are() -> None:
    assert complaints(right, 3) == {}
    for seed in range(3):
        done = [operation for operation, _, _, _ in live_through(seed, right).disk.events]
        assert done.count("rename") >= 2 and done.count("remove") >= 4


def test_a_log_that_does_not_sync_is_caught() -> None:
    disk = SimulatedDisk()
    log, history = Log(disk), History(disk)
    for number in range(5):
        log.add(MessageStored("/", message(b"%d" % number), [3]), MessageSettled(3, log.position))
        history.note(log)
        history.begun.append((len(disk.events), log.position))
        log.log.append(log.recorder.take())
        log.log._unsynced = False  # WRONG: confirm before the sync.
        history.confirmed.append((len(disk.events), log.position))
    assert any(history.complaints(events, crashed.state) for events, crashed in crashes(history, 1))
