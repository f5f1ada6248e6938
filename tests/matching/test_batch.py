"""Tests of a batch, which looks many topics up in many patterns at once.

A batch must find the same (pattern, topic) pairs as single lookups, with numpy and without.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, InvalidPattern
from matching.batch import Batch, matches, numpy
from tests.matching.words import GRAMMARS, patterns, topics

WAYS = [
    pytest.param(
        True, id="vectorised", marks=pytest.mark.skipif(numpy is None, reason="needs numpy")
    ),
    pytest.param(False, id="plain"),
]


def pairs(
    some: list[str], lookup_topics: list[str], grammar: Grammar, vectorised: bool
) -> list[tuple[int, int]]:
    columns = Batch(some, grammar, vectorised).match(lookup_topics)
    return list(zip(columns.topics, columns.patterns, strict=True))


@pytest.mark.parametrize("vectorised", WAYS)
@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_pairs_equal_the_definition_in_order(
    grammar: Grammar, vectorised: bool, data: st.DataObject
) -> None:
    some = data.draw(st.lists(patterns(grammar), max_size=20))
    lookup_topics = data.draw(st.lists(topics(grammar), max_size=10))
    expected = [
        (at, number)
        for at, topic in enumerate(lookup_topics)
        for number, pattern in enumerate(some)
        if grammar.matches(pattern, topic)
    ]
    assert pairs(some, lookup_topics, grammar, vectorised) == expected


@pytest.mark.parametrize("vectorised", WAYS)
def test_the_same_pattern_and_the_same_topic_may_come_again(vectorised: bool) -> None:
    matched = pairs(["a.*", "a.*", "#.#", "#.#"], ["a.b", "a.b"], AMQP, vectorised)
    assert matched == [(topic, pattern) for topic in range(2) for pattern in range(4)]


@pytest.mark.parametrize("vectorised", WAYS)
def test_batch_without_a_match_is_empty(vectorised: bool) -> None:
    assert pairs([], ["a"], AMQP, vectorised) == []
    assert pairs(["a"], [], AMQP, vectorised) == []
    assert pairs(["a"], ["b"], AMQP, vectorised) == []


@pytest.mark.parametrize("vectorised", WAYS)
def test_many_topics_keep_their_numbers(vectorised: bool) -> None:
    lookup_topics = [f"a.{n}" for n in range(40_000)]
    columns = Batch(["a.39999", "a.20000", "#.0", "b.#"], AMQP, vectorised).match(lookup_topics)
    assert list(zip(columns.topics, columns.patterns, strict=True)) == [
        (0, 2),
        (20_000, 1),
        (39_999, 0),
    ]


@pytest.mark.parametrize("vectorised", WAYS)
def test_the_columns_are_buffers_of_64_bit_integers(vectorised: bool) -> None:
    columns = Batch(["a"], AMQP, vectorised).match(["a", "b", "a"])
    assert memoryview(columns.topics).cast("B").cast("q").tolist() == [0, 2]
    assert memoryview(columns.patterns).cast("B").cast("q").tolist() == [0, 0]


@pytest.mark.parametrize("vectorised", WAYS)
def test_an_invalid_pattern_is_refused(vectorised: bool) -> None:
    with pytest.raises(InvalidPattern):
        Batch(["a", "a/#/b"], MQTT, vectorised)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_column_is_asked_with_one_pattern(grammar: Grammar, data: st.DataObject) -> None:
    pattern = data.draw(patterns(grammar))
    column = data.draw(st.lists(topics(grammar), max_size=10))
    assert matches(pattern, column, grammar) == [
        grammar.matches(pattern, topic) for topic in column
    ]


def test_a_column_is_not_asked_with_an_invalid_pattern() -> None:
    with pytest.raises(InvalidPattern):
        matches("a/#/b", [], MQTT)


def test_a_column_is_asked_with_a_pattern_of_several_many_wildcards() -> None:
    assert matches("#.a.#", ["a", "b", "", "b.a.c"]) == [True, False, False, True]
