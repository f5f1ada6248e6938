"""Tests of the index of topics, which finds the stored topics that match a pattern."""

from __future__ import annotations

import gc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, InvalidPattern, TopicIndex
from tests.matching.words import GRAMMARS, patterns, topics


def test_a_topic_is_put_replaced_and_removed() -> None:
    index: TopicIndex[str] = TopicIndex(MQTT)
    assert index.put("home/door", "open")
    assert not index.put("home/door", "shut")
    assert index.get("home/door") == "shut"
    assert len(index) == 1
    assert index.remove("home/door")
    assert not index.remove("home/door")
    assert index.get("home/door") is None
    assert len(index) == 0


def test_prefixes_of_a_topic_are_not_stored_with_it() -> None:
    index: TopicIndex[str] = TopicIndex(MQTT)
    index.put("home/door", "open")
    assert index.get("home") is None
    assert not index.remove("home")
    assert not index.remove("home/door/lock")
    assert index.match("home/#") == ["open"]
    assert index.match("home") == []


def test_removing_a_topic_leaves_topics_beside_above_and_below() -> None:
    index: TopicIndex[str] = TopicIndex(AMQP)
    for topic in ("a", "a.b", "a.b.c", "a.d", ""):
        index.put(topic, topic)
    assert index.remove("a.b")
    assert sorted(index.match("#")) == ["", "a", "a.b.c", "a.d"]
    assert index.remove("a.b.c")
    assert index.remove("")
    assert sorted(index.match("#")) == ["a", "a.d"]


def nodes() -> int:
    return sum(type(kept).__name__ == "_TopicNode" for kept in gc.get_objects())


def test_the_index_keeps_nothing_of_topics_that_are_gone() -> None:
    gc.collect()
    before = nodes()
    index: TopicIndex[str] = TopicIndex(AMQP)
    for topic in ("a.b.c", "a.b", "a.d.e", "f"):
        index.put(topic, topic)
    assert nodes() == before + 7
    for topic in ("a.b", "a.d.e", "f", "a.b.c"):
        index.remove(topic)
    assert nodes() == before + 1


def test_a_value_may_be_none() -> None:
    index: TopicIndex[None] = TopicIndex(AMQP)
    assert index.put("a", None)
    assert index.match("*") == [None]
    assert not index.put("a", None)
    assert index.remove("a")


def test_a_wildcard_in_a_stored_topic_is_an_ordinary_word() -> None:
    index: TopicIndex[str] = TopicIndex(AMQP)
    for topic in ("a.*", "a.#", "a.b"):
        index.put(topic, topic)
    assert sorted(index.match("a.*")) == ["a.#", "a.*", "a.b"]
    assert index.match("a.b") == ["a.b"]


@pytest.mark.parametrize("pattern", ["a/#/b", "a/b+", ""])
def test_an_invalid_pattern_is_refused_before_the_first_step(pattern: str) -> None:
    index: TopicIndex[str] = TopicIndex(MQTT)
    with pytest.raises(InvalidPattern):
        index.walk(pattern)
    with pytest.raises(InvalidPattern):
        index.match(pattern)


def test_dollar_topics_are_found_only_by_their_name() -> None:
    index: TopicIndex[str] = TopicIndex(MQTT)
    for topic in ("$SYS", "$SYS/uptime", "home/$SYS", "home"):
        index.put(topic, topic)
    assert sorted(index.match("#")) == ["home", "home/$SYS"]
    assert index.match("+") == ["home"]
    assert index.match("+/uptime") == []
    assert sorted(index.match("$SYS/#")) == ["$SYS", "$SYS/uptime"]
    assert index.match("$SYS/+") == ["$SYS/uptime"]


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_the_index_agrees_with_the_definition(grammar: Grammar, data: st.DataObject) -> None:
    index: TopicIndex[tuple[str, int]] = TopicIndex(grammar)
    stored: dict[str, tuple[str, int]] = {}
    history = st.lists(st.tuples(st.booleans(), topics(grammar)), max_size=40)
    for version, (put, topic) in enumerate(data.draw(history)):
        if put:
            assert index.put(topic, (topic, version)) == (topic not in stored)
            stored[topic] = (topic, version)
        else:
            assert index.remove(topic) == (stored.pop(topic, None) is not None)
        assert index.get(topic) == stored.get(topic)
        assert len(index) == len(stored)
    for pattern in data.draw(st.lists(patterns(grammar), max_size=8)):
        expected = [value for topic, value in stored.items() if grammar.matches(pattern, topic)]
        assert sorted(index.match(pattern)) == sorted(expected), pattern


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=70)
@given(data=st.data())
def test_a_walk_bears_changes_between_its_steps(grammar: Grammar, data: st.DataObject) -> None:
    index: TopicIndex[str] = TopicIndex(grammar)
    stored = set(data.draw(st.lists(topics(grammar), min_size=5, max_size=40)))
    for topic in stored:
        index.put(topic, topic)
    pattern = data.draw(patterns(grammar) | st.just(grammar.many))
    matching = {topic for topic in stored if grammar.matches(pattern, topic)}
    stayed = set(matching)
    seen: list[str] = []
    walk = index.walk(pattern)
    for change in data.draw(
        st.lists(st.lists(st.tuples(st.booleans(), topics(grammar)), max_size=6), max_size=12)
    ):
        for put, topic in change:
            if put:
                index.put(topic, topic)
            else:
                index.remove(topic)
                stayed.discard(topic)
        seen += [value for value in [next(walk, None)] if value is not None]
    seen += walk
    assert len(seen) == len(set(seen))
    assert stayed <= set(seen)
    assert all(grammar.matches(pattern, topic) for topic in seen)


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_a_bounded_search_finds_the_same_topics_or_reports_too_many(
    data: st.DataObject,
) -> None:
    grammar = data.draw(st.sampled_from([AMQP, MQTT]))
    index: TopicIndex[str] = TopicIndex(grammar)
    stored = data.draw(st.lists(topics(grammar), max_size=12))
    for topic in stored:
        index.put(topic, topic)
    pattern = data.draw(patterns(grammar))
    most = data.draw(st.integers(0, 12))
    within = index.within(pattern, most)
    if within is None:
        assert most < sum(topic.count(grammar.separator) + 1 for topic in set(stored))
    else:
        assert sorted(within) == sorted(index.match(pattern))


def test_a_bound_counts_the_nodes_that_a_wildcard_meets() -> None:
    index: TopicIndex[int] = TopicIndex(AMQP)
    for number in range(10):
        index.put(f"a.{number}", number)
    assert index.within("a.*", 9) is None
    assert sorted(index.within("a.*", 10) or []) == list(range(10))
    assert index.within("a.3", 0) == [3]
    assert index.within("b.#", 0) == []
    index.put("", 77)
    assert sorted(index.within("#.#", 20) or []) == [*range(10), 77]


def test_a_walk_goes_on_where_everything_around_it_was_removed() -> None:
    index: TopicIndex[str] = TopicIndex(AMQP)
    for topic in ("a.b.c", "a.b.d", "a.e", "f"):
        index.put(topic, topic)
    walk = index.walk("#")
    first = next(walk)
    for topic in ("a.b.c", "a.b.d", "a.e", "f"):
        index.remove(topic)
    assert list(walk) == []
    assert first in ("a.b.c", "a.b.d", "a.e", "f")


def test_levels_beyond_the_stack_are_walked_without_recursion() -> None:
    levels = 1_200
    index: TopicIndex[int] = TopicIndex(MQTT)
    for depth in range(1, levels + 1):
        index.put("/".join("a" * depth), depth)
    assert len(index.match("#")) == levels
    assert index.match("/".join("+" * levels)) == [levels]
    assert index.match("/".join("a" * 200)) == [200]
    for depth in range(1, levels + 1):
        assert index.remove("/".join("a" * depth))
    assert index.match("#") == []
