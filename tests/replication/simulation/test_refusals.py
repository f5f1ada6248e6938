"""Tests that a cluster keeps all guarantees over a log that refuses large records at times."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.replication.simulation import refusals
from tests.replication.simulation.cluster import DIVERGED
from tests.replication.simulation.refusals import RefusedNode, RefusedRealNode, RefusingCluster


def check(first: int, count: int, node_type: type[RefusedNode] = RefusedNode) -> None:
    totals = Counter[str]()
    for seed in range(first, first + count):
        cluster = RefusingCluster(seed, node_type)
        assert not cluster.run(), f"seed {seed}:\n" + "\n".join(cluster.world.story)
        totals["refused"] += cluster.refused
        totals["appended earlier"] += cluster.appended_earlier
        totals["claimed again"] += cluster.claimed_again
        totals["takeovers"] += cluster.takeovers
        totals["acts"] += cluster.acts
    assert totals["refused"] > 5 * count and totals["claimed again"] > count / 2, totals
    assert totals["appended earlier"] > count and totals["takeovers"] > count, totals
    assert totals["acts"] > 100 * count, totals


def test_owner_whose_records_are_refused_keeps_the_guarantees() -> None:
    check(0, 12)


def test_the_same_with_real_directories() -> None:
    check(0, 2, RefusedRealNode)


@pytest.mark.long
@pytest.mark.parametrize("first", range(12, 1_012, 250))
def test_the_same_with_many_seeds_of_refusals(first: int) -> None:
    check(first, 250)


@pytest.mark.long
def test_the_same_with_many_seeds_and_real_directories() -> None:
    check(2, 60, RefusedRealNode)


@pytest.mark.parametrize("node_type", [refusals.ShipsAgainAtOnce, refusals.ClaimsBlindly])
def test_a_wrong_design_of_a_refusal_is_caught(node_type: type[RefusedNode]) -> None:
    complaints: Counter[str] = Counter()
    for seed in range(40):
        complaints += RefusingCluster(seed, node_type).run()
        if DIVERGED in complaints:
            return
    raise AssertionError(f"no node stopped: {dict(complaints)}")
