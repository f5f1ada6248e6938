"""Tests of a kill of the Kafka node that leads the log's partition.

The active broker continues, and every record is in the log once.
"""

from __future__ import annotations

import threading
import time

import pytest
from confluent_kafka.admin import AdminClient

from broker.replication.contract import LogUnreachable
from tests.cluster.conftest import OpenLog, created
from tests.cluster.programs import KafkaNodes
from tests.cluster.test_contract import read_all
from trellis.cluster.kafka_log import KafkaLog
from trellis.settings.cluster import ClusterSettings

pytestmark = [pytest.mark.long, pytest.mark.xdist_group("kafka")]


class Writer(threading.Thread):
    """A thread that appends records one after another until it is stopped."""

    def __init__(self, log: KafkaLog) -> None:
        super().__init__()
        self._log = log
        self._stopping = threading.Event()
        self.offsets: list[int] = []
        #: The longest duration of an append in seconds.
        self.longest = 0.0
        self.failure: Exception | None = None
        self._more = threading.Condition()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                begin = time.monotonic()
                offset = self._log.append(b"%d" % len(self.offsets))
                with self._more:
                    self.longest = max(self.longest, time.monotonic() - begin)
                    self.offsets.append(offset)
                    self._more.notify_all()
        except Exception as error:  # noqa: BLE001
            self.failure = error

    def wait_for(self, more: int) -> None:
        """Wait until `more` further records are appended."""
        with self._more:
            wanted = len(self.offsets) + more
            assert self._more.wait_for(lambda: len(self.offsets) >= wanted, 30), self.failure

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def leader_of(cluster: ClusterSettings) -> int:
    """Return the number of the Kafka node that leads the partition of the log."""
    admin = AdminClient({"bootstrap.servers": cluster.servers, "log_level": 0})
    topic = admin.list_topics(cluster.log_topic, timeout=10).topics[cluster.log_topic]
    return int(topic.partitions[0].leader)


def test_owner_survives_killed_leaders_without_lost_or_repeated_records(
    kafka_nodes: KafkaNodes, name: str, open_log: OpenLog
) -> None:
    cluster = created(ClusterSettings(name=name, servers=kafka_nodes.servers))
    log, standby = open_log(cluster, "one"), open_log(cluster, "two")
    writer = Writer(log)
    writer.start()
    try:
        for _ in range(2):
            writer.wait_for(100)
            leader = leader_of(cluster)
            kafka_nodes.kill(leader)
            writer.wait_for(100)
            assert leader_of(cluster) != leader
            kafka_nodes.start(leader)
            wait_for_replicas(standby)
    finally:
        writer.stop()
    assert writer.failure is None
    assert writer.offsets == list(range(len(writer.offsets)))
    expected = [(offset, b"%d" % offset) for offset in writer.offsets]
    assert read_all(standby, 0) == expected
    assert standby.bounds() == (0, len(expected))
    print(f"longest append: {writer.longest:.1f} s")


def wait_for_replicas(log: KafkaLog) -> None:
    """Wait until all replicas of the log are in sync."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            facts = log._topic.facts()
        except LogUnreachable:
            continue
        if facts.in_sync == 3:
            return
    raise AssertionError("a restarted node did not catch up within 60 s")


def test_log_without_enough_replicas_commits_nothing_until_a_node_is_back(
    kafka_nodes: KafkaNodes, name: str, open_log: OpenLog
) -> None:
    cluster = created(ClusterSettings(name=name, servers=kafka_nodes.servers, silence=10.0))
    # Open both logs before nodes are killed: this reads the settings of the topic from Kafka's
    # controller, which may be one of the killed nodes.
    log, reader = open_log(cluster, "one"), open_log(cluster, "two")
    assert log.append(b"a") == 0
    leader = leader_of(cluster)
    follower = next(node for node in (1, 2, 3) if node != leader)
    kafka_nodes.kill(follower)
    assert log.append(b"b") == 1
    other = next(node for node in (1, 2, 3) if node not in (leader, follower))
    kafka_nodes.kill(other)
    writer = Writer(log)
    writer.start()
    try:
        assert read_all(reader, 0)[:2] == [(0, b"a"), (1, b"b")]
        kafka_nodes.start(follower)
        writer.wait_for(10)
    finally:
        writer.stop()
    assert writer.failure is None
    assert writer.offsets == list(range(2, 2 + len(writer.offsets)))
