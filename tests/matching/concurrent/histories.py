"""Concurrent histories of a matcher, and whether they are linearizable.

An operation happens at some moment between its start and its end. A history is linearizable if
there are such moments for all of its operations that, one after the other, they give the results
that were recorded. The search is that of Wing and Gong with Lowe's memory of what was tried: take
an operation that no other one wholly precedes, do it to the state, go on if the result is right,
else take it back. A state is a set of pairs, and is kept as bits.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random

from matching import AMQP, Matcher
from tests.matching.concurrent.course import Course, SteppedCell, walk

PATTERNS = ("#", "a.b", "a.#", "a.b.c", "a.*.c", "*.b.#", "#.c")
TOPICS = ("a.b.c", "a.b", "a.c")
#: Each pattern has subscriber 0, who may have several, and one of its own, by whom an answer tells
#: what was there.
PAIRS = tuple(
    (pattern, subscriber)
    for number, pattern in enumerate(PATTERNS, 1)
    for subscriber in (0, number)
)
BITS = {pair: 1 << number for number, pair in enumerate(PAIRS)}

NAMES = ("subscribe", "unsubscribe", "match", "snapshot", "matches_any", "contains", "len", "clear")
#: How often a thread does each: one that does everything, one that changes, one that comes and
#: goes, one that asks.
ROLES = (
    (30, 25, 20, 12, 3, 3, 3, 4),
    (50, 40, 4, 4, 0, 0, 0, 2),
    (40, 60, 0, 0, 0, 0, 0, 0),
    (10, 0, 60, 10, 10, 10, 0, 0),
)

#: What an operation gave: a boolean, subscribers or pairs as bits, or several of these.
Result = object
#: An operation on a real matcher, and on the state it stands for.
Operation = tuple[str, str, int]


@dataclass(frozen=True)
class Event:
    """An operation, when it started and ended, and its result."""

    start: int
    end: int
    operation: Operation
    result: Result

    def __str__(self) -> str:
        name, text, subscriber = self.operation
        return f"{self.start:4}-{self.end:<4} {name} {text!r} {subscriber} -> {self.result}"


def record(matcher: Matcher[int], seed: int, threads: int = 3, operations: int = 6) -> list[Event]:
    """What happens when the threads of a course, drawn by this seed, do some operations each.

    It uses `SteppedCell`.
    """
    course = Course(seed)
    clock = itertools.count()
    patterns = course.random.sample(PATTERNS, 3)
    events = begun(matcher, course.random, clock.__next__)
    scripts = [
        script(
            matcher, Random(seed * 8 + n), patterns, operations, clock.__next__, events, course.step
        )
        for n in range(threads)
    ]
    SteppedCell.step = course.step
    try:
        course.run(scripts)
    finally:
        SteppedCell.step = walk
    return events


def record_freely(
    matcher: Matcher[int], seed: int, threads: int = 3, operations: int = 6
) -> list[Event]:
    """The same with threads that run as they like."""
    clock = itertools.count()
    random = Random(seed)
    patterns = random.sample(PATTERNS, 3)
    events = begun(matcher, random, clock.__next__)
    before = len(events)
    together = threading.Barrier(threads)

    def start(follow: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            together.wait()
            follow()

        return run

    scripts = [
        script(matcher, Random(seed * 8 + n), patterns, operations, clock.__next__, events, walk)
        for n in range(threads)
    ]
    running = [threading.Thread(target=start(follow)) for follow in scripts]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert len(events) == before + threads * operations
    return events


def begun(matcher: Matcher[int], random: Random, now: Callable[[], int]) -> list[Event]:
    """The history of some subscriptions that were there before: an empty trie has few nodes to
    disagree about.
    """
    events = []
    for text, subscriber in random.sample(PAIRS, random.randint(0, 6)):
        operation = ("subscribe", text, subscriber)
        start = now()
        result = done(matcher, operation)
        events.append(Event(start, now(), operation, result))
    return events


def script(
    matcher: Matcher[int],
    random: Random,
    texts: list[str],
    operations: int,
    now: Callable[[], int],
    events: list[Event],
    step: Callable[[], None],
) -> Callable[[], None]:
    """Some operations drawn by lot. A snapshot is read after it was taken, and again in the end."""
    weights = random.choice(ROLES)
    drawn = [draw(random, weights, texts) for _ in range(operations)]

    def run() -> None:
        snapshots: list[tuple[Matcher[int], Result]] = []
        for operation in drawn:
            step()
            start = now()
            result = done(matcher, operation)
            end = now()
            if isinstance(result, Matcher):
                snapshot = result
                result = contents(snapshot)
                snapshots.append((snapshot, result))
            events.append(Event(start, end, operation, result))
        for snapshot, result in snapshots:
            assert contents(snapshot) == result

    return run


def draw(random: Random, weights: tuple[int, ...], patterns: list[str]) -> Operation:
    """An operation."""
    name = random.choices(NAMES, weights)[0]
    if name in ("match", "matches_any"):
        return name, random.choice(TOPICS), 0
    pattern = random.choice(patterns)
    return name, pattern, random.choice((0, PATTERNS.index(pattern) + 1))


def done(matcher: Matcher[int], operation: Operation) -> Result:
    """Do an operation."""
    name, text, subscriber = operation
    if name == "subscribe":
        return matcher.subscribe(text, subscriber)
    if name == "unsubscribe":
        return matcher.unsubscribe(text, subscriber)
    if name == "match":
        return answer(matcher, text)
    if name == "matches_any":
        return matcher.matches_any(text)
    if name == "contains":
        return (text, subscriber) in matcher
    if name == "snapshot":
        return matcher.snapshot()
    if name == "len":
        return len(matcher)
    matcher.clear()
    return None


def answer(matcher: Matcher[int], topic: str) -> int:
    """The subscribers found, as bits."""
    found = matcher.match(topic)
    assert len(found) == len(set(found))
    return sum(1 << subscriber for subscriber in found)


def contents(snapshot: Matcher[int]) -> Result:
    """What a snapshot answers to everything."""
    return (
        *[answer(snapshot, topic) for topic in TOPICS],
        sum(BITS[pair] for pair in snapshot.subscriptions()),
    )


@cache
def after(state: int, operation: Operation) -> tuple[int, Result]:
    """The state after an operation, and its result, by the definition."""
    name, text, subscriber = operation
    bit = BITS.get((text, subscriber), 0)
    if name == "subscribe":
        return state | bit, not state & bit
    if name == "unsubscribe":
        return state & ~bit, bool(state & bit)
    if name == "match":
        return state, expected(state, text)
    if name == "matches_any":
        return state, expected(state, text) != 0
    if name == "contains":
        return state, bool(state & bit)
    if name == "snapshot":
        return state, (*[expected(state, topic) for topic in TOPICS], state)
    if name == "len":
        return state, state.bit_count()
    return 0, None


@cache
def expected(state: int, topic: str) -> int:
    """The subscribers to find, as bits."""
    found = 0
    for (pattern, subscriber), bit in BITS.items():
        if state & bit and AMQP.matches(pattern, topic):
            found |= 1 << subscriber
    return found


def linearizable(events: list[Event]) -> bool:
    """Whether there is an order of the operations that gives these results and that their times
    allow.
    """
    ordered = sorted(events, key=lambda event: event.start)
    everything = (1 << len(ordered)) - 1
    tried: set[tuple[int, int]] = set()
    waiting = [(0, 0)]
    while waiting:
        taken, state = waiting.pop()
        if taken == everything:
            return True
        if (taken, state) in tried:
            continue
        tried.add((taken, state))
        rest = [(number, event) for number, event in enumerate(ordered) if not taken >> number & 1]
        first_end = min(event.end for _, event in rest)
        for number, event in rest:
            if event.start > first_end:
                break
            following, result = after(state, event.operation)
            if result == event.result:
                waiting.append((taken | 1 << number, following))
    return False


def overlap(events: list[Event]) -> bool:
    """Whether any two operations were under way together."""
    ordered = sorted(events, key=lambda event: event.start)
    return any(earlier.end > later.start for earlier, later in itertools.pairwise(ordered))


def shown(events: list[Event]) -> str:
    """A history to read."""
    return "\n".join(str(event) for event in sorted(events, key=lambda event: event.start))
