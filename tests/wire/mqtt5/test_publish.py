"""Publications at level 5: properties, aliases, expiry, flow control, reason codes."""

from __future__ import annotations

from typing import Any

import mqtt5
import pytest
from pamqp import commands as spec

from tests.clients import World, mqtt_publish, packet, text
from tests.wire.mqtt.client import Client, connect, subscribe
from tests.wire.mqtt5.client import Client5, disconnect_of, publish, subscription
from tests.wire.mqtt5.test_connect import options

EVERYTHING: dict[str, Any] = {
    "payload_format_indicator": 1,
    "message_expiry_interval": 100,
    "content_type": "text/plain",
    "response_topic": "answers/1",
    "correlation_data": b"\x00\xff",
    "user_properties": [("b", "1"), ("a", "2"), ("b", "3"), ("", ""), ("b", "1")],
}


def properties_of(one: Any) -> dict[str, Any]:
    """Return the properties of a publication."""
    return {name: getattr(one, name) for name in EVERYTHING}


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
@pytest.mark.parametrize("retain", [False, True])
def test_properties_are_delivered_unaltered_and_in_order(
    qos: int, granted: int, retain: bool
) -> None:
    # [MQTT-3.3.2-4], [MQTT-3.3.2-15..20], [MQTT-3.1.3-10]
    world = World()
    reader, writer = Client5(world, "r"), Client5(world, "w")
    reader.subscribe(subscription("a", granted))
    answer = writer.send(publish("a", "grüße".encode(), qos, retain=retain, **EVERYTHING))
    assert len(answer) == bool(qos)
    [got] = reader.publications()
    assert (got.topic, got.payload, got.qos, got.retain, properties_of(got)) == (
        "a",
        "grüße".encode(),
        min(qos, granted),
        False,
        EVERYTHING,
    )
    assert got.topic_alias is None
    if retain:
        late = Client5(world, "late")
        _, kept = late.subscribe(subscription("a", granted))
        assert (kept.payload, kept.retain, properties_of(kept)) == (
            "grüße".encode(),
            True,
            EVERYTHING,
        )


@pytest.mark.parametrize("size", [0, 10, 20_000])
def test_each_property_alone_is_delivered(size: int) -> None:
    world = World()
    reader, writer = Client5(world, "r"), Client5(world, "w")
    reader.subscribe(subscription("a", 0))
    for name, value in EVERYTHING.items():
        writer.send(publish("a", bytes(size), **{name: value}))
        [got] = reader.publications()
        assert getattr(got, name) == value
        assert got.payload == bytes(size)


def test_a_delivery_has_the_remaining_expiry_and_an_expired_message_is_not_delivered() -> (
    None
):  # [MQTT-3.3.2-5], [MQTT-3.3.2-6]
    world = World()
    reader, writer = Client5(world, "r", session_expiry_interval=1_000), Client5(world, "w")
    reader.subscribe(subscription("#", 1))
    reader.vanish()
    for seconds in (5, 10, 20, None):
        writer.send(
            publish(
                "a", str(seconds).encode(), 1, message_expiry_interval=seconds, retain=seconds == 20
            )
        )
    writer.send(publish("b", b"10", 1, message_expiry_interval=10, retain=True))
    world.sleep(7_500)
    again = Client5(world, "r", clean=False, session_expiry_interval=1_000)
    assert [(one.payload, one.message_expiry_interval) for one in again.greeting[1:]] == [
        (b"10", 3),
        (b"20", 13),
        (b"None", None),
        (b"10", 3),
    ]
    world.sleep(5_000)
    _, *kept = Client5(world, "late").subscribe(subscription("#", 0))
    assert [(one.payload, one.message_expiry_interval) for one in kept] == [(b"20", 8)]
    world.sleep(100_000)
    assert len(world.vhost.retained) == 0


def test_the_topic_alias_of_a_client_stands_for_its_topic() -> None:  # [MQTT-3.3.2-7..11]
    world = World()
    reader = Client5(world, "r")
    reader.subscribe(subscription("#", 1))
    writer, other = Client5(world, "w"), Client5(world, "o")
    writer.send(
        publish("first/topic", b"1", topic_alias=1),
        publish("", b"2", topic_alias=1),
        publish("", b"3", 1, topic_alias=1),
        publish("second", b"4", topic_alias=16),
        publish("", b"5", topic_alias=16),
        publish("third", b"6", topic_alias=1),
        publish("", b"7", topic_alias=1, content_type="x"),
    )
    got = reader.publications()
    assert [(one.topic, one.payload) for one in got] == [
        ("first/topic", b"1"),
        ("first/topic", b"2"),
        ("first/topic", b"3"),
        ("second", b"4"),
        ("second", b"5"),
        ("third", b"6"),
        ("third", b"7"),
    ]
    assert got[-1].content_type == "x"
    assert disconnect_of(other, publish("", b"x", topic_alias=1)) == (0x82, "protocol_error")
    writer.send(mqtt5.DisconnectPacket())
    assert disconnect_of(Client5(world, "w"), publish("", b"x", topic_alias=1)) == (
        0x82,
        "protocol_error",
    )


@pytest.mark.parametrize("alias", [0, 17, 65_535])
def test_a_topic_alias_out_of_range(alias: int) -> None:  # [MQTT-3.3.2-8], [MQTT-3.3.2-9]
    data = packet(0x30, text("a") + b"\x03\x23" + alias.to_bytes(2, "big"))
    assert disconnect_of(Client5(World()), data) == (0x94, "protocol_error")


def test_the_broker_uses_no_more_topic_aliases_than_the_client_allows() -> (
    None
):  # [MQTT-3.1.2-26], [MQTT-3.1.2-27]
    world = World()
    reader, writer = Client5(world, "r", topic_alias_max=2), Client5(world, "w")
    reader.subscribe(subscription("#", 1))
    for _ in range(2):
        writer.send(*[publish(topic, b"x", 1) for topic in ("first", "second", "third", "x")])
    # The package mqtt5 cannot read an empty topic name, so this test compares bytes.
    data = reader.read_bytes()
    assert data.count(b"first") == data.count(b"second") == 1
    assert data.count(b"third") == 2
    # The second message to the topic `first` (packet identifier 5) has the alias 1 and no topic.
    assert data.count(b"\x00\x00\x00\x05\x03\x23\x00\x01x") == 1
    assert b"\x23\x00\x03" not in data
    again = Client5(world, "r")
    again.subscribe(subscription("#", 1))
    writer.send(publish("first", b"x"))
    assert [one.topic_alias for one in again.publications()] == [None]


@pytest.mark.parametrize("maximum", [1, 2, 10])
def test_the_receive_maximum_of_the_client_is_never_exceeded(
    maximum: int,
) -> None:  # [MQTT-3.3.4-9], [MQTT-4.9.0-1..3]
    world = World()
    reader, writer = (
        Client5(world, "r", receive_max=maximum, session_expiry_interval=100),
        Client5(world, "w"),
    )
    reader.subscribe(subscription("a", 2))
    for number in range(25):
        writer.send(publish("a", b"%d" % number, 1 + number % 2, number + 1))
    seen: list[bytes] = []
    outstanding: dict[int, Any] = {}
    got = reader.publications()
    while got or outstanding:
        for one in got:
            seen.append(one.payload)
            outstanding[one.packet_id] = one
        assert len(outstanding) <= maximum
        writer.send(publish("a", b"q0"))  # Receive Maximum does not limit QoS 0.
        assert reader.bodies() == [b"q0"]
        packet_id, one = next(iter(outstanding.items()))
        if one.qos == 1:
            got = reader.send(mqtt5.PubAckPacket(packet_id))
        else:
            [pubrel] = reader.send(mqtt5.PubRecPacket(packet_id))
            assert (type(pubrel), pubrel.packet_id) == (mqtt5.PubRelPacket, packet_id)
            got = reader.send(mqtt5.PubCompPacket(packet_id))
        del outstanding[packet_id]
    assert seen == [b"%d" % number for number in range(25)]


def test_messages_in_flight_are_resent_within_a_smaller_receive_maximum() -> (
    None
):  # [MQTT-3.3.1-1], [MQTT-4.4.0-1], [MQTT-4.6.0-1]
    world = World()
    reader, writer = Client5(world, "r", session_expiry_interval=100), Client5(world, "w")
    reader.subscribe(subscription("a", 1))
    writer.send(*[publish("a", b"%d" % number, 1, number + 1) for number in range(6)])
    assert len(reader.publications()) == 6
    reader.vanish()
    again = Client5(world, "r", clean=False, receive_max=2, session_expiry_interval=100)
    seen = again.greeting[1:]
    while seen[-1].payload != b"5":
        assert len(seen) <= 6
        seen += again.send(mqtt5.PubAckPacket(seen[-1].packet_id))
    assert [(one.payload, one.duplicate) for one in seen] == [
        (b"%d" % number, True) for number in range(6)
    ]


def test_more_unreleased_publications_than_the_receive_maximum_are_refused() -> (
    None
):  # [MQTT-3.3.4-7]
    world = World(mqtt=options(receive_maximum=3))
    client = Client5(world)
    assert [
        int(one.reason_code)
        for one in client.send(*[publish("a", b"x", 2, number) for number in (1, 2, 3)])
    ] == [0x10] * 3
    client.send(
        mqtt5.PubRelPacket(2), publish("a", b"x", 2, 1, duplicate=True), publish("a", b"x", 2, 4)
    )
    assert client.closed == ""
    assert disconnect_of(client, publish("a", b"x", 2, 5)) == (0x93, "receive_maximum")


def test_resent_pubrels_count_for_the_receive_maximum() -> None:  # [MQTT-3.3.4-9]
    world = World()
    reader, writer = Client5(world, "r", session_expiry_interval=100), Client5(world, "w")
    reader.subscribe(subscription("a", 2))
    writer.send(*[publish("a", b"%d" % number, 2, number + 1) for number in range(5)])
    first, second, *_ = reader.publications()
    reader.send(mqtt5.PubRecPacket(first.packet_id), mqtt5.PubRecPacket(second.packet_id))
    reader.vanish()
    reader = Client5(world, "r", clean=False, receive_max=2, session_expiry_interval=100)
    assert [type(one) for one in reader.greeting[1:]] == [mqtt5.PubRelPacket] * 2
    # The last message has not been resent, so it takes no room in the in-flight window. Its refusal
    # therefore frees no room.
    refusal = mqtt5.PubRecPacket(5, reason_code=mqtt5.PubRecReasonCode.QUOTA_EXCEEDED)
    assert reader.send(refusal) == []
    [third] = reader.send(mqtt5.PubCompPacket(first.packet_id))
    assert (third.payload, third.duplicate) == (b"2", True)
    [fourth] = reader.send(mqtt5.PubCompPacket(second.packet_id))
    assert (fourth.payload, fourth.duplicate) == (b"3", True)
    world.fates()


@pytest.mark.parametrize("qos", [1, 2])
def test_publications_up_to_the_receive_maximum_wait_for_the_disk(
    qos: int,
) -> None:  # [MQTT-3.3.4-7]
    """Check that publications whose replies wait for the disk count for Receive Maximum.

    Each of these publications counts once, and a PUBREL that waits for the disk does not count.
    """
    world = World(mqtt=options(receive_maximum=6))
    reader, writer = Client5(world, "r", session_expiry_interval=100), Client5(world, "w")
    reader.subscribe(subscription("a", 2))
    writer.subscribe(subscription("b", 2))
    Client5(world, "other").send(publish("b", b"x", 2))
    [to_writer] = writer.publications()
    world.slow_disk = True
    # The PUBREL that the broker must send waits too, but it does not count for Receive Maximum.
    assert writer.send(publish("a", b"0", qos, 1), mqtt5.PubRecPacket(to_writer.packet_id)) == []
    assert writer.send(*[publish("a", b"x", qos, number) for number in range(2, 7)]) == []
    assert writer.closed == ""
    assert disconnect_of(writer, publish("a", b"x", qos, 7)) == (0x93, "receive_maximum")


def test_the_receive_maximum_begins_anew_with_a_connection() -> None:  # section 4.9
    """Check that publications of an earlier connection do not count for Receive Maximum.

    Their PUBCOMPs must not lower the count of the new connection either.
    """
    world = World(mqtt=options(receive_maximum=3))
    Client5(world, session_expiry_interval=100).send(
        *[publish("a", b"x", 2, number) for number in (1, 2, 3)]
    )
    client = Client5(world, clean=False, session_expiry_interval=100)
    assert client.connack.session_present is True
    client.send(*[publish("a", b"x", 2, number) for number in (4, 5, 6)])
    assert client.closed == ""
    client.send(*[mqtt5.PubRelPacket(number) for number in (1, 2, 3, 4)])
    client.send(publish("a", b"x", 2, 7))
    assert client.closed == ""


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("size", [30, 100, 70_000])
def test_no_delivery_is_larger_than_the_clients_maximum_packet_size(
    qos: int, size: int
) -> None:  # [MQTT-3.1.2-24], [MQTT-3.1.2-25]
    world = World()
    reader, writer = Client5(world, "r", max_packet_size=size), Client5(world, "w")
    reader.subscribe(subscription("a", 2))
    for body in range(size - 12, size + 3):
        writer.send(publish("a", bytes(body), qos, 1), mqtt5.PubRelPacket(1) if qos == 2 else b"")
    writer.send(publish("a", b"last", qos, 1))
    data = reader.read_bytes()
    assert b"last" in data
    largest = max(len(one.write()) for one in _split(data))
    assert largest == size
    dropped = {"not_representable" if qos else "dropped"}
    assert dropped <= world.copies().keys()
    world.fates()


def _split(data: bytes) -> list[Any]:
    packets = []
    while data:
        one, size = mqtt5.read(data)  # type: ignore[arg-type]
        packets.append(one)
        data = data[size:]
    return packets


def test_a_packet_above_the_maximum_packet_size_of_the_broker_is_refused() -> (
    None
):  # [MQTT-3.2.2-15]
    world = World(mqtt=options(max_packet=100))
    reader, client = Client5(world, "r"), Client5(world)
    assert client.connack.max_packet_size == 100
    reader.subscribe(subscription("a"))
    whole = publish("a", bytes(94))
    assert len(whole) == 100
    client.send(whole)
    assert reader.bodies() == [bytes(94)]
    assert disconnect_of(client, publish("a", bytes(95))) == (0x95, "too_large")


@pytest.mark.parametrize("qos", [1, 2])
def test_reason_codes_of_publications(
    qos: int,
) -> None:  # [MQTT-3.4.2-1], [MQTT-3.5.2-1], [MQTT-3.3.4-1]
    world = World()
    reader, writer = Client5(world, "r"), Client5(world, "w")
    reader.subscribe(subscription("heard", 2))
    world.amqp().queue("full", "amq.topic", "full", x_max_length=0, x_overflow="reject-publish")
    codes = {"heard": 0, "unread": 0x10, "$SYS/x": 0x87, "full": 0x97, "/".join("x" * 300): 0x87}
    for number, (topic, code) in enumerate(codes.items()):
        for again in range(2):
            [answer] = writer.send(publish(topic, b"x", qos, 2 * number + again + 1))
            assert int(answer.reason_code) == code, topic
    assert isinstance(reader.publications()[0], mqtt5.PublishPacket)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_payload_that_is_no_text_though_it_says_so(qos: int) -> None:
    world = World()
    reader, writer = Client5(world, "r"), Client5(world, "w")
    reader.subscribe(subscription("a"))
    answers = writer.send(publish("a", b"\xff", qos, payload_format_indicator=1))
    assert [int(one.reason_code) for one in answers] == ([0x99] if qos else [])
    assert reader.publications() == []
    if qos == 2:
        assert int(writer.send(mqtt5.PubRelPacket(1))[0].reason_code) == 0x92
    assert world.fates() == {"refused": 1}


def test_a_qos_2_publication_is_delivered_once_however_often_it_is_sent() -> (
    None
):  # [MQTT-4.3.3-2..13]
    world = World()
    reader, writer = Client5(world, "r"), Client5(world, "w", session_expiry_interval=100)
    reader.subscribe(subscription("a", 0))
    writer.send(publish("a", b"1", 2, 7), publish("a", b"1", 2, 7, duplicate=True))
    writer.vanish()
    writer = Client5(world, "w", clean=False, session_expiry_interval=100)
    [answer] = writer.send(publish("a", b"1", 2, 7, duplicate=True))
    assert (answer.packet_id, int(answer.reason_code)) == (7, 0)
    codes = [int(writer.send(mqtt5.PubRelPacket(7))[0].reason_code) for _ in range(2)]
    assert codes == [0, 0x92]
    writer.send(publish("a", b"2", 2, 7))
    assert reader.bodies() == [b"1", b"2"]


@pytest.mark.parametrize("code", [0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99])
@pytest.mark.parametrize("qos", [1, 2])
def test_a_delivery_that_the_client_refuses_is_complete(
    qos: int, code: int
) -> None:  # [MQTT-4.4.0-2], [MQTT-4.3.3-4]
    world = World()
    reader, writer = (
        Client5(world, "r", receive_max=1, session_expiry_interval=100),
        Client5(world, "w"),
    )
    reader.subscribe(subscription("a", qos))
    writer.send(publish("a", b"1", qos, 1), publish("a", b"2", qos, 2))
    [first] = reader.publications()
    [second] = reader.send(
        packet(0x40 if qos == 1 else 0x50, first.packet_id.to_bytes(2, "big") + bytes([code]))
    )
    assert second.payload == b"2"
    reader.vanish()
    assert [
        one.payload
        for one in Client5(world, "r", clean=False, session_expiry_interval=100).greeting[1:]
    ] == [b"2"]


def test_acknowledgements_of_messages_that_are_not_in_flight() -> (
    None
):  # [MQTT-3.6.2-1], [MQTT-3.7.2-1]
    client = Client5(World())
    assert client.send(mqtt5.PubAckPacket(5)) == []
    [pubrel] = client.send(mqtt5.PubRecPacket(5))
    assert (type(pubrel), int(pubrel.reason_code)) == (mqtt5.PubRelPacket, 0x92)
    assert client.send(mqtt5.PubCompPacket(5)) == []
    [pubcomp] = client.send(mqtt5.PubRelPacket(5))
    assert (type(pubcomp), int(pubcomp.reason_code)) == (mqtt5.PubCompPacket, 0x92)
    assert client.closed == ""


@pytest.mark.parametrize(("qos", "kind"), [(1, 0x50), (2, 0x40)])
def test_the_acknowledgement_of_another_qos_is_a_protocol_error(qos: int, kind: int) -> None:
    world = World()
    reader = Client5(world, "r")
    reader.subscribe(subscription("a", qos))
    Client5(world, "w").send(publish("a", b"x", qos))
    [got] = reader.publications()
    assert disconnect_of(reader, bytes([kind, 2]) + got.packet_id.to_bytes(2, "big")) == (
        0x82,
        "protocol_error",
    )


#: Packets that no client may send -> the reason code of the DISCONNECT.
WRONG: dict[bytes, int] = {
    b"\x30\x00": 0x81,
    b"\x30\x02\x00\x05": 0x81,
    b"\x30\x03\x00\x01a": 0x81,
    b"\x30\x03\x00\x00\x00": 0x82,
    b"\x32\x05\x00\x01a\x00\x01": 0x81,
    b"\x32\x06\x00\x01a\x00\x00\x00": 0x81,
    b"\x30\x04\x00\x01+\x00": 0x90,
    b"\x30\x06\x00\x03a/#\x00": 0x90,
    b"\x30\x04\x00\x01\x00\x00": 0x81,
    b"\x30\x04\x00\x01\xff\x00": 0x81,
    b"\x36\x06\x00\x01a\x00\x01\x00": 0x81,
    b"\x38\x04\x00\x01a\x00": 0x81,
    b"\x30\x06\x00\x01a\x02\x0b\x01": 0x82,
    b"\x30\x08\x00\x01a\x04\x08\x00\x01+": 0x90,
    b"\x30\x08\x00\x01a\x04\x01\x01\x01\x01": 0x82,
    b"\x30\x06\x00\x01a\x02\x01\x02": 0x82,
    b"\x30\x05\x00\x01a\x01\x01": 0x81,
    b"\x30\x06\x00\x01a\x02\x21\x01": 0x82,
    b"\x30\x06\x00\x01a\x02\x7e\x01": 0x81,
    b"\x30\x06\x00\x01a\x05\x01\x01": 0x81,
    b"\x30\x05\x00\x01a\x80\x00": 0x81,
    b"\x00\x00": 0x82,
    b"\x10\x00": 0x82,
    b"\x20\x03\x00\x00\x00": 0x82,
    b"\x90\x04\x00\x01\x00\x00": 0x82,
    b"\xb0\x04\x00\x01\x00\x00": 0x82,
    b"\xf1\x02\x19\x00": 0x81,
    b"\x30\x08\x00\x01a\x04\x08\x00\x01\xff": 0x81,
    b"\x30\x08\x00\x01a\x04\x03\x00\x01\xff": 0x81,
    b"\xd0\x00": 0x82,
    b"\xf0\x00": 0x82,
    b"\xf0\x02\x18\x00": 0x82,
    b"\xc1\x00": 0x81,
    b"\xc0\x01\x00": 0x81,
    b"\xe1\x00": 0x81,
    b"\x41\x02\x00\x01": 0x81,
    b"\x51\x02\x00\x01": 0x81,
    b"\x60\x02\x00\x01": 0x81,
    b"\x61\x02\x00\x01": 0x81,
    b"\x71\x02\x00\x01": 0x81,
    b"\x80\x07\x00\x01\x00\x00\x01a\x00": 0x81,
    b"\xa0\x06\x00\x01\x00\x00\x01a": 0x81,
    b"\x40\x02\x00\x00": 0x81,
    b"\x40\x01\x00": 0x81,
    b"\x40\x03\x00\x01\x01": 0x82,
    b"\x40\x03\x00\x01\x92": 0x82,
    b"\x62\x03\x00\x01\x10": 0x82,
    b"\x40\x05\x00\x01\x00\x01\x1f": 0x81,
    b"\x40\x06\x00\x01\x00\x02\x01\x01": 0x82,
    b"\xe0\x01\x8e": 0x82,
    b"\xe0\x03\x00\x00\x00": 0x81,
    b"\xe0\x04\x00\x02\x01\x01": 0x82,
    b"\x82\x03\x00\x01\x00": 0x82,
    b"\x82\x07\x00\x00\x00\x00\x01a\x00": 0x81,
    b"\x82\x07\x00\x01\x00\x00\x01a\x03": 0x82,
    b"\x82\x07\x00\x01\x00\x00\x01a\x30": 0x82,
    b"\x82\x07\x00\x01\x00\x00\x01a\x40": 0x81,
    b"\x82\x07\x00\x01\x00\x00\x01a\x80": 0x81,
    b"\x82\x06\x00\x01\x00\x00\x01a": 0x81,
    b"\x82\x06\x00\x01\x00\x00\x00\x00": 0x81,
    b"\x82\x09\x00\x01\x02\x0b\x00\x00\x01a\x00": 0x82,
    b"\x82\x0b\x00\x01\x04\x0b\x01\x0b\x02\x00\x01a\x00": 0x82,
    b"\x82\x0a\x00\x01\x00\x00\x04a/#b\x00": 0x81,
    b"\x82\x08\x00\x01\x00\x00\x02a+\x00": 0x81,
    b"\xa2\x03\x00\x01\x00": 0x82,
    b"\xa2\x06\x00\x00\x00\x00\x01a": 0x81,
    b"\xa2\x08\x00\x01\x02\x0b\x01\x00\x01a": 0x82,
    b"\xc0\xff\xff\xff\xff\x01": 0x81,
    b"\xc0\x80\x00": 0x81,
    b"\x82\x10\x00\x01\x00\x00\x0a$share/g/a\x04": 0x82,
    b"\x82\x0f\x00\x01\x00\x00\x09$share//a\x00": 0x82,
    b"\x82\x0e\x00\x01\x00\x00\x08$share/g\x00": 0x82,
    b"\x82\x0f\x00\x01\x00\x00\x09$share/g/\x00": 0x82,
    b"\x82\x10\x00\x01\x00\x00\x0a$share/+/a\x00": 0x82,
}


@pytest.mark.parametrize("data", WRONG)
@pytest.mark.parametrize("piecemeal", [False, True])
def test_an_invalid_packet_is_answered_with_its_reason_code(data: bytes, piecemeal: bool) -> None:
    # [MQTT-1.5.4-1..3], [MQTT-1.5.5-1], [MQTT-2.1.3-1], [MQTT-2.2.1-2..6], [MQTT-3.3.1-4],
    # [MQTT-3.3.2-1..3], [MQTT-3.6.1-1], [MQTT-3.8.1-1], [MQTT-3.8.3-1..5], [MQTT-3.10.1-1],
    # [MQTT-3.10.3-1..2], [MQTT-3.14.0-1], [MQTT-4.13.1-1], [MQTT-3.3.1-2], [MQTT-3.3.2-13..14],
    # [MQTT-3.3.2-19], [MQTT-3.3.4-6], [MQTT-3.14.1-1], [MQTT-3.14.2-1], [MQTT-3.14.4-1..2],
    # [MQTT-3.15.1-1], [MQTT-4.7.0-1], [MQTT-4.7.1-1..2], [MQTT-4.7.3-1..2], [MQTT-4.8.2-1..2],
    # [MQTT-4.13.2-1]
    world = World()
    watcher = Client5(world, "watcher")
    watcher.subscribe(subscription("gone"))
    client = Client5(world, will=mqtt5.Will("gone", payload=b"x"))
    answer: list[Any] = []
    for piece in [data[at : at + 1] for at in range(len(data))] if piecemeal else [data]:
        answer += client.send(piece)
    assert [(type(one), int(one.reason_code)) for one in answer] == [
        (mqtt5.DisconnectPacket, WRONG[data])
    ]
    assert client.closed == "protocol_error"
    assert watcher.bodies() == [b"x"]
    assert client.send(publish("gone", b"again")) == []


def test_older_readers_and_queues_hear_bodies_alone() -> None:
    world = World()
    old = Client(world, connect("old"))
    old.send(subscribe(1, ("a", 2)))
    amqp = world.amqp()
    amqp.queue("q", "amq.topic", "a")
    Client5(world, "w").send(publish("a", b"x", 1, **EVERYTHING))
    assert old.read() == mqtt_publish("a", b"x", 1, 1)
    assert amqp.bodies(amqp.send(spec.Basic.Get(queue="q", no_ack=True))) == [b"x"]


@pytest.mark.parametrize("size", [16, 100, 1_000])
def test_a_disconnect_is_no_larger_than_the_clients_maximum_packet_size(
    size: int,
) -> None:  # [MQTT-3.14.2-3], [MQTT-3.1.2-24]
    world = World()
    client = Client5(world, max_packet_size=size)
    client.connection.receive_data(b"\x30\x04\x00\x01+\x00")
    data = client.read_bytes()
    assert len(data) <= size
    assert data[2:3] == b"\x90"
    assert (b"topic name is empty" in data) == (size >= 100)
