"""Patterns and topics of every workload, the same in every run.

Patterns are AMQP binding keys and topics are AMQP routing keys; a peer with another grammar
translates them. In `tp`, `iot` and `adv`, the number of different words grows with the number of
patterns, so that the number of patterns that match a topic grows slowly.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Final

_TOPICS: Final = 50_000
#: Patterns that are subscribed and unsubscribed during a measurement.
_FURTHER: Final = 1_000
_METRICS: Final = ("temp", "hum", "volt", "rpm", "state", "alarm", "gps", "batt")


@dataclass(frozen=True)
class Words:
    """Patterns, published topics, and further patterns that are subscribed and unsubscribed."""

    patterns: list[str]
    topics: list[str]
    further: list[str]


@dataclass(frozen=True)
class MatchingWorkload:
    """A workload: a function that makes patterns and topics for any number of patterns.

    If `size` is not 0, the workload always has this number of patterns.
    """

    name: str
    text: str
    make: Callable[[int, Random], Words]
    size: int = 0

    def words(self, size: int) -> Words:
        """Return the patterns and topics for `size` patterns, the same in every run."""
        return self.make(size, Random(f"{self.name} {size}"))


def _seed(size: int, random: Random) -> Words:
    def literal() -> str:
        return ".".join(str(random.getrandbits(63)) for _ in range(5))

    patterns = [*(literal() for _ in range(size - 1)), "foo.*.baz.qux.quux"]
    # The topic is repeated, because one call is too short to be timed.
    return Words(
        patterns, ["foo.bar.baz.qux.quux"] * _FURTHER, [literal() for _ in range(_FURTHER)]
    )


def _threads(size: int, random: Random) -> Words:
    """Return the patterns and topics of a workload in which threads subscribe and look up.

    The patterns are the patterns of the workload `seed`. Each topic is one of the patterns, so that
    each lookup finds a subscriber. The further patterns are for the threads that subscribe.
    """
    words = _seed(size, random)
    further = [
        ".".join(str(random.getrandbits(63)) for _ in range(5)) for _ in range(32 * _FURTHER)
    ]
    return Words(
        words.patterns, [random.choice(words.patterns[:-1]) for _ in range(_FURTHER)], further
    )


def _tp(size: int, random: Random) -> Words:
    words = max(10, round(10 * (size / 1_000) ** (1 / 3)))

    def word() -> str:
        return str(random.randrange(words))

    def pattern(number: int) -> str:
        if number % 10 == 0:
            return f"*.{word()}.{word()}"
        if number % 25 == 0:
            return f"{word()}.*.{word()}"
        return f"{word()}.{word()}.{'*' if number % 45 == 0 else word()}"

    patterns = [pattern(number) for number in range(size)]
    topics = [patterns[number % size].replace("*", word()) for number in range(_TOPICS)]
    return Words(patterns, topics, [pattern(number) for number in range(_FURTHER)])


def _iot(size: int, random: Random) -> Words:
    sites, devices = max(4, size // 250), 1_000

    def pattern() -> str:
        kind, site, device, metric = (
            random.random(),
            random.randrange(sites),
            random.randrange(devices),
            random.choice(_METRICS),
        )
        if kind < 0.55:
            return f"site.s{site}.device.d{device}.#"
        if kind < 0.75:
            return f"site.s{site}.device.d{device}.*"
        if kind < 0.85:
            return f"site.s{site}.device.*.{metric}"
        if kind < 0.93:
            return f"site.s{site}.#"
        if kind < 0.98:
            return f"site.*.device.d{device}.{metric}"
        if kind < 0.995:
            return f"site.s{site}.*.d{device}.{metric}"
        return random.choice(
            (f"site.*.device.*.{metric}", "site.#", f"*.s{site}.device.d{device}.{metric}")
        )

    patterns: dict[str, None] = {}
    # Patterns are distinct. A repeated pattern is drawn again, because some of the above forms have
    # few different patterns.
    while len(patterns) < size:
        patterns[pattern()] = None
    topics = [
        f"site.s{random.randrange(sites)}.device.d{random.randrange(devices)}"
        f".{random.choice(_METRICS)}"
        for _ in range(_TOPICS)
    ]
    return Words(list(patterns), topics, [pattern() for _ in range(_FURTHER)])


def _adv(size: int, random: Random) -> Words:
    letters = "abcdefghijklmnopqrst"[: min(20, 8 + size // 1_000)]

    def pattern() -> str:
        if random.random() < 0.8:
            return ".".join(
                "*" if random.random() < 0.5 else random.choice(letters) for _ in range(8)
            )
        return (
            ".".join(
                "*" if random.random() < 0.4 else random.choice(letters)
                for _ in range(random.randint(2, 7))
            )
            + ".#"
        )

    patterns: dict[str, None] = {}
    while len(patterns) < size:
        patterns[pattern()] = None
    topics = [".".join(random.choice(letters) for _ in range(8)) for _ in range(2_000)]
    return Words(list(patterns), topics, [pattern() for _ in range(_FURTHER)])


def _zipf(exponent: float) -> Callable[[int, Random], Words]:
    """Return a function that makes the workload `iot`, with topics drawn by Zipf's law.

    The n-th topic has the weight 1 / n^exponent.
    """

    def make(size: int, random: Random) -> Words:
        words = _iot(size, random)
        weights = [place**-exponent for place in range(1, len(words.topics) + 1)]
        return Words(
            words.patterns, random.choices(words.topics, weights, k=_TOPICS), words.further
        )

    return make


def _one_filter(size: int, random: Random) -> Words:
    return Words(["news.#"] * size, ["news.of.today"], ["news.#"] * _FURTHER)


def _many(hashes: int, words: int) -> MatchingWorkload:
    pattern = ".".join(["#", "a"] * (hashes - 1) + ["#", "b"])

    def make(size: int, random: Random) -> Words:
        return Words(
            [pattern], [".".join("a" * words)], [f"x{number}.{pattern}" for number in range(10)]
        )

    return MatchingWorkload(
        f"hashes-{hashes}x{words}",
        f"one pattern with {hashes} `#` that does not match a topic of {words} words",
        make,
        1,
    )


def _stars(size: int, random: Random) -> Words:
    """Return 1,024 patterns: the topic `a.b.c.d.e.f.g.h.i.j`, with each subset of its ten words
    replaced by `*`.
    """
    letters = "abcdefghij"
    masks = product((False, True), repeat=len(letters))
    patterns = [
        ".".join("*" if star else letter for letter, star in zip(letters, mask, strict=True))
        for mask in masks
    ]
    return Words(
        patterns,
        ["a.b.c.d.e.f.g.h.i.j", "a.b.c.d.e.f.g.h.i.z"],
        [f"{pattern}.k" for pattern in patterns[:100]],
    )


def _states(size: int, random: Random) -> Words:
    """Return a pattern for which a deterministic finite automaton (DFA) needs 2^16 states."""
    pattern = "#.a" + ".*" * 16
    topics = [".".join(random.choice("ab") for _ in range(40)) for _ in range(500)]
    return Words([pattern], topics, [f"{pattern}.x"])


ARTICLE: Final = MatchingWorkload(
    "seed",
    "article 1: random literal patterns of five words, and one with `*` that matches the topic",
    _seed,
)
THREADS: Final = MatchingWorkload(
    "threads", "article 1: as `seed`, while threads subscribe and publish", _threads
)
GROWING: Final = (
    MatchingWorkload("tp", "article 1's throughput test: three words, a tenth with `*` first", _tp),
    MatchingWorkload("iot", "sites, devices and metrics, a wildcard in every pattern", _iot),
    MatchingWorkload("adv", "eight words, half of them `*`, a fifth with `#` at the end", _adv),
)
ZIPF: Final = (
    MatchingWorkload(
        "zipf-1",
        "topics of `iot` by Zipf's law: of 50,000 topics, the n-th has 1 / n of the traffic of the "
        "first topic",
        _zipf(1.0),
    ),
    MatchingWorkload(
        "zipf-1.7",
        "topics of `iot` by Zipf's law with exponent 1.7: of 50,000 topics, the n-th has 1 / n^1.7 "
        "of the traffic of the first topic, so the first ten topics have six sevenths of all "
        "traffic",
        _zipf(1.7),
    ),
)
ONE_FILTER: Final = MatchingWorkload(
    "one-filter", "all subscribers on one pattern", _one_filter, 20_000
)
ATTACKS: Final = (
    _many(2, 20),
    _many(3, 30),
    _many(5, 60),
    _many(63, 128),
    MatchingWorkload(
        "stars-10",
        "1,024 patterns, made from one topic of ten words by replacing each subset of the words by "
        "`*`; all patterns match the first of the two published topics, half of them the second",
        _stars,
        1_024,
    ),
    MatchingWorkload(
        "states-16",
        "the pattern `#.a` followed by sixteen `*`, for which a DFA has 65,536 states",
        _states,
        1,
    ),
)
