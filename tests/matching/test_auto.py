"""Tests of the default matcher: which data structure it chooses for a pattern.

Its answers must be correct also while patterns move from one structure to another.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar
from matching.auto import Auto
from matching.naive import Naive
from tests.matching.words import GRAMMARS, patterns, topics


def filled(patterns: int, compact_above: int) -> Auto[int]:
    auto: Auto[int] = Auto(AMQP, compact_above)
    for n in range(patterns):
        auto.subscribe(f"a.{n}.*", n)
    return auto


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@pytest.mark.parametrize(("compact_above", "limit"), [(4, 32), (10, 2), (1_000, 32)])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_lookups_between_the_changes_answer_as_the_naive_ones(
    grammar: Grammar, compact_above: int, limit: int, data: st.DataObject
) -> None:
    auto: Auto[int] = Auto(grammar, compact_above, limit)
    truth: Naive[int] = Naive(grammar)
    lookup_topics = data.draw(st.lists(topics(grammar), min_size=1, max_size=4))
    for pattern, subscriber, add in data.draw(
        st.lists(st.tuples(patterns(grammar), st.integers(1, 3), st.booleans()), max_size=40)
    ):
        if add:
            assert auto.subscribe(pattern, subscriber) == truth.subscribe(pattern, subscriber)
        else:
            assert auto.unsubscribe(pattern, subscriber) == truth.unsubscribe(pattern, subscriber)
        assert ((pattern, subscriber) in auto) == ((pattern, subscriber) in truth)
        assert len(auto) == len(truth)
        for topic in lookup_topics:
            assert sorted(auto.match(topic)) == sorted(truth.match(topic))
            assert auto.matches_any(topic) == truth.matches_any(topic)
    assert sorted(auto.subscriptions()) == sorted(truth.subscriptions())
    assert auto.stats()["patterns"] == truth.stats()["patterns"]


def test_few_patterns_stand_in_the_trie_and_many_in_the_tables() -> None:
    auto = filled(100, 100)
    assert (auto.stats()["shapes"], auto.stats()["nodes"]) == (0, 202)
    auto.subscribe("b.*", 0)
    for _ in range(100):
        auto.match("c")
    assert (auto.stats()["shapes"], auto.stats()["nodes"], auto.stats()["leaving"]) == (2, 1, 0)
    for n in range(51):
        auto.unsubscribe(f"a.{n}.*", n)
    for _ in range(100):
        auto.match("c")
    assert (auto.stats()["shapes"], auto.stats()["leaving"], auto.stats()["patterns"]) == (0, 0, 50)


def test_a_call_moves_only_some_patterns_and_each_is_always_found() -> None:
    auto = filled(501, 500)
    left = auto.stats()["leaving"]
    assert left > 400
    calls = 0
    while left:
        auto.match("c")
        assert left - 8 <= auto.stats()["leaving"] < left
        left = auto.stats()["leaving"]
        calls += 1
        assert auto.match(f"a.{calls}.x") == [calls]
        assert auto.match(f"a.{500 - calls}.x") == [500 - calls]
        left = auto.stats()["leaving"]
    for n in range(251):
        auto.unsubscribe(f"a.{n}.*", n)
    left = auto.stats()["leaving"]
    assert left > 200
    while left:
        auto.subscribe("a.300.*", 300)
        assert left - 32 <= auto.stats()["leaving"] < left
        assert all(auto.match(f"a.{n}.x") == [n] for n in (251, 300, 500))
        left = auto.stats()["leaving"]
    assert auto.stats()["shapes"] == 0


def test_a_pattern_moves_with_all_its_subscribers_at_once() -> None:
    auto: Auto[int] = Auto(AMQP, 10)
    for n in range(20_000):
        auto.subscribe("a.#", n)
    for n in range(10):
        auto.subscribe(f"b.{n}", n)
    for _ in range(10):
        auto.match("c")
    assert (auto.stats()["leaving"], auto.stats()["shapes"]) == (0, 2)
    assert len(auto.match("a.b")) == 20_000


def test_long_patterns_move_fewer_at_a_time() -> None:
    auto: Auto[int] = Auto(MQTT, 50)
    for n in range(51):
        auto.subscribe("/".join([str(n)] * 600), n)
    assert auto.stats()["leaving"] == 50
    assert auto.match("/".join(["7"] * 600)) == [7]
    assert auto.stats()["leaving"] == 49


def test_moving_patterns_accept_changes_of_subscribers() -> None:
    auto = filled(501, 500)
    auto.subscribe("a.1.*", 1_000)
    assert not auto.subscribe("a.1.*", 1_000)
    assert sorted(auto.match("a.1.x")) == [1, 1_000]
    assert auto.unsubscribe("a.2.*", 2)
    assert not auto.unsubscribe("a.2.*", 2)
    assert ("a.3.*", 3) in auto
    assert ("a.3.*", 4) not in auto
    assert len(auto) == 501


def test_a_subscriber_in_both_places_is_found_once() -> None:
    auto: Auto[str] = Auto(AMQP, 400)
    for n in range(401):
        auto.subscribe(f"a.{n}.*", "x")
    auto.subscribe("a.0.#", "x")
    assert auto.stats()["leaving"] > 300
    assert auto.match("a.0.b") == ["x"]
    assert auto.match("a.399.b") == ["x"]


def test_the_choice_may_change_during_a_move() -> None:
    auto = filled(1_001, 1_000)
    for n in range(502):
        auto.unsubscribe(f"a.{n}.*", n)
    for n in range(502):
        auto.subscribe(f"a.{n}.*", n)
    assert len(auto) == 1_001
    for _ in range(1_000):
        auto.match("c")
    assert (auto.stats()["leaving"], auto.stats()["shapes"], auto.stats()["nodes"]) == (0, 1, 1)
    assert sorted(auto.subscriptions()) == sorted((f"a.{n}.*", n) for n in range(1_001))


def test_the_choice_may_change_twice_while_one_pattern_moves_at_a_time() -> None:
    auto: Auto[int] = Auto(MQTT, 10)
    deep = ["/".join(["x"] * 600 + [str(n)]) for n in range(11)]
    for n, pattern in enumerate(deep):
        auto.subscribe(pattern, n)
    for n in range(6):
        auto.unsubscribe(deep[10 - n], 10 - n)
    for n in range(6):
        auto.subscribe("/".join(["y"] * 600 + [str(n)]), n)
    assert sorted(auto.match(deep[2])) == [2]
    for _ in range(20):
        auto.match("c")
    assert (auto.stats()["leaving"], auto.stats()["patterns"], len(auto)) == (0, 11, 11)


def test_lookups_do_not_disturb_a_listing() -> None:
    auto = filled(501, 500)
    seen = []
    for pattern, subscriber in auto.subscriptions():
        seen.append((pattern, subscriber))
        auto.match("a.1.x")
    assert len(seen) == len(set(seen)) == 501
    before = auto.stats()["leaving"]
    auto.subscribe("b", 1)
    assert auto.stats()["leaving"] < before


def test_patterns_that_no_table_takes_stay_in_a_trie() -> None:
    auto: Auto[str] = Auto(AMQP, 3, 1)
    for pattern in ("#.a.#", "#.#", "a.b", "a.*", "*.b"):
        auto.subscribe(pattern, pattern)
    for _ in range(10):
        auto.match("c")
    stats = auto.stats()
    assert (stats["shapes"], stats["fallback"], stats["leaving"]) == (1, 4, 0)
    assert sorted(auto.match("a.b")) == ["#.#", "#.a.#", "*.b", "a.*", "a.b"]


def test_clearing_ends_a_move() -> None:
    auto = filled(501, 500)
    auto.clear()
    assert auto.stats() == Auto[int](AMQP).stats()
    assert auto.match("a.1.x") == []
