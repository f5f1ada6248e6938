"""CONNECT and CONNACK: accepted clients, refusals with their return codes, and closes without a
reply."""

from __future__ import annotations

import itertools

import pytest

from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish, packet, text
from tests.wire.mqtt.client import (
    ACCEPTED,
    PINGREQ,
    PINGRESP,
    RETAIN,
    Client,
    Will,
    binary,
    connect,
    here,
    pubcomp,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)

_HEAD = text("MQTT") + b"\x04"


def raw(flags: int, *fields: bytes) -> bytes:
    """Return a CONNECT with these connect flags, a keep-alive of 60 s, and these payload fields."""
    return packet(0x10, _HEAD + bytes([flags]) + b"\x00\x3c" + b"".join(fields))


@pytest.mark.parametrize(
    ("clean", "will", "qos", "retain", "user", "password"),
    [
        one
        for one in itertools.product(
            [True, False], [True, False], [0, 1, 2], [True, False], [True, False], [True, False]
        )
        if (one[1] or not one[2] and not one[3]) and (one[4] or not one[5])
    ],
)
def test_every_lawful_combination_of_flags_is_accepted(
    clean: bool, will: bool, qos: int, retain: bool, user: bool, password: bool
) -> None:
    world = World()
    watcher = here(world, "watcher")
    watcher.send(subscribe(1, ("gone", 2)))
    client = Client(
        world,
        connect(
            "c",
            clean=clean,
            will=Will("gone", b"x", qos, retain) if will else None,
            user="guest" if user else None,
            password=b"guest" if password else None,
        ),
    )
    if user and not password:
        # The user has a password, and the CONNECT has none.
        assert client.greeting == b"\x20\x02\x00\x04"
        assert client.closed == "login_refused"
        return
    assert client.greeting == ACCEPTED
    assert client.send(PINGREQ) == PINGRESP
    client.vanish()
    expected = mqtt_publish("gone", b"x", qos, 1 if qos else 0) if will else b""
    assert watcher.read() == expected
    late = here(world, "late").send(subscribe(1, ("gone", 0)))
    assert late == suback(1, 0) + (
        mqtt_publish("gone", b"x", flags=RETAIN) if will and retain else b""
    )
    assert (world.mqtt_front.sessions.find(world.vhost, "c") is None) == clean


@pytest.mark.parametrize(
    ("flags", "fields", "rule"),
    [
        (0x03, [text("c")], "the reserved flag is set [MQTT-3.1.2-3]"),
        (0x0A, [text("c")], "a will QoS without a will [MQTT-3.1.2-13]"),
        (0x12, [text("c")], "a will QoS without a will [MQTT-3.1.2-13]"),
        (0x22, [text("c")], "a will retain flag without a will [MQTT-3.1.2-15]"),
        (0x1E, [text("c"), text("w"), text("")], "will QoS 3 [MQTT-3.1.2-14]"),
        (0x42, [text("c"), text("secret")], "a password without a user name [MQTT-3.1.2-22]"),
        (0x06, [text("c")], "no will topic [MQTT-3.1.2-9]"),
        (0x06, [text("c"), text("w")], "no will message [MQTT-3.1.2-9]"),
        (0x06, [text("c"), text("w/#"), text("")], "a will topic with a wildcard"),
        (0x06, [text("c"), text("w/+/x"), text("")], "a will topic with a wildcard"),
        (0x06, [text("c"), text(""), text("")], "an empty will topic [MQTT-4.7.3-1]"),
        (0x06, [text("c"), text("a\0b"), text("")], "NUL in the will topic [MQTT-1.5.3-2]"),
        (
            0x06,
            [text("c"), b"\x00\x02\xc3\x28", text("")],
            "a will topic that is not UTF-8 [MQTT-3.1.3-10]",
        ),
        (0x82, [text("c")], "no user name [MQTT-3.1.2-19]"),
        (0xC2, [text("c"), text("u")], "no password [MQTT-3.1.2-21]"),
        (0x82, [text("c"), b"\x00\x01\xff"], "a user name that is not UTF-8 [MQTT-3.1.3-11]"),
        (0x82, [text("c"), text("a\0")], "NUL in the user name"),
        (0x02, [b"\x00\x01\xff"], "a client identifier that is not UTF-8 [MQTT-3.1.3-4]"),
        (0x02, [text("\0")], "NUL in the client identifier"),
        (0x02, [b"\x00\x03\xed\xa0\x80"], "a surrogate in the client identifier [MQTT-1.5.3-1]"),
        (0x02, [], "no client identifier [MQTT-3.1.3-3]"),
        (0x02, [b"\x00\x05abc"], "half a client identifier"),
        (0x02, [b"\x00"], "half a length"),
        (0x02, [text("c"), text("u")], "a user name without its flag [MQTT-3.1.2-18]"),
        (0x02, [text("c"), b"\x00"], "a byte too many"),
    ],
)
def test_a_malformed_connect_closes_the_connection_without_an_answer(
    flags: int, fields: list[bytes], rule: str
) -> None:
    world = World()
    client = Client(world, raw(flags, *fields))
    assert (client.greeting, client.closed) == (b"", "protocol_error"), rule
    assert world.mqtt_front.closed == {"protocol_error": 1}
    assert len(world.mqtt_front.sessions) == 0


@pytest.mark.parametrize(
    ("name", "level"),
    [
        (b"MQTT", 3),
        (b"MQTT", 0),
        (b"MQIsdp", 4),
        (b"MQTT", 0x83),
        (b"MQIsdp", 0x84),
        (b"MQTT", 0x85),
        (b"MQTT", 6),
        (b"MQTT", 255),
        (b"MQIsdp", 5),
    ],
)
def test_another_version_is_refused_with_its_return_code(
    name: bytes, level: int
) -> None:  # [MQTT-3.1.2-2]
    world = World()
    client = Client(world, connect("c", name=name, level=level))
    assert client.greeting == (b"\x20\x03\x00\x84\x00" if level & 127 >= 5 else b"\x20\x02\x00\x01")
    assert client.closed == "unacceptable_version"


@pytest.mark.parametrize(("name", "level"), [(b"MQIsdp", 0x83), (b"MQTT", 0x84)])
def test_a_bridge_gets_no_messages_of_its_own_and_retain_as_published(
    name: bytes, level: int
) -> None:
    world = World()
    bridge = Client(world, connect("bridge", name=name, level=level))
    assert bridge.greeting == ACCEPTED
    writer = Client(world, connect("writer"))
    assert bridge.send(subscribe(1, ("a/#", 0))) == suback(1, 0)
    retained = mqtt_publish("a/b", b"x", flags=RETAIN)
    assert bridge.send(mqtt_publish("a/b", b"own"), retained) == b""
    writer.send(retained)
    assert bridge.read() == retained
    plain = Client(world, connect("plain"))
    plain.send(subscribe(1, ("a/c", 0)))
    assert plain.send(mqtt_publish("a/c", b"own", flags=RETAIN)) == mqtt_publish("a/c", b"own")


def test_3_1_ignores_the_reserved_connect_flag_and_leaves_the_connack_byte_0() -> None:
    """In MQTT 3.1, the lowest connect flag and the first byte of the CONNACK are unused.

    The broker ignores the flag and sends the byte 0, as Mosquitto does.
    """
    world = World()
    for _ in range(2):
        client = Client(world, packet(0x10, binary(b"MQIsdp") + b"\x03\x01\0\x3c" + text("c")))
        assert client.greeting == ACCEPTED
        client.vanish()
    assert world.mqtt_front.sessions.find(world.vhost, "c") is not None


@pytest.mark.parametrize(
    ("client_packet", "answer"),
    [
        (b"\x8a" + subscribe(1, ("a", 0))[1:], suback(1, 0)),
        (b"\x80" + subscribe(1, ("a", 0))[1:], suback(1, 0)),
        (b"\xaa" + unsubscribe(2, "a")[1:], unsuback(2)),
        (b"\xa0" + unsubscribe(2, "a")[1:], unsuback(2)),
        (b"\x6a\x02\0\1", pubcomp(1)),
        (b"\x60\x02\0\1", pubcomp(1)),
        (b"\x42\x02\0\1", b""),
        (b"\x72\x02\0\1", b""),
        (b"\xc1\0", PINGRESP),
    ],
)
def test_3_1_ignores_the_flags_of_the_fixed_header(client_packet: bytes, answer: bytes) -> None:
    """The broker ignores the flags of the first byte of an MQTT 3.1 packet.

    Clients of MQTT 3.1 set DUP there when they send a SUBSCRIBE, UNSUBSCRIBE or PUBREL again. In
    MQTT 3.1.1, this is a protocol error.
    """
    client = Client(World(), connect("c", name=b"MQIsdp", level=3))
    assert client.send(client_packet) == answer and client.send(PINGREQ) == PINGRESP
    newer = Client(World(), connect("c"))
    newer.send(client_packet)
    assert newer.closed == "protocol_error"


def test_3_1_is_spoken_but_wants_a_client_identifier() -> None:
    world = World()
    reader, writer = (Client(world, connect(name, name=b"MQIsdp", level=3)) for name in ("r", "w"))
    assert reader.greeting == writer.greeting == ACCEPTED
    reader.send(subscribe(1, ("a/#", 2)))
    assert writer.send(mqtt_publish("a/b", b"x", 2, 1)) == b"\x50\x02\x00\x01"
    assert reader.read() == mqtt_publish("a/b", b"x", 2, 1)
    nameless = Client(world, connect("", name=b"MQIsdp", level=3))
    assert (nameless.greeting, nameless.closed) == (b"\x20\x02\x00\x02", "identifier_rejected")


@pytest.mark.parametrize("name", [b"mqtt", b"MQTTX", b"", b"AMQP", b"MQT", b"\xff\xff\xff\xff"])
def test_connect_with_another_protocol_name_is_not_answered(name: bytes) -> None:  # [MQTT-3.1.2-1]
    client = Client(World(), connect("c", name=name))
    assert (client.greeting, client.closed) == (b"", "protocol_error")


@pytest.mark.parametrize(
    "first",
    [
        PINGREQ,
        mqtt_publish("a", b"x"),
        mqtt_publish("a", b"x", 1, 1),
        subscribe(1, ("a", 0)),
        b"\xe0\x00",
        b"\x40\x02\x00\x01",
        b"\x11\x00",
        b"\x12\x00",
        b"\x18\x00",
        b"\x00\x00",
        b"\x20\x02\x00\x00",
        b"AMQP\x00\x00\x09\x01",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00" + b"\x01" * 512,
    ],
)
def test_the_first_packet_must_be_a_connect(first: bytes) -> None:  # [MQTT-3.1.0-1]
    world = World()
    client = Client(world, first)
    assert (client.greeting, client.closed) == (b"", "protocol_error")
    assert world.fates() == {}


def test_a_second_connect_ends_the_connection_and_its_will_is_published() -> None:  # [MQTT-3.1.0-2]
    world = World()
    watcher = here(world, "watcher")
    watcher.send(subscribe(1, ("gone", 0)))
    client = Client(world, connect("c", will=Will("gone", b"x")))
    assert client.send(connect("c"), PINGREQ) == b""
    assert client.closed == "protocol_error"
    assert watcher.read() == mqtt_publish("gone", b"x")


def test_an_empty_client_identifier_with_a_clean_session_gets_a_name_of_its_own() -> (
    None
):  # [MQTT-3.1.3-6]
    world = World()
    one, two = Client(world, connect("")), Client(world, connect(""))
    assert one.greeting == two.greeting == ACCEPTED
    names = {session.name for session in world.mqtt_front.sessions.all()}
    assert len(names) == 2
    assert "" not in names
    one.send(b"\xe0\x00")
    assert len(world.mqtt_front.sessions) == 1


def test_an_empty_client_identifier_without_a_clean_session_is_rejected() -> None:  # [MQTT-3.1.3-8]
    client = Client(World(), connect("", clean=False))
    assert (client.greeting, client.closed) == (b"\x20\x02\x00\x02", "identifier_rejected")


@pytest.mark.parametrize(
    "name",
    [
        "0123456789abcdefghijklm",
        "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "x" * 65_000,
        "ä/#+$ €",
        "\ufefftext",
        "𐍈",
    ],
)
def test_any_text_is_a_client_identifier(name: str) -> None:  # [MQTT-3.1.3-5], [MQTT-1.5.3-3]
    world = World()
    assert Client(world, connect(name)).greeting == ACCEPTED
    session = world.mqtt_front.sessions.find(world.vhost, name)
    assert session is not None
    assert session.outlet is not None


def test_client_identifiers_that_differ_in_a_byte_order_mark_are_different() -> (
    None
):  # [MQTT-1.5.3-3]
    world = World()
    plain, marked = here(world, "c"), Client(world, connect("\ufeffc"))
    assert (plain.closed, marked.closed) == ("", "")


@pytest.mark.parametrize("size", [65_535, 65_536])
def test_a_connect_packet_may_have_64_kib(size: int) -> None:
    body = connect("c", will=Will("gone", b""))[2:]
    client = Client(World(), packet(0x10, body[:-2] + binary(b"x" * (size - len(body)))))
    assert client.greeting == ACCEPTED


def test_a_connect_packet_above_64_kib_is_too_large() -> None:
    first = packet(
        0x10, _HEAD + b"\x06\x00\x3c" + text("c" * 9) + text("w" * 9) + binary(b"x" * 65_530)
    )
    client = Client(World(), first[:10])
    assert (client.greeting, client.closed) == (b"", "too_large")


def test_packets_behind_the_connect_in_one_chunk_are_handled() -> None:
    world = World()
    client = Client(
        world, connect("c") + subscribe(1, ("a", 0)) + mqtt_publish("a", b"x") + PINGREQ
    )
    assert client.greeting == ACCEPTED + suback(1, 0) + mqtt_publish("a", b"x") + PINGRESP


def test_a_client_that_sends_nothing_is_closed_after_the_handshake_time() -> None:
    options = MqttOptions()
    options.handshake_ms = 5_000
    world = World(mqtt=options)
    silent = world.raw_mqtt()
    assert silent.deadline == world.broker.agenda.now + 5_000
    half = world.raw_mqtt()
    half.receive_data(connect("c")[:7])
    world.sleep(5_000)
    for connection in (silent, half):
        connection.advance(int(world.broker.agenda.now))
        assert connection.finished
        assert connection.data_to_send() == b""
    assert world.mqtt_front.closed == {"handshake_timeout": 2}


def test_a_client_that_leaves_before_its_connect_leaves_nothing() -> None:
    world = World()
    for part in (b"", b"\x10", connect("c")[:-1]):
        connection = world.raw_mqtt()
        connection.receive_data(part)
        connection.on_closed()
    assert world.mqtt_front.closed == {"lost": 3}
    assert not world.mqtt_front.connections
    assert len(world.mqtt_front.sessions) == 0


def test_the_session_limit_turns_new_clients_away_and_serves_the_known() -> None:
    options = MqttOptions()
    options.sessions = 2
    world = World(mqtt=options)
    one = Client(world, connect("one", clean=False))
    two = Client(world, connect("two"))
    for name in ("three", ""):
        third = Client(world, connect(name))
        assert (third.greeting, third.closed) == (b"\x20\x02\x00\x03", "too_many_sessions")
    one.vanish()
    assert Client(world, connect("one", clean=False)).greeting == b"\x20\x02\x01\x00"
    assert Client(world, connect("one")).greeting == ACCEPTED
    two.send(b"\xe0\x00")
    assert Client(world, connect("three")).greeting == ACCEPTED
