"""Malformed packets of every kind: the connection is closed, the reason is counted, and the
connections of other clients stay open."""

from __future__ import annotations

import pytest

from tests.clients import World, mqtt_publish, packet, text
from tests.wire.mqtt.client import (
    DUP,
    PINGREQ,
    PINGRESP,
    RETAIN,
    Client,
    Will,
    binary,
    connect,
    here,
    publications,
    subscribe,
)

#: Packet type -> its only valid flags (section 2.2.2). PUBLISH, whose flags vary, and types that
#: a client may not send are absent.
FLAGS = {4: 0, 5: 0, 6: 2, 7: 0, 8: 2, 10: 2, 12: 0, 14: 0}
BODIES = {
    4: b"\x00\x01",
    5: b"\x00\x01",
    6: b"\x00\x01",
    7: b"\x00\x01",
    8: b"\x00\x01" + text("a") + b"\x00",
    10: b"\x00\x01" + text("a"),
    12: b"",
    14: b"",
}


def refuses(data: bytes, reason: str = "protocol_error") -> None:
    """Check that the broker closes the connection of a client that sends this data.

    The test sends the data whole, and then again byte by byte. Each time, the broker sends no
    packet, counts the reason, and publishes the client's will.
    """
    for whole in (True, False):
        world = World()
        watcher = here(world, "watcher")
        watcher.send(subscribe(1, ("gone", 0)))
        client = Client(world, connect("c", will=Will("gone", b"x")))
        answer = b""
        for piece in [data] if whole else [data[at : at + 1] for at in range(len(data))]:
            answer += client.send(piece)
        assert (answer, client.closed) == (b"", reason)
        assert world.mqtt_front.closed == {reason: 1}
        assert watcher.read() == mqtt_publish("gone", b"x")
        assert watcher.send(PINGREQ) == PINGRESP
        assert world.fates() == {"routed": 1}


@pytest.mark.parametrize(
    "first",
    [
        kind << 4 | flags
        for kind in range(16)
        for flags in range(16)
        if kind != 3 and FLAGS.get(kind) != flags
    ],
)
def test_types_and_flags_that_no_client_may_send(
    first: int,
) -> None:  # [MQTT-2.2.2-1], [MQTT-2.2.2-2], [MQTT-3.6.1-1]
    refuses(packet(first, BODIES.get(first >> 4, b"\x00\x01")))


@pytest.mark.parametrize("first", [0x36, 0x37, 0x3E, 0x3F])
def test_qos_3(first: int) -> None:  # [MQTT-3.3.1-4]
    refuses(packet(first, text("a") + b"\x00\x01x"))


@pytest.mark.parametrize("first", [0x38, 0x39])
def test_dup_with_qos_0(first: int) -> None:  # [MQTT-3.3.1-2]
    refuses(packet(first, text("a") + b"x"))


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (kind, change)
        for kind in (4, 5, 6, 7, 12, 14)
        for change in (-2, -1, 1, 2, 100)
        if kind < 12 or change > 0
    ],
)
def test_packets_that_are_too_short_or_too_long(kind: int, change: int) -> None:
    body = BODIES[kind]
    refuses(packet(kind << 4 | FLAGS[kind], body[:change] if change < 0 else body + bytes(change)))


@pytest.mark.parametrize("first", [0x30, 0x31, 0x32, 0x33, 0x34, 0x35, 0x3A, 0x3D])
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x00",
        b"\x00\x00",
        b"\x00\x01",
        b"\x00\x05abcd",
        b"\xff\xffa",
        b"\x00\x00rest",
        b"\x00\x01+x\x00\x01",
        b"\x00\x03a/#\x00\x01",
        b"\x00\x01\x00\x00\x01",
        b"\x00\x01\xff\x00\x01",
        b"\x00\x02\xc0\x80\x00\x01",
        b"\x00\x03\xed\xa0\x80\x00\x01",
        b"\x00\x04\xf5\x80\x80\x80\x00\x01",
        b"\x00\x02\xe2\x82\x00\x01",
    ],
)
def test_a_publish_with_an_invalid_topic_name_is_refused(first: int, body: bytes) -> None:
    # [MQTT-3.3.2-1], [MQTT-3.3.2-2], [MQTT-4.7.3-1], [MQTT-4.7.3-2], [MQTT-1.5.3-1], [MQTT-1.5.3-2]
    refuses(packet(first, body))


@pytest.mark.parametrize("first", [0x32, 0x33, 0x34, 0x3A])
def test_a_publish_too_short_for_its_packet_identifier_is_refused(
    first: int,
) -> None:  # [MQTT-2.3.1-1]
    refuses(packet(first, text("a")))
    refuses(packet(first, text("a") + b"\x01"))


@pytest.mark.parametrize("length", [b"\x80\x00", b"\x80\x80\x00", b"\x80\x80\x80\x00", b"\x82\x00"])
def test_a_remaining_length_that_could_be_shorter(length: bytes) -> None:
    refuses(b"\xc0" + length + b"\x00\x00")


@pytest.mark.parametrize(
    "length",
    [b"\x80\x80\x80\x80", b"\xff\xff\xff\xff", b"\xff\xff\xff\x80\x01", b"\x80\x80\x80\x80\x00"],
)
@pytest.mark.parametrize("first", [0x30, 0x32, 0x10, 0xC0])
def test_a_remaining_length_of_more_than_four_bytes(
    length: bytes, first: int
) -> None:  # section 2.2.3
    refuses(bytes([first]) + length)


@pytest.mark.parametrize("first", [0x30, 0x32, 0x82, 0xC0, 0x00])
@pytest.mark.parametrize("length", [b"\xff\xff\xff\x7f", b"\x81\x80\x80\x08"])
def test_a_remaining_length_above_the_limit(first: int, length: bytes) -> None:
    world = World()
    client = here(world)
    client.send(bytes([first]) + length)
    assert client.closed == "too_large"
    assert world.fates() == ({"too_large": 1} if first >> 4 == 3 else {})


def test_the_largest_packet_is_waited_for_and_heard() -> None:
    world = World()
    reader, client = here(world, "r"), here(world)
    reader.send(subscribe(1, ("a", 0)))
    body = bytes((16 << 20) - 3)
    data = mqtt_publish("a", body)
    assert data[1:5] == b"\x80\x80\x80\x08"
    for at in range(0, len(data), 1 << 18):
        client.connection.receive_data(data[at : at + (1 << 18)])
    assert client.closed == ""
    assert publications(reader.read())[0].body == body


@pytest.mark.parametrize(
    "fault",
    [
        b"\xf0\x00",
        b"\x38\x03\x00\x01a",
        b"\x30\x00",
        b"\x30\x02\x00\x05",
        b"\x30\x03\x00\x01+",
        b"\x30\x80\x00",
        b"\x32\x04\x00\x01a\x00",
        b"\x30\xff\xff\xff\xff",
    ],
)
def test_packets_before_a_malformed_one_are_answered_and_later_ones_ignored(fault: bytes) -> None:
    world = World()
    reader, writer = here(world, "r"), here(world, "w")
    reader.send(subscribe(1, ("a", 0)))
    before = (
        mqtt_publish("a", b"1")
        + mqtt_publish("other", b"2")
        + mqtt_publish("a", b"3", 1, 1)
        + mqtt_publish("a", b"4")
    )
    answer = writer.send(before, fault, mqtt_publish("a", b"5"), mqtt_publish("a", b"6", 1, 2))
    assert (answer, writer.closed) == (b"\x40\x02\x00\x01", "protocol_error")
    assert [one.body for one in publications(reader.read())] == [b"1", b"3", b"4"]
    assert writer.send(PINGREQ) == b""
    assert world.fates() == {"routed": 3, "unroutable": 1}


@pytest.mark.parametrize(
    "topic", ["ä", "𐍈", "\ufeff", "\u0001", "\u007f", "\ufffe", "\uffff", "a b", "\u2028", "😀/€"]
)
@pytest.mark.parametrize("flags", [0, RETAIN])
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_all_other_characters_are_accepted_in_topics(
    topic: str, flags: int, qos: int
) -> None:  # [MQTT-1.5.3-3]
    world = World()
    reader, writer = here(world, "r"), here(world, "w")
    reader.send(subscribe(1, (topic, 0), ("+/#", 0)))
    writer.send(mqtt_publish(topic, b"x", qos, 1 if qos else 0, flags | (DUP if qos else 0)))
    assert reader.read() == mqtt_publish(topic, b"x")


def test_reasons_are_counted_by_kind() -> None:
    world = World()
    for data, count in ((b"\xf0\x00", 3), (b"\x30\xff\xff\xff\x7f", 2), (b"\xe0\x00", 1)):
        for number in range(count):
            here(world, f"c{number}").send(data)
    Client(world, connect("c", user="guest", password=b"no"))
    Client(world, packet(0x10, binary(b"MQTT") + b"\x06"))
    here(world, "left")
    assert world.mqtt_front.closed == {
        "protocol_error": 3,
        "too_large": 2,
        "client": 1,
        "login_refused": 1,
        "unacceptable_version": 1,
    }
    assert world.mqtt_front.opened == 9
    assert len(world.mqtt_front.connections) == 1
