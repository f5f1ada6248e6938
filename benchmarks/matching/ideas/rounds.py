"""Shared parts of the scripts that compare ideas: timing, and patterns with topics.

    python benchmarks/matching/ideas/fields.py

This line runs the script fields.py; the other scripts of the folder run in the same way. A script
measures the package `matching` that Python finds. To choose another one, set PYTHONPATH.
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping

import matching.trie

Work = Callable[[], int]


def timed(ways: Mapping[str, Work], rounds: int = 5) -> dict[str, float]:
    """Return the CPU time of each way in ns per operation: the median of interleaved rounds.

    A way is a function that does operations and returns their number.
    """
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            start = time.thread_time_ns()
            operations = work()
            samples[name].append((time.thread_time_ns() - start) / operations)
    return {name: statistics.median(some) for name, some in samples.items()}


def time_ways(title: str, ways: Mapping[str, Work], rounds: int = 5) -> dict[str, float]:
    """Measure the CPU time of several ways to do the same work; print and return the medians.

    The medians are in ns per operation, by the name of the way.
    """
    medians = timed(ways, rounds)
    print(
        f"{title:34}",
        "  ".join(f"{name} {nanoseconds:,.0f} ns" for name, nanoseconds in medians.items()),
        flush=True,
    )
    return medians


def machine() -> None:
    """Print the Python version, and whether `matching` is compiled."""
    compiled = not str(matching.trie.__file__).endswith(".py")
    print(f"Python {sys.version.split()[0]}, matching {'compiled' if compiled else 'interpreted'}")


def three_words(size: int) -> tuple[list[str], list[str]]:
    """Return the patterns and topics of the throughput test (`tp` in docs/matching.md).

    `size` is the number of patterns. Topics have three words; about a sixth of the patterns have
    one `*`; each topic matches at least one pattern.
    """
    dice = random.Random(42)
    letters = max(10, round(10 * (size / 1000) ** (1 / 3)))
    patterns: list[str] = []
    for number in range(size):
        words = [str(dice.randrange(letters)) for _ in range(3)]
        if number % 10 == 0:
            words[0] = "*"
        elif number % 25 == 0:
            words[1] = "*"
        elif number % 45 == 0:
            words[2] = "*"
        patterns.append(".".join(words))
    topics = [
        patterns[number % size].replace("*", str(dice.randrange(letters)))
        for number in range(5_000)
    ]
    return patterns, topics


def devices(size: int) -> tuple[list[str], list[str]]:
    """Return `size` patterns, and topics: they name devices at sites.

    Every pattern has a wildcard.
    """
    dice = random.Random(42)
    sites = max(4, size // 250)
    values = ["temp", "hum", "volt", "rpm", "state", "alarm", "gps", "batt"]
    patterns: dict[str, None] = {}
    while len(patterns) < size:
        site, device, value = (
            f"s{dice.randrange(sites)}",
            f"d{dice.randrange(1000)}",
            dice.choice(values),
        )
        forms = (
            [f"site.{site}.device.{device}.#"] * 11
            + [f"site.{site}.device.{device}.*"] * 4
            + [f"site.{site}.device.*.{value}"] * 2
            + [
                f"site.{site}.*.{device}.{value}",
                f"site.*.device.{device}.{value}",
                f"*.{site}.device.{device}.{value}",
            ]
        )
        patterns[dice.choice(forms)] = None
    topics = [
        f"site.s{dice.randrange(sites)}.device.d{dice.randrange(1000)}.{dice.choice(values)}"
        for _ in range(5_000)
    ]
    return list(patterns), topics
