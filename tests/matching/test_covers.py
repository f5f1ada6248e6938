"""Tests of `covers`: True if one pattern matches each topic that another pattern matches.

The expected result is computed by matching both patterns with all topics that can tell them apart.
"""

from __future__ import annotations

import random
import time
import timeit
from functools import cache
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, InvalidPattern
from matching.covers import COMPARED_ALL, Coverage, covers, redundant
from tests.matching.words import GRAMMARS, patterns


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("#", "", True),
        ("#", "a.*.#", True),
        ("#", "#.#", True),
        ("#.#", "#", True),
        ("*", "#", False),
        ("", "#", False),
        ("", "", True),
        ("*", "", False),
        ("#.*", "*.#", True),
        ("*.#", "#.*", True),
        ("#.*", "#", False),
        ("*.#.*", "#.*.*", True),
        ("#.*.*", "*.#", False),
        ("a.*", "a.b", True),
        ("a.b", "a.*", False),
        ("a.*", "a.#", False),
        ("a.#", "a.*", True),
        ("a.#", "a", True),
        ("a.#", "b", False),
        ("a.#.a", "a", False),
        ("a.#.a", "a.a", True),
        ("#.a.#.a.#", "b.a.#.c.a", True),
        ("#.a.*.b.#", "a.#.b", False),
        ("#.a.*.b.#", "a.#.a.c.b", True),
        ("#.a.#.b", "a.#.b.b", True),
        ("*.*.#.a", "#.*.a.a", True),
        ("*.*.*.#.a", "#.*.a.a", False),
        ("#.a.#.b.#", "#.b.#.a.#", False),
        ("a.#.b", "a.c.d.b", True),
        ("a.*.#.b", "a.#.c.#.b", True),
        ("#.a.a.b.#", "a.a.a.b", True),
        ("#.a.#", "a*", False),
    ],
)
def test_amqp_patterns(a: str, b: str, expected: bool) -> None:
    assert covers(a, b, AMQP) is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("#", "+/#", True),
        ("+/#", "#", True),
        ("+", "#", False),
        ("#", "$SYS", False),
        ("#", "$SYS/#", False),
        ("+/x", "$SYS/x", False),
        ("$SYS/#", "$SYS/+/x", True),
        ("$SYS/#", "$SYS", True),
        ("$SYS/+", "$SYS/$x", True),
        ("a/#", "a/$SYS", True),
        ("a/+", "a/", True),
        ("+/+", "/", True),
        ("+", "/", False),
        ("sport/#", "sport", True),
        ("sport/+", "sport", False),
        ("sport/+/#", "sport/#", False),
        ("#", "/", True),
    ],
)
def test_mqtt_filters(a: str, b: str, expected: bool) -> None:
    assert covers(a, b, MQTT) is expected


@cache
def spoken(grammar: Grammar, letters: tuple[str, ...], length: int) -> list[str]:
    """Return all topics of up to `length` words, each word one of `letters`."""
    lists = [words for size in range(length + 1) for words in product(letters, repeat=size)]
    return sorted(
        {grammar.separator.join(words) for words in lists} - ({""} if grammar is MQTT else set())
    )


@cache
def matched_topics(
    grammar: Grammar, pattern: str, letters: tuple[str, ...], length: int
) -> frozenset[str]:
    return frozenset(
        topic for topic in spoken(grammar, letters, length) if grammar.matches(pattern, topic)
    )


def small_patterns(grammar: Grammar, length: int) -> list[str]:
    letters = ("a", "$x") if grammar is MQTT else ("a",)
    texts = {
        grammar.separator.join(words)
        for size in range(length + 1)
        for words in product((*letters, grammar.one, grammar.many), repeat=size)
    }
    valid = []
    for text in sorted(texts):
        try:
            grammar.check(text)
        except InvalidPattern:
            continue
        valid.append(text)
    return valid


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
def test_coverage_of_all_short_patterns_agrees_with_all_topics(grammar: Grammar) -> None:
    letters = ("a", "z", "$x") if grammar is MQTT else ("a", "z")
    length = 5 if grammar is MQTT else 7
    some = small_patterns(grammar, 3 if grammar is MQTT else 4)
    assert len(some) > 40
    for a, b in product(some, repeat=2):
        assert covers(a, b, grammar) == (
            matched_topics(grammar, b, letters, length)
            <= matched_topics(grammar, a, letters, length)
        ), (a, b)


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_coverage_of_amqp_patterns_agrees_with_all_topics(data: st.DataObject) -> None:
    words = st.sampled_from(["a", "a", "b", "*", "#", "#"])
    a = ".".join(data.draw(st.lists(words, max_size=6)))
    b = ".".join(data.draw(st.lists(words, max_size=4)))
    expected = all(AMQP.matches(a, topic) for topic in _distinguishing_topics(b))
    assert covers(a, b, AMQP) == expected, (a, b)


def _distinguishing_topics(pattern: str) -> list[str]:
    """Return topics that show if another pattern (of up to six words) covers this pattern.

    The other pattern covers this one if it matches all of these topics. They are made from this
    pattern: each `*` becomes the word `z`, which no pattern contains, and each `#` becomes zero to
    seven words `z`.
    """
    words = AMQP.split(pattern)
    topics = []
    for sizes in product(range(8), repeat=words.count("#")):
        left = list(sizes)
        topic: list[str] = []
        for word in words:
            topic += ["z"] * left.pop() if word == "#" else ["z" if word == "*" else word]
        topics.append(".".join(topic))
    return topics


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_covering_is_reflexive_and_transitive(grammar: Grammar, data: st.DataObject) -> None:
    a, b, c = (data.draw(patterns(grammar)) for _ in range(3))
    assert covers(a, a, grammar)
    if covers(a, b, grammar) and covers(b, c, grammar):
        assert covers(a, c, grammar)


# -- sets of patterns


def test_coverage_names_the_rules_that_decide() -> None:
    rules = Coverage(MQTT)
    assert rules.add("home/#")
    assert rules.add("home/+/door")
    assert not rules.add("home/#")
    assert sorted(rules.covering("home/hall/door")) == ["home/#", "home/+/door"]
    assert rules.covering("home/+/+") == ["home/#"]
    assert not rules.covers("#")
    assert not rules.covers("garden")
    assert "home/#" in rules
    assert rules.remove("home/#")
    assert not rules.remove("home/#")
    assert not rules.covers("home/+/+")
    assert len(rules) == 1


def test_an_invalid_pattern_is_refused() -> None:
    rules = Coverage(MQTT)
    with pytest.raises(InvalidPattern):
        rules.add("a/#/b")
    assert len(rules) == 0
    with pytest.raises(InvalidPattern):
        rules.covers("a/#/b")


def test_two_patterns_cover_a_third_only_one_by_one() -> None:
    rules = Coverage(AMQP)
    rules.add("a")
    rules.add("a.*.#")
    assert not rules.covers("a.#")


@pytest.mark.parametrize("unrelated", [0, COMPARED_ALL], ids=["small", "large"])
@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_coverage_finds_the_covering_patterns(
    grammar: Grammar, unrelated: int, data: st.DataObject
) -> None:
    rules = Coverage(grammar)
    for number in range(unrelated):
        rules.add(f"unrelated{number}")
    for rule in data.draw(st.lists(patterns(grammar), max_size=12)):
        rules.add(rule)
    for gone in data.draw(st.lists(patterns(grammar), max_size=3)):
        assert rules.remove(gone) or gone not in rules
    pattern = data.draw(patterns(grammar))
    expected = [rule for rule in rules.patterns() if covers(rule, pattern, grammar)]
    assert sorted(rules.covering(pattern)) == sorted(expected)
    assert rules.covers(pattern) == (len(expected) > 0)


def test_needless_patterns_are_named_with_one_that_stays() -> None:
    assert redundant(["a.b", "a.*", "a.#", "b", "b"], AMQP) == {"a.b": "a.#", "a.*": "a.#"}
    assert redundant(["#.*", "*.#", "*.#.*"], AMQP) == {"*.#": "#.*", "*.#.*": "#.*"}
    assert redundant(["a.b", "#.*.b", "*.#"], AMQP) == {"a.b": "*.#", "#.*.b": "*.#"}
    assert redundant([], AMQP) == {}


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_without_the_needless_ones_nothing_is_missed_and_nothing_is_needless(
    grammar: Grammar, data: st.DataObject
) -> None:
    some = data.draw(st.lists(patterns(grammar), max_size=10))
    needless = redundant(some, grammar)
    stay = [pattern for pattern in dict.fromkeys(some) if pattern not in needless]
    for pattern, other in needless.items():
        assert other in stay
        assert covers(other, pattern, grammar)
    for a, b in product(stay, repeat=2):
        assert a == b or not covers(a, b, grammar)


# -- costs

LONG = {
    "63 many": ".".join(["#.a"] * 63),
    "42 many and one": ".".join(["#.*.a"] * 42),
    "127 many in a row": ".".join(["#"] * 127),
    "one run that nearly fits": ".".join(["#", *["a", "*"] * 30, "b", "#"]),
    "a long run": ".".join(["a"] * 127),
    "a long open run": ".".join(["a"] * 63 + ["#"] + ["a"] * 63),
}


def seconds(a: str, b: str, grammar: Grammar) -> float:
    """Return the CPU seconds of one call of `covers`, the least of five calls."""
    return min(
        timeit.repeat(lambda: covers(a, b, grammar), number=1, repeat=5, timer=time.thread_time)
    )


@pytest.mark.parametrize("a", LONG)
@pytest.mark.parametrize("b", LONG)
def test_a_comparison_costs_a_few_steps_a_word(a: str, b: str) -> None:
    plain = min(
        timeit.repeat(
            lambda: [word == "*" for text in (LONG[a], LONG[b]) for word in text.split(".")],
            number=1,
            repeat=5,
            timer=time.thread_time,
        )
    )
    assert seconds(LONG[a], LONG[b], AMQP) < 200 * plain


def test_a_query_on_hostile_rules_costs_no_more_than_their_comparisons() -> None:
    """Check that Coverage.covering takes less than twice the CPU time of `covers` for each rule.

    There are 120 rules of 128 words, and all of them cover the pattern. If Coverage.covering first
    looked up a topic of the pattern in a trie of the rules, it would take ten times as long.
    """
    chosen = random.Random(20261126)
    rules = [".".join(chosen.choices("#*a", (5, 2, 3), k=127)) + ".#" for _ in range(120)]
    assert len(set(rules)) == 120
    pattern = ".".join("a" * 128)
    coverage = Coverage(AMQP)
    for rule in rules:
        coverage.add(rule)
    assert sorted(coverage.covering(pattern)) == sorted(rules)
    query, comparisons = (
        min(timeit.repeat(action, number=1, repeat=5, timer=time.thread_time))
        for action in (
            lambda: coverage.covering(pattern),
            lambda: [covers(rule, pattern, AMQP) for rule in rules],
        )
    )
    assert query < 2 * comparisons
