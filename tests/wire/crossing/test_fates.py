"""Fates: in random traffic, every received message and every copy has exactly one fate."""

from __future__ import annotations

import pytest

from tests.wire.crossing.traffic import Traffic

SEEDS, AT_ONCE = 300, 20


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_fates_reconcile_after_random_traffic(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        traffic = Traffic(seed)
        traffic.run(50)
        traffic.world.fates()
        traffic.run(30)
        traffic.settle()
        traffic.world.fates()


def test_the_traffic_knows_every_fate() -> None:
    messages: set[str] = set()
    copies: set[str] = set()
    for seed in range(1_000, 1_020):
        traffic = Traffic(seed)
        traffic.run(150)
        messages |= set(traffic.world.fates())
        copies |= set(traffic.world.copies())
    assert messages >= {"routed", "unroutable", "refused", "denied", "too_large"}
    assert copies == {
        "acknowledged",
        "auto_acknowledged",
        "expired",
        "over_limit",
        "dropped",
        "offline",
        "not_representable",
        "purged",
        "dead_lettered",
        "rejected",
    }
