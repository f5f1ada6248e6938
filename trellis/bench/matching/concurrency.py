"""Wall time of threads that subscribe and look up at the same time, as in articles 1 and 2 of the
list in matching/__init__.py.

Each worker is a thread that does 1,000 operations. Readers look up topics, writers subscribe, and
mixed workers subscribe in one of ten operations and look up in the others. A matcher that is not
safe for threads is used with a lock, as in article 1.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from trellis.bench.matching.answers import WrongMatch

_OPERATIONS: Final = 1_000
_MIXED_WRITES: Final = _OPERATIONS // 10
#: Longest time in seconds for the check of the new subscriptions after a run. The check goes from
#: the first and the last subscription towards the middle. When the time is over, the remaining
#: subscriptions are not checked.
_PATIENCE: Final = 1.0
#: Algorithms that are safe for threads without a lock.
LOCK_FREE: Final = ("cstrie", "snapshot")


class LockedMatcher:
    """A matcher whose calls are made under one lock."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._lock = threading.Lock()

    def subscribe(self, pattern: str, subscriber: int) -> bool:
        """Subscribe under the lock; return what the matcher's `subscribe` returns."""
        with self._lock:
            return bool(self._matcher.subscribe(pattern, subscriber))

    def match(self, topic: str) -> list[int]:
        """Return the subscribers of a topic, looked up under the lock."""
        with self._lock:
            subscribers: list[int] = self._matcher.match(topic)
            return subscribers


class _Work:
    """The worker threads of one measurement, which begin at the same time.

    `written` holds the (pattern, subscriber) pairs that the workers subscribe.
    """

    def __init__(self, matcher: Any, topics: Sequence[str], workers: int) -> None:
        self._match, self._subscribe, self._topics = matcher.match, matcher.subscribe, topics
        self._start = threading.Barrier(workers + 1)
        self._threads: list[threading.Thread] = []
        self.written: list[tuple[str, int]] = []

    def add(self, pairs: Sequence[tuple[str, int]], reads: int) -> None:
        """Add a worker that subscribes each pair, and does `reads` lookups after each subscription.

        Without pairs, the worker does `reads` lookups only.
        """
        self.written += pairs
        self._threads.append(threading.Thread(target=self._run, args=(pairs, reads)))

    def run(self) -> float:
        """Run the workers and return the milliseconds until the last worker is done."""
        for thread in self._threads:
            thread.start()
        self._start.wait()
        began = time.perf_counter()
        for thread in self._threads:
            thread.join()
        return (time.perf_counter() - began) * 1e3

    def _run(self, pairs: Sequence[tuple[str, int]], reads: int) -> None:
        match, subscribe, topics = self._match, self._subscribe, self._topics
        self._start.wait()
        for number, (pattern, subscriber) in enumerate(pairs):
            subscribe(pattern, subscriber)
            for topic in topics[number * reads : (number + 1) * reads]:
                match(topic)
        if not pairs:
            for topic in topics[:reads]:
                match(topic)


def threads(
    matcher: Any,
    patterns: Sequence[str],
    topics: Sequence[str],
    further: Sequence[str],
    readers: int,
    writers: int,
    mixed: int,
) -> dict[str, float]:
    """Run threads that subscribe and look up; return {"ms": wall time until all are done}.

    `readers`, `writers` and `mixed` are the numbers of threads of each kind. `patterns` are
    subscribed before the run; the threads subscribe the patterns `further`. After the run, the new
    subscriptions are looked up for at most a second. Raises WrongMatch if one of them is missing.
    """
    for subscriber, pattern in enumerate(patterns):
        matcher.subscribe(pattern, subscriber)
    work = _Work(matcher, topics, readers + writers + mixed)
    fresh = [(pattern, len(patterns) + number) for number, pattern in enumerate(further)]
    at = 0
    for _ in range(writers):
        work.add(fresh[at : at + _OPERATIONS], 0)
        at += _OPERATIONS
    for _ in range(mixed):
        work.add(fresh[at : at + _MIXED_WRITES], _OPERATIONS // _MIXED_WRITES - 1)
        at += _MIXED_WRITES
    for _ in range(readers):
        work.add([], _OPERATIONS)
    elapsed = work.run()
    until = time.monotonic() + _PATIENCE
    for number in range(len(work.written)):
        pattern, subscriber = work.written[number // 2 if number % 2 else -1 - number // 2]
        if time.monotonic() > until:
            break
        if list(matcher.match(pattern)) != [subscriber]:
            raise WrongMatch(
                f"after all threads ended, the lookup of {pattern} does not return exactly "
                f"subscriber {subscriber}"
            )
    return {"ms": elapsed}
