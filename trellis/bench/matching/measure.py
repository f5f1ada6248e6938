"""How long does a call take? Loops that run in C, on the processor time of the thread.

`deque.extend(map(function, arguments))` calls and throws away without a step of the interpreter in
between; what it costs around a call is `loop_ns`, measured on `len`: it is stated in results and
not subtracted. The collector of cyclic garbage is off in a contender's process; it runs between the
parts that are timed.
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
#: A chunk of calls is timed at a time: so long at least, as long as there are no more calls than
#: that in it.
_CHUNK_NS: Final = 200_000
_MOST_CALLS: Final = 4_096


def loop_ns() -> float:
    """What the loop itself costs a call, with a call of `len` in it."""
    return per_call(len, ["one.two.three"] * _MOST_CALLS, 0.02)


def per_call(function: Callable[[Any], object], arguments: Sequence[Any], seconds: float) -> float:
    """Nanoseconds of a call, over the arguments in turn, for about so long; one call at least.

    While chunks are still growing they do not count: a chunk too short measures the clock.
    """
    limit, spent, done, at, calls = int(seconds * 1e9), 0, 0, 0, 1
    while spent < limit:
        chunk = arguments[at : at + calls]
        at = at + len(chunk) if at + len(chunk) < len(arguments) else 0
        began = clock()
        drain(map(function, chunk))
        took = clock() - began
        if took >= _CHUNK_NS or calls >= min(_MOST_CALLS, len(arguments)):
            spent += max(took, 1)
            done += len(chunk)
        else:
            calls *= 2
    return spent / done


def first_pass(
    function: Callable[[Any], object], arguments: Sequence[Any], seconds: float
) -> tuple[int, float]:
    """Call with each argument once, as far as that takes so long: how many, and nanoseconds of a
    call.
    """
    limit, spent, done, calls = int(seconds * 1e9), 0, 0, 1
    while done < len(arguments) and (spent < limit or not done):
        chunk = arguments[done : done + calls]
        began = clock()
        drain(map(function, chunk))
        took = clock() - began
        spent += took
        done += len(chunk)
        if took < _CHUNK_NS and calls < _MOST_CALLS:
            calls *= 2
    return done, spent / done


def pairs(matcher: Any, patterns: Sequence[str], first: int, seconds: float) -> tuple[float, float]:
    """Nanoseconds to subscribe, and to unsubscribe, one of these patterns; who subscribes is a
    number from `first` on.

    All are added, then all removed, again and again; fewer at a time where one takes long.
    """
    limit, together, back, done, count = int(seconds * 1e9), 0, 0, 0, 1
    subscribers = range(first, first + len(patterns))
    while together + back < limit:
        some = patterns[:count]
        began = clock()
        drain(map(matcher.subscribe, some, subscribers))
        middle = clock()
        drain(map(matcher.unsubscribe, some, subscribers))
        took = clock() - began
        if took >= _CHUNK_NS or count >= len(patterns):
            together += max(middle - began, 1)
            back += max(took - (middle - began), 1)
            done += len(some)
        else:
            count *= 2
    return together / done, back / done


def loaded(matcher: Any, patterns: Sequence[str]) -> float:
    """Subscribe number i to the i-th of the patterns; nanoseconds for each."""
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
    """All figures of one workload, in nanoseconds a call. Raises Wrong.

    `first` is the first pass over the topics, in which some algorithms learn; `lookup` and `any`
    are what follows, on those topics that the first pass came to in four times the time for a
    figure.
    """
    load = loaded(matcher, patterns)
    done, first = first_pass(matcher.match, topics, 4 * seconds)
    check(matcher.match, topics, expected)
    warm = topics[:done]
    lookup = per_call(matcher.match, warm, seconds)
    found_any = per_call(matcher.matches_any, warm, seconds)
    subscribe, unsubscribe = pairs(matcher, further, len(patterns), seconds)
    check(matcher.match, topics, expected[:1])
    return {
        "lookup": lookup,
        "first": first,
        "any": found_any,
        "subscribe": subscribe,
        "unsubscribe": unsubscribe,
        "load": load,
    }


def cold(make: Callable[[], Any], pattern: str, topic: str, seconds: float) -> dict[str, float]:
    """Article 1's cold start: into an empty matcher, and out of it; a lookup where there is nothing
    else. Raises Wrong.
    """
    limit, together, back, done = int(seconds * 1e9), 0, 0, 0
    join, leave = methodcaller("subscribe", pattern, 0), methodcaller("unsubscribe", pattern, 0)
    while together + back < limit:
        matchers = [make() for _ in range(256)]
        began = clock()
        drain(map(join, matchers))
        middle = clock()
        drain(map(leave, matchers))
        together += middle - began
        back += clock() - middle
        done += len(matchers)
    one = make()
    one.subscribe(pattern, 0)
    check(one.match, [topic], [answers(lambda _: [0], [topic])])
    return {
        "subscribe": together / done,
        "unsubscribe": back / done,
        "lookup": per_call(one.match, [topic] * 256, seconds),
    }
