"""Tests of the active node of a cluster, which is the owner of the replicated log.

The owner appends each batch to the log exactly once, and only then writes the batch to its own
disk. Some of the tests are about the owner's lease.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.replication.contract import (
    CHUNK_SIZE,
    Fenced,
    LogSpan,
    OutcomeUnknown,
    Timing,
)
from broker.replication.directory import ReplicaDirectory
from broker.replication.engine import carry_out
from broker.replication.follower import Follower
from broker.replication.judge import Judge
from broker.replication.owner import LogOwner
from broker.replication.records import CLAIM, Claim, ClusterState
from broker.store.contract import SettledCallback, Ticket, WriteBatch
from broker.store.disk import StoreError, WriteFailed
from broker.store.entries import Defined, MessageSettled, MessageStored, StoreEntry
from broker.store.inspect import dump
from tests.cluster.waiting import wait_for
from tests.replication.batches import message
from tests.replication.threaded_log import ThreadedLog
from tests.store.homes import Home
from tests.store.simulated import SimulatedDisk
from trellis.cluster.disk_watch import REPEAT_SECONDS
from trellis.cluster.ownership import Ownership
from trellis.server.recovery import codecs

TIMING = Timing(1.0, 0.7, 0.15)
SALT = 7


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def claim(log: ThreadedLog, epoch: int = 1) -> Claim:
    """Append the claim by which a node that has read the whole log becomes its owner.

    Return the claim.
    """
    state = ClusterState("broker", salt=SALT, format=1)
    new_claim = Claim(CLAIM, epoch, 50 + epoch, 0, log.records.tip - 1, state, bytes(32))
    log.append(new_claim.encode())
    return new_claim


class Owner:
    """The store of an active node, which appends its batches to a replicated log.

    `ends` has the reasons for which the node ended itself.
    """

    def __init__(self, path: Path, chunk_size: int = CHUNK_SIZE) -> None:
        self.clock, self.log, self.ends = Clock(), ThreadedLog(), list[str]()
        self.log.chunk_size = chunk_size
        self.disk = SimulatedDisk()
        self.home = Home(path, disk=self.disk)
        owner_claim = claim(self.log)
        judge = Judge(ClusterState("broker"))
        assert judge.judge(0, owner_claim)
        self.owner = LogOwner(judge, 1, self.clock(), TIMING, self.clock, lambda: 0)
        self.ownership = Ownership(self.owner, self.log, self.end, self.clock)
        self.store = self.home.opened.store
        self.store.shipping = self.ownership
        self.settled: list[int] = []
        self.ended = threading.Event()

    def end(self, reason: str) -> None:
        self.ends.append(reason)
        self.ended.set()

    def take(self, *entries: StoreEntry) -> WriteBatch:
        """Append entries, each with a ticket, and return their batch."""
        for entry in entries:
            number = int(self.store.position) + 1
            self.store.append(entry, Ticket(SettledCallback(self._settler(number))))
        return self.store.take()

    def _settler(self, number: int) -> Callable[[], None]:
        return lambda: self.settled.append(number)

    def write(self, *entries: StoreEntry) -> None:
        batch = self.take(*entries)
        batch.write()
        self.store.written(batch)

    def local(self) -> int:
        """Return the size of the records in the local log, in bytes."""
        return sum(len(data) for path, data in self.disk.contents().items() if "/log/" in path)


@pytest.fixture
def owner(tmp_path: Path) -> Owner:
    return Owner(tmp_path / "owner")


def stored(content: bytes = b"m") -> MessageStored:
    return MessageStored("/", message(content), [1])


QUEUE = Defined("/", "queue", "q", {"auto_delete": False, "arguments": {}})


def follow(owner: Owner, path: Path) -> Home:
    """Make a new node follow the log, and return the broker that starts on its directory."""
    path.mkdir()
    disk = SimulatedDisk()
    replica = ReplicaDirectory(disk, str(path), "broker", codecs())
    follower = Follower(replica.state)
    while follower.next < owner.log.records.tip:
        taking = follower.take(owner.log.read(follower.next))
        carry_out(taking, owner.log, replica.apply, _refuse_to_sleep)
    replica.finish()
    replica.close()
    return Home(path, disk=disk)


def _refuse_to_sleep(seconds: float) -> None:
    raise AssertionError("the log has all records")


# -- the log before the disk


def test_a_batch_is_in_the_log_before_it_is_on_the_disk(owner: Owner) -> None:
    sizes: list[int] = []

    class Watched(ThreadedLog):
        def append(self, data: bytes) -> int:
            sizes.append(owner.local())
            assert owner.settled == []
            return owner.log.append(data)

    owner.ownership.log = Watched()
    batch = owner.take(QUEUE, stored())
    batch.write()
    assert sizes == [0] and owner.local() > 0
    assert owner.settled == []
    owner.store.written(batch)
    assert owner.settled == [1, 2]


def test_a_node_that_follows_has_the_owners_data(owner: Owner, tmp_path: Path) -> None:
    owner.write(QUEUE, stored(b"one"), stored(b"two"))
    owner.write(MessageSettled(1, 2))
    owner.write(stored(b"three" * 1_000), Defined("/", "queue", "r", QUEUE.definition))
    owner.write(stored(b"four"))
    home = follow(owner, tmp_path / "standby")
    assert isinstance(home.opened.store.log.disk, SimulatedDisk)
    assert records(home.opened.store.log.disk, home.directory) == records(
        owner.disk, owner.home.directory
    )
    assert [queue.name for queue in home.vhost.queues.values()] == ["q", "r"]
    assert home.queue("q").depth == 3
    assert home.opened.store.position == owner.store.position


def records(disk: SimulatedDisk, path: Path) -> list[str]:
    """Return a line for each record of a log: position, kind and fields."""
    lines = [line for line in dump(disk, f"{path}/log") if line[0].isdigit()]
    return [line for line in lines if " closed" not in line]


def test_a_batch_of_many_chunks_is_one_batch(tmp_path: Path) -> None:
    owner = Owner(tmp_path / "owner", chunk_size=100)
    owner.write(QUEUE, *(stored(b"%d" % n * 50) for n in range(20)))
    assert owner.log.records.tip > 15
    assert follow(owner, tmp_path / "standby").queue("q").depth == 20


def test_a_batch_is_shipped_once_although_the_disk_is_full(owner: Owner, tmp_path: Path) -> None:
    owner.write(QUEUE)
    batch = owner.take(stored())
    owner.disk.refuse = lambda operation, path: errno.ENOSPC if operation == "create" else 0
    for _ in range(3):
        with pytest.raises(WriteFailed):
            batch.write()
    tip = owner.log.records.tip
    owner.disk.refuse = lambda operation, path: 0
    batch.write()
    owner.store.written(batch)
    assert owner.log.records.tip == tip == 3
    assert owner.settled == [1, 2] and owner.ends == []
    assert follow(owner, tmp_path / "standby").queue("q").depth == 1


# -- fences


def test_a_claim_of_another_node_ends_the_owner_before_the_disk(owner: Owner) -> None:
    owner.write(QUEUE)
    claim(owner.log, 2)
    batch, size = owner.take(stored()), owner.local()
    with pytest.raises(Fenced, match="another node owns the replicated log"):
        batch.write()
    assert owner.local() == size and owner.settled == [1]
    assert len(owner.ends) == 1 and "epoch 2" in owner.ends[0]
    assert not owner.ownership.may_act()
    with pytest.raises(Fenced):
        batch.write()
    assert owner.local() == size


def test_an_unknown_outcome_ends_the_owner_before_the_disk(owner: Owner) -> None:
    owner.write(QUEUE)
    batch, size = owner.take(stored()), owner.local()
    owner.log.failure = OutcomeUnknown("no answer")
    with pytest.raises(Fenced, match="no answer"):
        batch.write()
    assert owner.local() == size and owner.settled == [1] and len(owner.ends) == 1


def test_a_late_void_claim_in_between_does_not_end_the_owner(owner: Owner) -> None:
    owner.write(QUEUE)
    # This claim is void, because the node that wrote it has not read the last batch.
    late = Claim(CLAIM, 2, 9, 0, 0, ClusterState("broker", salt=SALT, format=1), bytes(32))
    owner.log.append(late.encode())
    owner.write(stored())
    assert owner.settled == [1, 2] and owner.ends == []


def test_an_unexpected_error_of_the_log_ends_the_owner(owner: Owner) -> None:
    class Broken(ThreadedLog):
        def append(self, data: bytes) -> int:
            raise RuntimeError("broken")

    owner.ownership.log = Broken()
    with pytest.raises(RuntimeError):
        owner.take(QUEUE).write()
    assert owner.ends == ["broken"]


# -- the lease


def test_the_lease_begins_when_the_acknowledged_record_was_sent(owner: Owner) -> None:
    class Slow(ThreadedLog):
        def append(self, data: bytes) -> int:
            offset = owner.log.append(data)
            owner.clock.now += 0.6
            return offset

        def read(self, offset: int) -> LogSpan:
            return owner.log.read(offset)

    owner.ownership.log = Slow()
    owner.write(QUEUE)
    assert owner.ownership.may_act()
    owner.clock.now += 0.2
    assert not owner.ownership.may_act()


def test_an_idle_owner_appends_beats(owner: Owner) -> None:
    owner.clock.now += TIMING.beat
    owner.ownership.start()
    wait_for(lambda: owner.log.records.tip == 2)
    assert owner.owner.sent == owner.clock.now
    owner.ownership.stop()
    assert owner.ends == []


class StuckDisk:
    """An owner that cannot write a batch to its full disk.

    `requests` has the times, in seconds of the owner's clock, at which its DiskWatch requested a
    handover of the log.
    """

    def __init__(self, owner: Owner) -> None:
        self.owner, self.watch, self.requests = owner, owner.ownership.disk, list[float]()
        self.watch.request = lambda: self.requests.append(owner.clock.now)
        owner.disk.refuse = lambda operation, path: errno.ENOSPC if operation == "create" else 0
        self.batch = owner.take(QUEUE, stored())
        with pytest.raises(WriteFailed):
            self.batch.write()

    def look(self, seconds: float) -> None:
        """Advance the clock by `seconds`, and let the DiskWatch check the disk (`look`)."""
        self.owner.clock.now += seconds
        self.watch.look()


@pytest.fixture
def stuck(owner: Owner) -> StuckDisk:
    return StuckDisk(owner)


def test_beats_request_a_handover_when_the_disk_cannot_be_written(stuck: StuckDisk) -> None:
    stuck.owner.ownership.start()
    stuck.owner.clock.now += TIMING.silence + 0.1
    wait_for(lambda: bool(stuck.requests))
    tip = stuck.owner.log.records.tip
    stuck.owner.clock.now += TIMING.beat
    wait_for(lambda: stuck.owner.log.records.tip > tip)
    stuck.owner.ownership.stop()
    assert stuck.owner.ends == [] and stuck.owner.settled == []


def test_handover_is_requested_again_until_the_disk_has_space(stuck: StuckDisk) -> None:
    stuck.look(TIMING.silence)
    assert not stuck.watch.is_stuck
    for count in (1, 2, 3):
        stuck.look(REPEAT_SECONDS)
        stuck.watch.answer()
        stuck.look(0.0)
        assert len(stuck.requests) == count
    stuck.owner.disk.refuse = lambda operation, path: 0
    stuck.batch.write()
    stuck.look(10 * TIMING.silence)
    assert len(stuck.requests) == 3 and stuck.owner.ends == []


def test_refused_handover_is_logged_once_for_each_batch_that_is_stuck(
    stuck: StuckDisk, caplog: pytest.LogCaptureFixture
) -> None:
    stuck.watch.refuse("no standby")
    assert "cluster_disk_blocked" not in caplog.text
    for count in (1, 2):
        stuck.look(TIMING.silence + 0.1)
        for _ in range(2):
            stuck.watch.refuse("no standby")
        assert caplog.text.count("cluster_disk_blocked") == count
        stuck.watch.written()
        stuck.watch.refuse("no standby")
        stuck.watch.shipped()
    assert caplog.text.count("cluster_disk_blocked") == 2


def test_node_whose_event_loop_does_not_answer_ends(stuck: StuckDisk) -> None:
    stuck.look(TIMING.silence + 0.1)
    stuck.look(TIMING.silence)
    assert stuck.owner.ends == []
    stuck.look(0.1)
    [reason] = stuck.owner.ends
    assert "could not be written" in reason and "event loop does not answer" in reason
    assert len(stuck.requests) == 1


def test_node_that_is_not_restored_yet_ends_when_its_disk_cannot_be_written(
    stuck: StuckDisk,
) -> None:
    stuck.watch.request = None
    stuck.look(TIMING.silence + 0.1)
    assert "while the broker is restored" in stuck.owner.ends[0]


def test_connections_are_aborted_once_when_a_successor_may_act(owner: Owner) -> None:
    aborts: list[float] = []
    owner.ownership.abort = lambda: aborts.append(owner.clock.now)
    owner.log.stand_still()
    owner.clock.now = owner.owner.abort_at
    owner.ownership.start()
    wait_for(lambda: aborts == [owner.clock.now])
    owner.log.move()
    wait_for(lambda: owner.owner.sent == owner.clock.now)
    owner.ownership.stop()
    assert len(aborts) == 1


def test_a_store_error_of_a_closed_catalog_is_no_confirm(owner: Owner) -> None:
    batch = owner.take(QUEUE)
    owner.home.catalog.close()
    with pytest.raises(StoreError):
        batch.write()
    assert owner.settled == []
