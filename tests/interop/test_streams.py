"""Tests of streams with every AMQP library, with messages published over AMQP and MQTT."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.interop.amqp_client import AmqpClient, Delivery
from tests.interop.conftest import AmqpPeers
from tests.interop.mqtt_client import MqttClient
from tests.interop.test_amqp import PROPERTIES

STREAM = {"x-queue-type": "stream"}
#: Stream offsets, and the sequence numbers (of 0 to 4) of the messages that a consumer gets.
OFFSETS: list[tuple[Any, list[int]]] = [
    ("first", [0, 1, 2, 3, 4]),
    (0, [0, 1, 2, 3, 4]),
    (3, [3, 4]),
    ("last", [4]),
    ("1h", [0, 1, 2, 3, 4]),
    (datetime.now(UTC) - timedelta(days=1), [0, 1, 2, 3, 4]),
]


def read(client: AmqpClient, queue: str, offset: object, count: int) -> list[Delivery]:
    """Consume `count` messages from `offset` on, acknowledge each, and return them."""
    tag = client.consume(queue, {"x-stream-offset": offset})
    deliveries = []
    for _ in range(count):
        deliveries.append(client.receive())
        client.ack(deliveries[-1])
    client.cancel(tag)
    return deliveries


def place(delivery: Delivery) -> int:
    """Return the stream offset of a delivery."""
    offset = delivery.properties["headers"]["x-stream-offset"]
    assert isinstance(offset, int)
    return offset


@pytest.mark.parametrize(
    ("offset", "numbers"), OFFSETS, ids=[str(offset)[:5] for offset, _ in OFFSETS]
)
def test_every_library_consumes_from_its_offset(
    amqp: AmqpClient, unique: str, offset: object, numbers: list[int]
) -> None:
    amqp.declare_queue(unique, durable=True, arguments=STREAM)
    for number in range(5):
        assert amqp.publish(b"\x00%d\xff" % number, unique) == "ack"
    amqp.prefetch(2)
    deliveries = read(amqp, unique, offset, len(numbers))
    assert [(place(one), one.body, one.redelivered) for one in deliveries] == [
        (number, b"\x00%d\xff" % number, False) for number in numbers
    ]
    amqp.delete_queue(unique)


@pytest.mark.parametrize(
    "offset", ["next", 5, datetime.now(UTC) + timedelta(days=1)], ids=["next", "number", "time"]
)
def test_every_library_receives_messages_published_later(
    amqp: AmqpClient, unique: str, offset: object
) -> None:
    amqp.declare_queue(unique, durable=True, arguments=STREAM)
    for number in range(5):
        amqp.publish(b"%d" % number, unique)
    amqp.prefetch(2)
    tag = amqp.consume(unique, {"x-stream-offset": offset})
    for number in (5, 6, 7):
        amqp.publish(b"%d" % number, unique)
        got = amqp.receive()
        amqp.ack(got)
        assert (place(got), got.body) == (number, b"%d" % number)
    amqp.cancel(tag)
    amqp.delete_queue(unique)


def test_every_library_reports_refusals_of_a_stream(
    amqp: AmqpClient, amqp_peer: AmqpPeers, unique: str
) -> None:
    amqp.declare_queue(unique, durable=True, arguments=STREAM)
    with amqp.refused(406, f"consumer prefetch count is not set for stream queue '{unique}'"):
        amqp.consume(unique, {"x-stream-offset": "first"})
    amqp.prefetch(1)
    with amqp.refused(406, "invalid arg 'x-stream-offset'"):
        amqp.consume(unique, {"x-stream-offset": "soon"})
    with amqp.refused(406, "inequivalent arg 'x-queue-type'"):
        amqp.declare_queue(unique, durable=True)
    with amqp.refused(406, "invalid property 'non-durable'"):
        amqp.declare_queue(f"{unique}-2", arguments=STREAM)
    amqp.prefetch(1)  # Set the prefetch count again, because each refusal closed the channel.
    tag = amqp.consume(unique)
    amqp_peer("pika").delete_queue(unique)
    assert amqp.cancelled() == tag


def test_stream_delivers_like_a_queue_with_an_offset(
    amqp: AmqpClient, every_amqp: dict[str, AmqpClient], unique: str
) -> None:
    """Check that a library reads the same properties and bodies from a stream as from a queue.

    Messages of every library are routed to the stream and to the queues.
    """
    amqp.declare_queue(unique, durable=True, arguments=STREAM)
    bodies = {name: bytes(range(256)) * (len(name) * 100) for name in every_amqp}
    for name, reader in every_amqp.items():
        reader.declare_queue(f"{unique}-{name}", durable=True)
    for queue in [unique, *(f"{unique}-{name}" for name in every_amqp)]:
        amqp.bind(queue, "amq.direct", unique)
    for name, publisher in every_amqp.items():
        assert publisher.publish(bodies[name], unique, "amq.direct", properties=PROPERTIES) == "ack"
        assert publisher.publish(b"", unique, "amq.direct") == "ack"
    for name, reader in every_amqp.items():
        reader.prefetch(3)
        from_stream = read(reader, unique, "first", 2 * len(every_amqp))
        assert [place(one) for one in from_stream] == list(range(2 * len(every_amqp)))
        for one in from_stream:
            plain = reader.get(f"{unique}-{name}")
            assert plain is not None
            headers = {
                key: value
                for key, value in one.properties["headers"].items()
                if key != "x-stream-offset"
            }
            assert (one.body, one.exchange, one.routing_key) == (
                plain.body,
                plain.exchange,
                plain.routing_key,
            )
            assert {**one.properties, "headers": headers} == {"headers": {}, **plain.properties}
            reader.ack(plain)
        reader.delete_queue(f"{unique}-{name}")
    amqp.delete_queue(unique)


def test_every_library_reads_mqtt_publications_from_a_stream(
    mqtt: MqttClient, every_amqp: dict[str, AmqpClient], unique: str
) -> None:
    first = next(iter(every_amqp.values()))
    first.declare_queue(unique, durable=True, arguments=STREAM)
    first.bind(unique, "amq.topic", f"{unique}.#")
    bodies = [b"\x00%d\xff" % qos * 50_000 for qos in (1, 2)]
    for qos, body in enumerate(bodies, 1):
        mqtt.publish(f"{unique}/kitchen/temp", body, qos)
    for name, reader in every_amqp.items():
        reader.prefetch(10)
        deliveries = read(reader, unique, "first", 2)
        assert [(place(one), one.body, one.exchange, one.routing_key) for one in deliveries] == [
            (number, body, "amq.topic", f"{unique}.kitchen.temp")
            for number, body in enumerate(bodies)
        ], name
    first.delete_queue(unique)


def test_mqtt_subscribers_get_the_messages_of_a_stream(
    mqtt: MqttClient, amqp: AmqpClient, unique: str
) -> None:
    """Check that MQTT subscribers get the bodies that the stream stores, unchanged.

    The messages are published over AMQP, to the exchange to which the stream is bound.
    """
    amqp.declare_queue(unique, durable=True, arguments=STREAM)
    amqp.bind(unique, "amq.topic", f"{unique}.#")
    mqtt.subscribe(f"{unique}/+", 1)
    amqp.prefetch(1)
    for body in (b"", bytes(range(256)), b"x" * 300_000):
        assert (
            amqp.publish(body, f"{unique}.a", "amq.topic", properties={"delivery_mode": 2}) == "ack"
        )
    received = [mqtt.receive() for _ in range(3)]
    assert [(one.topic, one.payload) for one in received] == [
        (f"{unique}/a", one.body) for one in read(amqp, unique, "first", 3)
    ]
    amqp.delete_queue(unique)
