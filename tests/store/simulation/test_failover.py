"""Tests that a standby which takes over has all that the broker had confirmed."""

from __future__ import annotations

from collections import Counter

import pytest

from broker.replication import payload
from broker.replication.contract import ReplicaDiverged
from broker.store.durable_batch import DurableBatch
from broker.store.entries import Undefined
from tests.store.simulation.failover import FailoverSimulation, StandbyDirectory


def check(first: int, count: int) -> None:
    lives = 0
    for seed in range(first, first + count):
        simulation = FailoverSimulation(seed)
        assert not simulation.run(), f"seed {seed}:\n" + "\n".join(simulation.story)
        lives += simulation.lives
    assert lives > 3 * count


@pytest.mark.parametrize("first", range(0, 20, 20))
def test_standby_has_the_confirmed_messages_of_the_broker(first: int) -> None:
    check(first, 20)


@pytest.mark.long
@pytest.mark.parametrize("first", range(20, 3_020, 100))
def test_the_same_with_many_seeds(first: int) -> None:
    check(first, 100)


class WithoutRemovals(StandbyDirectory):
    """The directory of a standby that is wrong on purpose: batches lack removals of definitions."""

    def encode(self, batch: DurableBatch) -> bytes:
        changes = [change for change in batch.changes if not isinstance(change[1], Undefined)]
        return payload.encode(changes, batch.records.parts)


class WithoutDefinitions(StandbyDirectory):
    """Wrong on purpose: a cluster whose batches lack their definitions."""

    def encode(self, batch: DurableBatch) -> bytes:
        return payload.encode([], batch.records.parts)


class WithoutSomeRecords(StandbyDirectory):
    """Wrong on purpose: a cluster that loses the records of every tenth batch."""

    def encode(self, batch: DurableBatch) -> bytes:
        lost = batch.records.count and self._state.number % 10 == 9
        return payload.encode(batch.changes, [] if lost else batch.records.parts)


@pytest.mark.parametrize("wrong", [WithoutRemovals, WithoutDefinitions, WithoutSomeRecords])
def test_a_wrong_payload_is_caught(wrong: type[StandbyDirectory]) -> None:
    class Wrong(FailoverSimulation):
        standby_type = wrong

    complaints: Counter[str] = Counter()
    for seed in range(20):
        try:
            complaints += Wrong(seed).run()
        except (AssertionError, KeyError, ReplicaDiverged):
            # The missing data made the broker, the standby or a check fail: the wrong design was
            # caught.
            return
        if complaints:
            return
    raise AssertionError("nothing was found")
