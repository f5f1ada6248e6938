"""Tests of tuple space search: patterns in tables and in the fallback trie, cost of lookups."""

from __future__ import annotations

import tracemalloc
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, Matcher, create
from matching.naive import Naive
from matching.shapes import Shapes
from tests.matching.words import GRAMMARS, patterns, topics


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@pytest.mark.parametrize("limit", [0, 2, 512])
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_lookups_between_the_changes_answer_as_the_naive_ones(
    grammar: Grammar, limit: int, data: st.DataObject
) -> None:
    shapes: Shapes[int] = Shapes(grammar, limit)
    truth: Naive[int] = Naive(grammar)
    lookup_topics = data.draw(st.lists(topics(grammar), min_size=1, max_size=4))
    for pattern, subscriber, add in data.draw(
        st.lists(st.tuples(patterns(grammar), st.integers(1, 3), st.booleans()), max_size=30)
    ):
        if add:
            assert shapes.subscribe(pattern, subscriber) == truth.subscribe(pattern, subscriber)
        else:
            assert shapes.unsubscribe(pattern, subscriber) == truth.unsubscribe(pattern, subscriber)
        for topic in lookup_topics:
            assert sorted(shapes.match(topic)) == sorted(truth.match(topic))
            assert shapes.matches_any(topic) == truth.matches_any(topic)
    assert sorted(shapes.subscriptions()) == sorted(truth.subscriptions())
    assert shapes.stats()["patterns"] == truth.stats()["patterns"]


def test_patterns_of_one_shape_share_a_table_for_any_words() -> None:
    shapes: Shapes[int] = Shapes(AMQP)
    for n, pattern in enumerate(
        ["a.*.b", "c.*.d", "c.*.b", "*.a.b", "a.#.b", "c.#.b", "#.a.b", "a.b.#", "#", "*.*.*"]
    ):
        shapes.subscribe(pattern, n)
    assert shapes.stats() == {
        "subscriptions": 10,
        "patterns": 10,
        "shapes": 7,
        "fallback": 0,
        "nodes": 1,
        "shared": 0,
    }
    assert sorted(shapes.match("c.x.b")) == [2, 5, 8, 9]
    assert sorted(shapes.match("a.b")) == [4, 6, 7, 8]


def test_patterns_with_two_many_wildcards_stand_in_a_trie_beside() -> None:
    shapes: Shapes[int] = Shapes(AMQP)
    for n, pattern in enumerate(["#.a.#", "#.#", "a.#"]):
        shapes.subscribe(pattern, n)
    assert (shapes.stats()["shapes"], shapes.stats()["fallback"]) == (1, 2)
    assert sorted(shapes.match("a")) == [0, 1, 2]


def test_no_topic_asks_more_tables_than_the_limit() -> None:
    shapes: Shapes[str] = Shapes(AMQP, 3)
    for pattern in ["a.b", "#.a", "*.b", "a.*", "#.b.*", "a", "*"]:
        shapes.subscribe(pattern, pattern)
    assert (shapes.stats()["shapes"], shapes.stats()["fallback"]) == (5, 2)
    assert sorted(shapes.match("a.b")) == ["*.b", "a.*", "a.b"]
    assert sorted(shapes.match("a")) == ["#.a", "*", "a"]


def test_a_pattern_stays_beside_when_there_is_room_for_its_shape_later() -> None:
    shapes: Shapes[str] = Shapes(AMQP, 1)
    shapes.subscribe("a.b", "x")
    shapes.subscribe("a.*", "x")
    shapes.unsubscribe("a.b", "x")
    assert not shapes.subscribe("a.*", "x")
    assert shapes.subscribe("b.*", "x")
    assert shapes.subscribe("a.*", "y")
    assert (shapes.stats()["shapes"], shapes.stats()["fallback"]) == (1, 2)
    assert sorted(shapes.match("a.z")) == ["x", "y"]
    assert ("a.*", "y") in shapes
    assert ("b.*", "y") not in shapes


def test_a_pattern_of_very_many_literal_words_stands_beside() -> None:
    shapes: Shapes[str] = Shapes(MQTT)
    deep = "/".join(["a"] * 129)
    shapes.subscribe(deep, "x")
    shapes.subscribe("/".join(["+"] * 129), "y")
    assert (shapes.stats()["shapes"], shapes.stats()["fallback"]) == (1, 1)
    assert sorted(shapes.match(deep)) == ["x", "y"]


def test_topics_of_any_number_of_lengths_are_answered() -> None:
    shapes: Shapes[str] = Shapes(MQTT)
    shapes.subscribe("a/#", "x")
    for length in [*range(1, 400), *range(1, 400)]:
        assert shapes.match("/".join("a" * length)) == ["x"]
    shapes.subscribe("#", "y")
    for length in range(1, 400):
        assert sorted(shapes.match("/".join("a" * length))) == ["x", "y"]


def test_a_table_that_grows_large_is_divided_and_its_patterns_are_all_there() -> None:
    count = 9_000
    shapes: Shapes[int] = Shapes(AMQP)
    for n in range(count):
        shapes.subscribe(f"a{n}.b{n}.*", n)
        if n % 1_000 == 0:
            assert shapes.match(f"a{n}.b{n}.c") == [n]
            assert shapes.match(f"a{n // 2}.b{n // 2}.c") == [n // 2]
    assert shapes.match("a1.b2.c") == []
    assert shapes.matches_any("a1.b1.c")
    assert ("a7.b7.*", 7) in shapes
    assert ("a7.b8.*", 7) not in shapes
    assert sum(n for _, n in shapes.subscriptions()) == sum(range(count))
    for n in Random(1).sample(range(count), count):
        assert shapes.unsubscribe(f"a{n}.b{n}.*", n)
    assert shapes.stats() == Shapes[int](AMQP).stats()


def test_words_that_are_not_held_only_once_are_found_as_well() -> None:
    shapes: Shapes[int] = Shapes(MQTT)
    topics = ["/".join(f"{n}.{word}" for word in range(100)) for n in range(700)]
    for n, topic in enumerate(topics):
        shapes.subscribe(topic, n)
    assert all(shapes.match(topic) == [n] for n, topic in enumerate(topics))


def test_a_filter_costs_at_most_210_bytes() -> None:
    count = 10_000
    filters = [f"site.s{n % 100}.device.d{n // 100}.#" for n in range(count)]
    subscribers = [object() for _ in filters]
    shapes: Shapes[object] = Shapes(AMQP)
    tracemalloc.start()
    try:
        for pattern, subscriber in zip(filters, subscribers, strict=True):
            shapes.subscribe(pattern, subscriber)
        size = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert size / count <= 210


@pytest.mark.parametrize("name", ["shapes", "auto", "dfa"])
def test_all_masks_of_a_topic_are_found(name: str) -> None:
    matcher: Matcher[int] = create(name, AMQP)
    words = list("abcdefg")
    for mask in range(128):
        matcher.subscribe(
            ".".join("*" if mask >> at & 1 else word for at, word in enumerate(words)), mask
        )
    assert sorted(matcher.match(".".join(words))) == list(range(128))
    assert len(matcher.match("a.b.c.d.e.f.z")) == 64
    assert matcher.match("z.b.c.d.e.f.g") != []
