"""CPU time of a matcher's calls, made by a loop that runs in C.

`deque.extend(map(function, arguments))` calls a function and drops the results without bytecode in
between. `loop_ns` is the overhead of this loop, measured with `len`: it is reported, not
subtracted. The garbage collector is off in the process of a contender and runs between
measurements.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Final

from trellis.bench.matching.answers import answers, check

clock: Final = time.thread_time_ns
drain: Final = deque[object](maxlen=0).extend
#: Calls are timed in chunks. A chunk takes at least this many nanoseconds, unless it reaches
#: _MOST_CALLS calls.
_CHUNK_NS: Final = 200_000
#: Largest number of calls in a chunk.
_MOST_CALLS: Final = 4_096


def loop_ns() -> float:
    """Return the overhead of the measuring loop in ns per call, measured with `len`.

    The overhead is reported, not subtracted.
    """
    return per_call(len, ["one.two.three"] * _MOST_CALLS, 0.02)


def per_call(function: Callable[[Any], object], arguments: Sequence[Any], seconds: float) -> float:
    """Call `function` with each argument in turn for about `seconds`; return ns per call.

    Calls are timed in chunks. The chunks grow until a chunk takes _CHUNK_NS, or cannot grow any
    more. Shorter chunks do not count: the cost of reading the clock would distort them.
    """
    limit, spent, done, at, calls = int(seconds * 1e9), 0, 0, 0, 1
    while spent < limit:
        chunk = arguments[at : at + calls]
        at = at + len(chunk) if at + len(chunk) < len(arguments) else 0
        began = clock()
        drain(map(function, chunk))
        elapsed = clock() - began
        if elapsed >= _CHUNK_NS or calls >= min(_MOST_CALLS, len(arguments)):
            spent += max(elapsed, 1)
            done += len(chunk)
        else:
            calls *= 2
    return spent / done


def first_pass(
    function: Callable[[Any], object], arguments: Sequence[Any], seconds: float
) -> tuple[int, float]:
    """Call `function` once with each argument, for at most about `seconds`.

    Return the number of calls made, and ns per call.
    """
    limit, spent, done, calls = int(seconds * 1e9), 0, 0, 1
    while done < len(arguments) and (spent < limit or not done):
        chunk = arguments[done : done + calls]
        began = clock()
        drain(map(function, chunk))
        elapsed = clock() - began
        spent += elapsed
        done += len(chunk)
        if elapsed < _CHUNK_NS and calls < _MOST_CALLS:
            calls *= 2
    return done, spent / done


def pairs(matcher: Any, patterns: Sequence[str], first: int, seconds: float) -> tuple[float, float]:
    """Return ns per call of subscribe and of unsubscribe; subscribers are numbers from `first`.

    Each round subscribes a number of patterns, then unsubscribes them. The number is large enough
    that a round takes _CHUNK_NS, unless there are too few patterns. Rounds are repeated for about
    `seconds`.
    """
    limit, added, removed, done, count = int(seconds * 1e9), 0, 0, 0, 1
    subscribers = range(first, first + len(patterns))
    while added + removed < limit:
        some = patterns[:count]
        began = clock()
        drain(map(matcher.subscribe, some, subscribers))
        middle = clock()
        drain(map(matcher.unsubscribe, some, subscribers))
        elapsed = clock() - began
        if elapsed >= _CHUNK_NS or count >= len(patterns):
            added += max(middle - began, 1)
            removed += max(elapsed - (middle - began), 1)
            done += len(some)
        else:
            count *= 2
    return added / done, removed / done


def loaded(matcher: Any, patterns: Sequence[str]) -> float:
    """Subscribe each pattern, with its index as the subscriber; return ns per subscription."""
    began = clock()
    drain(map(matcher.subscribe, patterns, range(len(patterns))))
    return (clock() - began) / len(patterns)


def workload(
    matcher: Any,
    patterns: Sequence[str],
    topics: Sequence[str],
    further: Sequence[str],
    expected: Sequence[Sequence[int]],
    seconds: float,
) -> dict[str, float]:
    """Return all figures of a workload, by name, in ns per call. Raises WrongMatch.

    `load` is for subscribing `patterns`. `first` is for each topic's first lookup, in which some
    algorithms fill caches; its measurement takes at most four times `seconds`. `lookup` and `any`
    are for later calls of `match` and `matches_any` with the same topics. `subscribe` and
    `unsubscribe` are for the patterns `further`.
    """
    load = loaded(matcher, patterns)
    done, first = first_pass(matcher.match, topics, 4 * seconds)
    check(matcher.match, topics, expected)
    warm = topics[:done]
    lookup = per_call(matcher.match, warm, seconds)
    any_match = per_call(matcher.matches_any, warm, seconds)
    subscribe, unsubscribe = pairs(matcher, further, len(patterns), seconds)
    check(matcher.match, topics, expected[:1])
    return {
        "lookup": lookup,
        "first": first,
        "any": any_match,
        "subscribe": subscribe,
        "unsubscribe": unsubscribe,
        "load": load,
    }


def cold(make: Callable[[], Any], pattern: str, topic: str, seconds: float) -> dict[str, float]:
    """Return ns per call of subscribe and unsubscribe in new matchers, and of lookup.

    Each new matcher gets one subscription, which is then removed. The lookup is measured in a
    matcher with one subscription. Each of both measurements takes about `seconds`. Raises
    WrongMatch.
    """
    limit, added, removed, done = int(seconds * 1e9), 0, 0, 0
    join, leave = methodcaller("subscribe", pattern, 0), methodcaller("unsubscribe", pattern, 0)
    while added + removed < limit:
        matchers = [make() for _ in range(256)]
        began = clock()
        drain(map(join, matchers))
        middle = clock()
        drain(map(leave, matchers))
        added += middle - began
        removed += clock() - middle
        done += len(matchers)
    one = make()
    one.subscribe(pattern, 0)
    check(one.match, [topic], [answers(lambda _: [0], [topic])])
    return {
        "subscribe": added / done,
        "unsubscribe": removed / done,
        "lookup": per_call(one.match, [topic] * 256, seconds),
    }
