"""Tests of the garbage collector's policy: when it collects, and how long its pauses are."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from itertools import pairwise

import pytest

from tests.top.conftest import Start
from trellis.server.gc_policy import THRESHOLDS, GcPolicy


@pytest.fixture
def collector() -> Iterator[GcPolicy]:
    collector = GcPolicy()
    yield collector
    collector.close()


def test_collector_leaves_objects_of_the_start_alone(collector: GcPolicy) -> None:
    collector.settle()
    assert gc.get_threshold() == THRESHOLDS
    assert gc.get_freeze_count() > 10_000
    assert (collector.collections, collector.full) == (0, 0)


def test_the_collector_is_given_back_as_it_was() -> None:
    thresholds = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    before = gc.callbacks[:]
    try:
        collector = GcPolicy()
        collector.settle()
        collector.close()
        assert gc.get_threshold() == (701, 11, 12)
        assert gc.get_freeze_count() == 0
        assert gc.callbacks == before
        collector.close()
    finally:
        gc.set_threshold(*thresholds)


@pytest.mark.alone
def test_pauses_are_counted(collector: GcPolicy) -> None:
    collector.settle()
    gc.collect(0)
    assert (collector.collections, collector.full) == (1, 0)
    gc.collect()
    assert (collector.collections, collector.full) == (2, 1)
    assert 0 < collector.longest_pause <= collector.paused_seconds < 1


def test_a_full_collection_waits_until_nothing_happens(collector: GcPolicy) -> None:
    collector.settle()
    collector.check(0)
    assert collector.full == 0  # Nothing happened since the start, so there is nothing to collect.
    for turns in range(1, 20):
        collector.check(turns)
    assert collector.full == 0
    collector.check(19)
    assert collector.full == 1
    collector.check(19)
    assert collector.full == 1


def test_no_collection_examines_frozen_objects_however_much_the_broker_holds(
    collector: GcPolicy,
) -> None:
    """Check that the broker freezes objects in use, and that they stay frozen in a full collection.

    A collection does not examine frozen objects. So the number of objects that a collection
    examines does not grow with the broker's memory.
    """
    collector.settle()
    kept: list[list[int]] = []
    frozen: list[int] = []

    def watch(phase: str, details: dict[str, int]) -> None:
        # Younger generations never hold objects that were frozen, so only full collections are
        # checked: counting the frozen objects is slow.
        if phase == "start" and details["generation"] == 2:
            frozen.append(gc.get_freeze_count())

    gc.callbacks.append(watch)
    try:
        for step in range(1, 7):
            before = gc.get_freeze_count()
            kept += [[number] for number in range(10_000)]
            collector.check(step)
            # The broker was idle since the last check, so the objects that are not frozen are
            # collected.
            collector.check(step)
            # Some of the objects that were frozen before are freed meanwhile.
            assert gc.get_freeze_count() >= before + 9_900
    finally:
        gc.callbacks.remove(watch)
    assert len(kept) == 60_000
    # A few frozen objects are freed when the last reference to them goes.
    assert all(after > before - 100 for before, after in pairwise(frozen))


def test_cycles_that_are_not_frozen_are_found_when_the_broker_is_idle(collector: GcPolicy) -> None:
    class Thing:
        itself: object = None

    collector.settle()
    thing = Thing()
    thing.itself = thing
    gone = weakref.ref(thing)
    del thing
    collector.check(1)
    assert gone() is not None  # No full collection while messages arrive.
    collected_before = collector.collected
    collector.check(1)
    assert gone() is None
    assert collector.collected > collected_before


def test_a_broker_with_many_objects_collects_new_ones_as_soon_as_an_empty_one(
    collector: GcPolicy,
) -> None:
    """Check that 400,000 old objects do not delay the next full collection of garbage.

    Python begins a full collection when the number of new objects is a fourth of the number that
    the last full collection examined. Here the old objects are frozen. No collection examines them,
    so they do not count.
    """
    kept = [[number] for number in range(400_000)]
    collector.settle()
    new = [[number] for number in range(50_000)]
    assert collector.full > 1
    assert len(kept) + len(new) == 450_000


@pytest.mark.alone
def test_many_new_objects_make_no_long_pause(collector: GcPolicy) -> None:
    """Check the pauses of the collector while 100,000 new objects are created and stay in use.

    The collector examines each new object once, so that no pause is long.
    """
    collector.settle()
    # Few objects survived that collection. The next full collection comes when the number of new
    # survivors is a fourth of theirs.
    gc.collect()
    before = gc.get_freeze_count()
    kept = [[number] for number in range(100_000)]
    assert collector.collections > 50
    assert collector.full > 3
    assert gc.get_freeze_count() > before + 50_000
    assert collector.longest_pause < 0.05
    assert len(kept) == 100_000


async def test_a_broker_looks_after_the_collector_while_it_runs(start: Start) -> None:
    before = gc.get_threshold()
    running = await start()
    assert gc.get_threshold() == THRESHOLDS
    gc.collect(0)
    page = await running.scrape()
    assert page.value("trellis_gc_collections_total") >= 1
    assert page.value("trellis_gc_pause_seconds_total") > 0
    await running.stop()
    assert gc.get_threshold() == before
