"""Tests of runs: adjacent QoS 0 packets, which the broker relays as one block of bytes.

Subscribers must get the same bytes as if the packets were relayed one by one. They must also get
the same bytes on the fast path and on the slow path.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pamqp.commands as spec
import pytest

from broker.messages.outlet import FunctionSender
from broker.routing.plan_index import bucket_of
from broker.routing.publish_context import PublishContext
from broker.routing.route import Route
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    DISCONNECT,
    DUP,
    PINGREQ,
    PINGRESP,
    RETAIN,
    Client,
    connect,
    here,
    puback,
    publications,
    pubrec,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)


def reader(world: World, name: str, *filters: str, qos: int = 0) -> Client:
    client = here(world, name)
    client.send(subscribe(1, *[(one, qos) for one in filters]))
    return client


def context_of(world: World) -> PublishContext:
    [context] = [context for context in world.vhost.contexts if context.front == "mqtt311"]
    return context


def route_of(world: World, topic: str) -> Route:
    return context_of(world).routes[topic.encode()]


def test_a_run_reaches_all_its_listeners_as_it_came() -> None:
    world = World()
    readers = [reader(world, f"r{number}", "a/#") for number in range(3)]
    writer = here(world, "w")
    run = b"".join(mqtt_publish(f"a/{number % 7}", b"%d" % number) for number in range(500))
    writer.send(run)
    for one in readers:
        assert one.read() == run
    assert sum(route_of(world, f"a/{number}").count for number in range(7)) == 500
    assert world.copies() == {"auto_acknowledged": 1_500}
    assert world.fates() == {"routed": 500}


@pytest.mark.parametrize(
    ("breaker", "answer", "heard"),
    [
        (PINGREQ, PINGRESP, b""),
        (mqtt_publish("a", b"q", 1, 9), puback(9), mqtt_publish("a", b"q")),
        (mqtt_publish("a", b"q", 2, 9), pubrec(9), mqtt_publish("a", b"q")),
        (mqtt_publish("a", b"r", flags=RETAIN), b"", mqtt_publish("a", b"r")),
        (mqtt_publish("a", b"d", 1, 9, DUP), puback(9), mqtt_publish("a", b"d")),
        (mqtt_publish("unread", b"n"), b"", b""),
        (mqtt_publish("b", b"other"), b"", mqtt_publish("b", b"other")),
        (mqtt_publish("queued", b"x"), b"", mqtt_publish("queued", b"x")),
        (mqtt_publish("$SYS/x", b"n"), b"", b""),
        (subscribe(5, ("elsewhere", 0)), suback(5, 0), b""),
        (subscribe(5, ("#", 2)), suback(5, 2), b""),
        (unsubscribe(5, "a"), unsuback(5), b""),
        (b"\x62\x02\x00\x09", b"\x70\x02\x00\x09", b""),
        (b"\x40\x02\x00\x09", b"", b""),
    ],
)
def test_a_run_broken_by_something_else_keeps_its_order(
    breaker: bytes, answer: bytes, heard: bytes
) -> None:
    world = World()
    world.amqp().queue("q", "amq.topic", "queued")
    listening = [reader(world, "r1", "a", "b", "queued"), reader(world, "r2", "a")]
    writer = here(world, "w")
    one, two = mqtt_publish("a", b"1") * 3, mqtt_publish("a", b"2") * 2
    for _ in range(2):
        assert answer in writer.send(one, breaker, two)
        assert listening[0].read() == one + heard + two
        assert listening[1].read() == one + (heard if heard[4:5] == b"a" else b"") + two
        writer.send(unsubscribe(6, "#"), b"\x62\x02\x00\x09")


def test_a_client_that_changes_its_own_subscriptions_in_the_middle_of_a_chunk() -> None:
    world = World()
    client = here(world)
    data = client.send(
        mqtt_publish("a", b"0"),
        subscribe(1, ("a", 0)),
        mqtt_publish("a", b"1") * 2,
        unsubscribe(2, "a"),
        mqtt_publish("a", b"2"),
        subscribe(3, ("+", 0), ("b", 0)),
        mqtt_publish("a", b"3"),
        mqtt_publish("b", b"4"),
        unsubscribe(4, "+"),
        mqtt_publish("a", b"5"),
        mqtt_publish("b", b"6"),
        DISCONNECT,
        mqtt_publish("b", b"7"),
    )
    assert data == (
        suback(1, 0)
        + mqtt_publish("a", b"1") * 2
        + unsuback(2)
        + suback(3, 0, 0)
        + mqtt_publish("a", b"3")
        + mqtt_publish("b", b"4")
        + unsuback(4)
        + mqtt_publish("b", b"6")
    )
    assert world.fates() == {"routed": 5, "unroutable": 3}


def test_subscriber_that_connects_between_two_chunks() -> None:
    world = World()
    writer, first = here(world, "w"), reader(world, "r1", "a")
    half = mqtt_publish("a", b"2")
    writer.send(mqtt_publish("a", b"1"), half[:3])
    second = reader(world, "r2", "a")
    writer.send(half[3:], mqtt_publish("a", b"3"))
    assert [one.body for one in publications(first.read())] == [b"1", b"2", b"3"]
    assert [one.body for one in publications(second.read())] == [b"2", b"3"]
    second.vanish()
    writer.send(mqtt_publish("a", b"4"))
    assert [one.body for one in publications(first.read())] == [b"4"]
    assert world.fates() == {"routed": 4}


@pytest.mark.parametrize("seed", range(40))
def test_every_reader_gets_its_topics_in_the_order_of_publication(
    seed: int,
) -> None:  # [MQTT-4.6.0-5]
    chance = random.Random(seed)
    world = World()
    topics = ["a", "b", "a/b", "a/c", "queued", "unread", "$x", "t" * 600]
    world.amqp().queue("q", "amq.topic", "queued")
    filters = {
        "r1": ["a"],
        "r2": ["a", "b"],
        "r3": ["#"],
        "r4": ["a/+", "queued"],
        "r5": ["+"],
        "r6": ["t" * 600, "$x"],
    }
    wants: dict[str, Callable[[str], bool]] = {
        "r1": lambda topic: topic == "a",
        "r2": lambda topic: topic in ("a", "b"),
        "r3": lambda topic: topic != "$x",
        "r4": lambda topic: topic in ("a/b", "a/c", "queued"),
        "r5": lambda topic: "/" not in topic and topic != "$x",
        "r6": lambda topic: topic in ("$x", "t" * 600),
    }
    readers = {name: reader(world, name, *some) for name, some in filters.items()}
    writer = here(world, "w")
    data = b""
    sent: list[tuple[str, bytes]] = []
    while len(sent) < 300:
        topic = chance.choice(topics)
        for _ in range(chance.choice([1, 1, 2, 5])):
            body = b"%d" % len(sent) + bytes(chance.choice([0, 0, 0, 200]))
            flags, qos = chance.choice([(0, 0)] * 8 + [(RETAIN, 0), (0, 1), (0, 2)])
            data += mqtt_publish(topic, body, qos, len(sent) + 1 if qos else 0, flags)
            sent.append((topic, body))
    while data:
        cut = chance.choice([1, 10, 100, 1_000, 10_000])
        writer.send(data[:cut])
        data = data[cut:]
    for name, one in readers.items():
        assert [(got.topic, got.body) for got in publications(one.read())] == [
            got for got in sent if wants[name](got[0])
        ]
    assert world.fates() == {"routed": len(sent)}


def _nothing(world: World) -> None:
    pass


def _change_a_binding_of_another_topic(world: World) -> None:
    # Routes whose first words share a bucket are retired together. The hash of a word is random, so
    # the word of the other topic is searched for here.
    others = (f"other{number}" for number in itertools.count())
    reader(world, "another", next(one for one in others if bucket_of(one) != bucket_of("a")))


def _bind_a_queue(world: World) -> None:
    world.amqp().queue("q", "amq.topic", "#")


def _bind_a_queue_with_a_limit(world: World) -> None:
    world.amqp().queue("q", "amq.topic", "#", x_max_length=1, x_overflow="reject-publish")


def _bind_a_headers_exchange(world: World) -> None:
    world.amqp().send(
        spec.Exchange.Declare(exchange="by-headers", exchange_type="headers"),
        spec.Exchange.Bind(destination="by-headers", source="amq.topic", routing_key="#"),
    )


def _forget_the_route(world: World) -> None:
    context_of(world).evict(b"a")


def _add_an_absent_reader(world: World) -> None:
    away = Client(world, connect("away", clean=False))
    away.send(subscribe(1, ("a", 0)))
    away.vanish()


def _add_a_slow_reader(world: World) -> None:
    slow = reader(world, "slow", "a")
    slow.connection.pause_writing()


def _add_a_reader_of_qos_1(world: World) -> None:
    reader(world, "careful", "a", qos=2)


def _add_a_persistent_reader(world: World) -> None:
    Client(world, connect("stays", clean=False)).send(subscribe(1, ("a", 1)))


#: Function that changes the world after the first of four publications -> how many of the four then
#: take the fast path, by the count of the route that is cached at the end.
DETOURS: dict[Callable[[World], None], int] = {
    _nothing: 4,
    _change_a_binding_of_another_topic: 4,
    _bind_a_queue: 0,
    _bind_a_queue_with_a_limit: 0,
    _bind_a_headers_exchange: 0,
    _forget_the_route: 3,
    _add_an_absent_reader: 2,
    _add_a_slow_reader: 2,
    _add_a_reader_of_qos_1: 2,
    _add_a_persistent_reader: 2,
}


@pytest.mark.parametrize("detour", DETOURS)
@pytest.mark.parametrize("flags", [0, RETAIN])
@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_qos_0_reaches_readers_as_the_same_bytes_on_every_path(
    detour: Callable[[World], None], flags: int, size: int
) -> None:
    world = World()
    readers = [reader(world, f"r{qos}", "a", qos=qos) for qos in range(3)]
    writer = here(world, "w")
    plain = mqtt_publish("a", bytes(size))
    writer.send(plain)
    detour(world)
    for _ in range(3):
        writer.send(mqtt_publish("a", bytes(size), flags=flags))
    untouched = detour in (_nothing, _change_a_binding_of_another_topic)
    assert route_of(world, "a").count == (DETOURS[detour] if flags == 0 else untouched)
    for one in readers:
        assert one.read() == plain * 4
    refused = 2 if detour is _bind_a_queue_with_a_limit else 0
    assert world.fates() == {"routed": 4 - refused} | ({"refused": refused} if refused else {})


@pytest.mark.parametrize("detour", DETOURS)
@pytest.mark.parametrize("flags", [0, RETAIN, DUP])
@pytest.mark.parametrize("qos", [1, 2])
def test_qos_1_and_2_reach_readers_as_the_same_bytes_on_every_path(
    detour: Callable[[World], None], flags: int, qos: int
) -> None:
    world = World()
    readers = [reader(world, f"r{granted}", "a", qos=granted) for granted in range(3)]
    only = reader(world, "only", "one/way", qos=1)
    writer = here(world, "w")
    answer = puback if qos == 1 else pubrec
    assert writer.send(mqtt_publish("a", b"x", qos, 1)) == answer(1)
    writer.send(mqtt_publish("one/way", b"y", 1, 2), mqtt_publish("one/way", b"y", 1, 2))
    assert only.read() == mqtt_publish("one/way", b"y", 1, 1) + mqtt_publish("one/way", b"y", 1, 2)
    assert route_of(world, "one/way").count == 2
    detour(world)
    for number in range(3):
        assert writer.send(mqtt_publish("a", b"x", qos, 3 + number, flags)) == answer(3 + number)
    for granted, one in enumerate(readers):
        lower = min(granted, qos)
        assert one.read() == b"".join(
            mqtt_publish("a", b"x", lower, number if lower else 0) for number in range(1, 5)
        )
    world.fates()


def test_a_run_for_a_slow_and_an_absent_reader_is_counted_packet_by_packet() -> None:
    world = World()
    quick, slow = reader(world, "quick", "a"), reader(world, "slow", "a")
    away = Client(world, connect("away", clean=False))
    away.send(subscribe(1, ("a", 0)))
    away.vanish()
    slow.connection.pause_writing()
    run = mqtt_publish("a", b"x") * 50
    here(world, "w").send(run, PINGREQ, run)
    assert quick.read() == run * 2
    slow.connection.resume_writing()
    assert slow.read() == b""
    assert world.copies() == {"auto_acknowledged": 100, "dropped": 100, "offline": 100}
    assert world.fates() == {"routed": 100}


def test_a_reader_that_becomes_slow_between_two_runs_of_a_chunk() -> None:
    world = World()
    first, second = reader(world, "first", "a", "b"), reader(world, "second", "a")
    writer = here(world, "w")
    writer.send(mqtt_publish("a", b"1"), mqtt_publish("b", b"2"))
    first.connection.pause_writing()
    writer.send(mqtt_publish("a", b"3"))
    first.connection.resume_writing()
    writer.send(mqtt_publish("a", b"4"))
    assert [one.body for one in publications(first.read())] == [b"1", b"2", b"4"]
    assert [one.body for one in publications(second.read())] == [b"1", b"3", b"4"]


def test_relaying_needs_one_wake_a_turn() -> None:
    world = World()
    one = reader(world, "r", "a")
    woken = []
    one.connection.sender = FunctionSender(lambda: woken.append(True))
    writer = here(world, "w")
    for _ in range(3):
        writer.send(mqtt_publish("a", b"x") * 10, PINGREQ, mqtt_publish("a", b"x"))
    assert len(woken) == 1
    one.read()
    writer.send(mqtt_publish("a", b"x"))
    assert len(woken) == 2


@pytest.mark.parametrize("size", [16_383, 16_384, 100_000])
def test_large_bodies_on_the_careful_path_are_written_as_parts_in_order(size: int) -> None:
    world = World()
    one = reader(world, "r", "a", qos=1)
    writer = here(world, "w")
    large = mqtt_publish("a", bytes(size), 1, 1)
    writer.send(mqtt_publish("a", b"before"), large, mqtt_publish("a", b"after"))
    parts = one.connection.parts_to_send()
    assert b"".join(parts) == mqtt_publish("a", b"before") + large + mqtt_publish("a", b"after")
    assert (bytes(size) in parts) == (size >= 16_384)
