"""Tests of a matcher that has both patterns with wildcards and patterns without wildcards.

Some tests look topics up in the notation of AMQP, others in the notation of MQTT.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, InvalidPattern, Matcher, create, swap
from matching.composite import Bilingual, Composite
from tests.matching.words import GRAMMARS, patterns, topics


def test_plain_keys_and_patterns_are_found_together_and_every_subscriber_once() -> None:
    matcher: Composite[str] = Composite(AMQP)
    assert matcher.subscribe("a.b", "x")
    assert not matcher.subscribe("a.b", "x")
    assert matcher.match("a.b") == ["x"]
    assert matcher.subscribe("a.b", "y")
    assert matcher.subscribe("a.*", "x")
    assert matcher.subscribe("*.c", "z")
    assert sorted(matcher.match("a.b")) == ["x", "y"]
    assert matcher.match("b.c") == ["z"]
    assert matcher.subscribe("b.c", "z")
    assert matcher.match("b.c") == ["z"]
    assert matcher.unsubscribe("b.c", "z")
    assert matcher.match("c.d") == []
    assert matcher.matches_any("a.b")
    assert matcher.matches_any("b.c")
    assert not matcher.matches_any("c.d")
    assert matcher.stats()["plain"] == 2
    assert matcher.stats()["subscriptions"] == len(matcher) == 4
    assert matcher.unsubscribe("a.b", "x")
    assert not matcher.unsubscribe("a.b", "x")
    assert matcher.unsubscribe("a.b", "y")
    assert matcher.unsubscribe("a.*", "x")
    assert matcher.match("a.b") == []


def test_a_snapshot_stays_and_cannot_be_changed() -> None:
    matcher: Composite[str] = Composite(AMQP)
    matcher.subscribe("a.b", "x")
    matcher.subscribe("a.*", "y")
    kept = matcher.snapshot()
    matcher.clear()
    assert len(matcher) == 0
    assert matcher.match("a.b") == []
    assert sorted(kept.match("a.b")) == ["x", "y"]
    with pytest.raises(TypeError):
        kept.subscribe("b", "x")


@pytest.mark.parametrize("pattern", ["a/#/b", "a/b+", "", "a\0"])
def test_an_invalid_pattern_leaves_nothing(pattern: str) -> None:
    matcher: Composite[str] = Composite(MQTT)
    with pytest.raises(InvalidPattern):
        matcher.subscribe(pattern, "x")
    assert len(matcher) == 0


@pytest.mark.parametrize("pattern", ["a.b", "a.*"])
def test_an_unhashable_subscriber_is_rejected_without_a_change(pattern: str) -> None:
    matcher: Composite[object] = Composite(AMQP)
    with pytest.raises(TypeError):
        matcher.subscribe(pattern, [])
    assert len(matcher) == 0


@pytest.mark.parametrize("algorithm", ["trie", "bitmap"])
@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_a_composite_equals_its_matcher_alone(
    grammar: Grammar, algorithm: str, data: st.DataObject
) -> None:
    composite: Composite[int] = Composite(grammar, algorithm)
    oracle: Matcher[int] = create("naive", grammar)
    steps = st.tuples(st.booleans(), patterns(grammar), st.integers(0, 3))
    for add, pattern, person in data.draw(st.lists(steps, max_size=30)):
        if add:
            assert composite.subscribe(pattern, person) == oracle.subscribe(pattern, person)
        else:
            assert composite.unsubscribe(pattern, person) == oracle.unsubscribe(pattern, person)
        assert ((pattern, person) in composite) == add
        assert len(composite) == len(oracle)
    for topic in data.draw(st.lists(topics(grammar), max_size=8)):
        subscribers = composite.match(topic)
        assert len(subscribers) == len(set(subscribers))
        assert set(subscribers) == set(oracle.match(topic))
        assert composite.matches_any(topic) == oracle.matches_any(topic)
    assert sorted(composite.subscriptions()) == sorted(oracle.subscriptions())


@pytest.mark.parametrize("others", [1, 2, 20])
@pytest.mark.parametrize("people", [0, 1, 2, 14, 15, 16, 17, 40])
def test_every_subscriber_is_found_once_however_many_there_are(people: int, others: int) -> None:
    both: Bilingual[int] = Bilingual()
    for person in range(people):
        both.subscribe("a.*", person)
    for person in range(people, people + others):
        both.subscribe("a.b", person)
        both.subscribe("a.b", person - 1)
        both.side(MQTT).subscribe("a/b", person)
        both.side(MQTT).subscribe("+/b", person - 1)
    assert sorted(both.match("a.b")) == list(range(min(people - 1, 0), people + others))


# -- both grammars


def test_subscribers_of_both_grammars_receive_one_topic() -> None:
    both: Bilingual[str] = Bilingual()
    assert both.side(AMQP) is both.native
    assert both.subscribe("a.*", "amqp")
    assert both.match("a.b") == ["amqp"]
    assert both.side(MQTT).subscribe("a/+", "mqtt")
    assert both.side(MQTT).subscribe("c/d", "mqtt")
    assert sorted(both.match("a.b")) == ["amqp", "mqtt"]
    assert both.match("c.d") == ["mqtt"]
    assert both.match("a") == []
    assert both.side(MQTT).subscribe("a/#", "amqp")
    assert sorted(both.match("a.b")) == ["amqp", "mqtt"]
    assert both.match("a") == ["amqp"]
    assert both.match("d") == []
    assert both.subscribe("d", "amqp")
    assert both.match("d") == ["amqp"]
    assert both.matches_any("c.d")
    assert both.matches_any("d")
    assert not both.matches_any("e")
    assert both.stats()["foreign"] == 3
    assert len(both) == 2
    assert ("a.*", "amqp") in both
    assert sorted(both.subscriptions()) == [("a.*", "amqp"), ("d", "amqp")]
    kept = both.snapshot()
    assert both.unsubscribe("a.*", "amqp")
    assert both.side(MQTT).unsubscribe("a/#", "amqp")
    assert both.match("a.b") == ["mqtt"]
    both.clear()
    assert both.match("a.b") == []
    assert both.stats()["foreign"] == 0
    assert not both.matches_any("a.b")
    assert sorted(kept.match("a.b")) == ["amqp", "mqtt"]
    lonely: Bilingual[str] = Bilingual(MQTT, "naive")
    lonely.subscribe("a/+", "x")
    assert lonely.snapshot().match("a/b") == ["x"]


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_topic_is_one_in_both_grammars(data: st.DataObject) -> None:
    both: Bilingual[int] = Bilingual()
    pairs: list[tuple[Grammar, str, int]] = []
    for grammar in data.draw(st.lists(st.sampled_from(GRAMMARS), max_size=12)):
        pattern = data.draw(patterns(grammar))
        person = data.draw(st.integers(0, 3))
        both.side(grammar).subscribe(pattern, person)
        pairs.append((grammar, pattern, person))
    for topic in data.draw(st.lists(topics(AMQP), max_size=6)):
        subscribers = both.match(topic)
        assert len(subscribers) == len(set(subscribers))
        assert set(subscribers) == {
            person
            for grammar, pattern, person in pairs
            if grammar.matches(pattern, topic if grammar is AMQP else swap(topic))
        }
        assert both.matches_any(topic) == (len(subscribers) > 0)
