"""Tests that no pattern makes a lookup expensive, however many wildcards it has."""

from __future__ import annotations

import time
import timeit
from collections.abc import Callable

import pytest

from matching import AMQP, Matcher, TopicIndex, create

TOPIC = ".".join("a" * 128)
ATTACKS = {
    "63 many": ".".join(["#.a"] * 63),
    "63 many and no match": ".".join(["#.a"] * 62 + ["#.b"]),
    "42 many and one": ".".join(["#.*.a"] * 42),
    "127 many in a row": ".".join(["#"] * 127),
    "many, then 100 times one": ".".join(["#", "a", *["*"] * 100]),
}
#: Maximum time of a lookup, as a multiple of the time for the simple pattern. The simple pattern
#: causes 128 visits of nodes; a pattern with 63 `#` causes at most 126 x 128. An exponential search
#: would not end.
BOUND = 1_000


def seconds(action: Callable[[], object]) -> float:
    """Return the CPU seconds that the action takes, which other processes do not affect."""
    return min(timeit.repeat(action, number=1, repeat=5, timer=time.thread_time))


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("name", ["trie", "bitmap"])
def test_a_lookup_costs_at_most_words_times_nodes(name: str, attack: str) -> None:
    simple: Matcher[str] = create("trie", AMQP)
    simple.subscribe(".".join(["*"] * 128), "x")
    attacked: Matcher[str] = create(name, AMQP)
    attacked.subscribe(ATTACKS[attack], "x")
    assert attacked.matches_any(TOPIC) == AMQP.matches(ATTACKS[attack], TOPIC)
    ratio = seconds(lambda: attacked.match(TOPIC)) / seconds(lambda: simple.match(TOPIC))
    assert ratio < BOUND


@pytest.mark.parametrize("attack", ATTACKS)
def test_searching_stored_topics_has_a_bounded_cost(attack: str) -> None:
    index: TopicIndex[str] = TopicIndex(AMQP)
    index.put(TOPIC, "x")
    assert (index.match(ATTACKS[attack]) == ["x"]) == AMQP.matches(ATTACKS[attack], TOPIC)
    ratio = seconds(lambda: index.match(ATTACKS[attack])) / seconds(
        lambda: index.match(".".join(["*"] * 128))
    )
    assert ratio < BOUND


def test_attacks_together_cost_no_more_than_one_after_the_other() -> None:
    together: Matcher[str] = create("trie", AMQP)
    alone = 0.0
    for name, pattern in ATTACKS.items():
        together.subscribe(pattern, name)
        single: Matcher[str] = create("trie", AMQP)
        single.subscribe(pattern, name)
        alone += seconds(lambda single=single: single.match(TOPIC))  # type: ignore[misc]
    assert seconds(lambda: together.match(TOPIC)) < 5 * alone


@pytest.mark.parametrize("name", ["trie", "auto", "shapes", "dfa", "bitmap", "snapshot", "cstrie"])
@pytest.mark.parametrize("pattern", ["a.b", "a.#"])
def test_to_learn_whether_anyone_matches_does_not_collect_thousands(
    name: str, pattern: str
) -> None:
    matcher: Matcher[int] = create(name, AMQP)
    for subscriber in range(10_000):
        matcher.subscribe(pattern, subscriber)
    assert matcher.matches_any("a.b")
    assert seconds(lambda: matcher.matches_any("a.b")) < seconds(lambda: matcher.match("a.b")) / 5
