"""Compares every algorithm with the naive one, over random histories of subscribing and
unsubscribing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import NAMES, Grammar, Matcher, create
from matching.naive import Naive
from tests.matching.words import GRAMMARS, Listed, patterns, topics

Step = tuple[str, str, int]


def by_name(name: str) -> Callable[[Grammar], Matcher[int]]:
    def new(grammar: Grammar) -> Matcher[int]:
        return create(name, grammar)

    return new


ALGORITHMS = {**{name: by_name(name) for name in NAMES if name != "naive"}, "third party": Listed}


@cache
def steps(grammar: Grammar) -> st.SearchStrategy[list[Step]]:
    verbs = st.sampled_from(["subscribe", "subscribe", "unsubscribe", "snapshot"])
    # Some histories have one subscriber per pattern, as in the broker; others share a few
    # subscribers among all patterns.
    few, some, many = (
        st.lists(st.tuples(verbs, patterns(grammar), st.integers(1, people)), max_size=40)
        for people in (1, 4, 1000)
    )
    return few | some | many


def assert_equal(matcher: Matcher[int], truth: Matcher[int], lookup_topics: list[str]) -> None:
    assert len(matcher) == len(truth)
    assert sorted(matcher.subscriptions()) == sorted(truth.subscriptions())
    assert matcher.stats()["subscriptions"] == len(truth)
    for topic in lookup_topics:
        assert sorted(matcher.match(topic)) == sorted(truth.match(topic)), topic
        assert matcher.matches_any(topic) == truth.matches_any(topic), topic


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_an_algorithm_answers_as_the_naive_one_after_any_history(
    algorithm: str, grammar: Grammar, data: st.DataObject
) -> None:
    matcher = ALGORITHMS[algorithm](grammar)
    truth: Matcher[int] = Naive(grammar)
    lookup_topics = data.draw(st.lists(topics(grammar), min_size=1, max_size=6))
    kept: list[tuple[Matcher[int], Matcher[int]]] = []
    for verb, pattern, subscriber in data.draw(steps(grammar)):
        if verb == "subscribe":
            assert matcher.subscribe(pattern, subscriber) == truth.subscribe(pattern, subscriber)
        elif verb == "unsubscribe":
            assert matcher.unsubscribe(pattern, subscriber) == truth.unsubscribe(
                pattern, subscriber
            )
        else:
            kept.append((matcher.snapshot(), truth.snapshot()))
        assert ((pattern, subscriber) in matcher) == ((pattern, subscriber) in truth)
    assert_equal(matcher, truth, lookup_topics)
    for frozen, then in kept:
        assert_equal(frozen, then, lookup_topics)
    for pattern, subscriber in list(truth.subscriptions()):
        assert matcher.unsubscribe(pattern, subscriber)
    assert_equal(matcher, Naive(grammar), lookup_topics)
    empty = ALGORITHMS[algorithm](grammar)
    assert {**matcher.stats(), "free": 0} == {**empty.stats(), "free": 0}
