"""Runs the worked examples of the five articles (listed in `matching`) with every algorithm."""

from __future__ import annotations

import pytest

from matching import AMQP, MQTT, NAMES, Grammar, Matcher, create


@pytest.fixture(params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def subscribed(name: str, patterns: dict[int, str], grammar: Grammar = AMQP) -> Matcher[int]:
    """Return a matcher of the algorithm `name` with these patterns.

    The subscriber of each pattern is the pattern's key in `patterns`.
    """
    matcher: Matcher[int] = create(name, grammar)
    for number, pattern in patterns.items():
        matcher.subscribe(pattern, number)
    return matcher


def subscribers(matcher: Matcher[int], topic: str) -> set[int]:
    """Look the topic up twice, check that both answers agree, and return the subscribers."""
    first = matcher.match(topic)
    assert sorted(matcher.match(topic)) == sorted(first) == sorted(set(first))
    assert matcher.matches_any(topic) == bool(first)
    return set(first)


# -- article 1


def test_article_1_messages_are_routed_to_the_subscribers_whose_requests_match(name: str) -> None:
    matcher = subscribed(name, {1: "forex.usd", 2: "forex.*", 3: "stock.nasdaq.msft"})
    assert subscribers(matcher, "forex.gbp") == {2}
    assert subscribers(matcher, "forex.eur") == {2}
    assert subscribers(matcher, "forex.usd") == {1, 2}
    assert subscribers(matcher, "stock.nasdaq.msft") == {3}


INVERTED = {
    "forex.usd": {0, 2},
    "forex.gbp": {0, 2},
    "forex.jpy": {0, 2},
    "forex.eur": {0, 2},
    "stock.nasdaq": {2, 3},
    "stock.nyse": {1, 2, 3},
}


def test_article_1_every_row_of_the_inverted_bitmap_is_the_answer_to_its_topic(name: str) -> None:
    matcher = subscribed(name, {0: "forex.*", 1: "stock.nyse", 2: "*.*", 3: "stock.*"})
    assert {topic: subscribers(matcher, topic) for topic in INVERTED} == INVERTED


def test_article_1_rows_learned_before_anyone_subscribed_further_become_the_same(name: str) -> None:
    matcher = subscribed(name, {0: "forex.*"})
    for topic in INVERTED:
        matcher.match(topic)
    for number, pattern in {1: "stock.nyse", 2: "*.*", 3: "stock.*"}.items():
        matcher.subscribe(pattern, number)
    assert {topic: subscribers(matcher, topic) for topic in INVERTED} == INVERTED
    matcher.unsubscribe("*.*", 2)
    assert {topic: subscribers(matcher, topic) for topic in INVERTED} == {
        topic: row - {2} for topic, row in INVERTED.items()
    }


def test_article_1_rows_of_the_words_are_combined(name: str) -> None:
    matcher = subscribed(name, {0: "forex.*", 1: "stock.nyse", 2: "index", 3: "stock.*"})
    assert subscribers(matcher, "forex.eur") == {0}
    assert subscribers(matcher, "stock.nyse") == {1, 3}
    assert subscribers(matcher, "index") == {2}
    assert subscribers(matcher, "bond.nyse") == set()


def test_article_1_a_message_with_more_words_than_any_subscription_matches_none(name: str) -> None:
    matcher = subscribed(name, {0: "forex.*", 1: "stock.nyse", 2: "index", 3: "stock.*"})
    assert subscribers(matcher, "stock.nyse.bac") == set()
    matcher.subscribe("stock.#", 4)
    assert subscribers(matcher, "stock.nyse.bac") == {4}


def test_article_1_subscribers_stand_on_inner_nodes_too(name: str) -> None:
    matcher: Matcher[str] = create(name, AMQP)
    for subscriber, patterns in {
        "x": ["foo", "bar", "bar.baz"],
        "y": ["foo", "bar.qux"],
        "z": ["bar.*"],
    }.items():
        for pattern in patterns:
            matcher.subscribe(pattern, subscriber)
    expected = {
        "foo": ["x", "y"],
        "bar": ["x"],
        "bar.baz": ["x", "z"],
        "bar.qux": ["y", "z"],
        "bar.": ["z"],
        "qux": [],
    }
    assert {topic: sorted(matcher.match(topic)) for topic in expected} == expected


def test_articles_1_and_2_the_example_of_the_specification(name: str) -> None:
    matcher = subscribed(name, {0: "*.stock.#"})
    assert subscribers(matcher, "usd.stock") == {0}
    assert subscribers(matcher, "eur.stock.db") == {0}
    assert subscribers(matcher, "stock.nasdaq") == set()


# -- article 3


def test_article_3_a_topic_and_its_immediate_child(name: str) -> None:
    matcher = subscribed(name, {0: "WSO2", 1: "WSO2.*", 2: "WSO2.Products"})
    assert subscribers(matcher, "WSO2") == {0}
    assert subscribers(matcher, "WSO2.Products") == {1, 2}


def test_article_3_topic_only_immediate_child_topic_and_children(name: str) -> None:
    matcher = subscribed(name, {0: "WSO2.Products", 1: "WSO2.Products.*", 2: "WSO2.Products.#"})
    assert subscribers(matcher, "WSO2") == set()
    assert subscribers(matcher, "WSO2.Products") == {0, 2}
    assert subscribers(matcher, "WSO2.Products.MB") == {1, 2}
    assert subscribers(matcher, "WSO2.Products.MB.3") == {2}


def test_articles_3_and_4_a_word_in_no_pattern_is_an_other_and_a_missing_one_is_null(
    name: str,
) -> None:
    matcher = subscribed(name, {0: "trade", 1: "forex.eur", 2: "forex.*"})
    assert subscribers(matcher, "forex.eur") == {1, 2}
    assert subscribers(matcher, "forex.pound") == {2}
    assert subscribers(matcher, "forex.jpy") == {2}
    assert subscribers(matcher, "trade") == {0}
    assert subscribers(matcher, "forex") == set()


def test_article_3_a_subscription_with_more_parts_makes_the_earlier_ones_null_there(
    name: str,
) -> None:
    matcher = subscribed(name, {0: "WSO2", 1: "WSO2.Products"})
    matcher.match("WSO2.Products.MB")
    matcher.subscribe("WSO2.Products.MB", 2)
    assert subscribers(matcher, "WSO2") == {0}
    assert subscribers(matcher, "WSO2.Products") == {1}
    assert subscribers(matcher, "WSO2.Products.MB") == {2}


@pytest.mark.parametrize("numbered", ["bitmap", "bitmap-fixed"])
def test_article_3_the_position_of_a_deleted_subscription_is_vacant_and_used_again(
    numbered: str,
) -> None:
    matcher = subscribed(numbered, {0: "WSO2", 1: "WSO2.*", 2: "WSO2.#"})
    assert subscribers(matcher, "WSO2.MB") == {1, 2}
    matcher.unsubscribe("WSO2.*", 1)
    assert matcher.stats()["free"] == 1
    assert subscribers(matcher, "WSO2.MB") == {2}
    matcher.subscribe("WSO2.MB", 3)
    assert matcher.stats()["free"] == 0
    assert subscribers(matcher, "WSO2.MB") == {2, 3}
    assert subscribers(matcher, "WSO2.Other") == {2}


def test_article_3_three_subscriptions_of_one_routing_key_share_its_position(name: str) -> None:
    matcher: Matcher[str] = create(name, AMQP)
    matcher.subscribe("WSO2", "other")
    for subscriber in ("a", "b", "c"):
        matcher.subscribe("WSO2.#", subscriber)
    assert sorted(matcher.match("WSO2")) == ["a", "b", "c", "other"]
    assert sorted(matcher.match("WSO2.Products.MB")) == ["a", "b", "c"]
    matcher.unsubscribe("WSO2.#", "b")
    assert sorted(matcher.match("WSO2.Products.MB")) == ["a", "c"]


def test_article_3_the_filters_of_mqtt(name: str) -> None:
    matcher = subscribed(name, {0: "SENSOR/#", 1: "SENSOR/+/TEMP"}, MQTT)
    assert subscribers(matcher, "SENSOR/1/TEMP") == {0, 1}
    assert subscribers(matcher, "SENSOR/2/TEMP") == {0, 1}
    assert subscribers(matcher, "SENSOR/2/HUMIDITY") == {0}
    assert subscribers(matcher, "SENSOR") == {0}


# -- article 4


def test_article_4_the_matches_of_each_topic_save_that_a_wildcard_is_exactly_one_word(
    name: str,
) -> None:
    """Check the table of article 4, except that `forex.*` does not match `forex` in Trellis.

    The article follows the rules of an AMQP before 0-9-1, by which a wildcard also matches no word.
    """
    matcher = subscribed(name, {0: "forex.*", 1: "*.usd", 2: "*.eur", 3: "*"})
    expected = {
        "forex": {3},
        "forex.gbp": {0},
        "forex.eur": {0, 2},
        "forex.usd": {0, 1},
        "trade": {3},
        "trade.usd": {1},
        "trade.jpy": set[int](),
    }
    assert {topic: subscribers(matcher, topic) for topic in expected} == expected


def test_article_4_one_long_subscription_changes_no_short_answer(name: str) -> None:
    matcher = subscribed(name, {0: "forex.*", 1: "forex.#"})
    matcher.subscribe(".".join(["forex", *["null"] * 50]), 2)
    assert subscribers(matcher, "forex.eur") == {0, 1}
    assert subscribers(matcher, ".".join(["forex", *["null"] * 50])) == {1, 2}
    assert subscribers(matcher, ".".join(["forex", *["null"] * 49])) == {1}


def test_article_4_a_short_subscription_writes_no_row_behind_its_first_null() -> None:
    matcher = subscribed("bitmap", {0: ".".join(["a"] * 100)})
    before = matcher.stats()
    matcher.subscribe("trade.*", 1)
    assert matcher.stats()["positions"] == before["positions"] == 101
    assert matcher.stats()["rows"] == before["rows"] + 3


def test_article_4_filtering_tests_for_any_match(name: str) -> None:
    matcher = subscribed(name, {0: "trade", 1: "forex.eur", 2: "forex.*"})
    assert matcher.matches_any("forex.eur")
    assert matcher.matches_any("trade")
    assert not matcher.matches_any("trade.eur")
    assert not matcher.matches_any("stock")


# -- article 5


def test_article_5_the_patterns_of_the_drawn_trie(name: str) -> None:
    matcher = subscribed(name, {0: "a.b.c", 1: "a.*.b.c", 2: "a.#.c", 3: "b.b.c"})
    assert subscribers(matcher, "a.d.d.d.c") == {2}
    assert subscribers(matcher, "a.b.c") == {0, 2}
    assert subscribers(matcher, "a.x.b.c") == {1, 2}
    assert subscribers(matcher, "a.c") == {2}
    assert subscribers(matcher, "b.b.c") == {3}
    assert subscribers(matcher, "a.b") == set()


def test_article_5_the_example_as_it_is_printed_has_lost_a_star(name: str) -> None:
    """Check that the pattern `.stock.#` does not match two keys that it matches in article 5.

    The pattern begins with an empty word, so it matches only keys that begin with an empty word.
    The article must mean `*.stock.#`.
    """
    matcher = subscribed(name, {0: ".stock.#"})
    assert subscribers(matcher, ".stock.db") == {0}
    assert subscribers(matcher, "usd.stock") == set()
    assert subscribers(matcher, "eur.stock.db") == set()
