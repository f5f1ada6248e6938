"""Tests which patterns match which topics, with an example for each rule.

Each example is checked with the definition of a match, every matcher and the index of topics.
"""

from __future__ import annotations

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
)


def matches(grammar: Grammar, pattern: str, topic: str) -> bool:
    """True if the pattern matches the topic, by the definition; check that all matchers agree."""
    answer = grammar.matches(pattern, topic)
    for name in NAMES:
        matcher: Matcher[str] = create(name, grammar)
        matcher.subscribe(pattern, "subscriber")
        assert matcher.match(topic) == ["subscriber"] * answer, name
        assert matcher.matches_any(topic) == answer, name
    index: TopicIndex[str] = TopicIndex(grammar)
    index.put(topic, "value")
    assert index.match(pattern) == ["value"] * answer
    return answer


def amqp(pattern: str, topic: str) -> bool:
    return matches(AMQP, pattern, topic)


def mqtt(pattern: str, topic: str) -> bool:
    return matches(MQTT, pattern, topic)


@pytest.mark.parametrize("pattern", ["#", "#.#", ""])
def test_the_empty_amqp_key_has_no_words_and_is_matched_by_any_number_of_words(
    pattern: str,
) -> None:
    assert amqp(pattern, "")


@pytest.mark.parametrize("pattern", ["*", "*.#", "#.*", ".", "a"])
def test_the_empty_amqp_key_is_not_matched_where_a_word_is_wanted(pattern: str) -> None:
    assert not amqp(pattern, "")


def test_the_empty_amqp_pattern_matches_nothing_but_the_empty_key() -> None:
    assert not amqp("", "a")
    assert not amqp("", ".")


def test_the_empty_mqtt_topic_and_filter_are_invalid() -> None:
    with pytest.raises(InvalidTopic):
        MQTT.check_topic("")
    with pytest.raises(InvalidPattern):
        MQTT.check("")


@pytest.mark.parametrize(
    ("pattern", "topic"),
    [
        ("a.*.b", "a..b"),
        ("a..b", "a..b"),
        ("*.finance", ".finance"),
        ("*.*", "."),
        ("a.*.", "a.."),
        ("a.*.", "a.b."),
    ],
)
def test_an_empty_amqp_word_is_a_word(pattern: str, topic: str) -> None:
    assert amqp(pattern, topic)


def test_an_empty_amqp_word_counts() -> None:
    assert not amqp("*", ".finance")
    assert not amqp("a.b", "a..b")
    assert not amqp("a", "a.")


def test_an_empty_mqtt_level_is_a_level() -> None:
    assert mqtt("+/+", "/finance")
    assert mqtt("/+", "/finance")
    assert mqtt("sport/+", "sport/")
    assert mqtt("a/+/b", "a//b")
    assert mqtt("/", "/")


def test_an_empty_mqtt_level_counts() -> None:
    assert not mqtt("+", "/finance")
    assert not mqtt("sport/+", "sport")
    assert not mqtt("a/b", "a//b")


@pytest.mark.parametrize("topic", ["a", "a.", "a.b", "a.b.c"])
def test_the_amqp_many_wildcard_at_the_end_takes_zero_or_more_words(topic: str) -> None:
    assert amqp("a.#", topic)


@pytest.mark.parametrize("topic", ["a.b", "a.x.b", "a.x.y.b", "a.b.b", "a..b"])
def test_the_amqp_many_wildcard_in_the_middle_takes_zero_or_more_words(topic: str) -> None:
    assert amqp("a.#.b", topic)
    assert not amqp("a.#.b", topic + ".c")


@pytest.mark.parametrize("topic", ["b", ".b", "a.b", "a.a.b", "b.b"])
def test_the_amqp_many_wildcard_at_the_beginning_takes_zero_or_more_words(topic: str) -> None:
    assert amqp("#.b", topic)


@pytest.mark.parametrize("topic", ["a.b", "x.a.y.b.z", "a.a.b.b", "x.a.b", "a.x.y.b"])
def test_several_amqp_many_wildcards_match_together(topic: str) -> None:
    assert amqp("#.a.#.b.#", topic)
    assert not amqp("#.a.#.b.#.c", topic)


def test_the_amqp_one_wildcard_takes_exactly_one_word() -> None:
    assert amqp("forex.*", "forex.eur")
    assert not amqp("forex.*", "forex")
    assert not amqp("forex.*", "forex.eur.usd")
    assert amqp("*.b", ".b")


@pytest.mark.parametrize("pattern", ["*.#", "#.*"])
def test_one_and_many_amqp_wildcards_want_at_least_one_word(pattern: str) -> None:
    assert amqp(pattern, "a")
    assert amqp(pattern, "a.b.c")
    assert not amqp(pattern, "")


@pytest.mark.parametrize("topic", ["sport", "sport/", "sport/tennis", "sport/tennis/player1"])
def test_the_mqtt_many_wildcard_matches_the_parent_and_all_below(topic: str) -> None:
    assert mqtt("sport/#", topic)
    assert mqtt("#", topic)


@pytest.mark.parametrize("pattern", ["#/a", "a/#/b", "#/#", "#/", "+/#/+"])
def test_the_mqtt_many_wildcard_may_only_be_last(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        MQTT.check(pattern)


def test_the_mqtt_one_wildcard_takes_exactly_one_level() -> None:
    assert mqtt("+", "finance")
    assert mqtt("sport/+/player1", "sport/tennis/player1")
    assert mqtt("+/tennis/#", "sport/tennis")
    assert not mqtt("sport/tennis/+", "sport/tennis/player1/ranking")


@pytest.mark.parametrize("pattern", ["a.b*", "a.*b", "a.b#", "a.#b"])
def test_a_wildcard_within_an_amqp_word_is_literal(pattern: str) -> None:
    AMQP.check(pattern)
    assert amqp(pattern, pattern)
    assert not amqp(pattern, "a.b")
    assert not amqp(pattern, "a.xb")


@pytest.mark.parametrize("pattern", ["a/b+", "a/+b", "a/b#", "a/#b", "sport/tennis#", "++", "##"])
def test_a_wildcard_within_an_mqtt_level_is_invalid(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        MQTT.check(pattern)


def test_wildcard_characters_in_an_amqp_key_are_ordinary_words() -> None:
    assert amqp("a.*", "a.#")
    assert amqp("a.*", "a.*")
    assert amqp("#.b", "#.b")
    assert not amqp("a.b", "a.*")
    assert not amqp("a.b", "#")
    AMQP.check_topic("a.*.#")


@pytest.mark.parametrize("topic", ["a/+", "#", "a/b+c", "a#/b"])
def test_wildcard_characters_in_an_mqtt_topic_are_invalid(topic: str) -> None:
    with pytest.raises(InvalidTopic):
        MQTT.check_topic(topic)


def test_the_other_grammars_wildcards_and_separators_are_ordinary() -> None:
    assert not mqtt("a/*", "a/b")
    assert mqtt("a/+", "a/*")
    assert not mqtt("a/+", "a.b")
    assert not amqp("a.+", "a.b")
    assert not amqp("a.*", "a/b")


@pytest.mark.parametrize("pattern", ["#", "*", "*.*", "#.x", "$SYS.#", "*.#", "#.*"])
def test_amqp_key_that_begins_with_a_dollar_is_not_special(pattern: str) -> None:
    assert amqp(pattern, "$SYS.x") == (pattern != "*")


@pytest.mark.parametrize("pattern", ["#", "+/monitor/Clients", "+/#", "+/+/+"])
def test_a_filter_that_begins_with_a_wildcard_never_matches_a_dollar_topic(pattern: str) -> None:
    assert not mqtt(pattern, "$SYS/monitor/Clients")
    assert mqtt(pattern, "SYS/monitor/Clients")


@pytest.mark.parametrize("pattern", ["$SYS/#", "$SYS/monitor/+", "$SYS/+/Clients", "$SYS/+/#"])
def test_a_filter_that_names_a_dollar_topic_matches_it_with_wildcards_further_on(
    pattern: str,
) -> None:
    assert mqtt(pattern, "$SYS/monitor/Clients")


def test_a_dollar_hides_only_in_front_of_the_topic() -> None:
    assert mqtt("#", "a/$SYS")
    assert mqtt("+/+", "a/$SYS")
    assert mqtt("+/+", "/$SYS")
    assert mqtt("a/#", "a/$SYS/b")


def test_an_amqp_key_has_at_most_255_bytes_and_so_128_words() -> None:
    AMQP.check("." * 255)
    AMQP.check_topic("ü" * 127 + ".")
    for long in ("." * 256, "ü" * 128):
        with pytest.raises(InvalidPattern):
            AMQP.check(long)
        with pytest.raises(InvalidTopic):
            AMQP.check_topic(long)
    assert amqp(".".join(["*"] * 128), "." * 127)


def test_an_mqtt_topic_has_at_most_65535_bytes() -> None:
    MQTT.check("a" * 65_535)
    MQTT.check_topic("ü" * 32_767 + "/")
    for long in ("a" * 65_536, "ü" * 32_768):
        with pytest.raises(InvalidPattern):
            MQTT.check(long)
        with pytest.raises(InvalidTopic):
            MQTT.check_topic(long)


def test_an_mqtt_topic_holds_no_nul() -> None:
    with pytest.raises(InvalidPattern):
        MQTT.check("a/b\0/+")
    with pytest.raises(InvalidTopic):
        MQTT.check_topic("a/b\0")


@pytest.mark.parametrize("grammar", [AMQP, MQTT], ids=str)
def test_levels_are_limited_when_the_caller_says_so(grammar: Grammar) -> None:
    topic = grammar.separator.join("abc")
    grammar.check(topic, max_levels=3)
    grammar.check_topic(topic, max_levels=3)
    with pytest.raises(InvalidPattern, match="more than 2 levels"):
        grammar.check(topic, max_levels=2)
    with pytest.raises(InvalidTopic, match="more than 2 levels"):
        grammar.check_topic(topic, max_levels=2)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("grammar", "patterns"),
    [(AMQP, ["a.#", "#", "a.*", "#.b", "*.#.b"]), (MQTT, ["a/#", "#", "+/b"])],
)
def test_a_subscriber_is_found_once_however_many_of_its_patterns_match(
    name: str, grammar: Grammar, patterns: list[str]
) -> None:
    matcher: Matcher[str] = create(name, grammar)
    for pattern in patterns:
        matcher.subscribe(pattern, "one")
        matcher.subscribe(pattern, "other " + pattern)
    subscribers = matcher.match(grammar.separator.join("ab"))
    assert sorted(subscribers) == sorted(["one", *("other " + pattern for pattern in patterns)])


@pytest.mark.parametrize("name", NAMES)
def test_patterns_that_match_the_same_topics_are_still_two(name: str) -> None:
    matcher: Matcher[str] = create(name, AMQP)
    assert matcher.subscribe("#.*", "a")
    assert matcher.subscribe("*.#", "a")
    assert len(matcher) == 2
    assert matcher.unsubscribe("#.*", "a")
    assert list(matcher.subscriptions()) == [("*.#", "a")]
    assert matcher.match("x") == ["a"]
