"""The consistent-hash exchange: shares, stability, and the hashed value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.queues.destination import Destination
from broker.queues.policies import Policy
from broker.routing.binding import Binding
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.exchanges.consistent_hash import ConsistentHashExchange, HashShare
from tests.clients import World
from tests.store.homes import Home
from tests.wire.amqp.speech import names, read, refusal
from tests.wire.mqtt5.client import Client5, subscription

Q, X = spec.Queue, spec.Exchange
KEYS = [f"key-{number}" for number in range(8_000)]


def ring(*weights: int, first: int = 0) -> ConsistentHashExchange:
    exchange = ConsistentHashExchange("x", ExchangeOptions())
    for number, weight in enumerate(weights, first):
        exchange.bind(Binding(str(weight), Destination(f"q{number}")))
    return exchange


def winners(exchange: ConsistentHashExchange, keys: list[str] = KEYS) -> list[str]:
    return [exchange.match(key, {})[0].destination.name for key in keys]


@settings(max_examples=8, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6))
def test_each_binding_gets_messages_in_proportion_to_its_weight(weights: list[int]) -> None:
    queues = winners(ring(*weights))
    for number, weight in enumerate(weights):
        share = weight / sum(weights)
        assert (
            abs(queues.count(f"q{number}") / len(KEYS) - share)
            < 0.01 + 4 * (share * (1 - share) / len(KEYS)) ** 0.5
        )


def test_adding_or_removing_a_queue_moves_only_its_own_keys() -> None:
    five, four = winners(ring(1, 1, 1, 1, 1)), winners(ring(1, 1, 1, 1))
    assert all(before == after or before == "q4" for before, after in zip(five, four, strict=True))
    assert five.count("q4") > len(KEYS) // 6


def test_the_order_of_binding_does_not_matter() -> None:
    forward, backward = ring(2, 3, 1), ConsistentHashExchange("x", ExchangeOptions())
    for number, weight in ((2, 1), (0, 2), (1, 3)):
        backward.bind(Binding(str(weight), Destination(f"q{number}")))
    assert winners(forward) == winners(backward)


@pytest.mark.parametrize(
    ("arguments", "seed"),
    [
        ({}, 477167897),
        ({"x-max-length": 10}, 3343983203),
        ({"x-queue-type": "quorum"}, 3343983203),
        ({"x-max-priority": 5}, 1312599348),
        ({"x-queue-type": "stream"}, 2660675754),
    ],
)
def test_the_seed_of_a_bound_queue_is_the_one_of_earlier_releases(
    arguments: dict[str, object], seed: int
) -> None:
    queue = World().vhost.declare_queue("q", True, arguments)
    assert HashShare(Binding("2", queue)).seed == seed


@pytest.mark.parametrize(
    ("kind", "arguments", "seed"),
    [
        ("direct", {}, 1715406342),
        ("fanout", {}, 1031914881),
        ("topic", {}, 3513364511),
        ("headers", {}, 4177083646),
        ("x-consistent-hash", {}, 1563153748),
        ("x-delayed-message", {"x-delayed-type": "direct"}, 3142275608),
    ],
)
def test_the_seed_of_a_bound_exchange_is_the_one_of_earlier_releases(
    kind: str, arguments: dict[str, object], seed: int
) -> None:
    options = ExchangeOptions(durable=True, arguments=arguments)
    exchange = World().vhost.declare_exchange("e", kind, options)
    assert HashShare(Binding("2", exchange)).seed == seed


def test_the_seed_of_a_bound_session_is_the_one_of_earlier_releases() -> None:
    world = World()
    world.mqtt("c")
    client = Client5(world)
    client.subscribe(subscription("$share/g/t", 1))
    seeds = {
        subscriber.name: int(HashShare(Binding("2", subscriber)).seed)
        for subscriber in world.vhost.subscribers
    }
    assert seeds["c"] == 546995822
    assert seeds["$share/g/t"] == 3194452758


#: Twelve keys, and the queue that each one goes to since the first release.
TWELVE = [
    "stream",
    "limited",
    "priority",
    "stream",
    "limited",
    "limited",
    "limited",
    "limited",
    "stream",
    "stream",
    "limited",
    "plain",
]


def test_keys_go_to_the_queues_of_earlier_releases() -> None:
    vhost = World().vhost
    exchange = ConsistentHashExchange("x", ExchangeOptions())
    queues: list[tuple[str, str, dict[str, object]]] = [
        ("plain", "1", {}),
        ("limited", "2", {"x-max-length": 10}),
        ("priority", "1", {"x-max-priority": 5}),
        ("stream", "1", {"x-queue-type": "stream"}),
    ]
    for name, weight, arguments in queues:
        exchange.bind(Binding(weight, vhost.declare_queue(name, True, arguments)))
    assert winners(exchange, KEYS[:12]) == TWELVE


def test_each_message_goes_to_one_queue_and_equal_keys_to_the_same() -> None:
    client = World().amqp()
    client.send(X.Declare(exchange="x", exchange_type="x-consistent-hash"))
    for number in range(3):
        client.queue(f"q{number}", "x", "1")
    for _ in range(2):
        for key in KEYS[:50]:
            client.publish("x", key, key.encode())
    bodies = [read(client, f"q{number}") for number in range(3)]
    assert sum(len(one) for one in bodies) == 100 and all(
        len(one) == 2 * len(set(one)) for one in bodies
    )
    assert client.world.fates() == {"routed": 100}


@pytest.mark.parametrize(
    ("arguments", "properties"),
    [
        ({"hash-header": "h"}, {"headers": {"h": "%s"}}),
        ({"hash-property": "message_id"}, {"message_id": "%s"}),
        ({"hash-property": "correlation_id"}, {"correlation_id": "%s"}),
    ],
)
def test_a_header_or_property_decides_instead_of_the_key(arguments: Any, properties: Any) -> None:
    def filled(value: Any, word: str) -> Any:
        return (
            {name: filled(one, word) for name, one in value.items()}
            if isinstance(value, dict)
            else value % word
        )

    client = World().amqp()
    client.send(X.Declare(exchange="x", exchange_type="x-consistent-hash", arguments=arguments))
    for number in range(2):
        client.queue(f"q{number}", "x", "1")
    for number in range(40):
        client.publish("x", f"k{number}", b"same", **filled(properties, "same"))
        client.publish("x", "k", b"%d" % number, **filled(properties, str(number)))
    bodies = [read(client, f"q{number}") for number in range(2)]
    assert sorted(one.count(b"same") for one in bodies) == [0, 40]
    assert all(len(set(one) - {b"same"}) > 5 for one in bodies)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"hash-header": "a", "hash-property": "message_id"},
            "can have only one of the arguments 'hash-header' and 'hash-property'",
        ),
        ({"hash-property": "app_id"}, "'hash-property' for exchange 'x': must be one of"),
        ({"hash-header": 5}, "invalid arg 'hash-header'"),
    ],
)
def test_an_exchange_with_contradictory_hash_arguments_is_refused(
    arguments: Any, text: str
) -> None:
    error = refusal(
        World()
        .amqp()
        .send(X.Declare(exchange="x", exchange_type="x-consistent-hash", arguments=arguments))
    )
    assert error[:2] == ("channel", 406) and text in error.text and error[3:] == (40, 10)


@pytest.mark.parametrize("key", ["", "a", "-1", "0", "1.5", "1000001", "\u0661"])
def test_a_weight_is_a_number_above_zero(key: str) -> None:
    client = World().amqp()
    client.send(X.Declare(exchange="x", exchange_type="x-consistent-hash"))
    client.queue("q")
    error = refusal(client.send(Q.Bind(queue="q", exchange="x", routing_key=key)))
    assert error[:2] == ("channel", 406) and "invalid binding key" in error.text


def test_without_bindings_a_message_is_unroutable_and_goes_to_the_alternate() -> None:
    client = World().amqp()
    client.queue("q", "amq.fanout")
    client.send(
        X.Declare(
            exchange="x",
            exchange_type="x-consistent-hash",
            arguments={"alternate-exchange": "amq.fanout"},
        )
    )
    client.publish("x", "k", b"x")
    assert read(client, "q") == [b"x"]
    client.send(X.Declare(exchange="y", exchange_type="x-consistent-hash"))
    assert names(client.publish("y", "k", b"x", mandatory=True))[0] == "Basic.Return"


# -- the seed of a queue is stable


def taken(home: Home) -> list[str]:
    exchange = home.vhost.exchanges["x"]
    return [exchange.match(key, {})[0].destination.name for key in KEYS[:400]]


def policed(home: Home, **definition: object) -> None:
    """Set the policy `p` of all queues to this definition.

    Without a definition, remove the policy.
    """
    vhost = home.vhost
    if definition:
        policy = Policy("/", "p", "", "queues", 0, definition)
        vhost.applied_policies.set_policy(policy, None)
    else:
        vhost.applied_policies.clear_policy("p", None)
    home.settle()


def test_policies_and_restarts_move_no_key(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = home.amqp()
    client.send(X.Declare(exchange="x", exchange_type="x-consistent-hash", durable=True))
    client.queue("plain", "x", "1", durable=True)
    client.queue("limited", "x", "2", durable=True, x_max_length=10)
    client.queue("priority", "x", "1", durable=True, x_max_priority=5)
    client.queue("stream", "x", "1", durable=True, x_queue_type="stream")
    before = taken(home)
    assert before[:12] == TWELVE
    for definition in ({"max-length": 7}, {"message-ttl": 60_000}, {}):
        policed(home, **definition)
        assert taken(home) == before, definition
        home.crash()
        home = Home(tmp_path / "d")
        assert taken(home) == before, definition
        # A binding that is made while the policy applies has the same seed.
        [binding] = [one for one in home.vhost.exchanges["x"] if one.destination.name == "plain"]
        home.vhost.unbind("x", binding, None)
        home.vhost.bind("x", Binding("1", home.queue("plain")), None)
        assert taken(home) == before, definition
    home.crash()


def test_a_policy_that_declared_arguments_depend_on_changes_no_seed() -> None:
    world = World()
    world.vhost.applied_policies.set_policy(
        Policy("/", "p", "", "queues", 0, {"dead-letter-exchange": "amq.fanout"}), None
    )
    plain = world.vhost.declare_queue("q", True, {"x-dead-letter-routing-key": "k"})
    assert HashShare(Binding("2", plain)).seed == 477167897


def test_header_hash_does_not_depend_on_printable_characters_of_a_python() -> None:
    """The hash of a header value must be the same on each version of Python.

    The first tested value is a character of Unicode 15. Its repr() differs: Python 3.12 returns the
    character itself, Python 3.11 an escape sequence.
    """
    options = ExchangeOptions(arguments={"hash-header": "h"})
    exchange = ConsistentHashExchange("x", options)
    for number in range(64):
        exchange.bind(Binding("1", Destination(f"q{number}")))
    queues = [
        exchange.match("", {"headers": {"h": value}})[0].destination.name
        for value in ("\U0001fae8", "\u00e4", "a", 7, b"\xff")
    ]
    assert queues == ["q1", "q44", "q61", "q25", "q58"]
