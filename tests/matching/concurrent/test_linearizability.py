"""Tests that the matchers `cstrie` and `snapshot` are linearizable.

Each test records the operations and results of several threads, and searches for an order of the
operations that explains all results.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from matching import AMQP, Matcher
from matching.cells import AtomicCell, Cell
from matching.cstrie import ConcurrentTrie
from matching.snapshot import Persistent
from tests.matching.concurrent.broken import NoGenerations, NoTombs, SingleCollect, SlowSnapshot
from tests.matching.concurrent.course import CarelessCell, Course, SteppedCell
from tests.matching.concurrent.histories import (
    Event,
    linearizable,
    overlap,
    record,
    record_freely,
    shown,
)

Kind = type[ConcurrentTrie[int]] | type[Persistent[int]]

#: Number of histories that the normal suite checks.
NORMAL = {ConcurrentTrie: 3_000, Persistent: 1_000}
#: Number of further histories that the long suite checks.
LONG = {ConcurrentTrie: 30_000, Persistent: 10_000}
PARTS = 4


def parts(first: int, number: int) -> list[range]:
    size = number // PARTS
    return [range(first + part * size, first + (part + 1) * size) for part in range(PARTS)]


def check(kind: Kind, seeds: range) -> None:
    overlapping = 0
    for seed in seeds:
        events = record(kind(AMQP, SteppedCell), seed)
        assert linearizable(events), f"history {seed} of {kind.__name__}\n{shown(events)}"
        overlapping += overlap(events)
    assert overlapping > len(seeds) / 2


@pytest.mark.parametrize("seeds", parts(0, NORMAL[ConcurrentTrie]), ids=str)
def test_every_history_of_the_concurrent_trie_has_an_order_that_explains_it(seeds: range) -> None:
    check(ConcurrentTrie, seeds)


@pytest.mark.parametrize("seeds", parts(0, NORMAL[Persistent]), ids=str)
def test_every_history_of_the_persistent_trie_has_an_order_that_explains_it(seeds: range) -> None:
    check(Persistent, seeds)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts(NORMAL[ConcurrentTrie], LONG[ConcurrentTrie]), ids=str)
def test_many_more_histories_of_the_concurrent_trie_have_one_too(seeds: range) -> None:
    check(ConcurrentTrie, seeds)


@pytest.mark.long
@pytest.mark.parametrize("seeds", parts(NORMAL[Persistent], LONG[Persistent]), ids=str)
def test_many_more_histories_of_the_persistent_trie_have_one_too(seeds: range) -> None:
    check(Persistent, seeds)


def caught(kind: Kind, cell: type[Cell[object]], seed: int) -> bool:
    """True if the search finds the mistake of a matcher of this kind with cells of this class.

    The search finds the mistake if no order of the operations explains their recorded results. If
    the matcher fails with an exception instead, the result is False.
    """
    try:
        return not linearizable(record(kind(AMQP, cell), seed))
    except (AssertionError, AttributeError, KeyError, ValueError):
        return False


@pytest.mark.parametrize(
    ("kind", "cell"),
    [
        (Persistent, CarelessCell),
        (ConcurrentTrie, CarelessCell),
        (SlowSnapshot, SteppedCell),
        (NoTombs, SteppedCell),
        (NoGenerations, SteppedCell),
        (SingleCollect, SteppedCell),
    ],
)
def test_a_mistake_is_found_in_fewer_histories_than_are_searched(
    kind: Kind, cell: type[Cell[object]]
) -> None:
    assert any(caught(kind, cell, seed) for seed in range(NORMAL[ConcurrentTrie] // 2))


def test_the_same_seed_makes_the_same_history() -> None:
    first, second = (record(ConcurrentTrie(AMQP, SteppedCell), 5) for _ in range(2))
    assert first == second
    assert overlap(first)


def test_the_exception_of_a_script_is_raised_after_the_others_have_ended() -> None:
    ended: list[int] = []

    def refuse() -> None:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        Course(0).run([lambda: ended.append(0), refuse, lambda: ended.append(2)])
    assert sorted(ended) == [0, 2]


@pytest.fixture
def restless() -> Iterator[None]:
    """Make the interpreter switch threads as often as possible."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless")
@pytest.mark.parametrize("kind", [ConcurrentTrie, Persistent])
def test_threads_that_run_as_they_like_make_histories_that_can_be_explained(kind: Kind) -> None:
    for seed in range(150):
        matcher: Matcher[int] = kind(AMQP, AtomicCell)
        events = record_freely(matcher, seed)
        assert linearizable(events), f"history {seed} of {kind.__name__}\n{shown(events)}"


def happened(*lines: tuple[int, int, str, str, int, object]) -> list[Event]:
    return [
        Event(start, end, (name, text, subscriber), result)
        for start, end, name, text, subscriber, result in lines
    ]


def test_the_search_orders_operations_within_their_times_only() -> None:
    late = happened((0, 1, "subscribe", "#", 0, True), (2, 3, "match", "a.b", 0, 0))
    assert not linearizable(late)
    together = happened((0, 3, "subscribe", "#", 0, True), (1, 2, "match", "a.b", 0, 0))
    assert linearizable(together)
    assert overlap(together)
    assert not overlap(late)


def test_the_search_wants_every_result_explained() -> None:
    assert not linearizable(
        happened((0, 1, "subscribe", "#", 0, True), (2, 3, "subscribe", "#", 0, True))
    )
    assert not linearizable(happened((0, 1, "unsubscribe", "#", 0, True)))
    assert not linearizable(happened((0, 1, "clear", "", 0, None), (2, 3, "len", "", 0, 1)))
    assert linearizable(
        happened(
            (0, 1, "subscribe", "#", 0, True),
            (2, 3, "contains", "#", 0, True),
            (4, 5, "len", "", 0, 1),
        )
    )


def test_the_search_refuses_the_history_of_the_articles_lookup() -> None:
    """Check that the search finds no order for a history of the lookup in articles 1 and 2.

    In this history, the lookup finds the subscriber of `*.b.#`, but not the subscriber of `a.b`,
    which subscribed earlier (docs/matching.md).
    """
    assert not linearizable(
        happened(
            (0, 5, "match", "a.b", 0, 1 << 6),
            (1, 2, "subscribe", "a.b", 2, True),
            (3, 4, "subscribe", "*.b.#", 6, True),
        )
    )
