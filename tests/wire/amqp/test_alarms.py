"""Alarms block publishers, and no other clients."""

from __future__ import annotations

from itertools import product
from typing import Any

import pamqp.commands as spec
import pytest

from broker.limits import BrokerLimits
from broker.routing.binding import Binding
from tests.clients import Amqp, World, mqtt_publish, publication
from tests.wire.amqp.speech import deliveries, names, read

Q, B = spec.Queue, spec.Basic
BLOCKED: Any = {"connection.blocked": True}


def alarmed(*which: str) -> tuple[World, Amqp]:
    world = World()
    client = world.amqp(**BLOCKED)
    client.queue("q")
    client.publish("", "q", b"before")
    for alarm in which or ("memory",):
        world.broker.alarms.set(alarm, True)
    return world, client


def test_a_publisher_waits_after_its_first_publication_and_is_told_why() -> None:
    world, client = alarmed("memory", "disk")
    [blocked] = client.publish("", "q", b"0")
    assert (blocked.name, blocked.reason) == ("Connection.Blocked", "low on memory & disk")
    for number in range(1, 4):
        assert client.publish("", "q", b"%d" % number) == []
    assert world.queue("q").depth == 2
    world.broker.alarms.set("memory", False)
    assert client.read() == []
    world.broker.alarms.set("disk", False)
    assert names(client.read()) == ["Connection.Unblocked"]
    assert read(client, "q") == [b"before", b"0", b"1", b"2", b"3"]
    world.fates()


def test_methods_behind_a_blocked_publication_in_one_chunk_wait_too() -> None:
    world, client = alarmed()
    client.connection.receive_data(
        b"".join(publication("", "q", b"%d" % number) for number in range(100))
    )
    client.read()
    assert world.queue("q").depth == 2 and client.connection.stalled
    world.broker.alarms.set("memory", False)
    client.read()
    assert world.queue("q").depth == 101


@pytest.mark.parametrize("size", [10, 300_000])
def test_contents_of_any_size_make_their_publisher_wait(size: int) -> None:
    world, client = alarmed()
    client.publish("", "q", b"x" * size)
    client.publish("", "q", b"y")
    assert world.queue("q").depth == 2
    world.broker.alarms.set("memory", False)
    client.read()
    assert world.queue("q").depth == 3


def test_methods_behind_a_publication_with_a_paused_search_wait_too() -> None:
    limits = BrokerLimits()
    limits.pattern_nodes = 0
    world = World(limits)
    client = world.amqp()
    client.queue("q")
    for words in product("*a", repeat=13):
        world.vhost.bind("amq.topic", Binding(".".join([*words, "#"]), world.queue("q")))
    data = publication("amq.topic", ".".join("a" * 13), b"x" * 300_000)
    client.connection.receive_data(data[:200_000])
    client.connection.receive_data(data[200_000:] + publication("", "q", b"behind") * 2)
    assert client.connection.behind
    world.broker.alarms.set("memory", True)
    world.settle(client.connection)
    assert world.queue("q").depth == 1 and client.connection.stalled
    world.broker.alarms.set("memory", False)
    world.settle(client.connection)
    assert world.queue("q").depth == 3
    world.fates()


def test_consumers_declarations_and_acknowledgements_go_on() -> None:
    world, publisher = alarmed()
    publisher.publish("", "q", b"0")
    consumer = world.amqp(**BLOCKED)
    frames = consumer.send(B.Consume(queue="q", consumer_tag="t"))
    assert [one.body for one in deliveries(frames)] == [b"before", b"0"]
    consumer.send(B.Ack(0, multiple=True))
    assert names(consumer.send(Q.Declare(queue="other"))) == ["Queue.DeclareOk"]
    assert world.queue("q").unacked == 0


def test_a_confirm_is_not_held_back_by_an_alarm() -> None:
    world, client = alarmed()
    client.send(spec.Confirm.Select())
    assert sorted(names(client.publish("", "q", b"x"))) == ["Basic.Ack", "Connection.Blocked"]
    world.broker.alarms.set("memory", False)
    assert names(client.read()) == ["Connection.Unblocked"]


def test_a_client_without_connection_blocked_waits_untold() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    world.broker.alarms.set("memory", True)
    assert client.publish("", "q", b"x") == [] and client.connection.stalled
    world.broker.alarms.set("memory", False)
    assert client.read() == []
    assert names(client.send(Q.Declare(queue="q", passive=True))) == ["Queue.DeclareOk"]


def test_a_connection_that_closed_while_blocked_is_not_unblocked() -> None:
    world, client = alarmed()
    client.publish("", "q", b"x")
    client.connection.on_closed()
    assert not world.broker.alarms.waiting
    world.broker.alarms.set("memory", False)


def test_a_waiting_publisher_is_not_silent_to_its_heartbeat() -> None:
    world, client = alarmed()
    client.connection.handshake.heartbeat = 10
    client.publish("", "q", b"x")
    client.connection.advance(int(world.broker.agenda.now) + 60_000)
    assert not client.connection.finished


def test_mqtt_publishers_wait_too() -> None:
    world, client = alarmed()
    client.send(Q.Bind(queue="q", exchange="amq.topic", routing_key="a"))
    sensor = world.mqtt("sensor")
    for number in range(3):
        sensor.send(mqtt_publish("a", b"%d" % number, number % 2, number))
    assert world.queue("q").depth == 2
    world.broker.alarms.set("memory", False)
    sensor.read()
    assert world.queue("q").depth == 4
