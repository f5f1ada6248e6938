"""Time until threads that subscribe and publish at once are done, as in articles 1 and 2.

Each worker does 1,000 operations. Readers match topics, writers subscribe, and mixed workers
subscribe in one of ten operations. A matcher that is not safe for threads gets a lock, as in
article 1.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any, Final

from trellis.bench.matching.answers import WrongMatch

_OPERATIONS: Final = 1_000
_MIXED_WRITES: Final = _OPERATIONS // 10
#: Most seconds for checking the new subscriptions after a run. The first and the last subscriptions
#: are checked first.
_PATIENCE: Final = 1.0
#: Algorithms that are safe for threads without a lock.
LOCK_FREE: Final = ("cstrie", "snapshot")


class LockedMatcher:
    """A matcher behind one lock."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._lock = threading.Lock()

    def subscribe(self, pattern: str, subscriber: int) -> bool:
        """Subscribe under the lock."""
        with self._lock:
            return bool(self._matcher.subscribe(pattern, subscriber))

    def match(self, topic: str) -> list[int]:
        """Match under the lock."""
        with self._lock:
            found: list[int] = self._matcher.match(topic)
            return found


class _Work:
    """Threads that begin at the same time."""

    def __init__(self, matcher: Any, topics: Sequence[str], workers: int) -> None:
        self._match, self._subscribe, self._topics = matcher.match, matcher.subscribe, topics
        self._start = threading.Barrier(workers + 1)
        self._threads: list[threading.Thread] = []
        self.written: list[tuple[str, int]] = []

    def add(self, pairs: Sequence[tuple[str, int]], reads: int) -> None:
        """Add a worker that subscribes pairs, with `reads` lookups after each, or lookups alone."""
        self.written += pairs
        self._threads.append(threading.Thread(target=self._run, args=(pairs, reads)))

    def run(self) -> float:
        """Run the workers and return the milliseconds until the last one is done."""
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
    """Measure wall time in ms. Raises WrongMatch if a subscription is missing afterwards."""
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
            raise WrongMatch(f"after the threads {pattern} does not find {subscriber}")
    return {"ms": elapsed}
