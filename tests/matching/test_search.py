"""Tests of lookups that pause: their results, their steps, and changes between two steps."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching import AMQP, MQTT, NAMES, Grammar, create
from matching.auto import Auto
from matching.composite import Bilingual
from matching.matcher import Matcher, Search
from matching.visits import VisitBound
from tests.matching.words import GRAMMARS, patterns, topics


def advance(searches: list[Search[int]], steps: int) -> bool:
    """Continue the first incomplete search by `steps` steps; return True if all are complete."""
    while searches and searches[0].done:
        del searches[0]
    if searches:
        searches[0].advance(steps)
    return all(search.done for search in searches)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=["amqp", "mqtt"])
@pytest.mark.parametrize("algorithm", NAMES)
@given(data=st.data())
def test_search_in_steps_finds_the_results_of_a_lookup(
    algorithm: str, grammar: Grammar, data: st.DataObject
) -> None:
    matcher: Matcher[int] = create(algorithm, grammar)
    for number, pattern in enumerate(data.draw(st.lists(patterns(grammar), max_size=12))):
        matcher.subscribe(pattern, number % 7)
    topic = data.draw(topics(grammar))
    subscribers: list[int] = []
    searches = matcher.searches(topic, subscribers)
    while not advance(searches, data.draw(st.integers(1, 9))):
        pass
    assert set(subscribers) == set(matcher.match(topic))


@given(data=st.data())
def test_a_search_finds_every_subscriber_that_stays_while_others_come_and_go(
    data: st.DataObject,
) -> None:
    matcher: Matcher[int] = Auto(AMQP, compact_above=4, limit=2)
    draw, texts = data.draw, patterns(AMQP)
    staying = dict(enumerate(draw(st.lists(texts, max_size=8))))
    for number, pattern in staying.items():
        matcher.subscribe(pattern, number)
    topic = draw(topics(AMQP))
    wanted = set(matcher.match(topic))
    subscribers: list[int] = []
    searches = matcher.searches(topic, subscribers)
    others: dict[int, str] = {}
    serial = 1_000
    while not advance(searches, draw(st.integers(1, 3))):
        change = draw(st.sampled_from(["add", "add", "remove", "look up"]))
        if change == "add":
            serial += 1
            others[serial] = draw(texts)
            matcher.subscribe(others[serial], serial)
        elif change == "remove" and others:
            number = draw(st.sampled_from(sorted(others)))
            matcher.unsubscribe(others.pop(number), number)
        else:
            matcher.match(draw(topics(AMQP)))
    assert wanted <= set(subscribers)
    assert {number for number in subscribers if number < 1_000} == wanted


def test_a_search_in_both_grammars_finds_subscribers_of_both() -> None:
    matcher: Bilingual[str] = Bilingual(AMQP)
    matcher.subscribe("a.*", "queue")
    matcher.subscribe("a.b", "plain")
    matcher.side(MQTT).subscribe("a/#", "session")
    subscribers: list[str] = []
    for search in matcher.searches("a.b", subscribers):
        while not search.done:
            search.advance(1)
    assert sorted(subscribers) == ["plain", "queue", "session"]


def courses(grammar: Grammar) -> st.SearchStrategy[str]:
    """Draw patterns that make lookups long: words `a` and `b`, with a wildcard before each word."""
    wildcard = grammar.many if grammar is AMQP else grammar.one
    return st.text("ab", min_size=1, max_size=4).map(
        lambda words: grammar.separator.join(f"{wildcard}{grammar.separator}{w}" for w in words)
    )


def _visits(texts: list[str], topic: str, grammar: Grammar) -> int:
    """Return how many nodes a lookup of the topic visits in a trie of these patterns, by brute
    force.

    A node behind a `#` counts once for each position of the topic at which it is visited.
    """
    words = grammar.split(topic)
    visits: set[tuple[tuple[str, ...], int]] = set()
    entered: set[tuple[str, ...]] = set()
    for text in texts:
        path = grammar.split(text)
        places = {0}
        for depth, word in enumerate(path, 1):
            if word == grammar.many:
                places = {to for at in places for to in range(at, len(words) + 1)}
                if places:
                    entered.add(tuple(path[:depth]))
                continue
            places = {
                at + 1 for at in places if at < len(words) and word in (grammar.one, words[at])
            }
            visits |= {(tuple(path[:depth]), at) for at in places}
    return len(visits) + len(entered)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=["amqp", "mqtt"])
@given(data=st.data())
def test_no_topic_visits_more_nodes_than_the_bound(grammar: Grammar, data: st.DataObject) -> None:
    texts = data.draw(st.lists(patterns(grammar) | courses(grammar), max_size=30, unique=True))
    topic = data.draw(topics(grammar) | st.text("ab", max_size=9).map(grammar.separator.join))
    bound = VisitBound(grammar, len(grammar.split(topic)) + 1)
    for text in texts:
        assert bound.with_pattern(text) >= bound.nodes
        bound.add(text)
    assert _visits(texts, topic, grammar) <= bound.nodes
    gone = data.draw(st.sets(st.sampled_from(texts))) if texts else set()
    for text in gone:
        bound.remove(text)
    rest = VisitBound(grammar, len(grammar.split(topic)) + 1)
    for text in texts:
        if text not in gone:
            rest.add(text)
    assert rest.nodes == bound.nodes


def test_the_bound_counts_masks_and_not_patterns() -> None:
    bound = VisitBound(MQTT)
    for number in range(1_000):
        bound.add(f"site/{number}/+/temperature")
    assert bound.nodes == 4
    for number in range(2**10):
        bound.add("/".join("+a"[number >> place & 1] for place in range(10)))
    assert bound.nodes == 2**11 - 2
