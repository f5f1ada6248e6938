"""Tests that a whole broker keeps all confirmed changes, although it crashes and its disk fills up.

`make test-long` runs 20,000 seeds. `python -m tests.store.simulation SEED` prints all
steps of a seed that fails.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from tests.store.simulation.ledger import AGAIN, BACK, DAMAGE, FORGOTTEN, LOST, STRAY, TWICE
from tests.store.simulation.schedule import Simulation
from tests.store.simulation.wrong import (
    LogFirst,
    MarksBehind,
    MarksOnce,
    SequenceApart,
    TwoRecords,
    WithoutSerials,
    drop_unmarked,
    drop_with_marks,
    drop_without_needs,
    in_place,
    moved_forward,
)

#: Number of seeds of one test.
CHUNK = 20


def check(first: int, count: int, streams: bool = False) -> None:
    for seed in range(first, first + count):
        simulation = Simulation(seed, streams=streams)
        assert not simulation.run(), f"seed {seed}:\n" + "\n".join(simulation.story)


@pytest.mark.parametrize("first", range(0, 100, CHUNK))
def test_broker_keeps_its_guarantees_under_faults(first: int) -> None:
    check(first, CHUNK)


@pytest.mark.parametrize("first", range(0, 20, CHUNK))
def test_broker_keeps_its_guarantees_with_streams(first: int) -> None:
    check(first, CHUNK, True)


@pytest.mark.parametrize("seed", [3028, 15645, 17687])
def test_seeds_that_failed_once(seed: int) -> None:
    check(seed, 1)


@pytest.mark.long
@pytest.mark.parametrize("first", range(100, 20_100, 500))
def test_the_same_with_many_seeds(first: int) -> None:
    check(first, 500)


@pytest.mark.long
@pytest.mark.parametrize("first", range(20, 10_020, 500))
def test_the_same_with_streams_and_many_seeds(first: int) -> None:
    check(first, 500, True)


@pytest.mark.parametrize("streams", [False, True])
def test_a_seed_is_one_history(streams: bool) -> None:
    one, two = Simulation(7, streams=streams), Simulation(7, streams=streams)
    one.run()
    two.run()
    assert one.story == two.story and one.lives > 2


# The third value is the first seed to run; no lower seed shows the mistake of that design.
@pytest.mark.parametrize(
    ("wrong", "caught", "first"),
    [
        pytest.param(
            lambda seed: Simulation(seed, design=moved_forward),
            {BACK, TWICE},
            0,
            id="stragglers moved forward to new positions",
        ),
        pytest.param(
            lambda seed: Simulation(seed, design=in_place),
            {LOST},
            0,
            id="a checkpoint written over the last one",
        ),
        pytest.param(
            lambda seed: Simulation(seed, drop=drop_without_needs),
            {BACK, TWICE},
            112,
            id="a file is dropped before the messages that it settles",
        ),
        pytest.param(
            lambda seed: Simulation(seed, drop=drop_unmarked),
            {DAMAGE},
            0,
            id="files are dropped without a mark",
        ),
        pytest.param(
            lambda seed: Simulation(seed, hasty=True), {LOST}, 0, id="confirms before the sync"
        ),
        pytest.param(
            lambda seed: Simulation(seed, WithoutSerials),
            {AGAIN, STRAY},
            0,
            id="packet identifiers begin anew",
        ),
        pytest.param(
            lambda seed: Simulation(seed, TwoRecords),
            {TWICE},
            0,
            id="a dead letter and its settlement are two records",
        ),
        pytest.param(
            lambda seed: Simulation(seed, MarksBehind),
            {FORGOTTEN},
            8,
            id="a mark is written after the delivery",
        ),
        pytest.param(
            lambda seed: Simulation(seed, MarksOnce, drop=drop_with_marks),
            {FORGOTTEN},
            14,
            id="a mark is dropped with its segment",
        ),
        pytest.param(
            lambda seed: Simulation(seed, SequenceApart, streams=True),
            {TWICE},
            0,
            id="a producer's number is another record",
        ),
        pytest.param(
            lambda seed: Simulation(seed, LogFirst, streams=True),
            {LOST},
            0,
            id="the log says how far streams are before they are",
        ),
    ],
)
def test_a_wrong_design_is_caught(
    wrong: Callable[[int], Simulation], caught: set[str], first: int
) -> None:
    complaints: Counter[str] = Counter()
    for seed in range(first, first + 200):
        complaints += wrong(seed).run()
        if complaints.keys() & caught:
            return
    raise AssertionError(f"nothing of {caught} among {dict(complaints)}")
