"""Leaks: clients use every feature and disconnect in every way, and leave no object behind.

They leave no reference cycle either, so the garbage collector has nothing to free.
"""

from __future__ import annotations

import gc
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pamqp.commands as spec
import pytest

from broker.access.identity import Identity
from protocols.amqp.connection.handshake import GREETING
from protocols.connection import Connection
from protocols.mqtt.options import MqttOptions
from tests.clients import World, marshal, mqtt_publish, publication
from tests.garbage import living_objects
from tests.wire.mqtt.client import Will, connect, pubcomp, pubrec, pubrel, subscribe, unsubscribe

#: Number of clients of each kind. The interpreted broker takes 3 ms for each.
CLIENTS = 10_000 if os.environ.get("TRELLIS_REQUIRE_COMPILED") else 4_000
#: After WARM clients, all caches are full; later clients may add at most SLACK memory blocks.
WARM, SLACK = 2_000, 1_000

_LOGIN = (
    GREETING
    + marshal(0, spec.Connection.StartOk(response="\0guest\0guest"))
    + marshal(0, spec.Connection.TuneOk(2047, 131_072, 0))
    + marshal(0, spec.Connection.Open())
    + marshal(1, spec.Channel.Open())
)
_QUEUE = marshal(1, spec.Queue.Declare(queue="own", exclusive=True)) + marshal(
    1, spec.Queue.Bind(queue="own", exchange="amq.topic", routing_key="a.*")
)
_SHARED = (
    marshal(
        1,
        spec.Queue.Declare(
            queue="shared", auto_delete=True, arguments={"x-max-length": 3, "x-message-ttl": 10_000}
        ),
    )
    + marshal(1, spec.Queue.Bind(queue="shared", exchange="amq.topic", routing_key="a.#"))
    + marshal(1, spec.Basic.Consume(queue="shared", consumer_tag="s"))
)
_CONSUME = marshal(1, spec.Basic.Qos(prefetch_count=2)) + marshal(
    1, spec.Basic.Consume(queue="own", consumer_tag="t")
)
_PUBLISH = publication("amq.topic", "a.b", b"x", delivery_mode=2) * 3
_GLOBAL = marshal(1, spec.Basic.Qos(prefetch_count=1, global_=True))

#: Input of AMQP clients from login to end. An input without connection.close at its end stands for
#: a client that loses its connection.
AMQP_LIVES = [
    _QUEUE + _CONSUME + _PUBLISH,
    _QUEUE
    + _PUBLISH
    + _CONSUME
    + marshal(1, spec.Basic.Ack(1))
    + marshal(0, spec.Connection.Close(0, "", 0, 0)),
    _SHARED + _PUBLISH,
    _GLOBAL
    + _SHARED
    + _PUBLISH
    + marshal(1, spec.Basic.Nack(1, requeue=True))
    + marshal(1, spec.Channel.Close(0, "", 0, 0)),
    marshal(1, spec.Confirm.Select()) + _PUBLISH,
    _QUEUE + marshal(1, spec.Queue.Delete(queue="own")) + _PUBLISH,
    _QUEUE + _CONSUME + marshal(1, spec.Queue.Declare(queue="nothing", passive=True)),
    _SHARED + publication("nowhere", "", b"x"),
    _QUEUE
    + _PUBLISH
    + marshal(1, spec.Basic.Get(queue="own"))
    + marshal(1, spec.Basic.Get(queue="own", no_ack=True)),
    _QUEUE + _CONSUME + _PUBLISH + b"\x01\x00\x00garbage",
    _PUBLISH[:-5],
    marshal(1, spec.Basic.Ack(7)),
    b"",
]

#: Input of MQTT clients from login to end.
MQTT_LIVES = [
    subscribe(1, ("a/+", 2)) + mqtt_publish("a/b", b"x", 2, 1),
    subscribe(1, ("a/+", 2)) + mqtt_publish("a/b", b"x", 2, 1) + pubrec(1),
    subscribe(1, ("a/#", 1)) + mqtt_publish("a/b", b"x", 1, 1) + b"\x40\x02\x00\x01\xe0\x00",
    subscribe(1, ("#", 0)) + mqtt_publish("a", b"x") * 3,
    subscribe(1, ("a", 2), ("b", 0)) + unsubscribe(2, "a") + b"\xe0\x00",
    mqtt_publish("a/b", b"x", 2, 7) + pubrel(7) + pubcomp(9),
    subscribe(1, ("a", 1)) + b"\xf0\x00",
    mqtt_publish("a", b"x" * 20_000) + b"\x30\x00",
    connect("second"),
    b"\xe0\x00",
    b"\xc0",
    b"",
]


@contextmanager
def nothing_for_the_collector() -> Iterator[None]:
    """Check that reference counts alone free all objects that the `with` body creates."""
    gc.collect()
    gc.disable()
    try:
        yield
        gc.set_debug(gc.DEBUG_SAVEALL)
        unreachable = gc.collect()
        gc.set_debug(0)
        kinds = Counter(type(one).__name__ for one in gc.garbage)
        gc.garbage.clear()
        assert unreachable == 0, kinds
    finally:
        gc.set_debug(0)
        gc.enable()


def ours() -> Counter[str]:
    """Return class -> number of living objects of the broker.

    Objects of earlier tests, which pytest may have kept, are cleared first.
    """
    gc.collect()
    return living_objects("broker", "protocols", "matching")


def live(connection: Connection, world: World, *chunks: bytes) -> None:
    for chunk in chunks:
        connection.receive_data(chunk)
        world.turn()
        connection.data_to_send()
    while connection.behind and not connection.finished:
        connection.resume()
        world.turn()
    connection.on_closed()


def empty(world: World) -> None:
    """Check that there is no connection, queue, session, binding or stored message."""
    vhost = world.vhost
    assert not world.amqp_front.connections
    assert not world.mqtt_front.connections
    assert not vhost.queues
    assert not vhost.inboxes
    assert not vhost.subscribers
    assert len(world.mqtt_front.sessions) == 0
    assert sum(len(exchange.bindings) for exchange in vhost.exchanges.values()) == 0
    assert not world.store.state.messages
    assert not world.store.state.definitions
    assert all(context.users == 0 for context in vhost.contexts if context is not vhost.internal)
    world.fates()


def test_amqp_clients_leave_nothing_behind() -> None:
    world = World()
    chance = random.Random(1)
    before = ours()
    with nothing_for_the_collector():
        for number in range(CLIENTS):
            if number == WARM:
                blocks = sys.getallocatedblocks()
            life = AMQP_LIVES[number % len(AMQP_LIVES)]
            cut = chance.randrange(len(life) + 1)
            live(world.raw_amqp(), world, _LOGIN, life[:cut], life[cut:])
        world.sleep(20_000)
        world.settle()
        assert sys.getallocatedblocks() < blocks + SLACK
    empty(world)
    _none_left(world, before)


def test_mqtt_clients_leave_nothing_behind() -> None:
    options = MqttOptions()
    options.session_expiry_s = 10
    world = World(mqtt=options)
    world.guests.identities["reader"] = Identity("reader", write="", read="")
    chance = random.Random(2)
    before = ours()
    with nothing_for_the_collector():
        for number in range(CLIENTS):
            if number == WARM:
                blocks = sys.getallocatedblocks()
            life = MQTT_LIVES[number % len(MQTT_LIVES)]
            cut = chance.randrange(len(life) + 1)
            first = connect(
                f"c{number % 7}",
                clean=number % 3 == 0,
                will=Will("a/will", b"x", number % 3) if number % 5 == 0 else None,
                user="reader" if number % 11 == 0 else None,
                password=b"guest" if number % 11 == 0 else None,
            )
            live(world.raw_mqtt(), world, first[:3], first[3:] + life[:cut], life[cut:])
        world.sleep(20_000)
        world.settle()
        assert sys.getallocatedblocks() < blocks + SLACK
    assert world.mqtt_front.sessions.created > CLIENTS // 4
    empty(world)
    _none_left(world, before)


@pytest.mark.parametrize("refusal", ["verdict", "busy", "late", "never", "version", "garbage"])
def test_refused_clients_leave_nothing_behind(refusal: str) -> None:
    world = World()
    world.guests.hold = refusal in ("late", "never")
    mqtt = {"version": connect(level=5), "garbage": b"GET / HTTP/1.1\r\n\r\n"}.get(
        refusal, connect(user="absent", password=b"x")
    )
    amqp = {"version": b"AMQP\x00\x00\x09\x00", "garbage": b"GET / HTTP/1.1\r\n\r\n"}.get(
        refusal, GREETING + marshal(0, spec.Connection.StartOk(response="\0absent\0guest"))
    )
    before = ours()
    with nothing_for_the_collector():
        for _ in range(200):
            connections = [world.raw_mqtt(), world.raw_amqp()]
            connections[0].receive_data(mqtt)
            connections[1].receive_data(amqp)
            if refusal == "late":
                world.guests.decide()
            while connections:
                live(connections.pop(), world)
        world.guests.held.clear()
        world.settle()
    empty(world)
    _none_left(world, before)


def test_clients_that_wait_for_the_disk_leave_nothing_behind() -> None:
    options = MqttOptions()
    options.session_expiry_s = 1
    world = World(mqtt=options)
    before = ours()
    with nothing_for_the_collector():
        for number in range(300):
            world.slow_disk = True
            connection = world.raw_mqtt()
            connection.receive_data(connect("c", clean=False))
            if number % 3:
                world.durable()
                connection.resume()
            connection.receive_data(
                subscribe(1, ("a", 2))
                + mqtt_publish("a", b"x", 2, 1)
                + mqtt_publish("a", b"y", 1, 2)
            )
            if number % 2:
                world.durable()
                connection.resume()
            connection.on_closed()
            if number % 5 == 0:
                world.durable()
        del connection
        world.slow_disk = False
        world.sleep(5_000)
        world.settle()
    empty(world)
    _none_left(world, before)


def test_a_session_that_waits_keeps_nothing_of_the_connection_that_is_gone() -> None:
    world = World()
    before = ours()
    connection = world.raw_mqtt()
    connection.receive_data(connect("c", clean=False))
    world.turn()
    connection.resume()
    connection.receive_data(
        subscribe(1, ("#", 2)) + mqtt_publish("a", b"x", 2, 1, 1) + mqtt_publish("a", b"y", 1, 2)
    )
    world.turn()
    connection.resume()
    world.slow_disk = True
    connection.receive_data(mqtt_publish("b", b"z", 2, 3))
    connection.on_closed()
    del connection
    world.durable()
    world.turn()
    assert world.inbox("c").unacked + world.inbox("c").depth == 3
    after = ours()
    assert [after[kind] - before[kind] for kind in ("Session", "MqttConnection")] == [1, 0]


def _none_left(world: World, before: Counter[str]) -> None:
    """Check that no connection, session, channel, queue or other object of a client still exists.

    `before` has the number of objects of each class before the clients connected. A few routes,
    plans and publish contexts may stay for later clients.
    """
    after = ours()
    kinds = {
        kind: (before[kind], count) for kind, count in after.items() if count > before[kind] + 40
    }
    assert not kinds, kinds
    for kind in (
        "MqttConnection",
        "AmqpConnection",
        "Session",
        "Channel",
        "Queue",
        "LimitedQueue",
        "Delivery",
        "Message",
        "Binding",
        "InboxConsumer",
        "AmqpConsumer",
        "Ticket",
        "Answers",
        "Window",
        "Will",
        "Sending",
    ):
        assert after[kind] == before[kind], kind
    assert world.broker.agenda.deadline == 0
