"""Every operation, interrupted by others before each of its accesses to a cell, one by one.

So every comparison fails that can fail, in a known place: whatever comes between is done wholly
before the access.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from matching import AMQP, Matcher
from matching.cstrie import ConcurrentTrie
from matching.snapshot import Persistent
from tests.matching.concurrent.broken import NoTombs, SingleCollect
from tests.matching.concurrent.course import SteppedCell, walk
from tests.matching.concurrent.histories import (
    BITS,
    Event,
    Operation,
    Result,
    contents,
    done,
    linearizable,
    shown,
)

Kind = type[ConcurrentTrie[int]] | type[Persistent[int]]

KINDS = [ConcurrentTrie, Persistent]
#: What is there before: the patterns, each with its own subscriber.
BEFORE = [[], ["a.b.c"], ["a.b.c", "a.b"], ["a.b.c", "a.*.c", "#.c"]]


def own(pattern: str) -> int:
    return next(subscriber for known, subscriber in BITS if known == pattern and subscriber)


def subscribe(pattern: str) -> Operation:
    return "subscribe", pattern, own(pattern)


def unsubscribe(pattern: str) -> Operation:
    return "unsubscribe", pattern, own(pattern)


def plain(name: str, text: str = "") -> Operation:
    return name, text, own("a.b.c")


CHANGES = [
    subscribe("a.b.c"),
    subscribe("a.b"),
    subscribe("a.*.c"),
    unsubscribe("a.b.c"),
    unsubscribe("a.b"),
    plain("clear"),
]
QUESTIONS = [
    plain("match", "a.b.c"),
    plain("contains", "a.b.c"),
    plain("snapshot"),
    plain("len"),
]


@dataclass
class Interrupted:
    """A matcher, and what to do before which of the following accesses to its cells."""

    matcher: Matcher[int]
    plan: list[tuple[int, Operation]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    snapshots: list[tuple[Matcher[int], int]] = field(default_factory=list)
    accesses: int = 0
    clock: Iterator[int] = field(default_factory=itertools.count)

    def do(self, operation: Operation) -> None:
        """Do an operation, and put it down. A snapshot is read when everything is over."""
        start = next(self.clock)
        result: Result = done(self.matcher, operation)
        if isinstance(result, Matcher):
            self.snapshots.append((result, len(self.events)))
        self.events.append(Event(start, next(self.clock), operation, result))

    def step(self) -> None:
        """Called before each access: do what is planned, without being interrupted."""
        SteppedCell.step = walk
        while self.plan and self.plan[0][0] <= self.accesses:
            self.do(self.plan.pop(0)[1])
        self.accesses += 1
        SteppedCell.step = self.step

    def run(self, operation: Operation, plan: list[tuple[int, Operation]]) -> bool:
        """Do an operation with these interruptions.

        Whether it had so many accesses that all came to pass.
        """
        self.plan = plan
        SteppedCell.step = self.step
        try:
            self.do(operation)
        finally:
            SteppedCell.step = walk
        for snapshot, at in self.snapshots:
            event = self.events[at]
            self.events[at] = Event(event.start, event.end, event.operation, contents(snapshot))
        self.do(plain("snapshot"))
        snapshot, at = self.snapshots[-1]
        self.events[at] = Event(
            self.events[at].start, self.events[at].end, plain("snapshot"), contents(snapshot)
        )
        return not self.plan


def prepared(kind: Kind, before: list[str], snapshot: bool) -> Interrupted:
    """A matcher of these patterns; after a snapshot all its nodes belong to that one, and must be
    copied.
    """
    run = Interrupted(kind(AMQP, SteppedCell))
    for pattern in before:
        run.do(subscribe(pattern))
    if snapshot:
        run.do(plain("snapshot"))
    return run


def once(
    kind: Kind, before: list[str], snapshot: bool, operation: Operation, other: Operation
) -> Iterator[Interrupted]:
    """All runs of the operation in which the other comes between, at whatever access."""
    for access in itertools.count():
        run = prepared(kind, before, snapshot)
        if not run.run(operation, [(access, other)]):
            return
        yield run


def twice(
    kind: Kind,
    before: list[str],
    snapshot: bool,
    operation: Operation,
    one: Operation,
    other: Operation,
) -> Iterator[Interrupted]:
    """All runs of the operation in which one comes between, and at the same or a later access the
    other.
    """
    for first in itertools.count():
        for second in itertools.count(first):
            run = prepared(kind, before, snapshot)
            if not run.run(operation, [(first, one), (second, other)]):
                break
            yield run
        if first == second:
            return


def check(runs: Iterator[Interrupted]) -> int:
    number = 0
    for run in runs:
        assert linearizable(run.events), shown(run.events)
        number += 1
    return number


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("before", BEFORE, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_comes_between_an_operation_happened_before_or_after(
    kind: Kind, before: list[str], snapshot: bool
) -> None:
    for operation, other in itertools.product(
        CHANGES + QUESTIONS, [*CHANGES[1:], plain("snapshot")]
    ):
        assert check(once(kind, before, snapshot, operation, other)) > 0


#: An operation, and two changes of which the second must not be seen without the first, or that
#: undo each other.
TWICE = [
    (plain("match", "a.b.c"), subscribe("a.b.c"), subscribe("*.b.#")),
    (plain("match", "a.b.c"), plain("snapshot"), unsubscribe("a.b.c")),
    (plain("match", "a.b"), subscribe("a.b"), subscribe("a.#")),
    (subscribe("a.b.c"), unsubscribe("a.b.c"), subscribe("a.*.c")),
    (subscribe("a.b.c"), plain("snapshot"), subscribe("a.b")),
    (subscribe("a.b"), unsubscribe("a.b.c"), plain("snapshot")),
    (unsubscribe("a.b.c"), subscribe("a.b.c"), unsubscribe("a.b.c")),
    (unsubscribe("a.b.c"), plain("snapshot"), subscribe("a.b.c")),
    (unsubscribe("a.b.c"), plain("snapshot"), unsubscribe("a.b.c")),
    (plain("snapshot"), subscribe("a.b.c"), unsubscribe("a.b.c")),
]


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_comes_between_twice_happened_in_its_order(kind: Kind) -> None:
    for operation, one, other in TWICE:
        assert check(twice(kind, ["a.b.c"], True, operation, one, other)) > 0


@pytest.mark.long
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("before", BEFORE[1:], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_two_changes_come_between_happened_in_their_order(
    kind: Kind, before: list[str], snapshot: bool
) -> None:
    changes = [*CHANGES, plain("snapshot")]
    for operation, one, other in itertools.product(
        [*CHANGES, plain("match", "a.b.c"), plain("snapshot")], changes, changes
    ):
        assert check(twice(kind, before, snapshot, operation, one, other)) > 0


def unexplained(runs: Iterator[Interrupted]) -> list[Interrupted]:
    return [run for run in runs if not linearizable(run.events)]


def test_without_tombs_a_subscription_is_lost_with_the_node_that_is_cut_off() -> None:
    lost = unexplained(once(NoTombs, ["a.b.c"], False, unsubscribe("a.b.c"), subscribe("a.b.c")))
    assert lost
    assert all(("a.b.c", own("a.b.c")) not in run.matcher for run in lost)


def test_a_lookup_that_collects_once_finds_what_came_later_without_what_came_earlier() -> None:
    match, earlier, later = plain("match", "a.b.c"), subscribe("a.b.c"), ("subscribe", "a.*.c", 0)
    wrong = unexplained(twice(SingleCollect, ["a.b", "a.*.c"], False, match, earlier, later))
    assert {event.result for run in wrong for event in run.events if event.operation == match} == {
        1 | 1 << own("a.*.c")
    }
    assert not unexplained(twice(ConcurrentTrie, ["a.b", "a.*.c"], False, match, earlier, later))


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_overtaken_exchanges_again(kind: Kind) -> None:
    exchanges: list[bool] = []

    class Counting(SteppedCell[object]):
        def compare_and_set(self, expected: object, desired: object) -> bool:
            exchanges.append(super().compare_and_set(expected, desired))
            return exchanges[-1]

    failures = 0
    for access in itertools.count():
        exchanges.clear()
        run = Interrupted(kind(AMQP, Counting))
        if not run.run(subscribe("a.b"), [(access, subscribe("a.b.c"))]):
            break
        failures += exchanges.count(False)
        assert sorted(run.matcher.subscriptions()) == [("a.b", own("a.b")), ("a.b.c", own("a.b.c"))]
    assert failures > 0


def test_a_subscriber_who_moves_from_one_pattern_to_another_is_found_all_the_time() -> None:
    """He subscribes to the new pattern before he leaves the old one; the articles' lookup may miss
    both.
    """
    match, join, leave = (
        plain("match", "a.b.c"),
        ("subscribe", "a.b.c", 0),
        ("unsubscribe", "a.*.c", 0),
    )
    answers: dict[Kind, set[Result]] = {}
    kinds: list[Kind] = [SingleCollect, ConcurrentTrie, Persistent]
    for kind in kinds:
        answers[kind] = set()
        for first, second in itertools.combinations_with_replacement(range(24), 2):
            run = prepared(kind, ["a.b"], False)
            run.do(("subscribe", "a.*.c", 0))
            run.run(match, [(first, join), (second, leave)])
            answers[kind] |= {event.result for event in run.events if event.operation == match}
    assert answers == {SingleCollect: {0, 1}, ConcurrentTrie: {1}, Persistent: {1}}
