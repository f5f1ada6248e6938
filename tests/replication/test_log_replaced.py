"""Tests of a log that lost its last records, and has other records at their offsets now.

Kafka can lose committed records in an unclean election, or if a topic is restored from a backup. A
node that has read the lost records must notice this, even if the log is exactly as long as before.
Otherwise, two nodes could own the log in one epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from broker.replication.contract import (
    Append,
    Apply,
    Fenced,
    LogTrimmed,
    LogUnreachable,
    Read,
    ReplicaDiverged,
    Result,
    Sleep,
    Steps,
    Timing,
)
from broker.replication.follower import Follower
from broker.replication.memory import MemoryLog
from broker.replication.owner import LogOwner
from broker.replication.records import DIGEST_SIZE, ClusterState
from broker.replication.standby import Standby

TIMING = Timing(1.0, 0.7, 0.15)
NAME = "broker"


class Cluster:
    """One log, one clock, and an engine that carries out the steps of one node at a time.

    `before_read` and `before_append` are called before each such step; they may change the log or
    the clock, or raise the error of the step.
    """

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.now = 0.0
        self.before_read: Callable[[], None] = lambda: None
        self.before_append: Callable[[], None] = lambda: None

    def standby(self, state: ClusterState, nonce: int) -> Standby:
        standby = Standby(
            Follower(state),
            TIMING,
            lambda: self.now,
            lambda: int(self.now * 1000),
            lambda: nonce,
            bytes(DIGEST_SIZE),
        )
        standby.salt, standby.format = 7, 1
        return standby

    def own(self, state: ClusterState, nonce: int) -> LogOwner:
        """Return the owner that a node with this stored state becomes."""
        return self.run(self.standby(state, nonce).follow())

    def run(self, steps: Steps[Result]) -> Result:
        value, error = None, None
        while True:
            try:
                step = steps.send(value) if error is None else steps.throw(error)
            except StopIteration as end:
                result: Result = end.value
                return result
            value = error = None
            self.now += 0.01
            try:
                value = self._carry_out(step)
            except (LogUnreachable, LogTrimmed) as raised:
                error = raised

    def _carry_out(self, step: object) -> object:
        if isinstance(step, Append):
            self.before_append()
            return self.log.append(step.data)
        if isinstance(step, Read):
            self.before_read()
            return self.log.read(step.offset)
        if isinstance(step, Sleep):
            self.now += step.seconds
        else:
            assert isinstance(step, Apply)
        return None

    def lose(self, records: int) -> None:
        """Remove the last records of the log."""
        del self.log._records[-records:]

    def fill(self, tip: int, nonce: int = 22) -> LogOwner:
        """Let a node without data claim the log, and append beats until the log ends at `tip`."""
        owner = self.own(ClusterState(NAME), nonce)
        while self.log.tip < tip:
            self.run(owner.beat())
        assert self.log.tip == tip
        return owner

    def state(self) -> ClusterState:
        """Return the state of an honest reader that has read the whole log from its beginning."""
        follower = Follower(ClusterState(NAME))
        self.run(follower.take(self.log.read(0)))
        return follower.judge.state


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def shipped(cluster: Cluster, batches: int = 5) -> LogOwner:
    """Let a node own the log, and append batches."""
    owner = cluster.own(ClusterState(NAME), 11)
    for number in range(batches):
        cluster.run(owner.ship(b"x", number + 1))
    return owner


def test_a_directory_ahead_of_the_log_does_not_own_a_log_of_the_same_length(
    cluster: Cluster,
) -> None:
    ahead = shipped(cluster).judge.state
    cluster.lose(4)
    cluster.fill(ahead.last + 1)
    with pytest.raises(ReplicaDiverged, match=f"another record at offset {ahead.last} "):
        cluster.own(ahead, 33)
    # The log has no claim of this node.
    assert (cluster.state().epoch, cluster.state().nonce) == (2, 22)


def test_a_directory_whose_last_record_is_in_the_log_owns_it(cluster: Cluster) -> None:
    owner = shipped(cluster)
    assert cluster.own(owner.judge.state, 33).epoch == 2
    cluster.run(cluster.own(cluster.state(), 44).mark())
    assert cluster.own(cluster.state(), 55).epoch == 4


def test_a_node_cut_from_the_log_compares_its_last_record_when_the_log_answers_again(
    cluster: Cluster,
) -> None:
    owner = shipped(cluster)
    cluster.run(owner.beat())
    ahead = owner.judge.state
    standby = cluster.standby(ClusterState(NAME), 33)
    steps = standby.follow()
    cuts = [0]

    def cut() -> None:
        if standby.follower.next <= ahead.last or cuts[0] == 2:
            return
        cuts[0] += 1
        if cuts[0] == 2:
            # While the node is cut, the log loses records, and another node fills it up.
            before, cluster.before_read = cluster.before_read, lambda: None
            cluster.lose(4)
            cluster.fill(ahead.last + 1)
            cluster.before_read = before
            raise LogUnreachable("cut")

    cluster.before_read = cut
    with pytest.raises(ReplicaDiverged, match="another record"):
        cluster.run(steps)
    assert (cluster.state().epoch, cluster.state().nonce) == (2, 22)


def test_a_claim_on_its_way_while_the_log_loses_records_gives_no_ownership(
    cluster: Cluster,
) -> None:
    ahead = shipped(cluster).judge.state
    appends = [0]

    def lose_before_the_claim() -> None:
        appends[0] += 1
        if appends[0] == 2:  # The first append is a call, to test the log.
            cluster.before_append = lambda: None
            del cluster.log._records[3:]
            cluster.fill(ahead.last + 2)

    cluster.before_append = lose_before_the_claim
    with pytest.raises(ReplicaDiverged, match="another record"):
        cluster.own(ahead, 33)


def test_an_owner_whose_append_was_on_its_way_while_the_log_lost_records_is_fenced(
    cluster: Cluster,
) -> None:
    owner = shipped(cluster)

    def lose_first() -> None:
        cluster.before_append = lambda: None
        tip = cluster.log.tip
        cluster.lose(4)
        cluster.fill(tip)

    cluster.before_append = lose_first
    with pytest.raises(Fenced, match="another record"):
        cluster.run(owner.ship(b"x", 9))
    assert not owner.may_act()


def test_an_owner_compares_nothing_after_a_fast_append(cluster: Cluster) -> None:
    owner = shipped(cluster)
    cluster.before_read = lambda: pytest.fail("the owner read the log")
    cluster.run(owner.ship(b"x", 9))


def test_a_trimmed_log_that_begins_after_another_owners_claim_stops_the_reader(
    cluster: Cluster,
) -> None:
    """A node must not own a log whose first mark names a batch that the node does not have.

    That batch has the number, position and offset of the node's last batch. But the log had lost
    the node's last batch, and another owner wrote that batch.
    """
    shipped(cluster, 1)
    first = cluster.state()
    cluster.run(cluster.own(first, 12).ship(b"lost", 9))
    ahead = cluster.state()
    del cluster.log._records[first.last + 1 :]
    other = cluster.own(first, 22)
    while cluster.log.tip < ahead.last:
        cluster.run(other.beat())
    cluster.run(other.ship(b"else", 9))
    cluster.run(other.mark())
    cluster.log.trim(other.marks[-1])
    other_state = other.judge.state
    assert replace(ahead, nonce=0, last=0, wall=0) == replace(other_state, nonce=0, last=0, wall=0)
    with pytest.raises(LogTrimmed):
        cluster.own(ahead, 33)


def test_a_trimmed_log_that_stays_empty_stops_the_reader(cluster: Cluster) -> None:
    state = shipped(cluster).judge.state
    cluster.log.trim(cluster.log.tip)
    with pytest.raises(LogTrimmed):
        cluster.own(state, 33)
