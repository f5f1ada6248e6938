"""Tests of how the active node trims the replicated log.

The node appends marks (records with the whole state), and trims the log up to one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.replication.contract import LogTrimmed, LogUnreachable, Steps
from broker.replication.engine import carry_out
from broker.replication.follower import Follower
from broker.replication.read_sizes import ReadSizes
from broker.replication.records import MARK, BatchChunk, ClusterState, decode
from broker.replication.report import NodeReport
from broker.replication.trimming import NodeList
from tests.cluster.test_ownership import QUEUE, Owner, stored
from trellis.cluster.retention import LogRetention, Retention

LIMITS = Retention(1_000, 60.0, 5_000)


class Nodes:
    """A store of the list of nodes. While `slow` is set, its changes do not become durable."""

    def __init__(self) -> None:
        self.durable = NodeList()
        self.changes: list[NodeList] = []
        self.slow = False

    def change(self, wanted: NodeList) -> None:
        self.changes.append(wanted)
        if not self.slow:
            self.durable = wanted


class Cluster:
    """An active node, its retention of the log, and the reports of the other nodes."""

    def __init__(self, path: Path, read: ReadSizes | None = None) -> None:
        self.owner, self.nodes = Owner(path), Nodes()
        self.log = self.owner.log
        ownership = self.owner.ownership
        self.retention = LogRetention(
            "owner",
            ownership.owner,
            self.log,
            LIMITS,
            self.nodes,
            self.owner.clock,
            lambda: ownership.shipped,
            ownership._mark,
            read or ReadSizes(0),
        )
        self.report("owner", 0)

    def report(self, node: str, offset: int | None = None, forgotten: bool = False) -> None:
        """Let a node report the offset up to which it has read; None is the end of the log.

        `forgotten` marks the node as removed from the cluster by an operator.
        """
        at = self.log.records.tip if offset is None else offset
        self.log.reported[node] = NodeReport(at, forgotten=forgotten)

    def write(self, count: int = 1_200) -> None:
        self.owner.write(stored(b"x" * count))

    @property
    def low(self) -> int:
        return self.log.records.low

    def listed(self) -> tuple[set[str], dict[str, int]]:
        """Return the names of the listed nodes, and the nodes that were struck from the list.

        For each struck node, the dictionary has the offset up to which the node had read.
        """
        nodes = self.nodes.durable
        return set(nodes.listed), dict(nodes.struck)

    def marks(self) -> list[int]:
        records = self.log.records.read(self.low, 10_000).records
        return [offset for offset, data in records if decode(data).kind == MARK]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    cluster = Cluster(tmp_path / "owner")
    cluster.owner.write(QUEUE)
    return cluster


def test_marks_are_a_quarter_of_the_wanted_size_apart(cluster: Cluster) -> None:
    cluster.report("standby", 0)  # so that no mark is removed
    quarter = LIMITS.bytes / 4
    sizes: list[int] = []
    for _ in range(16):
        before = cluster.owner.ownership.shipped
        cluster.write(10)
        assert cluster.owner.ownership.shipped - before < quarter / 2
        cluster.retention.look()
        if len(cluster.marks()) > len(sizes):
            sizes.append(cluster.owner.ownership.shipped)
    assert len(sizes) == len(cluster.marks()) >= 4
    assert all(quarter <= later - earlier < 1.5 * quarter for earlier, later in pairwise(sizes))


def test_log_is_trimmed_to_the_newest_mark_that_all_nodes_have(cluster: Cluster) -> None:
    cluster.report("standby", 0)
    for _ in range(3):
        cluster.write()
        cluster.retention.look()
    first, second, third = cluster.marks()
    assert cluster.low == 0
    for node in ("owner", "standby"):
        cluster.report(node, second + 1)
    cluster.retention.look()
    assert (cluster.low, cluster.retention.trimmed) == (second, second)
    assert cluster.marks() == [second, third]
    cluster.report("owner")
    cluster.retention.look()
    assert cluster.low == second > first
    cluster.report("standby")
    cluster.retention.look()
    assert cluster.low == third


def test_mark_is_due_after_bytes_or_after_time(cluster: Cluster) -> None:
    cluster.retention.look()
    assert cluster.marks() == []
    cluster.owner.clock.now += LIMITS.seconds
    cluster.retention.look()
    assert len(cluster.marks()) == 1
    cluster.retention.look()
    assert len(cluster.marks()) == 1
    cluster.write(LIMITS.bytes)
    cluster.retention.look()
    assert len(cluster.marks()) == 2


@pytest.mark.parametrize("behind", ["owner", "standby"])
def test_node_without_a_report_or_with_an_old_one_stops_trimming(
    cluster: Cluster, behind: str
) -> None:
    cluster.nodes.durable = NodeList(frozenset({"owner", "standby"}))
    cluster.write()
    cluster.report("owner")
    cluster.report("standby")
    cluster.report(behind, 1)
    cluster.retention.look()
    assert cluster.low == 0
    del cluster.log.reported[behind]
    cluster.write()
    cluster.retention.look()
    assert cluster.low == 0


def test_nothing_is_trimmed_before_the_owner_has_reported(cluster: Cluster) -> None:
    del cluster.log.reported["owner"]
    cluster.write()
    cluster.report("standby")
    cluster.retention.look()
    assert (cluster.low, len(cluster.marks())) == (0, 1)


def test_list_that_is_not_durable_removes_no_node(cluster: Cluster) -> None:
    cluster.nodes.durable = NodeList(frozenset({"owner", "standby"}))
    cluster.nodes.slow = True
    cluster.write()
    cluster.retention.look()
    cluster.report("owner")
    cluster.report("standby", 0, forgotten=True)
    cluster.retention.look()
    assert cluster.low == 0
    assert "standby" in cluster.log.reported
    cluster.nodes.durable = cluster.nodes.changes[-1]
    assert cluster.listed() == ({"owner"}, {})
    cluster.retention.look()
    assert cluster.low == cluster.marks()[-1]
    assert cluster.log.reported.keys() >= {"owner"}


def test_node_that_is_too_far_behind_is_struck_and_listed_again_once_it_is_seeded(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.report("standby", 1)
    cluster.retention.look()
    while cluster.retention.size <= LIMITS.most:
        cluster.write()
        cluster.report("owner")
        cluster.retention.look()
    assert cluster.low == 0
    assert cluster.listed() == ({"owner"}, {"standby": 1})
    cluster.retention.look()
    assert cluster.low > 0
    assert cluster.retention.size < LIMITS.most
    cluster.retention.look()
    assert cluster.nodes.durable.struck == {"standby": 1}
    cluster.report("standby")
    cluster.retention.look()
    assert cluster.listed() == ({"owner", "standby"}, {})
    assert caplog.text.count("cluster_node_struck") == 1


class Reader:
    """A standby that reads the log of a Cluster, and that a test may restart."""

    def __init__(self, cluster: Cluster) -> None:
        self._log = cluster.log
        self.follower = Follower(ClusterState("broker"))

    def read(self) -> None:
        """Read the log up to its end."""
        while self.follower.next < self._log.records.tip:
            try:
                span = self._log.read(self.follower.next - (not self.follower.is_verified))
            except LogTrimmed as trimmed:
                first = self._log.read(trimmed.low).records[0]
                self._carry_out(self.follower.begin_at_mark(trimmed, first))
            else:
                self._carry_out(self.follower.take(span))

    def _carry_out(self, steps: Steps[Any]) -> None:
        carry_out(steps, self._log, lambda step: None, lambda seconds: None)

    def restart(self) -> None:
        """Restart the standby: it keeps only its state after the last record that it has read."""
        self.follower = Follower(self.follower.judge.state)

    def size(self, nodes: NodeList, low: int) -> int:
        """Return the size in bytes that this node knows for the log if it becomes the owner.

        `low` is the offset of the log's first record. `nodes` is the list of the nodes, in which
        the former owner stored the size up to its last mark.
        """
        return self.follower.sizes.of_log(low, nodes)


def size_from(cluster: Cluster, offset: int) -> int:
    """Return the size in bytes of the batches' payloads that the log has from an offset on."""
    records = [decode(data) for _, data in cluster.log.records.read(offset, 100_000).records]
    return sum(len(one.payload) for one in records if isinstance(one, BatchChunk))


@given(st.lists(st.sampled_from(("write", "look", "owner", "all", "restart")), max_size=40))
@example(["write", "write", "all", "restart", "look"])
@settings(max_examples=60, deadline=None)
def test_new_owner_knows_the_size_of_the_log(steps: list[str]) -> None:
    with TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory) / "owner")
        cluster.owner.write(QUEUE)
        reader, started = Reader(cluster), 0
        reader.read()
        cluster.report("standby", 0)
        for step in steps:
            if step == "write":
                cluster.write(len(steps))
            elif step == "look":
                cluster.retention.look()
            elif step == "owner":
                cluster.report("owner")
            elif step == "all":
                cluster.report("owner")
                cluster.report("standby")
            reader.read()
            if step == "restart":
                reader.restart()
                started = reader.follower.next
        known = reader.size(cluster.nodes.durable, cluster.low)
        actual = size_from(cluster, cluster.low)
        if started <= cluster.low:
            assert known == actual
        else:
            # Only batches between the last stored mark and the start of the node may be missing.
            stored = cluster.nodes.durable.begin == cluster.low
            missing = cluster.nodes.durable.mark if stored else cluster.low
            least = actual - size_from(cluster, missing) + size_from(cluster, started)
            assert min(least, actual) <= known <= actual


def test_new_owner_counts_the_batches_of_earlier_owners(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    read = ReadSizes(0)
    read.add(LIMITS.most + 1)
    cluster = Cluster(tmp_path / "owner", read)
    cluster.owner.write(QUEUE)
    cluster.report("standby", 1)
    cluster.retention.look()
    assert cluster.retention.size > LIMITS.most and cluster.marks() == []
    cluster.report("owner")
    cluster.retention.look()  # The log is too large, so a mark is due at once.
    cluster.report("owner")
    assert len(cluster.marks()) == 1
    assert cluster.listed() == ({"owner"}, {"standby": 1})
    cluster.retention.look()
    assert cluster.low == cluster.marks()[-1]
    assert cluster.retention.size < LIMITS.most
    assert caplog.text.count("cluster_node_struck") == 1


def test_owner_is_never_struck(cluster: Cluster) -> None:
    cluster.report("owner", 1)
    cluster.report("standby")
    for _ in range(8):
        cluster.write()
        cluster.report("standby")
        cluster.retention.look()
    assert cluster.retention.size > LIMITS.most
    assert cluster.listed() == ({"owner", "standby"}, {})
    assert cluster.low == 0


@pytest.mark.parametrize("fail", ["reports", "trim"])
def test_trimming_goes_on_after_the_log_was_unreachable(
    cluster: Cluster, fail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*arguments: object) -> None:
        raise LogUnreachable("no answer")

    cluster.write()
    with monkeypatch.context() as patch:
        patch.setattr(cluster.log, fail, unreachable)
        cluster.report("owner")
        with pytest.raises(LogUnreachable):
            cluster.retention.look()
    cluster.report("owner")
    cluster.retention.look()
    assert cluster.low == cluster.marks()[-1]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda value: None, id="nothing"),
        pytest.param(lambda value: [1], id="a list"),
        pytest.param(lambda value: {"listed": "owner", "struck": 3}, id="other types"),
    ],
)
def test_value_that_is_no_list_of_nodes_is_an_empty_list(
    change: Callable[[object], object],
) -> None:
    nodes = NodeList(frozenset({"a", "b"}), {"c": 3}, 7, "log", 900, 5)
    assert NodeList.from_value(nodes.value()) == nodes
    assert NodeList.from_value(change(nodes.value())) == NodeList()
