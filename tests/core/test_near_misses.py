"""Tests of near misses: bindings that would match a message after one change of a word.

For each near miss, the broker names the change.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, Final

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from broker.queues.destination import Destination
from broker.routing.binding import Binding
from broker.routing.binding_chunks import CHUNK_MAX, chunks_of
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.key_differences import HeaderComparison, KeyComparison, NearDifference
from broker.routing.near_key_filter import NearKeyFilter
from matching.fields.criteria import Criteria
from matching.fields.signature import criteria_signature, headers_signature, may_fail_once
from matching.grammar import AMQP, MQTT, swap
from tests.clients import World
from tests.core.test_explanation import near_misses

KEY_WORDS: Final = ["a", "b", "temp", "Temp", "tmep", "", "a/b"]
KEYS = st.lists(st.sampled_from(KEY_WORDS), min_size=1, max_size=4)
PATTERNS = st.lists(st.sampled_from([*KEY_WORDS, "*", "*", "#"]), min_size=1, max_size=5)


def difference(key: str, binding_key: str, wildcards: bool = True) -> NearDifference | None:
    """Return the one change after which the binding key would match, or None."""
    return KeyComparison(AMQP, key, "routing key").difference(binding_key, wildcards)


@pytest.mark.parametrize(
    ("key", "binding_key", "kind", "text"),
    [
        ("sensors.kitchen", "sensors.*.temp", "more_words", "had one more word"),
        ("sensors", "sensors.*.temp.#", "none", ""),
        ("a.b", "a.b.c.#", "more_words", "had one more word"),
        ("a.c", "a.b.#.c", "more_words", "had one more word"),
        ("sensors.kitchen.temp.now", "sensors.*.temp", "fewer_words", "(without 'now')"),
        ("eu.a.b.c", "a.b.#", "fewer_words", "(without 'eu')"),
        ("eu.orders", "orders", "fewer_words", "(without 'eu')"),
        ("Sensors.kitchen.temp", "sensors.*.temp", "case", "'sensors', not 'Sensors'"),
        ("SENSORS.x.TEMP", "sensors.*.temp", "case", "'sensors.*.temp'"),
        ("A.b.c", "a.b.#", "case", "'a', not 'A'"),
        ("sensors/kitchen/temp", "sensors.*.temp", "separator", "'.' instead of '/'"),
        ("sensors.kitchen.temp", "sensors/kitchen/temp", "separator", "'/' instead of '.'"),
        ("sensors/kitchen/temp", "sensors.#", "separator", "'.' instead of '/'"),
        ("sensor.kitchen.temp", "sensors.*.temp", "character", "word 1"),
        ("sensors.kitchen.tmep", "sensors.*.temp", "character", "were 'temp', not 'tmep'"),
        ("orders.new.x", "ordres.new.#", "character", "word 1"),
        ("sensors.kitchen.temp.", "sensors.*.temp", "empty_word", "one separator too many"),
        (".sensors.kitchen.temp", "sensors.*.temp", "empty_word", "the routing key has"),
        ("orders", "orders.", "empty_word", "the binding key has"),
        ("sensors.kitchen.temp", "orders.*.new", "none", ""),
        ("a", "b", "none", ""),
        ("a.b.c", "#.x.#", "none", ""),
    ],
)
def test_one_change_is_found_and_named(key: str, binding_key: str, kind: str, text: str) -> None:
    miss = difference(key, binding_key)
    assert ("none" if miss is None else miss.kind) == kind
    assert miss is None or text in miss.text


def changed(kind: str, key: str, pattern: str) -> Iterator[tuple[str, str]]:
    """Yield (routing key, binding key) after each possible change of this kind.

    `kind` is the kind of a near miss; the change is made in `key` or in `pattern`.
    """
    words, wanted = key.split("."), pattern.split(".")
    places = range(len(words) + 1)
    if kind == "case":
        yield key.casefold(), pattern.casefold()
    elif kind == "separator":
        yield key.replace("/", "."), pattern.replace("/", ".")
    elif kind == "more_words":
        for place, word in product(places, [*wanted, "other"]):
            yield ".".join([*words[:place], word, *words[place:]]), pattern
    elif kind == "character":
        for place, word in product(places[:-1], wanted):
            yield ".".join([*words[:place], word, *words[place + 1 :]]), pattern
    elif kind in ("fewer_words", "empty_word"):
        for place in places[:-1]:
            yield ".".join([*words[:place], *words[place + 1 :]]), pattern
        for place, word in enumerate(wanted):
            if kind == "empty_word" and word == "":
                yield key, ".".join([*wanted[:place], *wanted[place + 1 :]])


@settings(max_examples=500, deadline=None)
@example([""], ["*", ""])
@example([""], ["", "", "#"])
@example(["a", ""], ["", "#"])
@given(KEYS, PATTERNS)
def test_after_the_change_that_a_near_miss_names_the_binding_matches(
    words: list[str], wanted: list[str]
) -> None:
    key, pattern = ".".join(words), ".".join(wanted)
    miss = None if AMQP.matches(pattern, key) else difference(key, pattern)
    if miss is not None:
        pairs = list(changed(miss.kind, key, pattern))
        assert any(AMQP.matches(new_pattern, new_key) for new_key, new_pattern in pairs)


@given(KEYS, st.data())
def test_a_binding_that_would_match_one_more_word_is_found(
    words: list[str], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(words)))
    pattern = ".".join([*words[:place], "extra", *words[place:]])
    miss = difference(".".join(words), pattern)
    assert miss is not None and miss.kind in ("more_words", "separator", "empty_word")


PLAIN: Final = ["a", "b", "ab", "temp", "Temp", "tmep", "temps", "", "Straße", "strasse", "a\nb"]


@settings(max_examples=500, deadline=None)
@given(
    st.lists(st.sampled_from(PLAIN), min_size=1, max_size=5).map(".".join),
    st.lists(
        st.lists(st.sampled_from([*PLAIN, "*", "#"]), min_size=1, max_size=5).map(".".join),
        min_size=1,
        max_size=20,
    ),
)
def test_the_filter_lets_each_near_miss_pass(key: str, patterns: list[str]) -> None:
    for wildcards in (True, False):
        passing = NearKeyFilter(key, wildcards).passing(patterns)
        for number, pattern in enumerate(patterns):
            matches = AMQP.matches(pattern, key) if wildcards else pattern == key
            if number not in passing and not matches:
                assert difference(key, pattern, wildcards) is None


@given(st.lists(st.sampled_from(["a", "temp", "*"]), min_size=1, max_size=5))
def test_the_filter_takes_both_separators_and_both_wildcards_as_one(words: list[str]) -> None:
    keys = [".".join(words), "/".join(words), "/".join(words).replace("*", "+")]
    key = "/".join("x" if word == "*" else word for word in words)
    assert NearKeyFilter(key).passing(keys) == [0, 1, 2]
    assert NearKeyFilter(swap(key)).passing(keys) == [0, 1, 2]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 3) | st.integers(250, 600), max_size=6),
    st.booleans(),
    st.lists(st.integers(0, 1_500), max_size=8),
)
def test_chunks_have_each_binding_of_an_exchange_once(
    sizes: list[int], with_arguments: bool, places: list[int]
) -> None:
    world = World()
    exchange = world.vhost.exchange("amq.topic")
    for number, size in enumerate(sizes):
        world.vhost.declare_queue(f"q{number}")
        for at in range(size):
            arguments = {"n": at} if with_arguments and at % 7 == 0 else None
            exchange.bind(Binding(f"k.{at}", world.queue(f"q{number}"), 0, arguments))
    reached: set[Destination] = {world.queue("q0")} if sizes else set()
    seen: list[Binding] = []
    for chunk in chunks_of(exchange, reached):
        bindings = chunk.bindings()
        assert len(bindings) == chunk.size <= CHUNK_MAX
        assert chunk.keys() == [binding.key for binding in bindings]
        indices = sorted({place for place in places if place < chunk.size})
        assert chunk.selected(indices) == [bindings[index] for index in indices]
        seen += bindings
    assert seen == [one for one in exchange.all_bindings() if one.destination not in reached]


def test_a_key_with_one_long_word_more_in_the_middle_is_found() -> None:
    world = World()
    world.vhost.declare_queue("q")
    world.vhost.bind("amq.direct", Binding("sensors.temp", world.queue("q")))
    best = near_misses(world, "amq.direct", "sensors.kitchen.temp").best()
    assert [one.difference.kind for one in best] == ["fewer_words"]


def test_a_key_of_an_mqtt_client_is_named_as_a_topic() -> None:
    miss = KeyComparison(MQTT, swap("a.b"), "topic").difference("a/+", True)
    assert miss is not None
    assert miss.text == "the binding would match if the topic had '/' instead of '.'"
    miss = KeyComparison(AMQP, swap("a.b"), "topic").difference("a.*", True)
    assert miss is not None
    assert miss.text == "the binding would match if the topic had '/' instead of '.'"
    miss = KeyComparison(MQTT, "a.b.c", "topic").difference("a/+", True)
    assert miss is not None
    assert miss.text == "the binding would match if the topic had one word less (without 'c')"


def test_a_wildcard_character_of_a_direct_exchange_is_a_plain_character() -> None:
    assert difference("orders.new", "orders.*", False) is None
    assert difference("orders.new.x", "orders.*", False) is None
    miss = difference("orders.*", "Orders.*", False)
    assert miss is not None and miss.kind == "case"


@pytest.mark.parametrize(
    ("arguments", "headers", "text"),
    [
        ({"a": 1, "b": 2}, {"a": 1, "b": 3}, "header 'b' were 2, not 3"),
        ({"a": 1, "b": 2}, {"a": 1}, "missing header 'b' were set to 2"),
        ({"a": 1}, {"a": "1"}, "header 'a' were 1, not '1'"),
        ({"a": None}, {}, "missing header 'a' were set"),
        ({"x-match": "any", "a": 1, "b": 2}, {"a": 2}, "header 'a' were 1, not 2"),
        ({"a": 1, "b": 2}, {"a": 2, "b": 3}, ""),
        ({"x-match": "any", "a": 1}, {"b": 2}, ""),
    ],
)
def test_the_one_header_that_differs_is_named(
    arguments: dict[str, Any], headers: dict[str, Any], text: str
) -> None:
    comparison = HeaderComparison(headers)
    miss = comparison.difference(arguments)
    assert miss is None or comparison.similar([arguments]) == [0]
    assert (miss is None) == (text == "")
    assert miss is None or text in miss.text


def test_near_misses_name_the_other_exchange_that_has_the_binding() -> None:
    world = World()
    world.vhost.declare_exchange("sensors", "topic", ExchangeOptions())
    world.vhost.declare_queue("temps")
    world.vhost.declare_queue("a.b")
    world.vhost.bind("sensors", Binding("a.*", world.queue("temps")))
    best = near_misses(world, "amq.direct", "a.b").best()
    assert {(one.exchange, one.key, one.destination.name) for one in best} == {
        ("sensors", "a.*", "temps"),
        ("", "a.b", "a.b"),
    }
    assert {one.difference.kind for one in best} == {"exchange"}


def test_a_destination_that_gets_the_message_is_no_near_miss() -> None:
    world = World()
    world.vhost.declare_queue("q")
    world.vhost.bind("amq.topic", Binding("a.b", world.queue("q")))
    world.vhost.bind("amq.topic", Binding("A.b", world.queue("q")))
    assert near_misses(world, "amq.topic", "a.b").best() == []


def test_a_misspelt_name_of_a_queue_is_a_near_miss_of_the_default_exchange() -> None:
    world = World()
    for name in ("orders", "orders.eu", "payments"):
        world.vhost.declare_queue(name)
    best = near_misses(world, "", "Orders").best()
    assert [(one.key, one.difference.kind) for one in best] == [("orders", "case")]
    assert [one.key for one in near_misses(world, "", "order").best()] == ["orders"]


def test_near_misses_of_subscriptions_and_of_headers_exchanges_are_found() -> None:
    world = World()
    world.mqtt("display").subscribe("sensors/+/temp", 1)
    best = near_misses(world, "amq.topic", "sensors/kitchen/temp").best()
    assert [(one.key, one.difference.kind) for one in best] == [("sensors/+/temp", "separator")]
    world.vhost.declare_queue("pdf")
    arguments = {"type": "pdf", "size": 1}
    world.vhost.bind("amq.headers", Binding("", world.queue("pdf"), 0, arguments))
    best = near_misses(world, "amq.headers", "", {"type": "PDF", "size": 1}).best()
    assert [one.difference.text for one in best] == [
        "the binding would match if the header 'type' were 'pdf', not 'PDF'"
    ]


VALUES = st.sampled_from([None, 0, 1, 1.0, True, "1", b"1", "pdf", [1], {"k": 1}])
ARGUMENTS = st.dictionaries(st.sampled_from(["h", "k", "m", "x-h"]), VALUES, max_size=4)


@settings(max_examples=500, deadline=None)
@given(ARGUMENTS, st.sampled_from(["all", "any", "all-with-x", "any-with-x"]), ARGUMENTS)
def test_the_signature_of_each_near_miss_passes(
    arguments: dict[str, Any], match: str, headers: dict[str, Any]
) -> None:
    criteria = Criteria({**arguments, "x-match": match})
    passes = may_fail_once(criteria_signature(criteria), headers_signature(headers))
    assert passes or not criteria.accept(headers)
    assert passes or HeaderComparison(headers).difference({**arguments, "x-match": match}) is None


def test_bindings_that_fail_two_criteria_have_signatures_that_do_not_pass() -> None:
    # A few of the 1,000 bindings pass: their signatures share a bit with the headers by chance.
    given_headers = headers_signature({"type": "PDF", "region": "R7"})
    passing = [
        number
        for number in range(1_000)
        if may_fail_once(
            criteria_signature(
                Criteria({"type": number, "tenant": -number, "region": f"r{number}"})
            ),
            given_headers,
        )
    ]
    assert len(passing) < 100


def test_near_misses_of_equal_arguments_name_each_queue_that_gets_no_copy() -> None:
    world = World()
    for number in range(300):
        world.vhost.declare_queue(f"q{number}")
        arguments = {"type": "pdf", "size": 1}
        world.vhost.bind("amq.headers", Binding("", world.queue(f"q{number}"), 0, arguments))
    for number in range(295):
        world.vhost.bind("amq.headers", Binding("", world.queue(f"q{number}"), 0, {"size": 1}))
    best = near_misses(world, "amq.headers", "", {"type": "PDF", "size": 1}).best()
    assert [one.destination.name for one in best] == [f"q{number}" for number in range(295, 300)]
