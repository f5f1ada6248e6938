"""Tests of the lazily built DFA: it answers correctly after every change, keeps within its budget
of memory, and is not rebuilt without need.
"""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar
from matching.dfa import Dfa
from matching.naive import Naive
from tests.matching.words import GRAMMARS, patterns, topics

EXPLODING = ".".join(["#", "a", *["*"] * 16])


def random_topics(count: int, seed: int) -> list[str]:
    random = Random(seed)
    return [
        ".".join(random.choice("ab") for _ in range(random.randint(17, 40))) for _ in range(count)
    ]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@pytest.mark.parametrize("budget", [0, 900, 3_000, 1 << 20])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_lookups_between_the_changes_answer_as_the_naive_ones(
    grammar: Grammar, budget: int, data: st.DataObject
) -> None:
    dfa: Dfa[int] = Dfa(grammar, budget)
    truth: Naive[int] = Naive(grammar)
    lookup_topics = data.draw(st.lists(topics(grammar), min_size=1, max_size=4))
    for pattern, subscriber, add in data.draw(
        st.lists(st.tuples(patterns(grammar), st.integers(1, 3), st.booleans()), max_size=40)
    ):
        if add:
            assert dfa.subscribe(pattern, subscriber) == truth.subscribe(pattern, subscriber)
        else:
            assert dfa.unsubscribe(pattern, subscriber) == truth.unsubscribe(pattern, subscriber)
        for topic in lookup_topics:
            assert sorted(dfa.match(topic)) == sorted(truth.match(topic))
            assert dfa.matches_any(topic) == truth.matches_any(topic)
        assert dfa.stats()["bytes"] <= budget
    assert sorted(dfa.subscriptions()) == sorted(truth.subscriptions())


def test_a_topic_asked_again_makes_no_state() -> None:
    dfa: Dfa[str] = Dfa(AMQP)
    for pattern in ("a.*", "a.#.b", "*.b"):
        dfa.subscribe(pattern, pattern)
    first = sorted(dfa.match("a.b"))
    stats = dfa.stats()
    assert stats["states"] == 3
    assert sorted(dfa.match("a.b")) == first == ["*.b", "a.#.b", "a.*"]
    assert dfa.stats() == stats


def test_words_that_no_pattern_names_share_their_states() -> None:
    dfa: Dfa[str] = Dfa(AMQP)
    dfa.subscribe("*.b.#", "x")
    for n in range(100):
        assert dfa.match(f"{n}.b.{n}") == ["x"]
    assert dfa.stats()["states"] == 4


def test_a_change_elsewhere_keeps_the_states() -> None:
    dfa: Dfa[str] = Dfa(AMQP)
    dfa.subscribe("a.b.c", "x")
    dfa.subscribe("d.e", "x")
    dfa.match("a.b.c")
    before = dfa.stats()["states"]
    dfa.subscribe("d.f", "y")
    dfa.subscribe("d.e", "y")
    dfa.unsubscribe("d.f", "y")
    assert dfa.match("a.b.c") == ["x"]
    assert dfa.stats()["states"] == before


def test_a_many_wildcard_that_comes_and_goes_takes_its_states_along() -> None:
    dfa: Dfa[str] = Dfa(AMQP)
    dfa.subscribe("a.b", "x")
    assert dfa.match("a.b") == ["x"]
    dfa.subscribe("a.#", "y")
    assert sorted(dfa.match("a.b")) == ["x", "y"]
    assert dfa.match("a.c.d") == ["y"]
    dfa.unsubscribe("a.#", "y")
    assert dfa.match("a.b") == ["x"]
    assert dfa.match("a.c.d") == []


def test_a_hidden_topic_begins_behind_its_first_word() -> None:
    dfa: Dfa[str] = Dfa(MQTT)
    for pattern in ("#", "+/x", "$SYS/#", "$SYS/+"):
        dfa.subscribe(pattern, pattern)
    assert sorted(dfa.match("$SYS/x")) == ["$SYS/#", "$SYS/+"]
    assert dfa.match("$other/x") == []
    assert sorted(dfa.match("y/x")) == ["#", "+/x"]


def test_a_hidden_topic_without_a_pattern_has_no_subscribers() -> None:
    dfa: Dfa[str] = Dfa(MQTT)
    dfa.subscribe("#", "x")
    assert dfa.match("$SYS/x") == []


def test_an_exploding_pattern_stays_in_the_budget_and_nothing_is_made_twice() -> None:
    budget = 100_000
    dfa: Dfa[str] = Dfa(AMQP, budget)
    dfa.subscribe(EXPLODING, "x")
    states = 0
    for topic in random_topics(600, 1):
        assert dfa.match(topic) == ["x"] * AMQP.matches(EXPLODING, topic)
        stats = dfa.stats()
        assert stats["bytes"] <= budget
        assert stats["states"] >= states
        states = stats["states"]
    for topic in random_topics(100, 2):
        dfa.match(topic)
    assert dfa.stats()["states"] == states


def test_a_dfa_starts_over_after_as_many_changes_as_states_and_frees_old_states_in_parts() -> None:
    budget = 60_000
    dfa: Dfa[str] = Dfa(AMQP, budget)
    dfa.subscribe(EXPLODING, "x")
    for topic in random_topics(300, 1):
        dfa.match(topic)
    full = dfa.stats()["states"]
    for n in range(full):
        dfa.subscribe(f"z.{n}", "y")
    fewest = full
    for topic in random_topics(300, 2):
        before = dfa.stats()["states"]
        assert dfa.match(topic) == ["x"] * AMQP.matches(EXPLODING, topic)
        assert dfa.stats()["bytes"] <= budget
        fewest = min(fewest, dfa.stats()["states"])
        assert before - dfa.stats()["states"] <= 16 * 256
    assert fewest < full
    assert dfa.match("z.3") == ["y"]


def test_lookup_makes_a_limited_number_of_states() -> None:
    dfa: Dfa[str] = Dfa(AMQP)
    many = ".".join(["#.a"] * 63)
    dfa.subscribe(many, "x")
    topic = ".".join("a" * 128)
    counts = []
    for _ in range(200):
        assert dfa.match(topic) == ["x"]
        counts.append(dfa.stats()["states"])
    steps = [after - before for before, after in pairwise(counts)]
    assert max(steps) <= 64
    assert counts[-1] > counts[0]


def test_a_long_answer_is_not_kept() -> None:
    dfa: Dfa[int] = Dfa(AMQP)
    for n in range(1_000):
        dfa.subscribe("a.#", n)
    for n in range(100):
        assert len(dfa.match(f"a.{n}.{n}")) == 1_000
    assert dfa.stats()["bytes"] < 10_000


def test_an_answer_names_no_subscriber_twice() -> None:
    dfa: Dfa[str] = Dfa(AMQP)
    for pattern in ("a.*", "a.#", "#.b"):
        dfa.subscribe(pattern, "x")
    assert dfa.match("a.b") == ["x"]
    assert dfa.match("a.b") == ["x"]
    broke: Dfa[str] = Dfa(AMQP, 0)
    for pattern in ("a.*", "a.#", "#.b"):
        broke.subscribe(pattern, "x")
    assert broke.match("a.b") == ["x"]


def test_after_a_change_one_lookup_looks_through_only_so_many_nodes() -> None:
    dfa: Dfa[int] = Dfa(AMQP)
    words = list("abcdefgh")
    for mask in range(256):
        dfa.subscribe(
            ".".join("*" if mask >> at & 1 else word for at, word in enumerate(words)), mask
        )
    topics = {"a.b.c.d.e.f.g.h": 256, "a.b.c.d.e.f.z.h": 128, "a.b.c.z.e.f.z.h": 64}
    for change in range(4):
        for _ in range(4):
            for topic, count in topics.items():
                assert len(dfa.match(topic)) == count
        dfa.subscribe(f"other.{change}", change)


def test_a_step_of_all_other_words_is_made_again_when_its_state_changed() -> None:
    dfa: Dfa[str] = Dfa(AMQP)
    dfa.subscribe("a.*", "x")
    assert dfa.match("a.z") == ["x"]
    dfa.subscribe("a.*.#", "y")
    assert sorted(dfa.match("a.z")) == ["x", "y"]
    assert sorted(dfa.match("a.w")) == ["x", "y"]


@pytest.mark.parametrize("word", ["b", "c"])
def test_a_step_to_a_state_that_is_gone_is_made_again(word: str) -> None:
    matcher: Dfa[int] = Dfa(AMQP)
    for number, pattern in enumerate(("a.b", "a.c")):
        matcher.subscribe(pattern, number)
    assert (matcher.match("a.b"), matcher.match("a.c")) == ([0], [1])
    known = matcher.stats()["states"]
    # The trie node of `a` keeps its children, and one of them leads to another state now.
    matcher.subscribe(f"a.{word}.#", 7)
    assert sorted(matcher.match(f"a.{word}")) == [0 if word == "b" else 1, 7]
    assert sorted(matcher.match(f"a.{word}")) == [0 if word == "b" else 1, 7]
    assert matcher.stats()["states"] == known


def test_a_lookup_does_not_check_the_step_of_all_other_words() -> None:
    # Each of 60 nodes has children for six words. To check the steps of all these words after one
    # change would cost more than one lookup may.
    dfa: Dfa[int] = Dfa(AMQP)
    words = list("abcdef")
    for mask in range(60):
        dfa.subscribe(
            ".".join("*" if mask >> at & 1 else word for at, word in enumerate(words)) + ".*", mask
        )
    for change in range(4):
        for word in "zyx":
            assert len(dfa.match(f"a.b.c.d.e.f.{word}")) == 60
        dfa.subscribe(f"other.{change}", change)


def test_wherever_the_budget_ends_the_answers_are_right() -> None:
    for budget in range(0, 2_400, 20):
        dfa: Dfa[str] = Dfa(AMQP, budget)
        for pattern in ("a.b.c", "a.*.c", "#.c"):
            dfa.subscribe(pattern, pattern)
        for _ in range(2):
            assert sorted(dfa.match("a.b.c")) == ["#.c", "a.*.c", "a.b.c"]
            assert dfa.match("b.c") == ["#.c"]
            assert dfa.stats()["bytes"] <= budget
