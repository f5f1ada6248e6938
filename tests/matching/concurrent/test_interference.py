"""Interrupts every operation with another operation, before each access to a cell.

An interruption is complete before the access continues. So every compare-and-set that can fail does
fail in one of the runs.
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
#: The initial patterns, each with its own subscriber.
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
    """A matcher, and the operations to run before chosen accesses to its cells."""

    matcher: Matcher[int]
    plan: list[tuple[int, Operation]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    snapshots: list[tuple[Matcher[int], int]] = field(default_factory=list)
    accesses: int = 0
    clock: Iterator[int] = field(default_factory=itertools.count)

    def do(self, operation: Operation) -> None:
        """Carry out an operation, and record its start, its end and its result.

        If the operation makes a snapshot, `run` reads the snapshot after all operations.
        """
        start = next(self.clock)
        result: Result = done(self.matcher, operation)
        if isinstance(result, Matcher):
            self.snapshots.append((result, len(self.events)))
        self.events.append(Event(start, next(self.clock), operation, result))

    def step(self) -> None:
        """Before an access to a cell, run the operations that the plan places there.

        These operations are not interrupted themselves.
        """
        SteppedCell.step = walk
        while self.plan and self.plan[0][0] <= self.accesses:
            self.do(self.plan.pop(0)[1])
        self.accesses += 1
        SteppedCell.step = self.step

    def run(self, operation: Operation, plan: list[tuple[int, Operation]]) -> bool:
        """Carry out an operation, and run the operations of `plan` in the middle of it.

        `plan` has pairs of a number and an operation, which runs before the access to a cell with
        this number (from 0). Return False if the operation had too few accesses for the whole plan.
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
    """Return an Interrupted whose matcher has the patterns `before`.

    With `snapshot`, all nodes of the matcher also belong to a snapshot, so a change of the matcher
    must copy them.
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
    """Iterate over runs of `operation`, one for each access at which `other` can interrupt it."""
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
    """Iterate over all runs of `operation` that both `one` and `other` interrupt.

    `other` interrupts at the same access as `one`, or at a later access.
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
def test_an_interruption_of_an_operation_takes_effect_before_or_after_it(
    kind: Kind, before: list[str], snapshot: bool
) -> None:
    for operation, other in itertools.product(
        CHANGES + QUESTIONS, [*CHANGES[1:], plain("snapshot")]
    ):
        assert check(once(kind, before, snapshot, operation, other)) > 0


#: (operation, first interruption, second interruption). Either a wrong matcher would show the
#: effect of the second interruption without the first, or the second undoes the first.
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
def test_two_interruptions_of_an_operation_take_effect_in_order(kind: Kind) -> None:
    for operation, one, other in TWICE:
        assert check(twice(kind, ["a.b.c"], True, operation, one, other)) > 0


@pytest.mark.long
@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("before", BEFORE[1:], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_two_changes_that_interrupt_an_operation_take_effect_in_order(
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


def test_a_lookup_that_collects_once_finds_a_later_change_without_an_earlier_one() -> None:
    match, earlier, later = plain("match", "a.b.c"), subscribe("a.b.c"), ("subscribe", "a.*.c", 0)
    wrong = unexplained(twice(SingleCollect, ["a.b", "a.*.c"], False, match, earlier, later))
    assert {event.result for run in wrong for event in run.events if event.operation == match} == {
        1 | 1 << own("a.*.c")
    }
    assert not unexplained(twice(ConcurrentTrie, ["a.b", "a.*.c"], False, match, earlier, later))


@pytest.mark.parametrize("kind", KINDS)
def test_an_overtaken_change_is_exchanged_again(kind: Kind) -> None:
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


def test_a_subscriber_that_moves_between_patterns_is_always_found() -> None:
    """A subscriber subscribes to a new pattern, and then unsubscribes from the old pattern.

    Each lookup during these changes must find the subscriber. The lookup of the published articles,
    here SingleCollect, misses the subscriber in some runs.
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
