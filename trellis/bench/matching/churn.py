"""Cost of a publication while subscriptions change, with and without a cache of answers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import Any, Final

from trellis.bench.matching.answers import check
from trellis.bench.matching.measure import clock, drain, loaded

#: Number of topics that are looked up in one timed step if no subscription changes.
_CHUNK: Final = 1_000


def churn(
    matcher: Any,
    patterns: Sequence[str],
    topics: Sequence[str],
    further: Sequence[str],
    expected: Sequence[Sequence[int]],
    every: int,
    seconds: float,
) -> dict[str, float]:
    """Measure ns per publication while one subscription changes after each `every` publications.

    A publication is a lookup of its topic. If `every` is 0, no subscription changes. Before the
    measurement, all topics are looked up once, to fill a cache. The measurement takes about
    `seconds`. Return {"publish": ns}. Raises WrongMatch.
    """
    loaded(matcher, patterns)
    from matching.cache import RouteCache

    # The route cache returns its stored answer, which a reader need not copy, as in NATS.
    look = matcher.find if isinstance(matcher, RouteCache) else matcher.match
    drain(map(look, topics))
    size = every or _CHUNK
    chunks = [topics[at : at + size] for at in range(0, len(topics) - size + 1, size)]
    limit, spent, done, changes = (
        int(seconds * 1e9),
        0,
        0,
        cycle(_changes(matcher, patterns, further)),
    )
    for chunk in cycle(chunks):
        began = clock()
        drain(map(look, chunk))
        if every:
            change, pattern, subscriber = next(changes)
            change(pattern, subscriber)
        spent += clock() - began
        done += len(chunk)
        if spent >= limit:
            break
    for number, pattern in enumerate(further):
        matcher.unsubscribe(pattern, len(patterns) + number)
    check(matcher.match, topics, expected)
    return {"publish": spent / done}


def _changes(
    matcher: Any, patterns: Sequence[str], further: Sequence[str]
) -> list[tuple[Any, str, int]]:
    """Return the subscription changes in order, each as (method, pattern, subscriber): subscribe to
    a further pattern, unsubscribe from it, then the next pattern.
    """
    return [
        (change, pattern, len(patterns) + number)
        for number, pattern in enumerate(further)
        for change in (matcher.subscribe, matcher.unsubscribe)
    ]
