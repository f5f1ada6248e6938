"""Tests that a lost Kafka node causes no takeover.

To choose a new leader, Kafka may need longer than the silence: the time without records after which
a standby takes over.
"""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from broker.replication.contract import Apply, LogUnreachable, Timing
from broker.replication.engine import carry_out
from broker.replication.follower import Follower
from broker.replication.owner import LogOwner
from broker.replication.records import ClusterState
from broker.replication.standby import Standby
from tests.cluster.conftest import OpenLog, cluster_on, created
from tests.cluster.programs import KafkaNodes
from tests.cluster.test_contract import read_all
from tests.cluster.test_leader_kill import leader_of
from trellis.cluster.kafka_log import KafkaLog
from trellis.settings.cluster import ClusterSettings

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]

#: A silence below the 2 s after which Kafka replaces a lost node.
FAST = Timing(silence=1.0, lease=0.7, beat=0.15)


class Stopped(Exception):
    """Raised when a test ends, in the thread of each node, to end the thread."""


class Node(threading.Thread):
    """A standby that follows the log until it owns the log, and from then on appends batches."""

    def __init__(self, log: KafkaLog, nonce: int) -> None:
        super().__init__()
        self._log = log
        self._stopping = threading.Event()
        self.standby = Standby(
            Follower(ClusterState("broker")),
            FAST,
            time.monotonic,
            lambda: time.time_ns() // 1_000_000,
            lambda: nonce,
            bytes(32),
        )
        self.owner: LogOwner | None = None
        self.failure: Exception | None = None
        self.applied = self.shipped = 0
        #: The longest time between two acknowledged appends, in seconds.
        self.pause = 0.0
        self._changed = threading.Condition()

    def run(self) -> None:
        try:
            self.owner = self._carry_out(self.standby.follow())
            last = time.monotonic()
            while True:
                position = self.shipped + 1
                self._carry_out(self.owner.ship(b"%d" % position, position))
                with self._changed:
                    now = time.monotonic()
                    self.pause, last = max(self.pause, now - last), now
                    self.shipped = position
                    self._changed.notify_all()
                self._wait(0.02)
        except Stopped:
            pass
        except Exception as error:  # noqa: BLE001 - the test asserts that there is none
            self.failure = error

    def wait_for(self, batches: int) -> None:
        """Wait until this node has appended `batches` further batches to the log."""
        with self._changed:
            wanted = self.shipped + batches
            assert self._changed.wait_for(lambda: self.shipped >= wanted, 60), self.failure

    def stop(self) -> None:
        self._stopping.set()
        self.join()

    def _carry_out(self, steps: Any) -> Any:
        return carry_out(steps, self._log, self._apply, self._wait)

    def _apply(self, step: Apply) -> None:
        self.applied += step.batch is not None

    def _wait(self, seconds: float) -> None:
        if self._stopping.wait(seconds):
            raise Stopped


def fast(kafka_nodes: KafkaNodes, name: str) -> ClusterSettings:
    return cluster_on(kafka_nodes.servers, name, FAST.silence, FAST.lease, FAST.beat)


@pytest.mark.parametrize("lost", ["leader", "follower"])
def test_lost_kafka_node_pauses_the_owner_and_replaces_it_not(
    kafka_nodes: KafkaNodes, name: str, open_log: OpenLog, lost: str
) -> None:
    cluster = created(fast(kafka_nodes, name))
    one, two = Node(open_log(cluster, "one"), 1), Node(open_log(cluster, "two"), 2)
    one.start()
    one.wait_for(20)
    two.start()
    try:
        one.wait_for(20)
        leader = leader_of(cluster)
        kafka_nodes.kill(leader if lost == "leader" else leader % 3 + 1)
        one.wait_for(200)
    finally:
        one.stop()
        two.stop()
    assert (one.failure, two.failure) == (None, None)
    assert two.owner is None
    assert one.owner is not None
    assert one.owner.epoch == two.standby.state.epoch == 1
    print(f"pause after a lost {lost}: {one.pause:.2f} s; void records: {one.owner.judge.void}")


def test_silent_owner_is_replaced_within_seconds(
    kafka_nodes: KafkaNodes, name: str, open_log: OpenLog
) -> None:
    cluster = created(fast(kafka_nodes, name))
    one, two = Node(open_log(cluster, "one"), 1), Node(open_log(cluster, "two"), 2)
    one.start()
    one.wait_for(20)
    two.start()
    one.wait_for(20)
    one.stop()
    ended = time.monotonic()
    try:
        two.wait_for(1)
        gap = time.monotonic() - ended
        two.wait_for(20)
    finally:
        two.stop()
    assert two.failure is None
    assert two.owner is not None
    assert two.owner.epoch == 2
    assert two.applied == one.shipped
    print(f"takeover after {gap:.2f} s")


def test_stopped_kafka_pauses_the_owner_and_replaces_it_not(
    kafka_node: KafkaNodes, name: str, open_log: OpenLog
) -> None:
    cluster = created(fast(kafka_node, name), replicas=1)
    one, two = Node(open_log(cluster, "one"), 1), Node(open_log(cluster, "two"), 2)
    third = open_log(cluster, "three")
    one.start()
    one.wait_for(20)
    two.start()
    try:
        one.wait_for(20)
        kafka_node.pause()
        try:
            for _ in range(3):  # Each read takes longer than the silence.
                with pytest.raises(LogUnreachable):
                    third.read(0)
        finally:
            kafka_node.resume()
        one.wait_for(100)
    finally:
        one.stop()
        two.stop()
    assert (one.failure, two.failure) == (None, None)
    assert two.owner is None
    assert two.applied <= one.shipped
    assert read_all(third, 0)[-1][0] == third.bounds()[1] - 1
