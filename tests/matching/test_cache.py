"""Tests that cached answers are never stale, and that only affected answers are invalidated."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, Matcher, create, swap
from matching.cache import RouteCache
from matching.composite import Bilingual, Composite
from tests.matching.words import GRAMMARS, patterns, topics


def cached(most: int = 100, heaviest: int = 1_000, precise: int = 50) -> RouteCache[str]:
    cache: RouteCache[str] = RouteCache(Composite(AMQP), most, heaviest, precise)
    cache.subscribe("a.*", "x")
    return cache


def test_an_answer_is_asked_for_once() -> None:
    cache = cached()
    assert cache.find("a.b") == ("x",)
    assert cache.find("a.b") is cache.find("a.b")
    assert (cache.hits, cache.misses) == (2, 1)
    cache.match("a.b").append("y")
    assert cache.match("a.b") == ["x"]
    assert cache.matches_any("a.b")
    assert not cache.matches_any("b")
    assert len(cache) == 1
    assert ("a.*", "x") in cache
    assert list(cache.subscriptions()) == [("a.*", "x")]
    assert cache.snapshot().match("a.b") == ["x"]


@pytest.mark.parametrize(
    ("pattern", "misses"),
    [("a.b", 1), ("c.b", 0), ("a.*", 2), ("#.b", 2), ("#", 3), ("b.#", 0), ("*", 1)],
)
def test_a_change_drops_the_answers_of_the_topics_it_matches(pattern: str, misses: int) -> None:
    cache = cached()
    for topic in ("a.b", "a.c.b", "a"):
        cache.find(topic)
    if pattern == "a.*":
        cache.find("a.c")
    cache.subscribe(pattern, "y")
    before = cache.misses
    for topic in ("a.b", "a.c.b", "a", *["a.c"] * (pattern == "a.*")):
        cache.find(topic)
    assert cache.misses == before + misses
    assert cache.stats()["dropped"] == misses
    assert cache.unsubscribe(pattern, "y")
    assert cache.stats()["dropped"] == 2 * misses
    assert cache.match("a.b") == ["x"]


def test_a_call_without_effect_invalidates_no_answer() -> None:
    cache = cached()
    cache.find("a.b")
    assert not cache.subscribe("a.*", "x")
    assert not cache.unsubscribe("#", "x")
    assert cache.find("a.b") == ("x",)
    assert cache.hits == 1


def test_a_full_cache_forgets_its_oldest_topics() -> None:
    cache = cached(most=100)
    for number in range(101):
        cache.find(f"a.{number}")
    assert cache.stats()["topics"] == 101 - 64
    cache.find("a.100")
    assert cache.hits == 1
    cache.find("a.0")
    assert cache.hits == 1
    assert cache.stats()["kept"] == cache.stats()["topics"]


def test_long_answers_are_kept_up_to_a_weight() -> None:
    cache = cached(heaviest=100)
    for number in range(60):
        cache.subscribe("b.#", str(number))
    cache.find("a.b")
    assert len(cache.find("b.0")) == 60
    assert cache.stats()["kept"] == 61
    assert len(cache.find("b.1")) == 60
    assert cache.stats()["kept"] == 60
    for number in range(60):
        cache.subscribe("c.#", str(number))
        cache.subscribe("b.*", "n" + str(number))
    assert len(cache.find("b.1")) == 120
    assert (cache.stats()["kept"], cache.stats()["topics"]) == (120, 1)
    cache.subscribe("b.1", "another")
    assert len(cache.find("b.1")) == 121
    assert cache.stats()["topics"] == 1


@pytest.mark.parametrize("pattern", ["#", "a.#", "a.*"])
def test_a_change_that_may_meet_too_many_topics_drops_all_answers_in_one_step(pattern: str) -> None:
    cache = cached(precise=50)
    for number in range(60):
        cache.find(f"a.{number}")
    cache.find("b")
    cache.subscribe(pattern, "y")
    assert cache.epochs == 1
    assert "y" in cache.find("a.1")
    assert cache.misses == 62
    assert sorted(cache.find("a.1")) == ["x", "y"]
    assert cache.hits == 1
    assert cache.find("b") == (("y",) if pattern == "#" else ())
    assert cache.misses == 63


def test_clearing_leaves_nothing() -> None:
    cache = cached()
    cache.find("a.b")
    cache.clear()
    assert cache.find("a.b") == ()
    assert len(cache) == 0
    assert cache.stats()["topics"] == 1


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
@pytest.mark.parametrize(
    ("most", "heaviest", "precise"), [(8, 10_000, 50), (70, 10_000, 2), (70, 5, 50)]
)
@settings(deadline=None, max_examples=25)
@given(data=st.data())
def test_cached_answers_equal_those_of_the_source(
    grammar: Grammar, most: int, heaviest: int, precise: int, data: st.DataObject
) -> None:
    cache: RouteCache[int] = RouteCache(create("trie", grammar), most, heaviest, precise)
    oracle: Matcher[int] = create("naive", grammar)
    steps = st.tuples(
        st.sampled_from("+-??"), patterns(grammar), topics(grammar), st.integers(0, 3)
    )
    for what, pattern, topic, person in data.draw(st.lists(steps, max_size=40)):
        if what == "+":
            assert cache.subscribe(pattern, person) == oracle.subscribe(pattern, person)
        elif what == "-":
            assert cache.unsubscribe(pattern, person) == oracle.unsubscribe(pattern, person)
        assert set(cache.match(topic)) == set(oracle.match(topic))
        stats = cache.stats()
        assert stats["topics"] <= most
        assert stats["kept"] <= heaviest or stats["topics"] == 1


@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_changes_in_the_other_grammar_drop_answers_too(data: st.DataObject) -> None:
    both: Bilingual[int] = Bilingual()
    cache: RouteCache[int] = RouteCache(both, 8)
    pairs: set[tuple[Grammar, str, int]] = set()
    for add in data.draw(st.lists(st.booleans(), max_size=30)):
        grammar = data.draw(st.sampled_from(GRAMMARS))
        pattern = data.draw(patterns(grammar))
        person = data.draw(st.integers(0, 1))
        if add:
            both.side(grammar).subscribe(pattern, person)
            pairs.add((grammar, pattern, person))
        else:
            both.side(grammar).unsubscribe(pattern, person)
            pairs.discard((grammar, pattern, person))
        cache.invalidate(pattern, grammar)
        topic = data.draw(topics(AMQP))
        assert set(cache.match(topic)) == {
            person
            for grammar, pattern, person in pairs
            if grammar.matches(pattern, topic if grammar is AMQP else swap(topic))
        }


def test_the_first_change_in_the_other_grammar_drops_all_and_the_next_only_what_it_matches() -> (
    None
):
    both: Bilingual[str] = Bilingual()
    cache: RouteCache[str] = RouteCache(both)
    for topic in ("a.b", "b"):
        cache.find(topic)
    both.side(MQTT).subscribe("a/+", "x")
    cache.invalidate("a/+", MQTT)
    assert cache.epochs == 1
    assert [cache.find("a.b"), cache.find("b")] == [("x",), ()]
    both.side(MQTT).subscribe("b/#", "y")
    cache.invalidate("b/#", MQTT)
    assert cache.epochs == 1
    assert cache.dropped == 1
    both.side(MQTT).subscribe("a/b", "z")
    cache.invalidate("a/b", MQTT)
    assert cache.dropped == 2
    assert sorted(cache.find("a.b")) == ["x", "z"]
    assert cache.find("b") == ("y",)
