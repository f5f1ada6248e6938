"""Tests of errors: a cluster with wrong settings or in a wrong state prints one line.

The line says what is wrong, and what to do. tests/cluster/BAD_INPUT.md lists all such settings and
states, each with its test.
"""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from msgspec.structs import replace

from broker.replication.contract import Timing
from broker.replication.directory import ReplicaDirectory
from broker.replication.errors import ReplicationError
from broker.replication.owner import LogOwner
from broker.replication.records import (
    BEAT,
    CLAIM,
    Claim,
    ClusterState,
    LogRecord,
)
from broker.replication.report import NodeReport
from broker.replication.standby import CLOCKS
from tests.cluster.conftest import OpenLog, cluster_on
from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, NodeProcess, node_on_kafka, node_over
from tests.cluster.programs import Kfake
from tests.cluster.test_adopt import NOW, replica_directory
from tests.cluster.test_faults import new_topic
from tests.cluster.test_following import PATIENT, Owner, Standby
from tests.cluster.test_retention import Cluster
from tests.cluster.waiting import wait_for
from tests.replication.threaded_log import ThreadedLog
from tests.store.simulated import SimulatedDisk
from trellis.app import MISCONFIGURED
from trellis.cluster import reporting
from trellis.cluster.following import CLOCK_MOST
from trellis.cluster.membership import place_of
from trellis.cluster.reporting import Reporting
from trellis.cluster.topic import TopicFacts
from trellis.cluster.topic_safety import MESSAGE_LEAST, topic_findings
from trellis.server.recovery import codecs

HERE = Path(__file__).parent
#: Settings of a topic that no node refuses.
SAFE = {
    "max.message.bytes": "8392704",
    "min.insync.replicas": "2",
    "retention.bytes": "-1",
    "retention.ms": "-1",
}


def test_each_listed_case_has_a_test_that_exists() -> None:
    rows = re.findall(r"^\| (.+?) \| `(.+?)` \|$", (HERE / "BAD_INPUT.md").read_text(), re.M)
    assert len(rows) >= 17
    for case, test in rows:
        file, _, name = test.partition("::")
        assert f"def {name}(" in (HERE.parent / file).read_text(), (case, test)


# -- the topic


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"cleanup.policy": "compact"}, "cleanup.policy=compact, and compaction removes batches"),
        (
            {"max.message.bytes": "1000"},
            f"max.message.bytes=1000, and a chunk of a batch needs at least {MESSAGE_LEAST}: set",
        ),
    ],
)
def test_topic_on_which_the_log_cannot_work_is_refused(
    kfake: Kfake, name: str, open_log: OpenLog, settings: dict[str, str], text: str
) -> None:
    cluster = cluster_on(kfake.servers, name)
    new_topic(cluster, settings)
    with pytest.raises(ReplicationError) as refused:
        open_log(cluster, "one")
    assert text in str(refused.value) and str(refused.value).startswith("topic 'trellis-")


@pytest.mark.parametrize(
    ("settings", "replicas", "texts"),
    [
        ({"min.insync.replicas": "2"}, 3, []),
        (
            {"min.insync.replicas": "1", "retention.ms": "1000", "retention.bytes": "5"},
            1,
            [
                "its replicas are 1, must be 3",
                "min.insync.replicas is 1, must be 2",
                "retention.ms is 1000",
                "retention.bytes is 5",
            ],
        ),
    ],
)
def test_unsafe_topic_is_named_when_a_node_connects(
    kfake: Kfake,
    name: str,
    open_log: OpenLog,
    settings: dict[str, str],
    replicas: int,
    texts: list[str],
) -> None:
    cluster = replace(cluster_on(kfake.servers, name), unsafe=True)
    new_topic(cluster, {**SAFE, **settings}, replicas=replicas)
    warnings = [finding.text for finding in open_log(cluster, "one").findings]
    assert [text for text in texts if not any(text in line for line in warnings)] == []
    assert len(warnings) == len(texts), warnings


@pytest.mark.parametrize(
    ("settings", "replicas", "text"),
    [
        ({}, 1, "its replicas are 1, must be 3"),
        ({"min.insync.replicas": "1"}, 3, "min.insync.replicas is 1, must be 2"),
        ({"retention.ms": "604800000"}, 3, "retention.ms is 604800000, must be -1"),
        ({"retention.bytes": "5"}, 3, "retention.bytes is 5, must be -1"),
        (
            {"unclean.leader.election.enable": "true"},
            3,
            "unclean.leader.election.enable is true, must be false",
        ),
    ],
)
def test_topic_that_can_lose_confirmed_messages_is_refused(
    kfake: Kfake,
    name: str,
    open_log: OpenLog,
    settings: dict[str, str],
    replicas: int,
    text: str,
) -> None:
    cluster = cluster_on(kfake.servers, name)
    new_topic(cluster, {**SAFE, **settings}, replicas=replicas)
    with pytest.raises(ReplicationError) as refused:
        open_log(cluster, "one")
    line = str(refused.value)
    assert line.startswith(f"topic 'trellis-{name}' can lose confirmed messages: {text}")
    assert line.endswith("; only for a trial, set cluster.unsafe to true on all nodes")
    assert "\n" not in line
    accepted = open_log(replace(cluster, unsafe=True), "one").findings
    assert any(text in finding.text for finding in accepted)


def test_settings_that_a_hosted_kafka_does_not_show_are_not_refused() -> None:
    facts = TopicFacts("id", 1, 3, 3, True)
    assert topic_findings(facts, {}) == []
    assert topic_findings(facts, {"cleanup.policy": "delete"}) == []


@pytest.mark.long
def test_node_on_a_topic_with_one_replica_ends_with_one_line(
    kfake: Kfake, name: str, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    cluster = cluster_on(kfake.servers, name)
    new_topic(cluster, SAFE, replicas=1)
    node = node_on_kafka(cluster, tmp_path / "first")
    nodes.append(node)
    assert node.process.wait(PATIENCE) == MISCONFIGURED
    *_, last = node.errors.read_text().splitlines()
    assert last.startswith(f"trellis: topic 'trellis-{name}' can lose confirmed messages: its")
    node = node_on_kafka(replace(cluster, unsafe=True), tmp_path / "second")
    nodes.append(node)
    node.wait_for("following")
    node.wait_for("ready")
    assert "cluster_unsafe_allowed" in node.errors.read_text()


@pytest.mark.long
def test_kafka_that_is_away_at_the_start_is_named_and_awaited(
    name: str, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    node = node_on_kafka(cluster_on("127.0.0.1:1", name), tmp_path / "first")
    nodes.append(node)
    node.wait_for("following")
    end = time.monotonic() + PATIENCE
    while "cluster_unreachable" not in node.errors.read_text():
        assert time.monotonic() < end
    assert "check that the nodes in cluster.servers run" in node.errors.read_text()
    assert (node.health("/readyz"), node.process.poll()) == (503, None)


@pytest.mark.long
def test_topic_of_another_broker_stops_the_node(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    server.log.append(Claim(CLAIM, 1, 1, 0, -1, ClusterState("orders"), bytes(32)).encode())
    node = node_over(server, tmp_path / "first")
    nodes.append(node)
    assert node.process.wait(PATIENCE) == MISCONFIGURED
    text = "the Kafka topic belongs to the broker 'orders', and this node is a node of 'broker'"
    assert f"trellis: {text}" in node.errors.read_text()


# -- the nodes


def test_data_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    path = replica_directory(tmp_path / "first", ThreadedLog())
    with pytest.raises(ReplicationError, match=r"belongs to the broker 'broker', .* cluster\.name"):
        ReplicaDirectory(SimulatedDisk(), str(path), "orders", codecs())


class Named:
    """A node that reports under the name `node`, and the conflicts of names that it has noticed.

    `place` is the number that identifies its host and data directory.
    """

    def __init__(self, log: ThreadedLog, place: int) -> None:
        self.now, self.conflicts = NOW, list[str]()
        self.report = NodeReport(0, place=place)
        self.reporting = Reporting(log, self._report, self.conflicts.append)

    def _report(self) -> NodeReport:
        return NodeReport(self.report.offset, place=self.report.place, wall=self.now)

    def look(self, seconds: float) -> None:
        """Advance the clock by some seconds, and let the node report (Reporting.report)."""
        self.now += int(1000 * seconds)
        self.reporting.report()


def test_node_whose_name_another_node_has_does_not_replace_its_reports() -> None:
    log = ThreadedLog()
    running, late = Named(log, 1), Named(log, 2)
    running.look(0)
    late.look(1)
    assert (late.conflicts, log.reported["node"].place) == ([], 1)
    running.look(6)
    late.look(5)
    [text] = late.conflicts
    assert "another node reports as node" in text and "a node.name of its own" in text
    assert (running.conflicts, log.reported["node"].place) == ([], 1)


def test_nodes_of_one_name_that_start_at_once_notice_each_other() -> None:
    log = ThreadedLog()
    one, two = Named(log, 1), Named(log, 2)
    one.look(0)
    log.reported["node"] = NodeReport(0, place=2, wall=NOW)
    one.look(reporting.REPEAT_SECONDS)
    assert len(one.conflicts) == 1
    two.look(0)
    assert (two.conflicts, log.reported["node"].place) == ([], 1)


def test_node_with_a_new_data_directory_reports_after_a_while() -> None:
    log = ThreadedLog()
    old, new = Named(log, 1), Named(log, 2)
    old.look(0)
    new.look(1)
    new.look(reporting.UNCHANGED_SECONDS - 1)
    assert log.reported["node"].place == 1
    new.look(1)
    assert (new.conflicts, log.reported["node"].place) == ([], 2)


def test_place_of_a_node_is_that_of_its_directory(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert place_of(tmp_path / "a") == place_of(tmp_path / "b" / ".." / "a") > 0
    assert place_of(tmp_path / "a") != place_of(tmp_path / "b")


def test_standby_with_the_name_of_another_node_stops(tmp_path: Path) -> None:
    log = ThreadedLog()
    Owner(log)
    standby = Standby(tmp_path / "standby", log, timing=PATIENT)
    standby.following._refuse_name("another node reports as node 'node'")
    end = standby.join()
    assert isinstance(end, ReplicationError) and not isinstance(end, LogOwner)


def wait_for_offset(standby: Standby, offset: int) -> None:
    """Wait until a standby has read the record at an offset."""
    wait_for(lambda: standby.following.standby.follower.next > offset)


@pytest.mark.parametrize(
    ("ahead", "late"),
    [
        (-CLOCK_MOST - 500, 0),
        (-CLOCK_MOST - 500, CLOCK_MOST + 500),
        (CLOCK_MOST + 500, 0),
        (200, CLOCK_MOST + 500),
    ],
)
def test_clocks_that_differ_are_named_and_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, ahead: int, late: int
) -> None:
    """Every second record seems to be read `late` milliseconds after it was written."""
    log = ThreadedLog()
    owner = Owner(log)
    standby = Standby(tmp_path / "standby", log, timing=Timing(600.0, 1.0, 0.1))
    try:
        for number in range(CLOCKS + 1):
            wall = int(time.time() * 1000) - ahead - late * (number % 2)
            tip = log.append(LogRecord(BEAT, owner.claim.epoch, owner.claim.nonce, wall).encode())
            wait_for_offset(standby, tip)
        difference = standby.following.report().clock_ms
        assert abs(difference - ahead) < 750, difference
        differs = abs(ahead) > CLOCK_MOST
        if differs:
            wait_for(lambda: "cluster_clock_differs" in caplog.text)
        assert ("cluster_clock_differs" in caplog.text) == differs
    finally:
        standby.stop()


def test_listed_node_without_a_report_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(tmp_path / "owner")
    cluster.report("standby")
    cluster.retention.look()
    assert cluster.retention.unreported == []
    del cluster.log.reported["standby"]
    for _ in range(2):
        cluster.retention.look()
    assert cluster.retention.unreported == ["standby"]
    assert caplog.text.count("cluster_node_unreported nodes=standby") == 1
