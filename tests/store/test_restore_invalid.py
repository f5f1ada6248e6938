"""A broker that starts again reports the definitions that its settings no longer allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.limits import BrokerLimits
from broker.routing.exchanges import TopicExchange
from broker.store.entries import Defined
from tests.store.homes import Home, bindings, listing, numbers, options
from tests.store.redeclared import amqp, bind, exchange, queue, visit
from tests.wire.amqp.speech import names
from tests.wire.mqtt.client import RESUMED, Client, connect, subscribe

#: A valid binding, as the catalog stores it.
WAY: dict[str, object] = {
    "source": -4,
    "destination": 1,
    "key": "",
    "grammar": "amqp",
    "assurance": 0,
    "arguments": {},
}


def test_a_matcher_that_is_not_allowed_now_is_reported_and_is_back_when_it_is(
    tmp_path: Path,
) -> None:
    world = Home(tmp_path)
    amqp(
        exchange("e", arguments={"x-matcher": "bitmap"}),
        queue("q"),
        bind("e", "q", "a.#"),
        bind("amq.topic", "q", "b"),
    )(world)
    before, known = listing(world), numbers(world)
    world.crash()
    strict = BrokerLimits()
    strict.matcher, strict.matchers = "trie", ["trie"]
    for _ in range(2):
        world = Home(tmp_path, strict)
        assert [(one.kind, one.vhost, one.name) for one in world.report.refused[:1]] == [
            ("exchange", "/", "e")
        ]
        assert "x-matcher" in world.report.refused[0].reason
        assert [one.kind for one in world.report.refused] == ["exchange", "binding"]
        assert world.report.restored == {"vhost": 1, "queue": 1, "binding": 1}
        assert {row[0] for row in bindings(world)} == {"amq.topic"}
        world.crash()
    world = Home(tmp_path)
    assert (listing(world), numbers(world)) == (before, known)
    restored = world.vhost.exchanges["e"]
    assert isinstance(restored, TopicExchange) and restored.algorithm == "bitmap"
    world.crash()


def test_new_object_in_place_of_a_refused_one_has_none_of_its_bindings(
    tmp_path: Path,
) -> None:
    world = Home(tmp_path)
    amqp(exchange("e", arguments={"x-matcher": "bitmap"}), queue("q"), bind("e", "q", "a.#"))(world)
    world.crash()
    strict = BrokerLimits()
    strict.matcher, strict.matchers = "trie", ["trie"]
    world = Home(tmp_path, strict)
    amqp(exchange("e"), bind("e", "q", "new"))(world)
    world.crash()
    world = Home(tmp_path)
    assert world.report.refused == []
    assert [row[4] for row in bindings(world)] == ["new"]
    world.crash()


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        (
            Defined(
                "/", "queue", "q", {"auto_delete": False, "arguments": {"x-overflow": "backwards"}}
            ),
            "x-overflow",
        ),
        (
            Defined("/", "queue", "q", {"auto_delete": False}),
            "field 'arguments' has the invalid value None",
        ),
        (
            Defined("/", "queue", "q", {"auto_delete": 1, "arguments": {}}),
            "field 'auto_delete' has the invalid value 1",
        ),
        (
            Defined(
                "/",
                "exchange",
                "e",
                {"type": "x-new", "auto_delete": False, "internal": False, "arguments": {}},
            ),
            "exchange type",
        ),
        (
            Defined(
                "/",
                "exchange",
                "amq.topic",
                {"type": "topic", "auto_delete": False, "internal": False, "arguments": {}},
            ),
            "already",
        ),
        (Defined("/", "session", "s", {}), "away_since"),
        (
            Defined("/", "binding", "b", {"source": -4, "destination": 99, "key": ""}),
            "destination, object 99",
        ),
        (
            Defined("/", "binding", "b", {"source": 98, "destination": -4, "key": ""}),
            "source, object 98",
        ),
        (
            Defined("/", "binding", "b", {"source": 1, "destination": 1, "key": ""}),
            "not an exchange",
        ),
        (Defined("/", "binding", "b", WAY | {"grammar": "stomp"}), "grammar"),
        (
            Defined("/", "binding", "b", WAY | {"source": -5, "arguments": {"x-match": "some"}}),
            "x-match",
        ),
        (
            Defined("/", "binding", "b", WAY | {"key": None}),
            "field 'key' has the invalid value None",
        ),
    ],
)
def test_invalid_definition_is_reported_and_the_others_are_restored(
    tmp_path: Path, entry: Defined, says: str
) -> None:
    world = Home(tmp_path)
    amqp(queue("other"), bind("amq.topic", "other", "a"))(world)
    before = listing(world)
    position = int(world.store.position) + 1
    world.catalog.write([(position, entry)], position)
    world.crash()
    world = Home(tmp_path)
    [refused] = [one for one in world.report.refused if one.kind != "vhost"]
    assert says in refused.reason
    assert (refused.number, refused.vhost, refused.kind, refused.name) == (
        position,
        entry.vhost,
        entry.kind,
        entry.name,
    )
    assert listing(world) == before
    assert world.store.position == position
    world.crash()


def test_a_bound_that_is_smaller_now_loses_nothing(tmp_path: Path) -> None:
    world = Home(tmp_path)
    amqp(queue("a"), queue("b"), exchange("e"), exchange("f"))(world)
    visit(world, "s", subscribe(1, ("a", 1)))
    visit(world, "t", subscribe(1, ("a", 1)))
    before = listing(world)
    world.crash()
    small, one = BrokerLimits(), options(100)
    small.queues = small.exchanges = one.sessions = 1
    world = Home(tmp_path, small, one)
    assert listing(world) == before
    assert names(world.amqp().send(queue("c"))) == ["Connection.Close"]
    assert Client(world, connect("new", clean=False)).greeting == b"\x20\x02\x00\x03"
    assert Client(world, connect("s", clean=False)).greeting == RESUMED
    world.crash()
