"""Compares ways to invalidate a cache of lookups while subscriptions change: drop only the answers
that change, drop all answers, or compare the changed pattern with all cached topics, as NATS does.
"""

from __future__ import annotations

import random
import time
from functools import partial

from rounds import Work, devices, machine, time_ways

from matching import AMQP, Matcher, create
from matching.cache import RouteCache


class Cleared:
    """A cache from topics to subscribers. A change of any subscription empties the cache."""

    def __init__(self, source: Matcher[int], most: int) -> None:
        self.source = source
        self.most = most
        self.answers: dict[str, tuple[int, ...]] = {}

    def find(self, topic: str) -> tuple[int, ...]:
        """Return the subscribers of a topic."""
        answer = self.answers.get(topic)
        if answer is None:
            answer = tuple(self.source.match(topic))
            if len(self.answers) >= self.most:
                del self.answers[next(iter(self.answers))]
            self.answers[topic] = answer
        return answer

    def changed(self, pattern: str) -> None:
        """Empty the cache, because the subscribers of a pattern changed."""
        self.answers.clear()


class Scanned(Cleared):
    """A cache as in NATS: a changed pattern is compared with each cached topic."""

    def changed(self, pattern: str) -> None:
        for topic in [topic for topic in self.answers if AMQP.matches(pattern, topic)]:
            del self.answers[topic]


class Exact:
    """The route cache of `matching`: a change drops only answers that it affects."""

    def __init__(self, source: Matcher[int], most: int) -> None:
        self.cache: RouteCache[int] = RouteCache(source, most)
        self.find = self.cache.find

    def changed(self, pattern: str) -> None:
        """Drop the answers for topics that the pattern matches."""
        self.cache.invalidate(pattern, AMQP)


class Uncached:
    """Lookups without a cache, for comparison."""

    def __init__(self, source: Matcher[int]) -> None:
        self.find = source.match

    def changed(self, pattern: str) -> None:
        """Do nothing, because no answers are cached."""


def publish(
    cache: Cleared | Exact | Uncached, topics: list[str], patterns: list[str], every: int
) -> int:
    """Look up each topic in the cache, and return the number of topics.

    After each `every` lookups, call `cache.changed` with a random pattern, as if its subscribers
    had changed. If `every` is 0, do not call it. The matcher itself does not change.
    """
    dice = random.Random(1)
    for number, topic in enumerate(topics):
        cache.find(topic)
        if every and number % every == 0:
            cache.changed(patterns[dice.randrange(len(patterns))])
    return len(topics)


def main() -> None:
    """Run all comparisons and print their figures."""
    machine()
    patterns, topics = devices(10_000)
    dice = random.Random(1)
    source: Matcher[int] = create("trie", AMQP)
    for number, pattern in enumerate(patterns):
        source.subscribe(pattern, number)
    topics = sorted(
        {
            f"{topic.rsplit('.', 1)[0]}.{value}"
            for topic in topics
            for value in ("temp", "hum", "volt", "rpm", "gps", "batt")
        }
    )
    dice.shuffle(topics)
    print(
        f"{len(topics):,} topics; nanoseconds per publication, including its share of the changes"
    )
    drawn = {
        "zipf": [
            topics[min(int(dice.paretovariate(0.7)) - 1, len(topics) - 1)] for _ in range(40_000)
        ],
        "even": [topics[dice.randrange(len(topics))] for _ in range(40_000)],
    }
    for name, sequence in drawn.items():
        for every in (0, 1_000, 100, 10):
            ways: dict[str, Work] = {
                kind: partial(publish, cache, sequence, patterns, every)
                for kind, cache in (
                    ("uncached", Uncached(source)),
                    ("cleared", Cleared(source, 65_536)),
                    ("scanned 1,024", Scanned(source, 1_024)),
                    ("exact", Exact(source, 65_536)),
                )
            }
            time_ways(f"{name}, lookups per change: {every or 'no change'}", ways)
    print("the longest time that one change holds the loop, with 65,536 cached topics")
    for pattern in (
        "site.s1.device.d1.#",
        "site.s1.#",
        "site.*.device.d1.temp",
        "site.#",
        "site.#.nothing",
        "#",
        "*.s1.device.d1.temp",
    ):
        cache: RouteCache[int] = RouteCache(source)
        for number in range(65_536):
            cache.find(f"site.s{number % 40}.device.d{number // 40}.temp")
        start = time.perf_counter_ns()
        cache.invalidate(pattern, AMQP)
        print(
            f"    {pattern:24} {(time.perf_counter_ns() - start) / 1e6:.2f} ms, {cache.dropped:,} "
            "topics dropped"
        )


if __name__ == "__main__":
    main()
