"""Tests of the deletion of large objects.

The object itself is deleted immediately. Its bindings and its memory are freed in later turns, so
that no turn is long.
"""

from __future__ import annotations

from itertools import product

import pamqp.commands as spec
import pytest

from broker.messages.message import ALWAYS
from broker.queues.destination import Destination
from broker.queues.policies import Policy
from broker.queues.slices import MESSAGES_PER_SLICE as MESSAGES
from broker.routing.binding import Binding
from broker.routing.exchanges import DelayedExchange, FanoutExchange, TopicExchange
from broker.routing.exchanges.base import KEY_BYTES_PER_BINDING, ExchangeOptions
from broker.routing.plan_index import PLANS_PER_SLICE as PLANS
from broker.vhost.background import BINDINGS_PER_SLICE as BINDINGS
from broker.vhost.background import EXCHANGES_PER_SLICE
from broker.vhost.dead_letters import SEARCH_STEPS, STEPS_PER_SLICE
from matching.grammar import MQTT
from protocols.amqp.channel.exclusive_queues import CLEARED
from tests.clients import World, marshal, mqtt_publish, publication


def test_a_queue_is_deleted_at_once_and_its_bindings_are_removed_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    many = 3 * BINDINGS
    client.send(
        *[
            spec.Queue.Bind(
                queue="q", exchange="amq.topic", routing_key=f"a.{number}.#", nowait=True
            )
            for number in range(many)
        ]
    )
    exchange = world.vhost.exchange("amq.topic")
    assert len(list(exchange)) == many
    client.connection.receive_data(marshal(1, spec.Queue.Delete(queue="q")))
    assert len(list(exchange)) == many - BINDINGS
    client.publish("amq.topic", "a.7.b", b"x", mandatory=True)
    world.settle(client.connection)
    assert list(exchange) == []
    assert world.fates() == {"unroutable": 1}


def test_bindings_with_long_keys_are_removed_in_smaller_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    key = ".".join(["*", "a"] * 50)
    keys = [f"{key}.{number}" for number in range(BINDINGS)]
    client.send(
        *[
            spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=each, nowait=True)
            for each in keys
        ]
    )
    exchange = world.vhost.exchange("amq.topic")
    client.connection.receive_data(marshal(1, spec.Queue.Delete(queue="q")))
    removed = BINDINGS - len(list(exchange))
    assert (
        0 < removed * len(key) <= BINDINGS * KEY_BYTES_PER_BINDING < (removed + 1) * (len(key) + 5)
    )
    world.settle(client.connection)
    assert list(exchange) == []


def test_stale_plans_take_the_slow_path_at_once_and_release_their_queues_in_slices() -> None:
    world = World()
    client = world.amqp()
    many = 2 * PLANS + 100
    for number in range(many):
        world.vhost.declare_queue(f"q{number}")
        world.vhost.bind("amq.topic", Binding(f"k.{number}", world.queue(f"q{number}")))
    plans = []
    for number in range(many):
        client.publish("amq.topic", f"k.{number}", b"x")
    for context in world.vhost.contexts:
        plans += [route.plan for route in context.routes.values()]
    assert len(plans) == many and not any(plan.stale for plan in plans)
    world.vhost.bind("amq.topic", Binding("k.#", world.queue("q0")))
    assert all(plan.stale and plan.slow_path_mask & ALWAYS for plan in plans)
    assert sum(not plan.queues for plan in plans) == PLANS
    world.broker.agenda.turn()
    world.broker.agenda.turn()
    assert not any(plan.queues for plan in plans)


def test_a_queue_declared_again_keeps_the_bindings_made_since() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    binds = [
        spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=f"a.{number}", nowait=True)
        for number in range(2 * BINDINGS)
    ]
    client.send(*binds)
    client.connection.receive_data(
        marshal(1, spec.Queue.Delete(queue="q"))
        + marshal(1, spec.Queue.Declare(queue="q"))
        + marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.1999"))
    )
    world.settle(client.connection)
    client.publish("amq.topic", "a.1999", b"new")
    client.publish("amq.topic", "a.7", b"old binding")
    assert world.queue("q").depth == 1
    assert [binding.key for binding in world.vhost.exchange("amq.topic")] == ["a.1999"]


def test_a_purge_empties_a_queue_at_once_and_releases_stored_messages_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    many = MESSAGES + 500
    client.connection.receive_data(publication("", "q", b"x", delivery_mode=2) * many)
    world.settle(client.connection)
    assert len(world.store.state.messages) == many
    client.connection.receive_data(marshal(1, spec.Queue.Purge(queue="q")))
    assert world.queue("q").depth == 0
    assert len(world.store.state.messages) == 500
    world.settle(client.connection)
    assert not world.store.state.messages
    assert world.copies() == {"purged": many}


def test_many_expired_messages_are_discarded_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q", x_message_ttl=100)
    many = MESSAGES + 500
    client.connection.receive_data(publication("", "q", b"x") * many)
    world.settle(client.connection)
    agenda = world.broker.agenda
    agenda.advance(int(agenda.now) + 100, agenda.wall)
    agenda.turn()
    assert world.queue("q").depth == 500
    agenda.turn()
    assert world.queue("q").depth == 0
    assert world.copies() == {"expired": many}


def test_retained_messages_are_sent_in_slices() -> None:
    world = World()
    writer, reader = world.mqtt("w"), world.mqtt("r")
    writer.connection.receive_data(
        b"".join(mqtt_publish(f"t/{number}", b"x", flags=1) for number in range(1_200))
    )
    world.settle(writer.connection)
    reader.connection.receive_data(b"\x82\x08\x00\x01" + b"\x00\x03t/#" + b"\x00")
    turns: list[int] = []
    while sum(turns) < 1_200 and len(turns) < 10:
        turns.append(reader.connection.data_to_send().count(b"t/"))
        world.broker.agenda.turn()
    # The topics are indexed first, 1,000 in each turn; then 500 messages are sent in each turn.
    assert turns == [0, 0, 500, 500, 200] or turns == [0, 500, 500, 200]
    assert world.copies()["auto_acknowledged"] == 1_200


def test_an_exchange_is_deleted_at_once_and_its_bindings_are_removed_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.send(spec.Exchange.Declare(exchange="x", exchange_type="topic"))
    for name in ("q", "r"):
        client.queue(name)
        client.send(
            *[
                spec.Queue.Bind(queue=name, exchange="x", routing_key=f"a.{number}", nowait=True)
                for number in range(BINDINGS)
            ]
        )
    exchange = world.vhost.exchange("x")
    client.connection.receive_data(marshal(1, spec.Exchange.Delete(exchange="x")))
    assert "x" not in world.vhost.exchanges and len(list(exchange)) == BINDINGS
    world.settle(client.connection)
    assert list(exchange) == []


def test_many_exclusive_queues_are_deleted_in_slices() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.send(
        *[spec.Queue.Declare(queue=f"q{number}", exclusive=True) for number in range(3 * CLEARED)]
    )
    client.connection.on_closed()
    assert len(world.vhost.queues) == 2 * CLEARED
    world.settle()
    assert world.vhost.queues == {}
    assert [one.name for one in other.send(spec.Queue.Declare(queue="q0", exclusive=True))] == [
        "Queue.DeclareOk"
    ]


def test_a_chain_of_auto_delete_exchanges_is_deleted_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    many = 2_000
    for number in range(many):
        name, target = f"x{number}", f"x{number - 1}"
        client.send(
            spec.Exchange.Declare(
                exchange=name, exchange_type="fanout", auto_delete=True, nowait=True
            ),
            spec.Exchange.Bind(destination=target, source=name, nowait=True)
            if number
            else spec.Queue.Bind(queue="q", exchange=name, nowait=True),
        )
    known = len(world.vhost.exchanges)
    client.connection.receive_data(marshal(1, spec.Queue.Delete(queue="q")))
    assert known - len(world.vhost.exchanges) <= EXCHANGES_PER_SLICE
    # The deletion must not touch an exchange that is bound again or deleted meanwhile.
    deleted, kept = f"x{many - 2}", f"x{many - 1}"
    client.queue("r")
    client.send(spec.Queue.Bind(queue="r", exchange=kept, nowait=True))
    client.send(spec.Exchange.Delete(exchange=deleted))
    client.send(spec.Exchange.Declare(exchange=deleted, exchange_type="fanout", nowait=True))
    world.settle(client.connection)
    left = [name for name in world.vhost.exchanges if name.startswith("x")]
    assert sorted(left) == sorted([deleted, kept])
    client.publish(kept, "", b"x")
    assert world.queue("r").depth == 1


class Watched(FanoutExchange):
    """A fanout exchange that counts how often a queue was replaced in it."""

    def __init__(self, name: str) -> None:
        super().__init__(name, ExchangeOptions())
        self.redirected = 0

    def redirect(self, old: Destination, new: Destination) -> None:
        self.redirected += 1
        super().redirect(old, new)


def test_a_policy_that_replaces_a_queue_visits_the_exchanges_with_bindings_to_it_only() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    watched = [Watched(f"x{number}") for number in range(20)]
    for exchange in watched:
        world.vhost.exchanges[exchange.name] = exchange
    for number in (3, 7):
        world.vhost.bind(f"x{number}", Binding("", world.queue("q")))
    world.vhost.applied_policies.set_policy(Policy("/", "p", "q", "queues", 0, {"max-length": 10}))
    world.settle(client.connection)
    assert [exchange.name for exchange in watched if exchange.redirected] == ["x3", "x7"]
    for number in (3, 7, 8):
        client.publish(f"x{number}", "", b"x")
    assert world.queue("q").depth == 2


def test_a_slice_of_dead_letters_counts_the_steps_of_their_searches() -> None:
    world = World()
    client = world.amqp()
    client.queue("all")
    for words in product("+a", repeat=10):
        name = "/".join(words)
        world.vhost.bind("amq.topic", Binding(name, world.queue("all"), 0, None, MQTT))
    key = ".".join("a" * 10)
    client.queue(
        "q",
        x_message_ttl=10,
        x_dead_letter_exchange="amq.topic",
        x_dead_letter_routing_key=key,
    )
    for _ in range(100):
        client.publish("", "q", b"x")
    agenda = world.broker.agenda
    agenda.advance(int(agenda.now) + 20, agenda.wall + 0.02)
    moved = 0
    while moved < 100:
        agenda.turn()
        now = int(world.queue("all").depth)
        # Each search costs more than 1,024 steps, so a slice publishes few messages.
        assert 0 < now - moved <= STEPS_PER_SLICE // (1_024 // SEARCH_STEPS) + 1
        moved = now
    world.fates()


@pytest.mark.parametrize("kind", ["topic", "headers"])
def test_a_delayed_exchange_keeps_nothing_of_a_queue_that_a_policy_replaces(kind: str) -> None:
    world = World()
    client = world.amqp()
    client.send(
        spec.Exchange.Declare(
            exchange="x",
            exchange_type="x-delayed-message",
            arguments={"x-delayed-type": kind},
        )
    )
    client.queue("q")
    replaced = world.queue("q")
    for words in product("*a", repeat=6):
        world.vhost.bind("x", Binding(".".join(words), replaced))
    exchange = world.vhost.exchange("x")
    assert isinstance(exchange, DelayedExchange)
    world.vhost.applied_policies.set_policy(Policy("/", "p", "q", "queues", 0, {"max-length": 10}))
    world.settle(client.connection)
    known = {*exchange.bindings.destinations(), *exchange.inner.bindings.destinations()}
    if isinstance(exchange.inner, TopicExchange):
        known |= {*exchange.inner._bounds_by_destination}
    assert known == {world.queue("q")} and world.queue("q") is not replaced
    client.publish("x", ".".join("a" * 6), b"x")
    assert world.queue("q").depth == 1
    client.send(spec.Queue.Delete(queue="q"))
    world.settle(client.connection)
    assert not exchange.bindings and not getattr(exchange.inner, "_bounds_by_destination", None)
