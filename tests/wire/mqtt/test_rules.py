"""Tests of MQTT 3.1.1: the first packet, the end of a connection, the contents of a session."""

from __future__ import annotations

import pytest

from tests.clients import World, mqtt_publish, packet, text
from tests.wire.mqtt.client import (
    ACCEPTED,
    DISCONNECT,
    DUP,
    PINGREQ,
    PINGRESP,
    RETAIN,
    Client,
    Will,
    connect,
    packets,
    puback,
    pubcomp,
    publications,
    pubrec,
    pubrel,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)


def test_a_ping_is_answered() -> None:  # [MQTT-3.12.4-1]
    assert Client(World(), connect()).send(PINGREQ, PINGREQ) == PINGRESP * 2


def test_connect_with_all_fields_in_order() -> (
    None
):  # [MQTT-3.1.3-1], [MQTT-3.1.4-4], [MQTT-3.1.2-8]
    world = World()
    client = Client(
        world, connect("me", will=Will("gone", b"x", 1, True), user="guest", password=b"guest")
    )
    assert client.greeting == ACCEPTED
    client.vanish()
    [kept] = publications(Client(world, connect("late")).send(subscribe(1, ("gone", 1))))
    assert (kept.topic, kept.body, kept.retain) == ("gone", b"x", True)


@pytest.mark.parametrize("end", [b"", b"\x00\x00", DISCONNECT])
def test_a_client_without_a_will_publishes_none(end: bytes) -> None:  # [MQTT-3.1.2-12]
    world = World()
    watcher = Client(world, connect("watcher"))
    watcher.send(subscribe(1, ("#", 0)))
    client = Client(world, connect())
    if end:
        client.send(end)
    else:
        client.vanish()
    assert client.connection.finished
    assert watcher.read() == b""


@pytest.mark.parametrize("flags", [0x06, 0x42, 0xC2, 0x82])
def test_a_connect_without_the_fields_that_its_flags_name(
    flags: int,
) -> None:  # [MQTT-3.1.2-11], [MQTT-3.1.2-20], [MQTT-3.1.4-1]
    client = Client(World(), packet(0x10, text("MQTT") + bytes([4, flags, 0, 60]) + text("c")))
    assert client.greeting == b""
    assert client.connection.finished


@pytest.mark.parametrize("extra", [text("gone"), text("user"), text("password"), b"\x00"])
def test_a_connect_with_fields_that_its_flags_do_not_name(
    extra: bytes,
) -> None:  # [MQTT-3.1.2-11], [MQTT-3.1.2-20], [MQTT-3.1.4-1]
    client = Client(World(), packet(0x10, text("MQTT") + b"\x04\x02\x00\x3c" + text("c") + extra))
    assert client.greeting == b""
    assert client.connection.finished


def test_a_client_identifier_that_looks_like_a_shared_subscription_is_refused() -> (
    None
):  # [MQTT-3.1.3-9]
    client = Client(World(), connect("$share/g/a"))
    assert client.greeting == b"\x20\x02\x00\x02"
    assert client.connection.finished


def test_packets_after_a_refused_connect_are_ignored() -> None:  # [MQTT-3.1.4-5], [MQTT-3.2.2-5]
    world = World()
    client = Client(
        world,
        connect(user="guest", password=b"wrong") + mqtt_publish("a", b"x", flags=RETAIN) + PINGREQ,
    )
    assert client.greeting == b"\x20\x02\x00\x04"
    assert client.connection.finished
    assert len(world.vhost.retained) == 0


def test_the_client_identifier_identifies_the_session() -> None:  # [MQTT-3.1.3-2], [MQTT-3.1.4-3]
    world = World()
    for name, topic in (("one", "a"), ("two", "b")):
        Client(world, connect(name, clean=False)).send(subscribe(1, (topic, 1)), DISCONNECT)
    Client(world, connect("w")).send(mqtt_publish("a", b"", 1, 1), mqtt_publish("b", b"", 1, 2))
    for name, topic in (("one", "a"), ("two", "b")):
        assert [
            one.topic for one in publications(Client(world, connect(name, clean=False)).greeting)
        ] == [topic]
        assert publications(Client(world, connect(name)).greeting) == []


@pytest.mark.parametrize("clean", [True, False])
def test_retained_messages_outlive_a_session(clean: bool) -> None:  # [MQTT-3.1.2-7]
    world = World()
    Client(world, connect(clean=clean)).send(mqtt_publish("a", b"x", 1, 1, RETAIN), DISCONNECT)
    Client(world, connect(clean=True)).send(DISCONNECT)
    assert len(publications(Client(world, connect("late")).send(subscribe(1, ("a", 1))))) == 1


@pytest.mark.parametrize("keep_alive", [1, 60, 65_535])
def test_silence_of_one_and_a_half_keep_alives_ends_the_connection(
    keep_alive: int,
) -> None:  # [MQTT-3.1.2-24]
    world = World()
    client = Client(world, connect(keep_alive=keep_alive))
    world.sleep(keep_alive * 1_500 - 1)
    client.connection.advance(int(world.broker.agenda.now))
    assert not client.connection.finished
    world.sleep(1)
    client.connection.advance(int(world.broker.agenda.now))
    assert client.connection.finished


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_reply_to_a_publish_depends_on_its_qos(
    qos: int,
) -> None:  # [MQTT-3.3.4-1], [MQTT-2.3.1-5], [MQTT-4.3.1-1]
    world = World()
    client = Client(world, connect())
    client.send(subscribe(1, ("a", 0)))
    heard = packets(client.send(mqtt_publish("a", b"\x00\x07x", qos, 7)))
    # QoS 0 has no packet identifier: the payload follows the topic name.
    assert mqtt_publish("a", b"\x00\x07x") in heard
    heard.remove(mqtt_publish("a", b"\x00\x07x"))
    assert heard == [[], [puback(7)], [pubrec(7)]][qos]
    if qos == 2:
        assert client.send(pubrel(7)) == pubcomp(7)


@pytest.mark.parametrize(
    "data",
    [
        packet(0x82, b"\x00\x01"),
        packet(0x82, b"\x00\x01\x00\x01a\x03"),
        packet(0x82, b"\x00\x01\x00\x01a\x04"),
        packet(0x82, b"\x00\x01\x00\x01a\x80"),
        packet(0x82, b"\x00\x01\x00\x01a\x00\x00\x01b\x41"),
        b"\xe1\x00",
        b"\xe2\x00",
        b"\xe0\x01\x00",
        b"\xc1\x00",
        b"\xf0\x00",
        b"\x00\x00",
        packet(0x30, b"\x00\x05a"),
        packet(0x80, b"\x00\x01\x00\x01a\x00"),
    ],
)
def test_a_protocol_violation_ends_the_connection(
    data: bytes,
) -> None:  # [MQTT-3.8.3-3], [MQTT-3.8.3-4], [MQTT-3.14.1-1], [MQTT-4.8.0-1]
    world = World()
    client = Client(world, connect())
    assert client.send(data) == b""
    assert client.connection.finished
    assert world.vhost.subscribers == {}


def test_the_broker_takes_filters_with_wildcards() -> None:  # [MQTT-3.8.3-2]
    world = World()
    client = Client(world, connect())
    # [MQTT-2.3.1-7], [MQTT-3.8.4-1]
    assert client.send(subscribe(5, ("+/#", 1), ("#", 0), ("a/+/b", 2))) == suback(5, 1, 0, 2)


@pytest.mark.parametrize("count", [1, 3, 300])
def test_suback_has_only_the_codes_of_the_specification(
    count: int,
) -> None:  # [MQTT-3.9.3-2], [MQTT-3.8.4-1]
    world = World()
    client = Client(world, connect())
    filters = [
        (
            "$share/g/" * (number % 5 == 4) + f"f/{number}" + "/x" * 250 * (number % 4 == 3),
            number % 3,
        )
        for number in range(count)
    ]
    reply = client.send(subscribe(1, *filters))
    world.settle(client.connection)
    [answer] = packets(reply + client.connection.data_to_send())
    codes = answer[-count:]
    assert set(codes) <= {0, 1, 2, 0x80}
    assert all(
        code == (0x80 if len(name) > 400 else qos)
        for code, (name, qos) in zip(codes, filters, strict=True)
    )


@pytest.mark.parametrize("qos", [1, 2])
def test_after_unsubscribing_begun_deliveries_are_finished_and_no_new_ones_come(qos: int) -> None:
    # [MQTT-3.10.4-2], [MQTT-3.10.4-3], [MQTT-3.3.1-1], [MQTT-4.3.2-1]
    world = World()
    client = Client(world, connect(clean=False))
    client.send(subscribe(1, ("a", qos)))
    writer = Client(world, connect("w"))
    writer.send(mqtt_publish("a", b"begun", qos, 1))
    [begun] = publications(client.read())
    assert not begun.dup
    assert client.send(unsubscribe(2, "a")) == unsuback(2)
    writer.send(mqtt_publish("a", b"too late", qos, 2))
    assert client.read() == b""
    client.vanish()
    again = Client(world, connect(clean=False))
    assert packets(again.greeting)[1:] == [mqtt_publish("a", b"begun", qos, begun.packet_id, DUP)]
    if qos == 1:
        assert again.send(puback(begun.packet_id)) == b""
    else:
        assert again.send(pubrec(begun.packet_id)) == pubrel(begun.packet_id)
        assert again.send(pubcomp(begun.packet_id)) == b""
    again.vanish()
    assert len(packets(Client(world, connect(clean=False)).greeting)) == 1


def test_a_published_message_belongs_to_the_session_of_every_subscriber() -> None:
    # [MQTT-4.5.0-1], [MQTT-3.3.2-3], [MQTT-4.1.0-1], [MQTT-4.1.0-2]
    world = World()
    filters = ("a/b", "a/+", "#", "a/#", "+/b", "b/#", "a/b/c")
    here = {name: Client(world, connect(f"here {name}", keep_alive=0)) for name in filters}
    for name, client in here.items():
        client.send(subscribe(1, (name, 1)))
        Client(world, connect(f"away {name}", clean=False)).send(
            subscribe(1, (name, 1)), DISCONNECT
        )
    world.sleep(1_000_000)
    Client(world, connect("w")).send(mqtt_publish("a/b", b"x", 1, 1))
    heard = {name for name, client in here.items() if publications(client.read())}
    kept = {
        name
        for name in filters
        if publications(Client(world, connect(f"away {name}", clean=False)).greeting)
    }
    assert heard == kept == {"a/b", "a/+", "#", "a/#", "+/b"}
