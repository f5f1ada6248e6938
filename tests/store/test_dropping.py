"""Tests that dead files are dropped without being read, so that the log stays small.

The store writer looks for dead files from time to time. The tests vary the number of bytes that are
written between two of these checks.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from random import Random

import pytest

from broker.store.checkpoint import Checkpointing
from broker.store.checkpoint_schedule import begin_checkpoint
from broker.store.disk import Poisoned, StoreError, WriteFailed
from broker.store.dropping import dead_files, dead_size, drop_dead_files
from broker.store.entries import (
    Defined,
    EntryGroup,
    MessageSettled,
    MessageStored,
    PacketIdHeld,
    PacketIdReleased,
    PubrecReceived,
    RetainedSet,
    Sequenced,
    StoreEntry,
    StreamExtended,
    Undefined,
)
from broker.store.files import DATA_START
from tests.store.logs import DIRECTORY, QUEUES, Log, digest, message, random_entry
from tests.store.simulated import SimulatedDisk
from tests.store.test_backup import opened

EXIST = {*QUEUES, 9}
SEGMENT = 20_000
#: Number of a deleted queue that never had a message.
ABSENT = 77


def figures(log: Log) -> list[tuple[str, int, int]]:
    return [(file.name, int(file.live), int(file.balance)) for file in log.log.files]


def once(random: Random, log: Log) -> StoreEntry:
    """Return a random entry in which no settlement occurs twice, as in the broker's entries."""
    while True:
        entry = random_entry(random, log)
        members = entry.entries if isinstance(entry, EntryGroup) else [entry]
        settled = [(one.queue, one.position) for one in members if isinstance(one, MessageSettled)]
        if len(settled) == len(set(settled)):
            return entry


@pytest.mark.parametrize("first", range(0, 300, 50))
def test_figures_of_the_log_equal_the_counts_of_recovery(first: int) -> None:
    for seed in range(first, first + 50):
        check_figures(Random(seed))


def check_figures(random: Random) -> None:
    log = Log(SimulatedDisk(), random.choice((300, 1_000)))
    checkpointing: Checkpointing | None = None
    for _ in range(random.randrange(5, 50)):
        for _ in range(random.randrange(1, 4)):
            log.add(once(random, log))
        log.write()
        if random.random() < 0.2:
            log.log.liveness.remove_holder(log.log.files, ABSENT)
        sealed = log.log.sealed()
        if checkpointing is not None:
            for _ in range(random.randrange(6)):
                if checkpointing is not None and not checkpointing.step():
                    checkpointing = None
        elif random.random() < 0.5:
            drop_dead_files(log.log)
        elif sealed and not sealed[-1].checkpoint:
            first = 2 if sealed[0].checkpoint else 1
            checkpointing = Checkpointing(
                log.log, sealed[: random.randrange(first, len(sealed) + 1)], EXIST
            )
    if checkpointing is not None:
        checkpointing.run()
    again = Log(SimulatedDisk(log.log.disk.contents()))  # type: ignore[attr-defined]
    assert again.recovered == digest(log.state) and not again.recovery.findings
    assert figures(again) == figures(log)
    # After a recovery, the `needs` of a file may lack entries that the running log knows.
    for known, least in zip(log.log.files, again.log.files, strict=True):
        assert known.needs.keys() >= least.needs.keys()
    drop_dead_files(again.log)
    last = Log(SimulatedDisk(log.log.disk.contents()))  # type: ignore[attr-defined]
    assert last.recovered == digest(log.state)


class Speed:
    """A log whose dead files are dropped after every `stride` written bytes.

    If there is no dead file at this point, a checkpoint is made if it saves enough space, as in the
    broker. `reads` counts the reads of the disk. `largest` is the largest number of bytes by which
    the log exceeded three times the size of its live messages.
    """

    def __init__(self, stride: int = SEGMENT // 4) -> None:
        self.stride = stride
        self.reads = self.largest = self.checkpoints = 0
        self._looked = 0
        self.disk = SimulatedDisk()
        self.disk.refuse = self._ask
        self.log = Log(self.disk, SEGMENT)

    def _ask(self, operation: str, path: str) -> int:
        self.reads += operation == "read"
        return 0

    def put(self, *entries: StoreEntry) -> int:
        first = self.log.put(*entries)
        if self.log.log.written - self._looked >= self.stride:
            self._looked = int(self.log.log.written)
            self.look()
        self.largest = max(self.largest, self.log.log.size - 3 * self.live)
        return first

    def look(self, idle: bool = False) -> None:
        log = self.log.log
        if not drop_dead_files(log):
            checkpointing = begin_checkpoint(log, EXIST, idle)
            if checkpointing is not None:
                checkpointing.run()
                self.checkpoints += checkpointing.completed
                drop_dead_files(log)

    @property
    def live(self) -> int:
        """Size of the live messages and retained messages in bytes."""
        # `put` reads this property after each entry, and `map` is faster than a generator.
        state = self.log.state
        contents = map(attrgetter("message.content"), state.messages.values())
        retained = map(attrgetter("content"), state.retained.values())
        return sum(map(len, contents)) + sum(map(len, retained))

    def settle_all(self) -> None:
        for position, live in list(self.log.state.messages.items()):
            for queue in list(live.queues):
                self.log.add(MessageSettled(queue, position))
        self.log.write()


#: Bytes that the log may have beyond three times its live records: four segments.
SLACK = 4 * SEGMENT


@pytest.mark.parametrize("lag", [0, 1, 20, 150])
@pytest.mark.parametrize(
    "kind", ["settled", "fanout", "qos 2 out", "qos 2 in", "group", "numbered"]
)
def test_the_log_of_a_run_at_full_speed_stays_small_and_is_not_read(kind: str, lag: int) -> None:
    speed = Speed()
    held: list[list[StoreEntry]] = []
    for number in range(3_000):
        stored = MessageStored("/", message(b"x" * 100), [3, 4] if kind == "fanout" else [3])
        if kind == "qos 2 in":
            packet_id = number % 65_535 + 1
            position = speed.put(stored, PacketIdHeld(9, packet_id))
        elif kind == "numbered":
            position = speed.put(EntryGroup([stored, Sequenced("/", "p", number)]))
        elif kind == "group":
            position = speed.put(EntryGroup([stored, StreamExtended(5, number)]))
        else:
            position = speed.put(stored)
        held.append([MessageSettled(queue, position) for queue in stored.queues])
        if kind == "qos 2 out":
            held[-1].insert(0, PubrecReceived(3, position))
        if kind == "qos 2 in":
            held[-1].append(PacketIdReleased(9, packet_id))
        if len(held) > lag:
            speed.put(*held.pop(0))
    assert speed.largest < SLACK
    assert speed.reads == speed.checkpoints == 0, "dead files are dropped, and not read"
    check_end(speed)


def check_end(speed: Speed) -> None:
    """Check that an idle log shrinks, with messages and without, also after a restart."""
    assert Log(SimulatedDisk(speed.disk.contents())).recovered == digest(speed.log.state)
    speed.settle_all()
    for _ in range(3):
        speed.look(idle=True)
    assert speed.log.log.size < 2 * SEGMENT
    speed.log.log.close()
    speed.log = again = Log(speed.disk, SEGMENT)
    assert again.recovered == digest(again.state) and not again.recovery.findings
    for _ in range(3):
        speed.look(idle=True)
    # At most 150 packet identifiers are live.
    assert speed.log.log.size < SEGMENT // 3
    assert Log(speed.disk, SEGMENT).recovered == digest(again.state)


@pytest.mark.parametrize("lag", [0, 20, 150, 500])
@pytest.mark.parametrize("kind", ["message", "retained", "packet identifier"])
def test_old_live_entry_does_not_hold_the_files_behind_it(kind: str, lag: int) -> None:
    speed = Speed()
    if kind == "message":
        speed.put(MessageStored("/", message(b"old"), [5]))
    elif kind == "retained":
        speed.put(RetainedSet("/", "k", message(b"old")))
    else:
        speed.put(PacketIdHeld(9, 7))
    held: list[int] = []
    for _ in range(5_000):
        held.append(speed.put(MessageStored("/", message(b"x" * 100), [3])))
        if len(held) > lag:
            speed.put(MessageSettled(3, held.pop(0)))
    assert speed.largest < SLACK
    # The first checkpoint copies live messages, and later dead files are dropped. Only copied
    # messages that are settled late make further checkpoints due.
    assert speed.checkpoints <= (1 if lag <= 150 else 25)
    assert speed.reads <= (10 if lag <= 150 else 250)
    check_end(speed)


def test_a_queue_with_a_backlog_does_not_make_the_log_grow_beyond_it() -> None:
    random = Random(1)
    speed = Speed()
    held: list[int] = []
    for number in range(6_000):
        held.append(speed.put(MessageStored("/", message(b"x" * random.choice((50, 500))), [3])))
        if len(held) > (2_000 if number < 4_000 else 10):
            for _ in range(1 if number < 4_000 else 3):
                speed.put(MessageSettled(3, held.pop(0)))
    assert speed.largest < SLACK
    check_end(speed)


def test_retained_messages_at_full_speed() -> None:
    speed = Speed()
    for number in range(5_000):
        speed.put(RetainedSet("/", f"k{number % 5}", message(b"x" * 100)))
        if number % 7 == 0:
            speed.put(RetainedSet("/", f"k{number % 3}", None))
    assert speed.largest < SLACK and speed.checkpoints == 0
    check_end(speed)


def test_a_file_stays_while_a_message_that_it_settles_is_there() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    log.put(MessageStored("/", message(b"stays"), [4]), MessageStored("/", message(b"x"), [3]))
    log.put(MessageStored("/", message(b"y" * 900), [3]))
    log.put(MessageSettled(3, 2), MessageSettled(3, 3))
    log.put(MessageStored("/", message(b"z" * 900), [3]))
    log.put(MessageSettled(3, 6))
    first, second, third, fourth, _ = log.log.files
    dead_size_before = dead_size(log.log)
    assert not first.is_dead and second.is_dead and third.is_dead
    assert third.needs.keys() == {first.name, second.name}
    # The second file can be dropped. The third cannot, because it settles a message of the first.
    assert dead_files(log.log) == [[second], [fourth]]
    assert drop_dead_files(log.log) == dead_size_before == second.size + fourth.size
    assert second.path not in disk.names and not dead_files(log.log)
    again = Log(SimulatedDisk(disk.contents()), 1_000)
    assert again.recovered == digest(log.state) and not again.recovery.findings
    assert again.log.files[1].needs.keys() == {first.name}
    log.put(MessageSettled(4, 1))
    assert dead_files(log.log) == [[first, third]]
    drop_dead_files(log.log)
    assert Log(disk).recovered == digest(log.state)


def test_deleted_queues_sessions_and_streams_do_not_stop_the_dropping_of_files(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path).store

    def define(kind: str, name: str) -> int:
        return int(store.append(Defined("/", kind, name, {}), None))

    def fill(queue: int, count: int) -> list[int]:
        return [
            int(store.append(MessageStored("/", message(b"x" * 500), [queue]), None))
            for _ in range(count)
        ]

    queue = define("queue", "q")
    old = fill(queue, 60)
    store.sync()
    for position in old[1:]:
        store.append(MessageSettled(queue, position), None)
    store.sync()
    checkpointing = begin_checkpoint(store.log, store.holder_numbers, True)
    assert checkpointing is not None
    checkpointing.run()
    assert store.log.files[0].checkpoint and store.log.files[0].live == 1
    for number in range(3):
        for kind, entry in (
            ("queue", None),
            ("session", PacketIdHeld(0, 7)),
            ("queue", StreamExtended(0, 9)),
        ):
            holder = define(kind, f"{kind} {number}")
            if isinstance(entry, PacketIdHeld):
                entry.session = holder
            elif isinstance(entry, StreamExtended):
                entry.stream = holder
            if entry is not None:
                store.append(entry, None)
            store.sync()
            store.append(Undefined("/", kind, f"{kind} {number}", holder), None)
            store.sync()
    assert store.log.files[0].live == 1
    store.append(MessageSettled(queue, old[0]), None)
    for position in fill(queue, 60):
        store.append(MessageSettled(queue, position), None)
        store.sync()
    drop_dead_files(store.log)
    assert [file for file in store.log.files if file is not store.log.active] == []
    assert all(file.live >= 0 for file in store.log.files)


def test_a_settlement_counts_when_it_is_durable() -> None:
    log = Log(SimulatedDisk(), 300)
    for _ in range(3):
        log.put(MessageStored("/", message(b"x" * 300), [3]))
    log.add(MessageSettled(3, 1))
    log.log.append(log.recorder.take())
    assert not dead_files(log.log)
    log.log.sync()
    assert dead_size(log.log) > 0


def test_a_message_that_is_settled_twice_hides_no_live_one() -> None:
    log = Log(SimulatedDisk(), 700)
    log.put(MessageStored("/", message(b"x" * 300), [3]), MessageStored("/", message(b"y"), [3]))
    log.put(MessageStored("/", message(b"x" * 700), [3]))
    log.put(MessageSettled(3, 1), MessageSettled(3, 1), MessageSettled(3, 3))
    log.put(MessageStored("/", message(b"x" * 700), [3]))
    assert log.log.files[0].live == 0 and not log.log.files[0].is_dead
    drop_dead_files(log.log)
    assert Log(log.log.disk).recovered == digest(log.state)


@pytest.mark.parametrize("operation", ["open", "write", "sync", "remove", "syncdir"])
@pytest.mark.parametrize("nth", range(3))
def test_a_drop_that_fails_loses_nothing(operation: str, nth: int) -> None:
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    for number in range(12):
        kept = log.put(MessageStored("/", message(b"x" * 600), [3]))
        if number != 4:
            log.put(MessageSettled(3, kept))
    assert len(dead_files(log.log)) == 2
    left = [nth]

    def refuse(call: str, path: str) -> int:
        if call == operation:
            left[0] -= 1
            return 5 if left[0] < 0 else 0
        return 0

    disk.refuse = refuse
    if operation == "sync" or (operation == "syncdir" and nth < 2):
        with pytest.raises(Poisoned):
            drop_dead_files(log.log)
    else:
        with suppress(StoreError):
            drop_dead_files(log.log)
    disk.refuse = lambda operation, path: 0
    for chance in (0.0, 0.5, 1.0):
        again = Log(disk.crashed(Random(nth), chance), 1_000)
        assert again.recovered == digest(log.state) and not again.recovery.findings
    if not log.log.poisoned:
        drop_dead_files(log.log)
        assert not dead_files(log.log) and not log.log.leftover
        assert set(disk.names) == {file.path for file in log.log.files}, (
            "no file of dead messages is left"
        )
        assert Log(disk, 1_000).recovered == digest(log.state)


@pytest.mark.parametrize("nth", range(3))
def test_no_checkpoint_begins_while_a_head_is_partly_overwritten(nth: int) -> None:
    """After a failed drop of dead files, no checkpoint begins while a head is half overwritten.

    If a checkpoint began, a recovery would mistake the checkpoint's file for a dropped file.
    """
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    for number in range(12):
        kept = log.put(MessageStored("/", message(b"x" * 600), [3]))
        if number > 2:
            log.put(MessageSettled(3, kept))
    writes = [0]

    def refuse(call: str, path: str) -> int:
        writes[0] += call == "write"
        return errno.EIO if call == "write" and writes[0] > nth else 0

    disk.refuse = refuse
    with suppress(StoreError):
        drop_dead_files(log.log)
    disk.refuse = lambda operation, path: 0
    begun = begin_checkpoint(log.log, EXIST, idle=True)
    if begun is not None:
        begun.run()
    for chance in (0.0, 0.5, 1.0):
        again = Log(disk.crashed(Random(nth), chance), 1_000)
        assert again.recovered == digest(log.state) and not again.recovery.findings
    assert (begun is not None) == (nth == 2)
    # This call writes both copies of the head, so a checkpoint may follow.
    drop_dead_files(log.log)
    Checkpointing(log.log, log.log.sealed(), EXIST).run()
    again = Log(SimulatedDisk(disk.contents()), 1_000)
    assert again.recovered == digest(log.state) and not again.recovery.findings


def test_a_file_that_cannot_be_removed_does_not_keep_the_others_of_its_run() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    for _ in range(12):
        log.put(MessageSettled(3, log.put(MessageStored("/", message(b"x" * 600), [3]))))
    [run] = dead_files(log.log)
    stuck = run[1].path
    disk.refuse = lambda call, path: errno.EPERM if call == "remove" and path == stuck else 0
    with pytest.raises(StoreError, match=rf"cannot remove '{stuck}': Operation not permitted"):
        drop_dead_files(log.log)
    assert set(disk.names) == {stuck} | {file.path for file in log.log.files}
    assert log.log.leftover == [run[1]]
    assert drop_dead_files(log.log) == 0, "the error was reported once"
    assert Log(SimulatedDisk(disk.contents()), 1_000).recovered == digest(log.state)
    disk.refuse = lambda call, path: 0
    assert drop_dead_files(log.log) == run[1].size
    assert set(disk.names) == {file.path for file in log.log.files} and not log.log.leftover


def test_leftover_files_that_are_removed_by_hand_are_forgotten() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    for _ in range(6):
        log.put(MessageSettled(3, log.put(MessageStored("/", message(b"x" * 600), [3]))))
    disk.refuse = lambda call, path: errno.EPERM if call == "remove" else 0
    with pytest.raises(StoreError):
        drop_dead_files(log.log)
    assert len(log.log.leftover) > 2
    disk.refuse = lambda call, path: 0
    for file in log.log.leftover:
        disk.remove(file.path)
    assert drop_dead_files(log.log) == 0 and not log.log.leftover


@pytest.mark.parametrize("kept", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sealed", [1, 3])
def test_the_last_position_stays_while_the_newest_segment_has_no_record(
    sealed: int, kept: float
) -> None:
    """Check that the last position of the log is not lost if no file has a record.

    The disk is full when the first batch of a new segment is written. All older files are dead, and
    are dropped.
    """
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    for _ in range(sealed):
        position = log.put(MessageStored("/", message(b"x" * 700), [3]))
        log.put(MessageSettled(3, position))
    last, durable = int(log.log.last), digest(log.state)
    writes = [0]

    def refuse(operation: str, path: str) -> int:
        """Refuse all writes except the one of the new segment's head."""
        writes[0] += operation == "write"
        return errno.ENOSPC if operation == "write" and writes[0] > 1 else 0

    disk.refuse = refuse
    log.add(MessageStored("/", message(b"y" * 900), [3]))
    records = log.recorder.take()
    with pytest.raises(WriteFailed):
        log.log.append(records)
    assert len(log.log.files) == sealed + 1 and log.log.synced_size == DATA_START
    disk.refuse = lambda operation, path: 0
    drop_dead_files(log.log)
    again = Log(disk.crashed(Random(sealed), kept), 1_000)
    assert again.recovered == durable and not again.recovery.findings
    assert again.log.last == last and again.recovery.next == last + 1
    again.put(MessageStored("/", message(b"z"), [3]))
    assert not Log(again.log.disk, 1_000).recovery.findings

    log.log.append(records)
    log.log.sync()
    drop_dead_files(log.log)
    assert len(log.log.files) == 1, "all dead files can go: the newest segment has a durable record"
    for chance in (0.0, 1.0):
        again = Log(disk.crashed(Random(sealed), chance), 1_000)
        assert again.recovered == digest(log.state) and not again.recovery.findings
        assert again.log.last == last + 1


def test_a_file_that_is_removed_by_hand_is_missing_all_the_same() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    for number in range(12):
        kept = log.put(MessageStored("/", message(b"x" * 600), [3]))
        if number != 4:
            log.put(MessageSettled(3, kept))
    drop_dead_files(log.log)
    for file in log.log.files[:-1]:
        contents = disk.contents()
        del contents[file.path]
        assert "missing" in [one.kind for one in Log(SimulatedDisk(contents)).recovery.findings]


def test_dropped_files_that_are_still_there_are_removed_at_the_next_start() -> None:
    disk = SimulatedDisk()
    log = Log(disk, 1_000)
    for number in range(12):
        kept = log.put(MessageStored("/", message(b"x" * 600), [3]))
        if number != 4:
            log.put(MessageSettled(3, kept))
    before = disk.contents()
    drop_dead_files(log.log)
    after = disk.contents()
    assert before.keys() > after.keys()
    again = Log(SimulatedDisk({**before, **after}), 1_000)
    assert again.recovered == digest(log.state) and not again.recovery.findings
    assert {f"{DIRECTORY}/{name}" for name in again.recovery.removed} == (
        before.keys() - after.keys()
    )
