"""Tests that a cluster with nodes of two versions of Trellis keeps all guarantees.

The nodes are upgraded and rolled back while the cluster runs.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.replication.simulation import upgrade
from tests.replication.simulation.cluster import DIVERGED, Cluster
from tests.replication.simulation.node import Node
from tests.replication.simulation.upgrade import NEW_NUMBER, VersionedNode


def versioned(cluster: Cluster) -> list[VersionedNode]:
    return [node for node in cluster.nodes if isinstance(node, VersionedNode)]


def check(first: int, count: int) -> None:
    raised = rolled_back = mixed = 0
    for seed in range(first, first + count):
        cluster = Cluster(seed, VersionedNode, switches=seed % 2 == 0)
        assert not cluster.run(), f"seed {seed}:\n" + "\n".join(cluster.world.story)
        nodes = versioned(cluster)
        raised += sum(node.raised for node in nodes)
        rolled_back += sum(node.rolled_back for node in nodes)
        mixed += any(node.directory.state.format != NEW_NUMBER for node in nodes)
    assert raised >= count / 4 and rolled_back >= count / 6 and 0 < mixed < count


def test_nodes_of_two_versions_keep_the_guarantees() -> None:
    check(0, 12)


@pytest.mark.long
@pytest.mark.parametrize("first", range(12, 1_012, 250))
def test_the_same_with_many_seeds_of_versions(first: int) -> None:
    check(first, 250)


@pytest.mark.parametrize("node_type", [upgrade.WritesItsNewest, upgrade.AsksNoOtherNode])
def test_a_wrong_design_of_an_upgrade_is_caught(node_type: type[Node]) -> None:
    complaints: Counter[str] = Counter()
    for seed in range(40):
        complaints += Cluster(seed, node_type).run()
        if DIVERGED in complaints:
            return
    raise AssertionError(f"no node stopped: {dict(complaints)}")
