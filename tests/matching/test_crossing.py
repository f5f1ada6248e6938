"""Compares all algorithms over all topics and patterns of up to three words, in both grammars."""

from __future__ import annotations

from itertools import product

import pytest

from matching import (
    AMQP,
    MQTT,
    NAMES,
    Grammar,
    InvalidPattern,
    InvalidTopic,
    Matcher,
    TopicIndex,
    create,
    swap,
)
from tests.matching.words import GRAMMARS, agree

WORDS = ["a", "*", "+", "#", ".", "/", "$x", ""]


def spelled(grammar: Grammar) -> list[str]:
    """Return every text of up to three of WORDS, joined by the grammar's separator."""
    lists = [words for length in range(4) for words in product(WORDS, repeat=length)]
    return sorted({grammar.separator.join(words) for words in lists})


def valid_patterns(grammar: Grammar) -> list[str]:
    return [text for text in spelled(grammar) if _accepts(grammar, text)]


def valid_topics(grammar: Grammar) -> list[str]:
    return [text for text in spelled(grammar) if _may_be_published(grammar, text)]


def _accepts(grammar: Grammar, text: str) -> bool:
    try:
        grammar.check(text)
    except InvalidPattern:
        return False
    return True


def _may_be_published(grammar: Grammar, text: str) -> bool:
    try:
        grammar.check_topic(text)
    except InvalidTopic:
        return False
    return True


def other(grammar: Grammar) -> Grammar:
    return MQTT if grammar is AMQP else AMQP


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
def test_crossing_is_a_bijection_and_its_own_inverse(grammar: Grammar) -> None:
    texts = spelled(grammar)
    crossed = [swap(text) for text in texts]
    assert [swap(text) for text in crossed] == texts
    assert len(set(crossed)) == len(texts)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
def test_crossing_keeps_the_number_of_words_and_touches_no_wildcard(grammar: Grammar) -> None:
    for text in filter(None, spelled(grammar)):
        words = grammar.split(text)
        crossed = other(grammar).split(swap(text))
        assert crossed == [swap(word) for word in words]
        for wildcard in ("*", "+", "#"):
            assert [word == wildcard for word in crossed] == [word == wildcard for word in words]


def test_words_with_the_other_separator_never_collide() -> None:
    assert swap("a/b.c") == "a.b/c"
    assert swap("a.b/c") == "a/b.c"
    assert swap("a/b/c") == "a.b.c"


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
def test_a_pattern_searches_topics_of_its_own_grammar_by_its_words(
    grammar: Grammar,
) -> None:
    topics = [(topic, grammar.split(topic)) for topic in valid_topics(grammar)]
    for pattern in valid_patterns(grammar):
        wanted = grammar.split(pattern)
        for topic, words in topics:
            assert grammar.matches(pattern, topic) == agree(wanted, words, grammar), (
                pattern,
                topic,
            )


@pytest.mark.parametrize("grammar", GRAMMARS, ids=str)
def test_a_pattern_searches_topics_of_the_other_grammar_by_its_words(
    grammar: Grammar,
) -> None:
    origin = other(grammar)
    topics = [
        (swap(topic), [swap(word) for word in origin.split(topic)])
        for topic in valid_topics(origin)
    ]
    topics = [(topic, words) for topic, words in topics if _may_be_published(grammar, topic)]
    topics_by_pattern: dict[str, list[str]] = {}
    for pattern in valid_patterns(grammar):
        wanted = grammar.split(pattern)
        topics_by_pattern[pattern] = [
            topic for topic, words in topics if agree(wanted, words, grammar)
        ]
    index: TopicIndex[str] = TopicIndex(grammar)
    for topic, _ in topics:
        index.put(topic, topic)
    for pattern, expected in topics_by_pattern.items():
        assert sorted(index.match(pattern)) == sorted(expected), pattern
    for name in NAMES:
        if name == "naive":
            # `naive` is left out: it is the definition itself, which the test above checks.
            continue
        matcher: Matcher[str] = create(name, grammar)
        for pattern in topics_by_pattern:
            matcher.subscribe(pattern, pattern)
        for topic, _ in topics:
            matching = matcher.match(topic)
            assert len(matching) == len(set(matching))
            assert all(
                agree(grammar.split(pattern), grammar.split(topic), grammar) for pattern in matching
            )
            expected_count = sum(topic in expected for expected in topics_by_pattern.values())
            assert len(matching) == expected_count, (name, topic)
