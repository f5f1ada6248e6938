"""Tests that properties which cross from MQTT 5 to AMQP, and back, are unchanged."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pamqp.header
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands as spec

from protocols.amqp.codec.properties import read_properties, write_properties
from tests.clients import Amqp, World, mqtt_publish
from tests.wire.mqtt.client import RETAIN, Client, connect
from tests.wire.mqtt5.client import Client5, publish, subscription

FIELDS = (
    "payload_format_indicator",
    "message_expiry_interval",
    "content_type",
    "response_topic",
    "correlation_data",
    "user_properties",
)

TEXTS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), max_size=12)
NAMES = st.one_of(
    TEXTS,
    st.sampled_from(
        [
            "a",
            "x-mqtt-qos",
            "x-reply-to-topic",
            "x-mqtt-user-properties",
            "n" * 128,
            "n" * 129,
            "x-death",
        ]
    ),
)
PUBLICATIONS = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "message_expiry_interval": st.integers(1, 4_000_000_000),
        "content_type": TEXTS | st.just("t" * 300),
        "response_topic": st.sampled_from(["answers/a.b", "x", "$x//."]),
        "correlation_data": st.binary(max_size=20) | st.just(b"c" * 300) | TEXTS.map(str.encode),
        "user_properties": st.lists(st.tuples(NAMES, TEXTS), max_size=4),
    },
)


def consumer(world: World) -> Amqp:
    client = world.amqp()
    client.queue("q", "amq.topic", "from.#")
    return client


def got(client: Amqp) -> tuple[dict[str, Any], bytes]:
    """Return the properties and the body of the next message in the queue."""
    frames = client.send(spec.Basic.Get(queue="q", no_ack=True))
    [header] = [frame for frame in frames if isinstance(frame, pamqp.header.ContentHeader)]
    return {name: value for name, value in header.properties if value not in (None, "")}, b"".join(
        client.bodies(frames)
    )


def content(world: World) -> bytes:
    """Return the flags and properties of the queued message, encoded as for an AMQP consumer."""
    from protocols.amqp.codec.contents import content_for, frames_of

    message = world.queue("q")._waiting.head()
    frames = frames_of(1, 131_072)
    return frames.header(content_for(message, frames))


def republish(client: Amqp, key: str, properties: bytes, body: bytes) -> None:
    """Publish a message again with these property flags and properties."""
    payload = b"\x00\x3c\x00\x00" + len(body).to_bytes(8, "big") + properties
    publication = spec.Basic.Publish(exchange="amq.topic", routing_key=key)
    data = (
        pamqp.frame.marshal(publication, 1)
        + b"\x02\x00\x01"
        + len(payload).to_bytes(4, "big")
        + payload
        + b"\xce"
    )
    if body:
        data += b"\x03\x00\x01" + len(body).to_bytes(4, "big") + body + b"\xce"
    client.connection.receive_data(data)
    client.read()


@settings(max_examples=200, deadline=None)
@given(PUBLICATIONS, st.integers(0, 2), st.booleans(), st.booleans())
def test_mqtt_properties_are_equal_after_a_way_through_amqp(
    properties: dict[str, Any], qos: int, retain: bool, rewritten: bool
) -> None:
    world = World()
    middle = consumer(world)
    writer, reader = Client5(world, "w"), Client5(world, "r")
    direct = Client5(world, "d")
    direct.subscribe(subscription("from/#", 2, as_published=True))
    reader.subscribe(subscription("to/#", 2, as_published=True))
    body = "grün".encode()
    writer.send(publish("from/a.b", body, qos, retain=retain, **properties))
    data = content(world)
    if rewritten:
        data = write_properties(read_properties(data))
    republish(middle, "to.a/b", data, body)
    [expected], [received] = direct.publications(), reader.publications()
    assert (received.topic, received.payload, int(received.qos), received.retain) == (
        "to/a.b",
        body,
        qos,
        retain,
    )
    for field in FIELDS:
        assert getattr(received, field) == getattr(expected, field), field
    assert len(world.vhost.retained) == (2 if retain else 0)
    world.fates()


def test_an_amqp_consumer_reads_them_under_familiar_names() -> None:
    world = World()
    client, writer = consumer(world), Client5(world, "w")
    writer.send(
        publish(
            "from/x",
            b"1",
            1,
            content_type="text/plain",
            response_topic="answers/7.a",
            correlation_data=b"42",
            message_expiry_interval=60,
            user_properties=[("unit", "°C"), ("room", "7")],
            payload_format_indicator=1,
        )
    )
    properties, body = got(client)
    assert (body, properties) == (
        b"1",
        {
            "content_type": "text/plain",
            "correlation_id": "42",
            "expiration": "60000",
            "delivery_mode": 2,
            "headers": {
                "unit": "°C",
                "room": "7",
                "x-reply-to-topic": "answers.7/a",
                "x-mqtt-payload-format": 1,
            },
        },
    )
    writer.send(
        publish(
            "from/x",
            b"2",
            2,
            packet_id=2,
            correlation_data=b"\xff",
            user_properties=[("a", "1"), ("a", "2")],
            retain=True,
        )
    )
    properties, body = got(client)
    headers = properties["headers"]
    assert bytes(headers.pop("x-correlation-id")) == b"\xff"
    assert headers == {
        "a": "1",
        "x-mqtt-user-properties": ["a", "1", "a", "2"],
        "x-mqtt-retain": True,
        "x-mqtt-qos": 2,
    }
    assert properties["delivery_mode"] == 2


def test_amqp_properties_reach_mqtt_5() -> None:
    world = World()
    reader, client = Client5(world, "r"), world.amqp()
    reader.subscribe(subscription("#", 2))
    client.publish(
        "amq.topic",
        "a.b",
        b"x",
        content_type="text/plain",
        correlation_id="7",
        delivery_mode=2,
        expiration="5500",
        message_id="m1",
        app_id="app",
        message_type="t",
        reply_to="amq.gen-1",
        priority=3,
        headers={
            "s": "text",
            "n": 7,
            "f": True,
            "t": {"deep": [1, None]},
            "x-reply-to-topic": "answers.1",
        },
    )
    [one] = reader.publications()
    assert (
        one.topic,
        one.payload,
        int(one.qos),
        one.content_type,
        one.correlation_data,
        one.response_topic,
    ) == ("a/b", b"x", 1, "text/plain", b"7", "answers/1")
    assert one.message_expiry_interval == 6
    assert dict(one.user_properties) == {
        "s": "text",
        "n": "7",
        "f": "true",
        "t": '{"deep":[1,null]}',
        "message_id": "m1",
        "app_id": "app",
        "type": "t",
        "reply_to": "amq.gen-1",
        "priority": "3",
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (-7, "-7"),
        (1.5, "1.5"),
        (Decimal("1.50"), "1.50"),
        (Decimal("-1E-9"), "-0.000000001"),
        (bytearray(b"\xff"), "\ufffd"),
        (datetime(2020, 1, 2, tzinfo=UTC), "2020-01-02T00:00:00+00:00"),
        (
            [Decimal("2.5"), bytearray(b"x"), datetime(2020, 1, 2, tzinfo=UTC), {"d": Decimal(1)}],
            '["2.5","x","2020-01-02T00:00:00+00:00",{"d":"1"}]',
        ),
    ],
)
@pytest.mark.parametrize("mode", [1, 2])
def test_a_header_of_any_type_becomes_text_for_mqtt_5(mode: int, value: object, text: str) -> None:
    world = World()
    reader, client = Client5(world, "r"), world.amqp()
    reader.subscribe(subscription("#", 1))
    client.publish("amq.topic", "a", b"x", delivery_mode=mode, headers={"h": value})
    client.publish("amq.topic", "a", b"next")
    first, second = reader.publications()
    assert (first.payload, first.user_properties) == (b"x", [("h", text)])
    assert second.payload == b"next"
    world.fates()


@pytest.mark.parametrize("quality", [0, 1, 2])
@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("transaction", [False, True])
def test_an_amqp_publisher_chooses_qos_and_retains(
    quality: int, mode: int, transaction: bool
) -> None:
    world = World()
    reader, client = Client5(world, "r"), world.amqp()
    reader.subscribe(subscription("a", 2))
    if transaction:
        client.send(spec.Tx.Select())
    client.publish(
        "amq.topic",
        "a",
        b"x",
        delivery_mode=mode,
        headers={"x-mqtt-qos": quality, "x-mqtt-retain": True},
    )
    if transaction:
        assert len(world.vhost.retained) == 0
        client.send(spec.Tx.Commit())
    [one] = reader.publications()
    assert (int(one.qos), one.retain, one.user_properties) == (quality, False, [])
    [_, kept] = Client5(world, "late").subscribe(subscription("#", 2))
    assert (kept.payload, kept.retain, int(kept.qos)) == (b"x", True, quality)
    client.publish("amq.topic", "a", b"", headers={"x-mqtt-retain": True})
    if transaction:
        client.send(spec.Tx.Commit())
    assert len(world.vhost.retained) == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"x-mqtt-qos": 3},
        {"x-mqtt-qos": -1},
        {"x-mqtt-qos": "1"},
        {"x-mqtt-qos": True},
        {"x-mqtt-retain": 1},
        {"x-mqtt-retain": "true"},
    ],
)
def test_odd_headers_choose_nothing(headers: dict[str, Any]) -> None:
    world = World()
    reader, client = Client5(world, "r"), world.amqp()
    reader.subscribe(subscription("a", 2))
    client.publish("amq.topic", "a", b"x", delivery_mode=2, headers=headers)
    assert [int(one.qos) for one in reader.publications()] == [1]
    assert len(world.vhost.retained) == 0


def test_other_exchanges_retain_nothing() -> None:
    world = World()
    client = world.amqp()
    client.publish("amq.direct", "a", b"x", headers={"x-mqtt-retain": True})
    assert len(world.vhost.retained) == 0


def test_a_dead_letter_of_mqtt_keeps_its_properties() -> None:
    world = World()
    client = world.amqp()
    client.queue(
        "q",
        "amq.topic",
        "from.#",
        x_message_ttl=1,
        x_dead_letter_exchange="amq.topic",
        x_dead_letter_routing_key="dead",
    )
    reader = Client5(world, "r")
    reader.subscribe(subscription("dead", 1))
    Client5(world, "w").send(
        publish("from/x", b"x", 1, content_type="text", user_properties=[("a", "1"), ("a", "2")])
    )
    world.sleep(10)
    world.settle()
    [one] = reader.publications()
    assert (one.payload, one.content_type, one.user_properties[:2]) == (
        b"x",
        "text",
        [("a", "1"), ("a", "2")],
    )
    assert sorted(name for name, _ in one.user_properties[2:]) == [
        "x-death",
        *(
            f"x-{which}-death-{what}"
            for which in ("first", "last")
            for what in ("exchange", "queue", "reason")
        ),
    ]


def test_older_publishers_retain_across_too() -> None:
    world = World()
    client = consumer(world)
    Client(world, connect("w")).send(mqtt_publish("from/x", b"x", 2, 1, RETAIN))
    properties, _ = got(client)
    assert properties["headers"] == {"x-mqtt-retain": True, "x-mqtt-qos": 2}


def test_contents_that_cannot_be_read_have_no_properties() -> None:
    world = World()
    reader, client = Client5(world, "r"), world.amqp()
    reader.subscribe(subscription("a", 2))
    republish(client, "a", b"\xe0\x00" + b"\xff" * 9, b"x")
    assert [(one.payload, one.user_properties) for one in reader.publications()] == [(b"x", [])]


def test_a_trace_context_crosses_in_both_directions_and_not_to_mqtt_3() -> None:
    context = [
        ("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("tracestate", "vendor=1,other=2"),
    ]
    world = World()
    client, writer = consumer(world), Client5(world, "w")
    reader, old = Client5(world, "r"), world.mqtt("old")
    reader.subscribe(subscription("#", 2))
    old.subscribe("#", 0)
    writer.send(publish("from/x", b"1", 1, user_properties=context))
    assert got(client)[0]["headers"] == dict(context)
    client.publish("amq.topic", "to.x", b"2", headers=dict(context))
    assert [sorted(publication.user_properties) for publication in reader.publications()] == [
        context,
        context,
    ]
    received = old.read()
    assert b"1" in received and b"2" in received and b"trace" not in received
