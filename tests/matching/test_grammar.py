"""Tests of the patterns and topics that the grammars reject, and of the error texts."""

from __future__ import annotations

import pytest

from matching import AMQP, DEFAULT, MQTT, Grammar, InvalidPattern, InvalidTopic


@pytest.mark.parametrize(
    ("pattern", "position", "rule"),
    [
        ("", 0, "must be at least one character long [MQTT-4.7.3-1]"),
        ("a/#/b/#", 1, "'#' must be the last level [MQTT-4.7.1-1]"),
        ("a/b/c#", 2, "'#' must be a whole level [MQTT-4.7.1-1]"),
        ("a/+b", 1, "'+' must be a whole level [MQTT-4.7.1-2]"),
        ("a/b/\0/c", 2, "must not contain NUL [MQTT-4.7.3-2]"),
        ("a" * 65_536, 0, "must not be longer than 65,535 bytes"),
        ("a/\ud800", 0, "must be valid UTF-8"),
    ],
    ids=ascii,
)
def test_an_invalid_filter_is_refused_with_the_rule_and_the_level(
    pattern: str, position: int, rule: str
) -> None:
    with pytest.raises(InvalidPattern) as refused:
        MQTT.check(pattern)
    assert (refused.value.pattern, refused.value.position, refused.value.rule) == (
        pattern,
        position,
        rule,
    )
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    ("topic", "position", "rule"),
    [
        ("", 0, "must be at least one character long [MQTT-4.7.3-1]"),
        ("a/b/+", 2, "must not contain a wildcard [MQTT-4.7.0-1]"),
        ("a/b#/c", 1, "must not contain a wildcard [MQTT-4.7.0-1]"),
        ("a/b\0", 1, "must not contain NUL [MQTT-4.7.3-2]"),
        ("a" * 65_536, 0, "must not be longer than 65,535 bytes"),
        ("a/\ud800", 0, "must be valid UTF-8"),
    ],
    ids=ascii,
)
def test_an_invalid_topic_is_refused_with_the_rule_and_the_level(
    topic: str, position: int, rule: str
) -> None:
    with pytest.raises(InvalidTopic) as refused:
        MQTT.check_topic(topic)
    assert (refused.value.topic, refused.value.position, refused.value.rule) == (
        topic,
        position,
        rule,
    )
    assert rule in str(refused.value)


@pytest.mark.parametrize(
    "pattern",
    ["+", "#", "+/+", "+/tennis/#", "/", "a//b", "/+", "$share", "a/#", " ", "\ufeff", "€/é"],
)
def test_a_valid_filter_is_accepted(pattern: str) -> None:
    MQTT.check(pattern)


@pytest.mark.parametrize("topic", ["a", "/", "a//b", "$SYS/a", "a b", "a.*.b", "\ufeff"])
def test_a_valid_topic_is_accepted(topic: str) -> None:
    MQTT.check_topic(topic)


@pytest.mark.parametrize("key", ["", "#", "a*", "*.*", "#.#.a", "a\0b", "$x", "a/+"])
def test_any_short_amqp_key_is_a_valid_pattern_and_topic(key: str) -> None:
    AMQP.check(key)
    AMQP.check_topic(key)


def test_an_amqp_key_need_not_be_utf_8_and_is_measured_in_bytes() -> None:
    key = (b"\xff" * 255).decode("utf-8", "surrogateescape")
    AMQP.check(key)
    AMQP.check_topic(key)
    with pytest.raises(InvalidPattern, match="255 bytes"):
        AMQP.check(key + "a")
    with pytest.raises(InvalidPattern, match="valid UTF-8"):
        AMQP.check("\ud800")


def test_a_refusal_does_not_repeat_a_long_text() -> None:
    with pytest.raises(InvalidPattern) as refused:
        MQTT.check("a/" * 40_000)
    assert len(str(refused.value)) < 200
    assert "80,000 characters" in str(refused.value)


def test_a_refusal_is_a_value_error_that_names_pattern_rule_and_word() -> None:
    with pytest.raises(
        ValueError, match=r"^invalid pattern 'a/b\+': '\+' must be a whole level \S+ \(word 2\)$"
    ):
        MQTT.check("a/b+")


@pytest.mark.parametrize(
    ("grammar", "key", "wild"),
    [
        (AMQP, "a.*", True),
        (AMQP, "#", True),
        (AMQP, "a.#.b", True),
        (AMQP, "a*.#b", False),
        (AMQP, "a.b", False),
        (AMQP, "", False),
        (AMQP, "a/*", False),
        (AMQP, "+", False),
        (MQTT, "a/+", True),
        (MQTT, "#", True),
        (MQTT, "a/b", False),
        (MQTT, "*", False),
        (MQTT, "a.+", False),
    ],
)
def test_a_pattern_has_a_word_that_is_a_wildcard(grammar: Grammar, key: str, wild: bool) -> None:
    assert grammar.is_pattern(key) == wild


def test_words_are_separated_by_the_separator() -> None:
    assert AMQP.split("a..b/c.") == ["a", "", "b/c", ""]
    assert AMQP.split("") == []
    assert MQTT.split("/a.b//") == ["", "a.b", "", ""]


def test_only_mqtt_hides_topics_and_only_topics_that_begin_with_a_dollar() -> None:
    assert not AMQP.hidden("$SYS")
    assert MQTT.hidden("$SYS/a")
    assert not MQTT.hidden("a/$SYS")


def test_amqp_is_the_grammar_of_the_broker_itself() -> None:
    assert DEFAULT is AMQP
    assert [repr(AMQP), repr(MQTT)] == ["<Grammar amqp>", "<Grammar mqtt>"]
