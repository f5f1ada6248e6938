"""Tests of the survivors (live records) that a standby keeps up to date with each batch.

When the standby takes over, it uses these survivors, and does not read its log again.
"""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest

from broker.messages.message import Message
from broker.replication.contract import Apply
from broker.replication.directory import ReplicaDirectory
from broker.store.backup import copy_catalog
from broker.store.codecs import Codecs
from broker.store.entries import (
    Defined,
    DeliveryCounted,
    DeliveryMark,
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
from broker.store.opening import open_store
from tests.replication.batches import Batches, Killed, kill_at, message
from tests.replication.simulation.wrong_directory import SurvivorsBegunEarly, SurvivorsLate
from tests.replication.survivors import compare, live
from tests.replication.test_directory import QUEUE, SEGMENT, Place, running_files, stored
from tests.store.simulated import SimulatedDisk

SESSION = Defined("/", "session", "s", {})


class WarmPlace(Place):
    """A standby's data directory whose survivors can be compared with the survivors that a scan
    finds.
    """

    replica_type: type[ReplicaDirectory] = ReplicaDirectory

    def open(self) -> ReplicaDirectory:
        self.directory = self.replica_type(self.disk, self.path, "broker", Codecs(), SEGMENT)
        return self.directory

    def differences(self) -> list[str]:
        return compare(self.directory, self.disk, SEGMENT)


@pytest.fixture
def place(tmp_path: Path) -> WarmPlace:
    return WarmPlace(tmp_path)


class History:
    """Makes batches of random entries of all kinds, about queues, sessions and streams."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.batches = Batches()
        self.holders: dict[int, str] = {}
        self.messages: list[tuple[int, int]] = []

    def batch(self) -> Apply:
        chance, entries = self.chance, list[StoreEntry]()
        position = self.batches.state.position
        for _ in range(chance.choice((1, 1, 2, 6))):
            entry = self._entry(position + 1)
            entries.append(entry)
            position += len(entry.entries) if isinstance(entry, EntryGroup) else 1
        return self.batches.make(*entries)

    def _entry(self, position: int) -> StoreEntry:
        chance = self.chance
        if not self.holders or chance.random() < 0.06:
            kind = chance.choice(("queue", "session"))
            self.holders[position] = kind
            return Defined("/", kind, f"{kind} {position}", {})
        number = chance.choice(list(self.holders))
        if chance.random() < 0.04:
            kind = self.holders.pop(number)
            self.messages = [copy for copy in self.messages if copy[0] != number]
            return Undefined("/", kind, f"{kind} {number}", number)
        queues = chance.sample(list(self.holders), min(len(self.holders), chance.choice((1, 1, 2))))
        content = b"x" * chance.choice((1, 100))
        if chance.random() < 0.4 or not self.messages:
            self.messages += [(queue, position) for queue in queues]
            return MessageStored("/", message(content), queues)
        copy = chance.choice(self.messages[:5])
        if chance.random() < 0.5:
            self.messages.remove(copy)
            if chance.random() < 0.3:
                self.messages.append((number, position))
                return EntryGroup(
                    [MessageStored("/", message(content), [number]), MessageSettled(*copy)]
                )
            return MessageSettled(*copy)
        return self._other(number, copy)

    def _other(self, number: int, copy: tuple[int, int]) -> StoreEntry:
        chance = self.chance
        retained: Message | None = message(b"r") if chance.random() < 0.7 else None
        entries: list[StoreEntry] = [
            PubrecReceived(*copy),
            DeliveryCounted(*copy, chance.randrange(9)),
            DeliveryMark(number, chance.randrange(2), chance.randrange(99)),
            PacketIdHeld(number, chance.randrange(1, 4)),
            PacketIdReleased(number, chance.randrange(1, 4)),
            RetainedSet("/", f"t{chance.randrange(3)}", retained),
            Sequenced("/", f"p{chance.randrange(3)}", chance.randrange(-1, 9)),
            StreamExtended(number, chance.randrange(99)),
        ]
        return chance.choice(entries)


def follow(place: WarmPlace, seed: int, batches: int) -> None:
    """Apply random batches to a directory, and compare its survivors with a scan.

    Between batches, checkpoints are made, and the process crashes or is killed.
    """
    history = History(seed)
    chance, log = history.chance, list[Apply]()
    for at in range(batches):
        log.append(history.batch())
        if chance.random() < 0.1:
            kill_at(place.disk, chance.randrange(1, 6))
        try:
            place.apply(log[-1])
        except Killed:
            place.crash(chance.choice((0.0, 0.5, 1.0)), seed)
        place.disk.refuse, place.disk.done = lambda *_: 0, lambda *_: None
        if chance.random() < 0.05:
            place.crash(1.0, seed)
        if place.directory._log is not None:
            place.directory._log.unstored_batches_max = 5
        for step in log[place.directory.state.number :]:
            place.apply(step)
        while chance.random() < 0.7 and place.directory.compact():
            pass
        if at % 9 == 0:
            assert place.differences() == []
    assert place.differences() == []


@pytest.mark.parametrize("seed", range(6))
def test_warm_survivors_equal_a_scan(place: WarmPlace, seed: int) -> None:
    follow(place, seed, 40)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(6, 300))
def test_the_same_with_many_seeds(place: WarmPlace, seed: int) -> None:
    follow(place, seed, 150)


def test_takeover_reads_no_record_and_the_log_goes_on(place: WarmPlace) -> None:
    batches = Batches()
    settled = MessageSettled(1, 2)
    place.apply(batches.make(QUEUE, *[stored(b"x" * 100)] * 30), batches.make(settled))
    read: list[str] = []

    def note(operation: str, path: str) -> int:
        if operation == "read":
            read.append(path)
        return 0

    place.disk.refuse = note
    opened = place.directory.take_over(pytest.fail)
    assert [path for path in read if "/log/" in path] == []
    place.directory.close()  # From now on, the broker uses the files.
    assert list(opened.survivors.copies.by_queue()[1]) == list(range(3, 32))
    files = len(opened.store.log.files)
    opened.store.append(stored(b"later"), None)
    opened.store.sync()
    assert len(opened.store.log.files) == files
    opened.store.catalog.close()
    again = open_store(place.disk, place.path, Codecs(), 1, pytest.fail, lambda _: None, SEGMENT)
    assert list(again.survivors.copies.by_queue()[1]) == [*range(3, 32), 33]
    assert not again.recovery.findings
    again.store.close()


def test_directory_without_a_batch_is_taken_over(place: WarmPlace) -> None:
    place.apply(Apply(None, Batches().state))
    opened = place.directory.take_over(pytest.fail)
    assert opened.store.log.salt == 99
    assert live(opened.survivors)["messages"] == {}
    opened.store.append(QUEUE, None)
    opened.store.append(stored(), None)
    opened.store.sync()
    opened.store.close()


def test_messages_of_a_queue_declared_in_the_same_batch_are_counted_after_a_kill(
    tmp_path: Path,
) -> None:
    """Kill the process at each of its disk operations, and compare its survivors with a scan.

    The interrupted batch declares a queue and stores messages in it. One of the kills is between
    the write of the log and the write of the catalog.
    """
    for operation in range(1, 12):
        batches = Batches()
        (tmp_path / f"{operation}").mkdir()
        place = WarmPlace(tmp_path / f"{operation}")
        place.apply(batches.make(QUEUE, stored(b"first")))
        queue = batches.state.position + 1
        step = batches.make(
            Defined("/", "queue", "later", {}),
            *(stored(b"%d" % n + b"x" * 300, queue) for n in range(9)),
        )
        kill_at(place.disk, operation)
        with suppress(Killed):
            place.apply(step)
        place.crash()
        place.apply(step)
        assert place.differences() == []
        place.apply(batches.make(MessageSettled(1, 2)))
        while place.directory.compact():
            pass
        assert len(place.contents()) == 9


def test_removed_queue_gives_its_files_back(place: WarmPlace) -> None:
    batches = Batches()
    place.apply(batches.make(QUEUE, Defined("/", "queue", "r", {})))
    for _ in range(20):
        place.apply(batches.make(*[stored(b"x" * 200, 2)] * 10))
    place.apply(batches.make(stored(b"kept")))
    assert place.directory.survivor_bytes >= 200 * 20
    place.apply(batches.make(Undefined("/", "queue", "r", 2)))
    while place.directory.compact():
        pass
    assert place.directory._log is not None
    assert len(place.directory._log.files) <= 2
    assert place.differences() == []
    assert place.contents() == [b"kept"]


def test_queues_of_a_removed_virtual_host_are_released_at_the_takeover(place: WarmPlace) -> None:
    batches = Batches()
    place.apply(
        batches.make(QUEUE, Defined("other", "queue", "q", {}), stored(b"kept"), stored(b"x", 2)),
        batches.make(Undefined("other", "vhost", "other", 2)),
    )
    opened = place.directory.take_over(pytest.fail)
    assert {q: list(p) for q, p in opened.survivors.copies.by_queue().items()} == {1: [3]}
    assert opened.store.holder_numbers == {1}
    opened.store.close()


# -- wrong designs


def test_survivors_begun_before_the_catalog_is_at_the_end_of_the_log_are_caught(
    tmp_path: Path,
) -> None:
    assert copied(tmp_path / "right", ReplicaDirectory) == []
    [difference] = copied(tmp_path / "wrong", SurvivorsBegunEarly)
    assert difference.startswith("messages: ")


def copied(path: Path, replica_type: type[ReplicaDirectory]) -> list[str]:
    """Copy the directory of a running node, and apply later batches to the copy.

    The catalog is copied first, so the copied log is ahead of it. Return the differences between
    the copy's survivors and a scan. `replica_type` is the class of the copy's directory.
    """

    class Copy(WarmPlace):
        pass

    Copy.replica_type = replica_type
    (path / "running").mkdir(parents=True)
    (path / "copy").mkdir()
    running, batches = WarmPlace(path / "running"), Batches()
    running.apply(batches.make(QUEUE, stored()))
    copy_catalog(f"{running.path}/catalog.sqlite", str(path / "copy" / "catalog.sqlite"))
    second = batches.state.position + 1
    later = [batches.make(Defined("/", "queue", "second", {})), batches.make(stored(b"x", second))]
    running.apply(*later)
    second_place = Copy(path / "copy", SimulatedDisk(running_files(running, path)))
    second_place.apply(*later)
    return second_place.differences()


def test_settlement_that_is_applied_late_is_caught(tmp_path: Path) -> None:
    place, batches = WarmPlace(tmp_path), Batches()
    place.replica_type = SurvivorsLate
    place.open()
    place.apply(batches.make(QUEUE, stored(), stored()), batches.make(MessageSettled(1, 2)))
    assert place.differences()
