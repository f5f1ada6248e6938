"""Tests of the simulation with real directories: the segment log and the catalog of the broker.

The disks lose, tear and refuse writes, and processes are killed between any two writes.
`python -m tests.replication.simulation SEED real` prints the events of a seed that fails.
"""

from __future__ import annotations

from collections import Counter

import pytest

from tests.replication.simulation import wrong_directory as wrong
from tests.replication.simulation.cluster import DIFFERENT, DIVERGED, WARM, Cluster
from tests.replication.simulation.node import Node
from tests.replication.simulation.real import RealNode


def check(first: int, count: int) -> None:
    takeovers = checkpoints = killed = 0
    for seed in range(first, first + count):
        cluster = Cluster(seed, RealNode)
        assert not cluster.run(), f"seed {seed}:\n" + "\n".join(cluster.world.story)
        takeovers += cluster.takeovers
        checkpoints += sum(node.directory.checkpoints for node in cluster.nodes)
        killed += sum("is killed" in line for line in cluster.world.story)
    assert takeovers > 2 * count and checkpoints > 10 * count and killed > count


def test_real_directories_keep_the_promises_of_a_cluster() -> None:
    check(0, 4)


@pytest.mark.long
@pytest.mark.parametrize("first", range(4, 1_004, 50))
def test_the_same_with_many_seeds(first: int) -> None:
    check(first, 50)


@pytest.mark.parametrize(
    ("node_type", "first", "caught"),
    [
        (wrong.with_replica(wrong.HalfKept), 12, {DIFFERENT, DIVERGED}),
        (wrong.with_replica(wrong.MarkedWithEnd), 25, {DIFFERENT, DIVERGED}),
        (wrong.DiskFirst, 1, {DIFFERENT, DIVERGED}),
        (wrong.ResumedWithinBatch, 0, {DIVERGED}),
        (wrong.ShippedAgain, 17, {DIFFERENT, DIVERGED}),
        (wrong.OwnSalt, 0, {DIFFERENT, DIVERGED}),
        (wrong.with_replica(wrong.SurvivorsLate), 0, {WARM}),
        (wrong.with_replica(wrong.SurvivorsOfHalfBatch), 12, {WARM}),
        (wrong.WritingStart, 0, {DIFFERENT, DIVERGED}),
    ],
)
def test_a_wrong_design_of_the_directory_is_caught(
    node_type: type[Node], first: int, caught: set[str]
) -> None:
    """Search the seeds from `first` on until a seed finds the error of this wrong directory.

    `first` is a seed that finds the error, so that the search is short; if the simulation changes,
    later seeds are tried.
    """
    complaints: Counter[str] = Counter()
    for seed in range(first, first + 40):
        complaints += Cluster(seed, node_type).run()
        if complaints.keys() & caught:
            return
    raise AssertionError(f"nothing of {caught} among {dict(complaints)}")
