"""Tests that a log that begins with an adoption has one owner, although other nodes are empty."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.replication.simulation import wrong
from tests.replication.simulation.adopted import AdoptedCluster
from tests.replication.simulation.cluster import LOST, OVERLAP


def check(first: int, count: int) -> None:
    stopped = takeovers = 0
    for seed in range(first, first + count):
        cluster = AdoptedCluster(seed)
        assert not cluster.run(), f"seed {seed}:\n" + "\n".join(cluster.world.story)
        stopped += cluster.stopped
        takeovers += cluster.takeovers
    assert stopped >= 2 * count and takeovers > 2 * count


def test_empty_nodes_stop_at_an_adoption_and_are_seeded() -> None:
    check(0, 8)


@pytest.mark.long
@pytest.mark.parametrize("first", range(8, 1_008, 250))
def test_the_same_with_many_seeds_of_adoptions(first: int) -> None:
    check(first, 250)


def test_a_judge_that_ignores_unknown_epochs_is_caught() -> None:
    """Check that the simulation finds the mistake of GaplessJudge, a judge that ignores unknown
    epochs.

    Apart from this mistake the nodes are right: they begin to read at the correct offset.
    """
    node_type = wrong.judged_by(wrong.GaplessJudge)
    complaints: Counter[str] = Counter()
    for seed in range(20):
        complaints += AdoptedCluster(seed, node_type).run()
        if complaints.keys() & {OVERLAP, LOST}:
            return
    raise AssertionError(f"neither {OVERLAP} nor {LOST} among {dict(complaints)}")
