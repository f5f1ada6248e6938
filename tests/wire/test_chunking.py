"""The output does not depend on how the input is cut into chunks, and no exception escapes.

`World.fates` asserts that every received message has exactly one fate.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pamqp.commands as spec
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.amqp.connection.handshake import GREETING
from protocols.connection import Connection
from tests.clients import World, marshal, mqtt_publish, packet, publication, text, unmarshal

CUTS = st.lists(st.integers(1, 400), min_size=0, max_size=40)

AMQP_INPUT = b"".join(
    [
        GREETING,
        marshal(0, spec.Connection.StartOk(response="\0guest\0guest")),
        marshal(0, spec.Connection.TuneOk(2047, 4096, 0)),
        marshal(0, spec.Connection.Open()),
        marshal(1, spec.Channel.Open()),
        marshal(2, spec.Channel.Open()),
        marshal(1, spec.Queue.Declare(queue="q")),
        marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key="a.#")),
        marshal(1, spec.Basic.Consume(queue="q", consumer_tag="t")),
        publication("amq.topic", "a.b", b"one"),
        publication("", "q", b"", content_type="x"),
        publication("amq.topic", "a", b"y" * 9000, frame_max=4096),
        marshal(1, spec.Basic.Ack(1)),
        publication("nope", "x", b"refused", channel=2),
        publication("", "q", b"ignored", channel=2),
        marshal(2, spec.Channel.CloseOk()),
        marshal(1, spec.Basic.Nack(2, requeue=True)),
        publication("amq.topic", "z", b"unroutable", mandatory=True),
        marshal(1, spec.Channel.Close(0, "", 0, 0)),
        marshal(0, spec.Connection.Close(0, "", 0, 0)),
    ]
)

MQTT_INPUT = b"".join(
    [
        packet(0x10, text("MQTT") + b"\x04\x02\x00\x3c" + text("c")),
        packet(0x82, b"\x00\x01" + text("a/+") + b"\x00" + text("b") + b"\x02"),
        mqtt_publish("a/x", b"1"),
        mqtt_publish("a/y", b"2"),
        mqtt_publish("n", b"3"),
        mqtt_publish("a/x", b"4" * 300),
        mqtt_publish("b", b"5", 1, 9),
        mqtt_publish("b", b"6", 2, 10),
        b"\x62\x02\x00\x0a",
        b"\x40\x02\x00\x01",
        b"\x50\x02\x00\x02",
        b"\x70\x02\x00\x02",
        mqtt_publish("a/r", b"kept", flags=1),
        packet(0x82, b"\x00\x02" + text("a/#") + b"\x01"),
        b"\xc0\x00",
        packet(0xA2, b"\x00\x03" + text("b")),
        b"\xe0\x00",
    ]
)


#: Class and method ids of all methods that a client may send on a channel, and of unknown ones.
AMQP_METHODS = [b""] + [
    bytes([0, cls, 0, method])
    for cls, methods in (
        (10, (11, 31, 40, 50, 51)),
        (20, (10, 20, 40, 41)),
        (40, (10, 20, 30, 40)),
        (50, (10, 20, 30, 40, 50)),
        (60, (10, 20, 30, 40, 70, 80, 90, 100, 110, 120)),
        (85, (10,)),
        (90, (10,)),
    )
    for method in methods
]


def pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    at = 0
    for cut in cuts * (len(data) // max(1, sum(cuts)) + 1) if cuts else []:
        yield data[at : at + cut]
        at += cut
    yield data[at:]


def answers(connection: Connection, data: bytes, cuts: list[int]) -> bytes:
    for piece in pieces(data, cuts):
        connection.receive_data(piece)
    return connection.data_to_send()


def drained(world: World, connection: Connection, data: bytes, cuts: list[int]) -> bytes:
    out = answers(connection, data, cuts)
    world.turn()
    return out + connection.data_to_send()


@settings(max_examples=150, deadline=None)
@given(CUTS)
def test_amqp_answers_do_not_depend_on_the_chunking(cuts: list[int]) -> None:
    whole, cut = World(), World()
    expected = drained(whole, whole.raw_amqp(), AMQP_INPUT, [])
    assert len(unmarshal(expected)) > 20
    assert drained(cut, cut.raw_amqp(), AMQP_INPUT, cuts) == expected
    assert cut.fates() == whole.fates() == {"routed": 3, "refused": 1, "unroutable": 1}


@settings(max_examples=150, deadline=None)
@given(CUTS)
def test_mqtt_answers_do_not_depend_on_the_chunking(cuts: list[int]) -> None:
    whole, cut = World(), World()
    expected = drained(whole, whole.raw_mqtt(), MQTT_INPUT, [])
    assert expected.endswith(b"\xd0\x00\xb0\x02\x00\x03")
    assert drained(cut, cut.raw_mqtt(), MQTT_INPUT, cuts) == expected
    assert cut.fates() == whole.fates()


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 60), max_size=20), st.integers(1, 12))
def test_every_publication_is_confirmed_exactly_once_however_it_is_cut(
    cuts: list[int], count: int
) -> None:
    client = World().amqp()
    client.send(spec.Confirm.Select())
    confirmed = 0
    for piece in pieces(publication("amq.topic", "k", b"body") * count, cuts):
        client.connection.receive_data(piece)
        for ack in client.read():
            assert ack.delivery_tag > confirmed and (
                ack.multiple or ack.delivery_tag == confirmed + 1
            )
            confirmed = ack.delivery_tag
    assert confirmed == count


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(AMQP_INPUT)), st.booleans())
def test_amqp_garbage_never_escapes(garbage: bytes, at: int, overwrite: bool) -> None:
    world = World()
    connection = world.raw_amqp()
    answers(
        connection,
        AMQP_INPUT[:at] + garbage + AMQP_INPUT[at + (len(garbage) if overwrite else 0) :],
        [],
    )
    world.turn()
    world.fates()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 2, 3, 8]),
            st.integers(0, 2),
            st.binary(max_size=30),
            st.sampled_from(AMQP_METHODS),
        ),
        max_size=6,
    )
)
def test_amqp_frames_of_garbage_never_escape(frames: list[tuple[int, int, bytes, bytes]]) -> None:
    client = World().amqp()
    for kind, channel, garbage, method in frames:
        payload = (method if kind == 1 else b"") + garbage
        client.connection.receive_data(
            struct.pack(">BHI", kind, channel, len(payload)) + payload + b"\xce"
        )
    client.read()
    client.world.fates()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=30)), max_size=6))
def test_mqtt_packets_of_garbage_never_escape(packets: list[tuple[int, bytes]]) -> None:
    client = World().mqtt("x")
    for first, body in packets:
        client.connection.receive_data(packet(first, body))
    client.read()
    client.world.fates()


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60), st.integers(0, len(MQTT_INPUT)), st.booleans())
def test_mqtt_garbage_never_escapes(garbage: bytes, at: int, overwrite: bool) -> None:
    world = World()
    connection = world.raw_mqtt()
    answers(
        connection,
        MQTT_INPUT[:at] + garbage + MQTT_INPUT[at + (len(garbage) if overwrite else 0) :],
        [],
    )
    world.turn()
    world.fates()
