"""Tests that each message which is confirmed after the log has lost records is in a valid batch.

The log loses its last records, and gets other records at the same offsets. Then a node comes back
that has read the lost records.
"""

from __future__ import annotations

import pytest

from tests.replication.simulation import lost_tail as wrong
from tests.replication.simulation.lost_tail import VOID, LossyCluster
from tests.replication.simulation.node import Node


def check(first: int, count: int) -> None:
    losses = noticed = returned = takeovers = 0
    for seed in range(first, first + count):
        cluster = LossyCluster(seed)
        assert not cluster.run(), f"seed {seed}:\n" + "\n".join(cluster.world.story)
        losses += cluster.losses
        noticed += cluster.noticed
        returned += cluster.returned
        takeovers += cluster.takeovers
    assert losses > count and noticed > count and takeovers > 2 * count
    # A node came back to a log of exactly the length that this node knew.
    assert returned > count / 5


def test_a_node_that_knows_lost_records_confirms_nothing() -> None:
    check(0, 60)


@pytest.mark.long
@pytest.mark.parametrize("first", range(60, 5_060, 500))
def test_the_same_with_many_seeds(first: int) -> None:
    check(first, 500)


@pytest.mark.parametrize(
    "node_type",
    [
        wrong.LastRecordUncompared,
        wrong.ComparedOnlyAtStart,
        wrong.SlowAppendUncompared,
        wrong.PauseUncompared,
    ],
)
def test_a_node_that_compares_too_little_is_caught(node_type: type[Node]) -> None:
    for seed in range(60):
        if VOID in LossyCluster(seed, node_type).run():
            return
    raise AssertionError("no owner confirmed a batch that is not valid")
