"""Tests of the thread in which a standby follows the log, here a log in memory."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from broker.replication.contract import LogTrimmed, LogUnreachable, ReplicaDiverged, Timing
from broker.replication.description import NodeDescription
from broker.replication.directory import ReplicaDirectory
from broker.replication.formats import FORMATS, Formats
from broker.replication.owner import LogOwner
from broker.replication.records import BATCH, BEAT, CALL, CLAIM, BatchChunk, Claim, decode
from broker.replication.report import NodeReport
from broker.store.disk import Disk
from broker.store.entries import Defined, MessageStored, StoreEntry
from broker.store.log_reader import LogReader
from broker.store.opening import open_store
from tests.cluster.test_ownership import SALT, claim
from tests.cluster.waiting import wait_for
from tests.replication.batches import Batches, message
from tests.replication.threaded_log import ThreadedLog
from tests.store.simulated import SimulatedDisk
from trellis.cluster.following import Following, FollowingStopped
from trellis.server.recovery import codecs

TIMING = Timing(0.3, 0.2, 0.05)
#: The timing of a standby that does not claim the log during a test.
PATIENT = Timing(600.0, 1.0, 0.1)
PATIENCE = 20.0
QUEUE = Defined("/", "queue", "q", {})


class Standby:
    """A node that follows the log in a thread.

    When the thread has ended, `end` is the owner that the node became, or the error.
    """

    def __init__(
        self,
        path: Path,
        log: ThreadedLog,
        disk: Disk | None = None,
        timing: Timing = TIMING,
        formats: Formats = FORMATS,
    ) -> None:
        path.mkdir(exist_ok=True)
        self.path, self.log = path, log
        self.disk: Disk = disk or SimulatedDisk()
        self.directory = ReplicaDirectory(self.disk, str(path), "broker", codecs(), formats=formats)
        description = NodeDescription("node")
        self.following = Following(self.directory, log, timing, description, "1.0", formats=formats)
        self.end: LogOwner | BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.end = self.following.run()
        except BaseException as error:  # noqa: BLE001  the test looks at it
            self.end = error

    def join(self) -> LogOwner | BaseException | None:
        self._thread.join(PATIENCE)
        return self.end

    def stop(self) -> None:
        self.following.stop()
        assert isinstance(self.join(), FollowingStopped)

    def contents(self) -> list[bytes]:
        """Open the store in the node's directory, as a starting broker does.

        Return the contents of all messages that are in queues.
        """
        opened = open_store(
            self.disk, str(self.path), codecs(), SALT, pytest.fail, lambda recovery: None
        )
        reader = LogReader(opened.store.log)
        positions = opened.survivors.copies.by_queue()[1]
        entries = [opened.store.read_stored(reader, position) for position in positions]
        opened.store.close()
        return [entry.message.content for entry in entries if entry is not None]


class Owner:
    """An active node without a data directory, which appends batches to the log."""

    def __init__(self, log: ThreadedLog) -> None:
        self.log = log
        self.claim = claim(log)
        self.batches = Batches(SALT)
        self.batches.state = replace(self.batches.state, last=log.records.tip - 1)

    def write(self, *entries: StoreEntry) -> None:
        before, step = self.batches.state, self.batches.make(*entries)
        assert step.batch is not None
        chunk = BatchChunk(
            *(BATCH, self.claim.epoch, self.claim.nonce, 0, step.batch.number, 0, 1),
            *(before.position, before.batch_offset, step.batch.position, step.batch.payload),
        )
        assert self.log.append(chunk.encode()) == step.batch.offset

    def skip_positions(self) -> None:
        """Let the next batch begin at a later position, as if the log lacked a batch."""
        self.batches.state = replace(self.batches.state, position=9)


def stored(content: bytes) -> MessageStored:
    return MessageStored("/", message(content), [1])


@pytest.fixture
def log() -> ThreadedLog:
    return ThreadedLog()


def kinds(log: ThreadedLog) -> list[int]:
    return [decode(data).kind for _, data in log.read(0).records]


def test_a_standby_applies_all_batches_and_then_owns_the_log(
    log: ThreadedLog, tmp_path: Path
) -> None:
    owner = Owner(log)
    owner.write(QUEUE, stored(b"one"))
    owner.write(stored(b"two"))
    standby = Standby(tmp_path / "standby", log)
    taken = standby.join()
    assert isinstance(taken, LogOwner) and taken.epoch == 2
    assert kinds(log) == [CLAIM, BATCH, BATCH, CALL, CLAIM]
    assert standby.contents() == [b"one", b"two"]


def test_standby_reports_its_durable_offset(log: ThreadedLog, tmp_path: Path) -> None:
    owner = Owner(log)
    owner.write(QUEUE, stored(b"one"))
    standby = Standby(tmp_path / "standby", log, timing=PATIENT)
    wait_for(lambda: log.reported.get("node", NodeReport(0)).offset > 0)
    standby.stop()
    report = log.reported["node"]
    assert report.offset in (1, 2) and report.version == "1.0"
    assert (report.state, report.server.node, report.nonce > 0) == ("following", "node", True)


def test_standby_to_which_the_owner_hands_the_log_over_owns_it_at_once(
    log: ThreadedLog, tmp_path: Path
) -> None:
    owner = Owner(log)
    owner.write(QUEUE, stored(b"one"))
    standby = Standby(tmp_path / "standby", log, timing=PATIENT)
    wait_for(lambda: "node" in log.reported)
    nonce = log.reported["node"].nonce
    state = replace(owner.batches.state, owner="the description of the standby")
    log.append(Claim(CLAIM, 2, nonce, 0, log.records.tip - 1, state, bytes(32)).encode())
    taken = standby.join()
    assert isinstance(taken, LogOwner)
    assert (taken.epoch, taken.judge.state.owner) == (2, "the description of the standby")
    assert kinds(log)[-2:] == [CLAIM, BEAT]
    assert taken.may_act()
    assert standby.contents() == [b"one"]


def test_standby_does_not_own_the_log_if_another_claim_follows_that_of_the_former_owner(
    log: ThreadedLog, tmp_path: Path
) -> None:
    owner = Owner(log)
    owner.write(QUEUE, stored(b"one"))
    log.stand_still()
    standby = Standby(tmp_path / "standby", log, timing=PATIENT)
    wait_for(lambda: "node" in log.reported)
    nonce, state = log.reported["node"].nonce, owner.batches.state
    for epoch, number in ((2, nonce), (3, 1)):
        claimed = Claim(CLAIM, epoch, number, 0, log.records.tip - 1, state, bytes(32))
        log.records.append(claimed.encode())
        state = replace(state, epoch=epoch, nonce=number)
    log.move()
    wait_for(lambda: standby.following.standby.state.epoch == 3)
    standby.stop()
    assert kinds(log)[-1] == CLAIM


def test_a_standby_stops_and_goes_on_where_it_was(log: ThreadedLog, tmp_path: Path) -> None:
    owner = Owner(log)
    owner.write(QUEUE, stored(b"one"))
    standby = Standby(tmp_path / "standby", log, timing=PATIENT)
    wait_for(lambda: standby.directory.state.number == 1)
    standby.stop()
    again = Standby(tmp_path / "standby", log, standby.disk)
    assert isinstance(again.join(), LogOwner)
    assert again.contents() == [b"one"]


def test_no_log_that_stands_still_is_claimed(log: ThreadedLog, tmp_path: Path) -> None:
    Owner(log)
    log.stand_still()
    standby = Standby(tmp_path / "standby", log)
    # The node reads every 0.05 s, so this wait is longer than three silences.
    wait_for(lambda: log.unanswered >= 20)
    assert standby.end is None and kinds_of(log) == [CLAIM]
    standby.following.stop()
    log.move()
    assert isinstance(standby.join(), FollowingStopped)


def kinds_of(log: ThreadedLog) -> list[int]:
    """Return the kind of each record in the log, also while the log is stopped."""
    return [decode(data).kind for _, data in log.records.read(0).records]


def test_a_full_disk_delays_a_standby_and_is_logged_once(
    log: ThreadedLog, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    owner = Owner(log)
    disk = SimulatedDisk()
    refusals: list[str] = []
    seen = threading.Event()

    def refuse(operation: str, path: str) -> int:
        full = operation == "create" and (len(refusals) < 3 or not seen.is_set())
        if full:
            refusals.append(path)
        return errno.ENOSPC if full else 0

    disk.refuse = refuse
    owner.write(QUEUE, stored(b"one"))
    standby = Standby(tmp_path / "standby", log, disk)
    wait_for(lambda: standby.following.report().state == "blocked")
    seen.set()
    assert isinstance(standby.join(), LogOwner)
    assert standby.following.report().state == "following"
    assert len(refusals) >= 3 and standby.following.blocked_reason == ""
    assert sum("cluster_blocked" in record.getMessage() for record in caplog.records) == 1
    assert standby.contents() == [b"one"]


@pytest.mark.parametrize(
    ("spoil", "error", "text"),
    [
        (lambda log, owner: log.trim(2), LogTrimmed, "now begins at offset 2"),
        (
            lambda log, owner: owner.skip_positions(),
            ReplicaDiverged,
            "follows position 9",
        ),
    ],
)
def test_a_standby_that_lacks_a_part_of_the_log_ends(
    log: ThreadedLog,
    tmp_path: Path,
    spoil: Callable[[ThreadedLog, Owner], None],
    error: type[Exception],
    text: str,
) -> None:
    owner = Owner(log)
    owner.write(QUEUE, stored(b"one"))
    spoil(log, owner)
    owner.write(stored(b"two"))
    end = Standby(tmp_path / "standby", log).join()
    assert isinstance(end, error) and text in str(end)


def test_a_log_that_cannot_be_told_the_offset_is_followed(tmp_path: Path) -> None:
    class Silent(ThreadedLog):
        def report(self, report: NodeReport) -> None:
            raise LogUnreachable("no coordinator")

    log = Silent()
    Owner(log).write(QUEUE, stored(b"one"))
    assert isinstance(Standby(tmp_path / "standby", log).join(), LogOwner)
