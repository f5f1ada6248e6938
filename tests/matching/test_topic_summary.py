"""Summaries of sets of topics never exclude a pattern that matches one of the topics."""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching import AMQP, MQTT, Grammar, swap
from matching.topic_summary import (
    BLOOM_MIN,
    LISTED_MAX,
    WORDS_MAX,
    EqualityQuestion,
    PatternQuestion,
    TopicSummary,
    decode_summary,
    encode_summary,
)
from tests.matching.words import GRAMMARS, patterns, topics


def summary(texts: list[str], most: int) -> TopicSummary:
    data = encode_summary({text.encode() for text in texts}, most)
    assert len(data) <= max(most, BLOOM_MIN + 1)
    decoded = decode_summary(data)
    assert decoded is not None
    return decoded


def does_match(pattern: str, grammar: Grammar, topic: str) -> bool:
    """True if the pattern matches a topic by the definition; the topic has AMQP's notation."""
    return grammar.matches(pattern, swap(topic) if grammar is MQTT else topic)


@pytest.mark.parametrize("grammar", GRAMMARS)
@given(data=st.data())
def test_no_pattern_that_matches_is_excluded(grammar: Grammar, data: st.DataObject) -> None:
    texts = data.draw(st.lists(topics(AMQP), min_size=1, max_size=6))
    pattern = data.draw(patterns(grammar))
    matched = any(does_match(pattern, grammar, text) for text in texts)
    question = PatternQuestion(pattern, grammar)
    listed, bloom = summary(texts, 1 << 20), summary(texts, 10)
    assert listed.topics is not None
    assert bloom.topics is None
    assert listed.may_match(question) == matched
    assert bloom.may_match(question) or not matched


@given(
    st.lists(st.text("ab./$é\n", max_size=30), min_size=1, max_size=6),
    st.frozensets(st.text("ab./$é\n", max_size=30), max_size=3),
)
def test_no_topic_of_the_set_is_excluded(texts: list[str], wanted: frozenset[str]) -> None:
    question = EqualityQuestion(wanted | {texts[0]})
    assert summary(texts, 1 << 20).may_match(question)
    assert summary(texts, 10).may_match(question)
    others = EqualityQuestion(wanted - set(texts))
    assert not summary(texts, 1 << 20).may_match(others)


def many(number: int) -> str:
    """Return the word with this number: 16 hexadecimal digits that can hardly be compressed."""
    return blake2b(b"%d" % number, digest_size=8).hexdigest()


#: Topics of a summary that is a Bloom filter with 32 bits for each topic.
TOPICS: Final = [f"plant.line{number % 4}.{many(number)}.temp" for number in range(1_000)]
BLOOM: Final = summary(TOPICS, 4_001)


@pytest.mark.parametrize(
    ("pattern", "grammar", "expected"),
    [
        (f"plant.*.{many(7)}.#", AMQP, True),
        (f"plant/+/{many(7)}/temp", MQTT, True),
        ("#.temp", AMQP, True),
        ("*.line3.#", AMQP, True),
        ("#.line9.#", AMQP, True),  # The place of the word is unknown, so nothing is excluded.
        (TOPICS[5], AMQP, True),
        (TOPICS[5].replace("temp", "pressure"), AMQP, False),
        ("plant.line9.#", AMQP, False),
        ("+/line9/#", MQTT, False),
        (f"plant/+/{many(-1)}/temp", MQTT, False),
        ("#.pressure", AMQP, False),
        ("office/#", MQTT, False),
    ],
)
def test_a_bloom_filter_excludes_by_each_kind_of_part(
    pattern: str, grammar: Grammar, expected: bool
) -> None:
    assert BLOOM.topics is None
    assert BLOOM.may_match(PatternQuestion(pattern, grammar)) == expected


def test_a_bloom_filter_claims_few_topics_that_are_not_in_the_set() -> None:
    others = [f"plant.line{number % 4}.{many(number)}.temp" for number in range(1_000, 2_000)]
    assert all(BLOOM.may_match(EqualityQuestion([topic])) for topic in TOPICS)
    assert sum(BLOOM.may_match(EqualityQuestion([topic])) for topic in others) <= 10


def test_a_list_has_a_largest_number_of_topics() -> None:
    texts = [f"{number}" for number in range(LISTED_MAX + 1)]
    assert summary(texts[1:], 1 << 20).topics is not None
    assert summary(texts, 1 << 20).topics is None


def test_words_behind_the_last_known_place_exclude_nothing() -> None:
    deep = ".".join("abcdefghijklmnop")
    bloom = summary([deep], 10)
    words = deep.split(".")
    assert len(words) > WORDS_MAX
    for place in range(len(words)):
        assert bloom.may_match(PatternQuestion(".".join([*words[:place], "*", "#"]), AMQP))
    assert bloom.may_match(PatternQuestion(deep, AMQP))


@pytest.mark.parametrize(
    "data",
    [b"", b"?", b"L", b"L\1\0\0\0", b"L\1\0\0\0not zlib", b"B", b"B1234567"],
)
def test_other_bytes_are_no_summary(data: bytes) -> None:
    assert decode_summary(data) is None


def test_each_cut_of_a_list_is_no_summary() -> None:
    data = encode_summary({b"a.b", b"c"}, 1_000)
    assert decode_summary(data) is not None
    for size in range(len(data)):
        assert decode_summary(data[:size]) is None
