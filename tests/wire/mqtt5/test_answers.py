"""Replies of the broker at level 5: their order, packet identifiers, properties and sizes."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest

from tests.clients import World, packet, text
from tests.wire.mqtt.client import PINGREQ, PINGRESP, packets
from tests.wire.mqtt5.client import QUALITIES, Client5, publish, raw_connect, read, subscription
from tests.wire.mqtt5.test_auth import auth, riddling
from tests.wire.mqtt5.test_connect import options

#: Reason codes of a CONNACK (table 3-1).
CONNACK_CODES = {0, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, 0x9A, 0x9B, 0x9C, 0x9D, 0x9F}


@pytest.mark.parametrize("name", [b"MQTX", b"mqtt", b"MQIsdp", b""])
def test_the_name_of_another_protocol_ends_the_connection(name: bytes) -> None:  # [MQTT-3.1.2-1]
    world = World()
    client = Client5(
        world,
        data=packet(0x10, len(name).to_bytes(2, "big") + name + b"\x05\x02\x00\x3c\x00\x00\x01c"),
    )
    assert all(int(one.reason_code) >= 0x80 for one in client.greeting)
    assert client.closed in ("protocol_error", "unacceptable_version")
    assert len(world.mqtt_front.sessions) == 0


@pytest.mark.parametrize(
    ("client_id", "method", "level", "note"),
    [
        ("b", None, 6, "0x84 - CONNECT has an unknown protocol level: use MQTT 3.1, 3.1.1 or 5"),
        ("$share/g/a", None, 5, "0x85 - the client identifier is invalid: "),
        ("b", "SCRAM-SHA-1", 5, "0x8C - the authentication method of CONNECT is not supported"),
        ("b", None, 5, "0x97 - the broker has as many sessions as mqtt.sessions allows"),
    ],
)
def test_the_log_has_the_reason_for_a_refused_connect(
    client_id: str, method: str | None, level: int, note: str
) -> None:
    world = World(mqtt=options(sessions=1))
    Client5(world, "a")
    logged: list[tuple[str, dict[str, object]]] = []
    world.mqtt_front.log = lambda event, fields: logged.append((event, fields))
    data = bytearray(mqtt5.ConnectPacket(client_id, authentication_method=method).write())
    data[8] = level
    Client5(world, data=bytes(data))
    ((event, fields),) = logged
    assert event == "connection_closed" and str(fields["note"]).startswith(note)


def test_connect_with_all_fields_in_order() -> None:  # [MQTT-3.1.3-1], [MQTT-3.1.2-15]
    world = World()
    will = b"\x02\x01\x01" + text("gone/\N{SNOWMAN}") + text("farewell")
    client = Client5(
        world,
        data=raw_connect("me", 0xEE, b"\x11\x00\x00\x00\x0a", will + text("guest") + text("guest")),
    )
    assert int(client.connack.reason_code) == 0
    client.vanish()
    _, kept = Client5(world, "late").subscribe(subscription("gone/#", 1))
    assert (kept.topic, kept.payload, kept.retain, kept.payload_format_indicator) == (
        "gone/\N{SNOWMAN}",
        b"farewell",
        True,
        1,
    )


@pytest.mark.parametrize("retain", [False, True])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_will_with_the_retain_flag_is_retained(
    retain: bool, qos: int
) -> None:  # [MQTT-3.1.2-14], [MQTT-3.1.2-15]
    world = World()
    watcher = Client5(world, "watcher")
    watcher.subscribe(subscription("gone"))
    Client5(
        world, will=mqtt5.Will("gone", payload=b"x", retain=retain, qos=QUALITIES[qos])
    ).vanish()
    assert [(one.payload, one.retain, int(one.qos)) for one in watcher.publications()] == [
        (b"x", False, qos)
    ]
    _, *kept = Client5(world, "late").subscribe(subscription("gone"))
    assert [(one.payload, one.retain) for one in kept] == [(b"x", True)] * retain


@pytest.mark.parametrize(
    "client_id",
    [
        "a",
        "0123456789abcdefghijklm",
        "nopqrstuvwxyzABCDEFGHIJ",
        "KLMNOPQRSTUVWXYZ",
        "\N{SNOWMAN}" * 1_000,
        "a/b #+$",
    ],
)
def test_client_identifiers_of_every_kind(client_id: str) -> None:  # [MQTT-3.1.3-5]
    assert int(Client5(World(), client_id).connack.reason_code) == 0


def test_packets_after_a_refused_connect_are_ignored() -> None:  # [MQTT-3.1.4-6]
    world = World()
    watcher = Client5(world, "watcher")
    watcher.subscribe(subscription("#"))
    first = mqtt5.ConnectPacket("c", clean_start=True, username="guest", password=b"wrong").write()
    client = Client5(world, data=first + publish("a", b"x", retain=True) + PINGREQ)
    assert [int(one.reason_code) for one in client.greeting] == [0x86]
    assert client.send(publish("a", b"y")) == []
    assert watcher.bodies() == []
    assert len(world.vhost.retained) == 0


def test_the_connack_is_the_first_packet_of_the_broker() -> None:  # [MQTT-3.2.0-1], [MQTT-3.2.0-2]
    world = World()
    reader, writer = Client5(world, "r", session_expiry_interval=100), Client5(world, "w")
    reader.subscribe(subscription("a"))
    reader.vanish()
    writer.send(publish("a", b"waited", 1))
    first = mqtt5.ConnectPacket("r", clean_start=False).write()
    again = Client5(
        world,
        data=first
        + PINGREQ
        + mqtt5.SubscribePacket(9, [subscription("b")]).write()
        + publish("b", b"own"),
    )
    kinds = [type(one) for one in again.greeting]
    assert kinds[0] is mqtt5.ConnAckPacket
    assert kinds.count(mqtt5.ConnAckPacket) == 1
    assert {mqtt5.PingRespPacket, mqtt5.SubAckPacket, mqtt5.PublishPacket} <= set(kinds)


@pytest.mark.parametrize(
    ("connect_data", "code"),
    [
        (
            mqtt5.ConnectPacket(
                "c", clean_start=False, username="guest", password=b"wrong"
            ).write(),
            0x86,
        ),
        (mqtt5.ConnectPacket("c", clean_start=False, authentication_method="NONE").write(), 0x8C),
        (raw_connect(flags=0, properties=b"\x21\x00\x00"), 0x82),
        (raw_connect(flags=1), 0x81),
    ],
)
def test_a_refusal_says_that_no_session_is_present_and_ends_the_connection(
    connect_data: bytes, code: int
) -> None:
    # [MQTT-3.2.2-6], [MQTT-3.2.2-7], [MQTT-3.2.2-8]
    world = World()
    Client5(world, session_expiry_interval=100).vanish()
    client = Client5(world, data=connect_data)
    assert (int(client.connack.reason_code), client.connack.session_present) == (code, False)
    assert code in CONNACK_CODES
    assert client.connection.finished
    assert Client5(world, clean=False, session_expiry_interval=100).connack.session_present is True


@pytest.mark.parametrize("largest", [16, 20, 50, 100])
def test_no_reply_is_larger_than_the_clients_maximum_packet_size(largest: int) -> None:
    # [MQTT-3.2.2-19..20], [MQTT-3.4.2-2..3], [MQTT-3.5.2-2..3], [MQTT-3.6.2-2..3],
    # [MQTT-3.7.2-2..3], [MQTT-3.9.2-1..2], [MQTT-3.11.2-1..2], [MQTT-3.14.2-4], [MQTT-3.15.2-2..3]
    world, guests = riddling()
    size = b"\x27" + largest.to_bytes(4, "big")
    heard: list[bytes] = []
    for wrong in (size + b"\x21\x00\x00", size + b"\x15\x00\x05OTHER", size):
        heard += packets(Client5(world, data=raw_connect(properties=wrong)).read_bytes())
    client = Client5(world, "b", max_packet_size=largest)
    for data in (
        publish("$SYS/x", b"", 1, 1),
        publish("unread", b"", 2, 2),
        b"\x50\x02\x00\x09",
        b"\x62\x02\x00\x09",
        mqtt5.SubscribePacket(3, [subscription("/".join("x" * 300))]).write(),
        mqtt5.UnsubscribePacket(4, ["none"]).write(),
        b"\x30\x04\x00\x01+\x00",
    ):
        client.connection.receive_data(data)
        heard += packets(client.read_bytes())
    assert len(heard) == 7
    riddled = Client5(world, "d", authentication_method="RIDDLE", max_packet_size=largest)
    guests.late = False
    riddled.connection.receive_data(auth(b"43"))
    heard += packets(riddled.read_bytes())
    assert all(len(one) <= max(largest, 7) for one in heard)
    for one in [answer for data in heard[:6] for answer in read(data)]:
        assert getattr(one, "reason_string", None) is None or len(one.write()) <= largest


def test_the_dup_flag_says_whether_the_broker_sends_again_and_nothing_else() -> (
    None
):  # [MQTT-3.3.1-1], [MQTT-3.3.1-3]
    world = World()
    reader, writer = Client5(world, "r", session_expiry_interval=100), Client5(world, "w")
    reader.subscribe(subscription("a"))
    writer.send(*[publish("a", b"x", qos, qos, duplicate=True) for qos in (1, 2)])
    assert [one.duplicate for one in reader.publications()] == [False, False]
    reader.vanish()
    assert [one.duplicate for one in Client5(world, "r", clean=False).greeting[1:]] == [True, True]


def test_a_topic_keeps_its_last_retained_message_and_an_empty_one_removes_it() -> None:
    # [MQTT-3.3.1-5], [MQTT-3.3.1-6], [MQTT-3.3.1-7]
    world = World()
    reader, writer = Client5(world, "r"), Client5(world, "w")
    reader.subscribe(subscription("a"))
    for number, body in enumerate((b"1", b"2", b"")):
        writer.send(publish("a", body, number, number, retain=True, content_type="t"))
        assert reader.bodies() == [body]
        _, *kept = Client5(world, f"late{number}").subscribe(subscription("a"))
        assert [(one.payload, int(one.qos)) for one in kept] == ([(body, number)] if body else [])
    assert len(world.vhost.retained) == 0


def test_every_topic_alias_that_was_offered_is_accepted() -> None:  # [MQTT-3.3.2-12]
    world = World(mqtt=options(topic_alias_maximum=300))
    reader, writer = Client5(world, "r"), Client5(world, "w")
    reader.subscribe(subscription("#"))
    writer.send(*[publish(f"t/{alias}", topic_alias=alias) for alias in range(1, 301)])
    writer.send(*[publish("", topic_alias=alias) for alias in range(1, 301)])
    assert [one.topic for one in reader.publications()] == [
        f"t/{alias}" for alias in range(1, 301)
    ] * 2


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_the_reply_to_a_publish_depends_on_its_qos(qos: int) -> None:
    # [MQTT-3.3.4-1], [MQTT-4.3.2-4], [MQTT-4.3.3-8], [MQTT-4.3.3-11]
    writer = Client5(World())
    answers = writer.send(publish("a", b"x", qos, 77))
    kinds: list[list[Any]] = [[], [mqtt5.PubAckPacket], [mqtt5.PubRecPacket]]
    assert [type(one) for one in answers] == kinds[qos]
    assert all(one.packet_id == 77 for one in answers)
    if qos == 2:
        [pubcomp] = writer.send(mqtt5.PubRelPacket(77))
        assert (type(pubcomp), pubcomp.packet_id) == (mqtt5.PubCompPacket, 77)


@pytest.mark.parametrize("qos", [1, 2])
def test_only_publications_wait_for_the_receive_maximum(
    qos: int,
) -> None:  # [MQTT-3.3.4-10], [MQTT-4.9.0-3]
    world = World()
    client, writer = Client5(world, "r", receive_max=1), Client5(world, "w")
    client.subscribe(subscription("a"))
    writer.send(publish("a", b"1", qos, 1), publish("a", b"2", qos, 2))
    assert client.bodies() == [b"1"]
    client.connection.receive_data(PINGREQ)
    assert client.read_bytes() == PINGRESP
    assert client.subscribe(subscription("b", 1), packet_id=5) == [[1]]
    assert [
        type(one)
        for one in client.send(publish("c", b"", 1), publish("c", b"", 2, 3), mqtt5.PubRelPacket(3))
    ] == [mqtt5.PubAckPacket, mqtt5.PubRecPacket, mqtt5.PubCompPacket]
    [answer] = client.send(mqtt5.UnsubscribePacket(6, ["b"]))
    assert (type(answer), answer.packet_id) == (mqtt5.UnsubAckPacket, 6)


def test_a_ping_is_answered() -> None:  # [MQTT-3.12.4-1]
    client = Client5(World())
    client.connection.receive_data(PINGREQ * 3)
    assert client.read_bytes() == PINGRESP * 3


@pytest.mark.parametrize("expiry", [0, 1])
def test_a_session_lasts_at_least_as_long_as_its_connection(expiry: int) -> None:  # [MQTT-4.1.0-1]
    world = World()
    client, writer = (
        Client5(world, session_expiry_interval=expiry, keep_alive=0),
        Client5(world, "w", keep_alive=0),
    )
    client.subscribe(subscription("a"))
    world.sleep(10_000_000)
    writer.send(publish("a", b"x", 1))
    assert client.bodies() == [b"x"]
