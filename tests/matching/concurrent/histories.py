"""Records concurrent histories of a matcher and decides if they are linearizable.

Each operation takes effect at one moment between its start and its end. A history is linearizable
if such moments can be chosen so that the operations, executed in the order of these moments, give
the recorded results.

The search is the algorithm of Wing and Gong, with Lowe's memory of visited configurations. It
chooses the next operation: one whose start is before the end of every other remaining operation. It
applies the operation to the state. If the result is the recorded one, the search continues,
otherwise it backtracks. A state is a set of (pattern, subscriber) pairs, represented as the bits of
an int.
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
#: Every pattern has subscriber 0, which may have several patterns, and one subscriber of its own,
#: which identifies the pattern in an answer.
PAIRS = tuple(
    (pattern, subscriber)
    for number, pattern in enumerate(PATTERNS, 1)
    for subscriber in (0, number)
)
BITS = {pair: 1 << number for number, pair in enumerate(PAIRS)}

NAMES = ("subscribe", "unsubscribe", "match", "snapshot", "matches_any", "contains", "len", "clear")
#: Weights of NAMES for four kinds of threads: all operations, mainly changes, subscribe and
#: unsubscribe, mainly lookups.
ROLES = (
    (30, 25, 20, 12, 3, 3, 3, 4),
    (50, 40, 4, 4, 0, 0, 0, 2),
    (40, 60, 0, 0, 0, 0, 0, 0),
    (10, 0, 60, 10, 10, 10, 0, 0),
)

#: The result of an operation: a boolean, subscribers or pairs as bits, or several of these.
Result = object
#: An operation: its name in NAMES, its pattern or topic, and its subscriber.
Operation = tuple[str, str, int]


@dataclass(frozen=True)
class Event:
    """An operation with its result, and its start and end as readings of one shared counter."""

    start: int
    end: int
    operation: Operation
    result: Result

    def __str__(self) -> str:
        name, text, subscriber = self.operation
        return f"{self.start:4}-{self.end:<4} {name} {text!r} {subscriber} -> {self.result}"


def record(matcher: Matcher[int], seed: int, threads: int = 3, operations: int = 6) -> list[Event]:
    """Return a history of threads that take turns in an order drawn from the seed (a Course).

    Each thread does `operations` operations. The matcher must use `SteppedCell`.
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
    """Return a history of random operations by threads that the operating system schedules."""
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
    """Give the matcher some initial subscriptions, and return the history of these operations.

    The subscriptions give the trie more nodes at which later operations can conflict. `now` returns
    the next time of the history.
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
    """Return a function that does random operations and adds each of them to `events`.

    The function calls `step` before each operation; `now` returns the next time of the history. The
    function reads each snapshot twice: when it is made, and after all operations. Both readings
    must be equal.
    """
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
    """Return a random operation; `weights` are the relative frequencies of NAMES."""
    name = random.choices(NAMES, weights)[0]
    if name in ("match", "matches_any"):
        return name, random.choice(TOPICS), 0
    pattern = random.choice(patterns)
    return name, pattern, random.choice((0, PATTERNS.index(pattern) + 1))


def done(matcher: Matcher[int], operation: Operation) -> Result:
    """Carry out an operation on the matcher, and return its result."""
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
    """Return the subscribers that the matcher finds, as the bits of an int."""
    subscribers = matcher.match(topic)
    assert len(subscribers) == len(set(subscribers))
    return sum(1 << subscriber for subscriber in subscribers)


def contents(snapshot: Matcher[int]) -> Result:
    """Return the snapshot's answers for all topics, and its (pattern, subscriber) pairs as bits."""
    return (
        *[answer(snapshot, topic) for topic in TOPICS],
        sum(BITS[pair] for pair in snapshot.subscriptions()),
    )


@cache
def after(state: int, operation: Operation) -> tuple[int, Result]:
    """Return the state after an operation, and the result that the operation must have."""
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
    """Return the subscribers that match a topic by the definition, as the bits of an int."""
    subscribers = 0
    for (pattern, subscriber), bit in BITS.items():
        if state & bit and AMQP.matches(pattern, topic):
            subscribers |= 1 << subscriber
    return subscribers


def linearizable(events: list[Event]) -> bool:
    """True if an order of the operations that respects their times explains all their results."""
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
    """True if any two operations overlapped in time."""
    ordered = sorted(events, key=lambda event: event.start)
    return any(earlier.end > later.start for earlier, later in itertools.pairwise(ordered))


def shown(events: list[Event]) -> str:
    """Return the history as text, one operation in a line, sorted by their starts."""
    return "\n".join(str(event) for event in sorted(events, key=lambda event: event.start))
