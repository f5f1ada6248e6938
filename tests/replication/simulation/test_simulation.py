"""Tests that a cluster keeps all confirmed messages, although nodes crash, pause or lose the log.

`make test-long` runs 20,000 seeds. `python -m tests.replication.simulation SEED` prints the events
of a seed that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest

from tests.replication.simulation import wrong
from tests.replication.simulation.cluster import (
    BEHIND,
    DIFFERENT,
    DIVERGED,
    LOST,
    NEEDLESS,
    OVERLAP,
    TRIMMED,
    UNMARKED,
    Cluster,
)
from tests.replication.simulation.node import Node

#: Number of seeds of one test.
CHUNK = 30


def check(first: int, count: int) -> None:
    takeovers = cuts = unknown = 0
    for seed in range(first, first + count):
        cluster = Cluster(seed)
        assert not cluster.run(), f"seed {seed}:\n" + "\n".join(cluster.world.story)
        takeovers += cluster.takeovers
        cuts += sum("is cut from the log" in line for line in cluster.world.story)
        text = "the outcome of an append to the replicated log is unknown"
        unknown += sum(text in line for line in cluster.world.story)
    assert takeovers > 2 * count and cuts > count / 2 and unknown > count / 20


@pytest.mark.parametrize("first", range(0, 300, CHUNK))
def test_cluster_keeps_its_guarantees_under_faults(first: int) -> None:
    check(first, CHUNK)


@pytest.mark.long
@pytest.mark.parametrize("first", range(300, 20_300, 500))
def test_the_same_with_many_seeds(first: int) -> None:
    check(first, 500)


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_a_log_that_stands_still_replaces_no_owner(first: int) -> None:
    for seed in range(first, first + 10):
        cluster = Cluster(seed, only_log_faults=True)
        assert not cluster.run(), f"seed {seed}:\n" + "\n".join(cluster.world.story)


def check_handovers(start: Callable[[int], Cluster], first: int, count: int, least: float) -> None:
    """Run `count` seeds: each keeps the guarantees, and the seeds have more than `least` handovers
    on average.
    """
    handovers = 0
    for seed in range(first, first + count):
        cluster = start(seed)
        assert not cluster.run(), f"seed {seed}:\n" + "\n".join(cluster.world.story)
        handovers += cluster.handovers
    assert handovers > least * count


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_owners_that_hand_the_log_over_keep_the_guarantees(first: int) -> None:
    check_handovers(partial(Cluster, switches=True), first, 20, 2)


@pytest.mark.long
@pytest.mark.parametrize("first", range(40, 3_040, 500))
def test_the_same_with_many_seeds_of_switches(first: int) -> None:
    check_handovers(partial(Cluster, switches=True), first, 500, 2)


@pytest.mark.parametrize(
    ("node_type", "first", "caught"),
    [
        (wrong.ActsBeforeItsFirstRecord, 150, {OVERLAP}),
        (wrong.ActsAfterHandover, 0, {OVERLAP}),
        (wrong.HandsOverTooEarly, 38, {LOST}),
    ],
)
def test_a_wrong_design_of_a_switch_is_caught(
    node_type: type[Node], first: int, caught: set[str]
) -> None:
    """Search the seeds from `first` on until a seed finds the error of this wrong node.

    `first` is chosen shortly before a seed that finds the error, so that the search is short.
    """
    complaints: Counter[str] = Counter()
    for seed in range(first, first + 100):
        complaints += Cluster(seed, node_type, switches=True).run()
        if complaints.keys() & caught:
            return
    raise AssertionError(f"nothing of {caught} among {dict(complaints)}")


@pytest.mark.parametrize("first", range(0, 40, 20))
def test_owners_with_full_disks_keep_the_guarantees(first: int) -> None:
    check_handovers(partial(Cluster, full_disks=True), first, 20, 0.5)


@pytest.mark.long
@pytest.mark.parametrize("first", range(40, 3_040, 500))
def test_the_same_with_many_seeds_of_full_disks(first: int) -> None:
    check_handovers(partial(Cluster, full_disks=True), first, 500, 0.5)


@pytest.mark.parametrize(
    ("node_type", "caught"),
    [
        (wrong.ActsAfterHandover, {OVERLAP}),
        (wrong.ConfirmsUnshipped, {LOST}),
        (wrong.ShippedAgain, {DIVERGED, DIFFERENT}),
    ],
)
def test_a_wrong_design_for_full_disks_is_caught(node_type: type[Node], caught: set[str]) -> None:
    complaints: Counter[str] = Counter()
    for seed in range(100):
        complaints += Cluster(seed, node_type, full_disks=True).run()
        if complaints.keys() & caught:
            return
    raise AssertionError(f"nothing of {caught} among {dict(complaints)}")


def test_a_seed_is_one_history() -> None:
    one, two = Cluster(7), Cluster(7)
    one.run()
    two.run()
    assert one.world.story == two.world.story and one.takeovers > 2


UNSEEN = wrong.judged_by(wrong.UnseenJudge)
#: First seed of the search for a rare fault, shortly before a seed that finds it.
FIRST_SEEDS: dict[type[Node], int] = {
    wrong.ResumedWithinBatch: 45,
    wrong.EarlyCheckpoint: 574,
    UNSEEN: 125,
}


@pytest.mark.parametrize(
    ("node_type", "caught"),
    [
        (wrong.UncomparedOffset, {LOST, DIFFERENT, DIVERGED}),
        (wrong.LeaseFromAnswer, {OVERLAP}),
        (wrong.LeaseOnceATurn, {OVERLAP}),
        (wrong.DiskFirst, {DIVERGED, DIFFERENT}),
        (wrong.ShippedAgain, {DIVERGED, DIFFERENT}),
        (wrong.OwnSalt, {DIFFERENT}),
        (wrong.ClaimWithoutReading, {LOST, DIVERGED, OVERLAP}),
        (wrong.SilenceWithoutAnswers, {NEEDLESS}),
        (UNSEEN, {OVERLAP}),
        (wrong.judged_by(wrong.CredulousJudge), {DIVERGED, DIFFERENT}),
        (wrong.LowWatermark, {DIVERGED, DIFFERENT, OVERLAP, BEHIND}),
        (wrong.HalfBatchKept, {DIVERGED, DIFFERENT}),
        (wrong.ResumedWithinBatch, {DIVERGED}),
        (wrong.HalfLocalBatchKept, {DIVERGED, DIFFERENT}),
        (wrong.CatalogMarkedWithEnd, {LOST, DIVERGED, DIFFERENT}),
        (wrong.EarlyCheckpoint, {LOST, DIFFERENT, DIVERGED}),
        (wrong.WritingStart, {DIVERGED, DIFFERENT}),
        (wrong.TrimBeforeMark, {UNMARKED}),
        (wrong.TrimBehindListed, {TRIMMED}),
        (wrong.NeverHandsOver, {OVERLAP}),
    ],
)
def test_a_wrong_design_is_caught(node_type: type[Node], caught: set[str]) -> None:
    complaints: Counter[str] = Counter()
    first = FIRST_SEEDS.get(node_type, 0)
    for seed in range(first, first + 100):
        complaints += Cluster(seed, node_type, NEEDLESS in caught).run()
        if complaints.keys() & caught:
            return
    raise AssertionError(f"nothing of {caught} among {dict(complaints)}")
