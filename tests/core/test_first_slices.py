"""Tests of unexpected exceptions in the first part of bulk work, or in a check of permissions.

The broker does the first part of bulk work together with the change that causes the work. If this
part fails, the change must be completed nevertheless. If a check of permissions fails, no client
may keep permissions that it has lost.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from broker.queues.slices import MESSAGES_PER_SLICE
from broker.routing.plan import Plan
from broker.store.memory import MemoryStore
from protocols.amqp.connection.connection import AmqpConnection
from protocols.end_reasons import INTERNAL_ERROR
from protocols.mqtt.connection import reauthorization
from protocols.mqtt.connection.connection import MqttConnection
from tests.clients import World, marshal, publication
from tests.core.failing import Failing, finish


def test_a_queue_whose_purge_fails_is_deleted_with_its_bindings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True)
    client.send(spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="#"))
    many = int(MESSAGES_PER_SLICE) + 10
    client.connection.receive_data(publication("", "q", b"x", delivery_mode=2) * many)
    world.settle(client.connection)
    failing = Failing(monkeypatch, MemoryStore, "release", 1)
    client.connection.receive_data(marshal(1, spec.Queue.Delete(queue="q")))
    assert finish(world) == failing.failures == 1
    [reply] = client.read()
    assert isinstance(reply, spec.Queue.DeleteOk) and reply.message_count == many
    assert "q" not in world.vhost.queues and not list(world.vhost.exchanges["amq.topic"])
    # The connection still works, and another queue can have the name.
    client.queue("q", durable=True)
    assert world.queue("q").depth == 0


def test_a_binding_is_made_although_the_release_of_a_plan_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = World()
    client = world.amqp()
    for queue in ("a", "b"):
        client.queue(queue)
    client.send(spec.Queue.Bind(queue="a", exchange="amq.topic", routing_key="k"))
    client.publish("amq.topic", "k", b"1")
    failing = Failing(monkeypatch, Plan, "release", 1)
    client.connection.receive_data(
        marshal(1, spec.Queue.Bind(queue="b", exchange="amq.topic", routing_key="k"))
    )
    assert finish(world) == failing.failures == 1
    [reply] = client.read()
    assert isinstance(reply, spec.Queue.BindOk)
    client.publish("amq.topic", "k", b"2")
    assert (world.queue("a").depth, world.queue("b").depth) == (2, 1)


@pytest.mark.parametrize("protocol", ["amqp", "mqtt"])
def test_a_connection_whose_permissions_cannot_be_renewed_is_closed(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    clients: list[Any] = [
        world.amqp(user="u") if protocol == "amqp" else world.mqtt(f"c{number}", user="u/guest")
        for number in range(3)
    ]
    front = world.amqp_front if protocol == "amqp" else world.mqtt_front
    owner = AmqpConnection if protocol == "amqp" else MqttConnection
    world.guests.identities["u"] = Identity("u", ".*", ".*", "^none$")
    failing = Failing(monkeypatch, owner, "reauthorize", 2)
    assert finish(world, front.reauthorize) == failing.failures == 1
    for client in clients:
        if protocol == "amqp" and client.read():
            client.connection.receive_data(marshal(0, spec.Connection.CloseOk()))
            world.settle(client.connection)
    assert front.closed == {INTERNAL_ERROR: 1} and len(front.connections) == 2


@pytest.mark.parametrize("name", ["{}", "$share/g/{}"])
def test_a_subscription_that_cannot_be_checked_is_removed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.guests.identities["u"] = Identity("u")
    client = world.mqtt("c", user="u/guest")
    for topic in ("a", "b", "c"):
        client.subscribe(name.format(topic), 0)
    session = world.mqtt_front.sessions.all()[0]
    world.guests.identities["u"] = Identity("u", ".*", ".*", "^none$")
    failing = Failing(monkeypatch, reauthorization, "read_scope", 2)
    assert finish(world, world.mqtt_front.reauthorize) == failing.failures == 1
    assert not len(session.subscriptions) and not session.subscriptions.memberships
    assert not list(world.vhost.exchanges["amq.topic"])
