"""Dead letters keep body, properties and headers, also between AMQP and MQTT."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.clients import Amqp, World, mqtt_publish
from tests.wire.amqp.dead_lettering import B, Q, dead_lettering, got
from tests.wire.amqp.speech import (
    body,
    content,
    deliveries,
    header,
    long,
    properties,
    publish,
    short,
)


@pytest.mark.parametrize("size", [0, 1, 5_000, 300_000])
def test_a_letter_has_the_body_it_was_sent_with(size: int) -> None:
    client = World().amqp(frame_max=4096)
    client.queue("dead_letters", "amq.fanout")
    client.queue("q", x_max_length=0, x_dead_letter_exchange="amq.fanout")
    client.connection.receive_data(
        publish("", "q")
        + header(size)
        + b"".join(body(b"x" * min(1_000, size - at)) for at in range(0, size, 1_000))
    )
    client.read()
    frames = client.send(B.Get(queue="dead_letters"))
    assert [one.body for one in deliveries(frames)] == [b"x" * size]
    assert all(len(one) <= 4_088 for one in client.bodies(frames))


#: Every property, as a client writes it, and headers of every type.
TYPES = {
    "bool": b"t\1",
    "i8": b"b\xff",
    "u8": b"B\xff",
    "i16": b"s\xff\xfe",
    "u16": b"u\xff\xfe",
    "i32": b"I\xff\xff\xff\xfe",
    "u32": b"i\xff\xff\xff\xfe",
    "i64": b"l" + b"\xff" * 7 + b"\xfe",
    "I64": b"L\0\0\0\0\0\0\0\7",
    "float": b"f\x40\x49\x0f\xdb",
    "double": b"d\x3f\xb9\x99\x99\x99\x99\x99\x9a",
    "nan": b"d\x7f\xf8" + bytes(6),
    "decimal": b"D\2\0\0\1\x3b",
    "negative": b"D\2\xff\xff\xfe\xc5",
    "text": b"S" + long("é".encode()),
    "string of bytes": b"S" + long(b"\xff\0"),
    "array": b"A" + long(b"t\0" + b"S" + long(b"x") + b"A" + long(b"")),
    "time": b"T\0\0\0\0\x65\0\0\0",
    "later": b"T\0\0\1\x8b\xcf\xe5\x68\0",
    "never": b"T" + b"\xff" * 8,
    "table": b"F" + long(short("in") + b"F" + long(b"")),
    "void": b"V",
    "void too": b"\0",
    "bytes": b"x" + long(b"\0\xff"),
    "x" * 255: b"t\0",
    "": b"t\1",
}

EVERY = (
    b"\xff\xfc"
    + short("text/plain")
    + short("utf-8")
    + long(b"".join(short(name) + value for name, value in TYPES.items()))
    + b"\x02\x09"
    + short("correlation")
    + short("reply")
    + short("60000")
    + short("message")
    + (2**40).to_bytes(8, "big")
    + short("type")
    + short("guest")
    + short("app")
    + short("cluster")
)


#: Properties of which some differ in a single header, in its type alone, or in the expiration.
ALIKE = (
    b"\0\0",
    b"\x20\0" + long(short("a") + b"t\1"),
    b"\x20\0" + long(short("a") + b"b\1"),
    b"\x20\0" + long(short("b") + b"b\1"),
    b"\x01\0" + short("60000"),
    EVERY,
)


@given(st.lists(st.tuples(st.sampled_from("qr"), st.sampled_from(ALIKE)), min_size=2, max_size=6))
def test_the_properties_of_a_letter_do_not_depend_on_the_letters_before_it(
    messages: list[tuple[str, bytes]],
) -> None:
    def letters(client: Amqp, sent: list[tuple[str, bytes]]) -> list[bytes]:
        client.queue("r", x_dead_letter_exchange="amq.fanout", x_max_length=0)
        client.connection.receive_data(
            b"".join(publish("", queue) + content(b"x", given) for queue, given in sent)
        )
        return sorted(got(client, "dead_letters")[1].payload for _ in sent)

    alone = [letters(dead_lettering(x_max_length=0), [message])[0] for message in messages]
    assert letters(dead_lettering(x_max_length=0), messages) == sorted(alone)


def test_a_letter_keeps_every_property_and_header_as_it_was_written() -> None:
    client = dead_lettering(x_max_length=0)
    client.connection.receive_data(publish("", "q") + content(b"x", EVERY))
    [_, head, _] = got(client, "dead_letters")
    assert head.payload[12:14] == b"\xfe\xfc"  # All property flags except the flag of expiration.
    rest = head.payload[14:]
    before = short("text/plain") + short("utf-8")
    headers = rest[len(before) + 4 :][: int.from_bytes(rest[len(before) :][:4], "big")]
    assert headers.startswith(
        b"".join(short(name) + value for name, value in TYPES.items()) + short("x-death") + b"A"
    )
    assert rest.replace(long(headers), b"") == (
        before
        + b"\x02\x09"
        + short("correlation")
        + short("reply")
        + short("message")
        + (2**40).to_bytes(8, "big")
        + short("type")
        + short("guest")
        + short("app")
        + short("cluster")
    )


@pytest.mark.parametrize(
    "odd",
    [
        b"\x20\0" + long(short("x-death") + b"t\1"),
        b"\x20\0" + long(short("x-death") + b"A" + long(b"t\1S" + long(b"x"))),
        b"\x20\0"
        + long(
            short("x-death")
            + b"A"
            + long(
                b"F"
                + long(
                    short("queue")
                    + b"S"
                    + long(b"q")
                    + short("reason")
                    + b"S"
                    + long(b"maxlen")
                    + short("count")
                    + b"l"
                    + b"\x7f"
                    + b"\xff" * 7
                )
            )
        ),
        b"\x20\0"
        + long(
            short("x-death")
            + b"A"
            + long(
                b"F"
                + long(
                    short("d")
                    + b"D\xff\x80\0\0\0"
                    + short("t")
                    + b"T"
                    + b"\xff" * 8
                    + short("f")
                    + b"f\x7f\x80\0\0"
                )
            )
        ),
        b"\x20\0"
        + long(short("x-death") + b"V" + short("x-death") + b"V" + short("kept") + b"t\1"),
        b"\x20\0" + long(b"\x01a?"),
        b"\x20\0" + long(b"\xff"),
        b"\x20\0\xff\xff\xff\xff",
        b"\x20\0",
        b"\x90\0\x01t\x07",
        b"\x02\0\xff",
        b"\0\3",
        b"\xc0\1\1a\1b",
    ],
)
def test_invalid_properties_are_left_out_of_dead_letters(odd: bytes) -> None:
    client = dead_lettering()
    client.connection.receive_data(publish("", "q") + content(b"x", odd))
    assert [frame.kind for frame in got(client, "q", no_ack=False)] == [1, 2, 3]
    client.send(B.Reject(1, requeue=False))
    [_, head, last] = got(client, "dead_letters")
    assert last.payload == b"x"
    first = head.payload[head.payload.index(short("x-death") + b"A") + 13 :]
    assert (
        first.startswith(b"F")
        and short("count")
        + b"l"
        + (1).to_bytes(8, "big")
        + short("reason")
        + b"S"
        + long(b"rejected")
        in first
    )
    client.world.fates()


def test_a_message_from_mqtt_may_become_a_letter() -> None:
    client = dead_lettering(x_max_length=0)
    client.send(Q.Bind(queue="q", exchange="amq.topic", routing_key="a.b"))
    client.world.mqtt("m").send(mqtt_publish("a/b", b"x", 1, 1))
    frames = client.send(B.Get(queue="dead_letters"))
    assert [(one.exchange, one.key, one.body) for one in deliveries(frames)] == [
        ("amq.fanout", "a.b", b"x")
    ]
    assert (
        properties(frames).delivery_mode,
        properties(frames).headers["x-death"][0]["exchange"],
    ) == (2, "amq.topic")


def test_a_letter_may_reach_mqtt() -> None:
    client = World().amqp()
    reader = client.world.mqtt("m")
    reader.subscribe("dead/q", 1)
    client.queue(
        "q", x_max_length=0, x_dead_letter_exchange="amq.topic", x_dead_letter_routing_key="dead.q"
    )
    client.publish("", "q", b"x", delivery_mode=2)
    assert reader.read().endswith(b"x")
