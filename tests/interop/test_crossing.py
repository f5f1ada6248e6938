"""Tests of messages between the protocols: every AMQP library with every MQTT library."""

from __future__ import annotations

import pytest

from tests.interop.amqp_client import AmqpClient
from tests.interop.conftest import MqttPeers
from tests.interop.mqtt_client import MqttClient, Will


def test_mqtt_publication_reaches_queues_of_every_amqp_library(
    mqtt: MqttClient, every_amqp: dict[str, AmqpClient], unique: str
) -> None:
    for name, consumer in every_amqp.items():
        consumer.declare_queue(f"{unique}-{name}", durable=True)
        consumer.bind(f"{unique}-{name}", "amq.topic", f"{unique}.sensor.#")
        consumer.consume(f"{unique}-{name}")
    for qos in (0, 1, 2):
        mqtt.publish(f"{unique}/sensor/kitchen/temp", b"\x00%d\xff" % qos, qos)
        mqtt.publish(f"{unique}/elsewhere", b"", qos)
    for name, consumer in every_amqp.items():
        for qos in (0, 1, 2):
            got = consumer.receive()
            consumer.ack(got)
            assert (got.body, got.exchange, got.routing_key) == (
                b"\x00%d\xff" % qos,
                "amq.topic",
                f"{unique}.sensor.kitchen.temp",
            ), name
            assert got.properties["delivery_mode"] == (2 if qos else 1), name
        assert consumer.depth(f"{unique}-{name}") == 0, name


def test_amqp_publication_reaches_subscribers_of_every_mqtt_library(
    amqp: AmqpClient, every_mqtt: dict[str, MqttClient], unique: str
) -> None:
    for subscriber in every_mqtt.values():
        subscriber.subscribe(f"{unique}/+/temp", 2)
    amqp.publish(b"passed by", f"{unique}.kitchen.humidity", "amq.topic", mandatory=True)
    for mode, body in ((1, b"\x00transient\xff"), (2, b"\x00persistent\xff"), (None, b"")):
        properties = {} if mode is None else {"delivery_mode": mode}
        assert (
            amqp.publish(
                body, f"{unique}.kitchen.temp", "amq.topic", mandatory=True, properties=properties
            )
            == "ack"
        )
    for name, subscriber in every_mqtt.items():
        assert subscriber.receive() == (f"{unique}/kitchen/temp", b"\x00transient\xff", 0, False), (
            name
        )
        assert subscriber.receive() == (
            f"{unique}/kitchen/temp",
            b"\x00persistent\xff",
            1,
            False,
        ), name
        assert subscriber.receive()[:2] == (f"{unique}/kitchen/temp", b""), name


@pytest.mark.parametrize("size", [64 << 10, 1 << 20])
def test_large_messages_arrive_whole_over_the_other_protocol(
    amqp: AmqpClient, mqtt: MqttClient, size: int, unique: str
) -> None:
    body = (bytes(range(251)) * (size // 251 + 1))[:size]
    amqp.declare_queue(unique)
    amqp.bind(unique, "amq.topic", f"{unique}.up")
    amqp.consume(unique)
    mqtt.subscribe(f"{unique}/down", 1)
    mqtt.publish(f"{unique}/up", body, 1)
    assert amqp.receive().body == body
    amqp.publish(body, f"{unique}.down", "amq.topic", properties={"delivery_mode": 2})
    assert mqtt.receive().payload == body


def test_dots_and_slashes_are_exchanged(amqp: AmqpClient, mqtt: MqttClient, unique: str) -> None:
    amqp.declare_queue(unique)
    amqp.bind(unique, "amq.topic", f"{unique}.*")
    mqtt.subscribe(f"{unique}/+", 1)
    mqtt.publish(f"{unique}/a.b", b"over MQTT", 1)
    amqp.publish(b"over AMQP", f"{unique}.c/d", "amq.topic", properties={"delivery_mode": 2})
    assert [mqtt.receive()[:2] for _ in range(2)] == [
        (f"{unique}/a.b", b"over MQTT"),
        (f"{unique}/c.d", b"over AMQP"),
    ]
    for key, body in ((f"{unique}.a/b", b"over MQTT"), (f"{unique}.c/d", b"over AMQP")):
        got = amqp.get(unique)
        assert got is not None
        assert (got.routing_key, got.body) == (key, body)


def test_will_reaches_a_queue(amqp: AmqpClient, unique: str, mqtt_peer: MqttPeers) -> None:
    amqp.declare_queue(unique)
    amqp.bind(unique, "amq.topic", f"{unique}.will")
    amqp.consume(unique)
    mqtt_peer("paho", will=Will(f"{unique}/will", b"gone", 1)).abort()
    assert amqp.receive().body == b"gone"


def test_mandatory_counts_subscribers(amqp: AmqpClient, mqtt: MqttClient, unique: str) -> None:
    assert amqp.publish(b"", f"{unique}.a", "amq.topic", mandatory=True) == "returned"
    mqtt.subscribe(f"{unique}/+")
    assert amqp.publish(b"", f"{unique}.a", "amq.topic", mandatory=True) == "ack"


def test_routing_keys_that_are_no_valid_topics_reach_only_queues(
    amqp: AmqpClient, mqtt: MqttClient, unique: str
) -> None:
    amqp.declare_queue(unique)
    amqp.bind(unique, "amq.topic", f"{unique}.#")
    mqtt.subscribe(f"{unique}/#")
    keys = [f"{unique}.+", f"{unique}.#", f"{unique}.a+b", f"{unique}.\0", f"{unique}.after"]
    for key in keys:
        assert amqp.publish(b"", key, "amq.topic", mandatory=True) == "ack"
    assert mqtt.receive().topic == f"{unique}/after"
    deliveries = [amqp.get(unique) for _ in keys]
    assert [delivery.routing_key for delivery in deliveries if delivery] == keys


def test_topic_longer_than_a_routing_key_reaches_only_subscribers(
    amqp: AmqpClient, mqtt: MqttClient, unique: str
) -> None:
    amqp.declare_queue(unique)
    amqp.bind(unique, "amq.topic", f"{unique}.#")
    mqtt.subscribe(f"{unique}/#", 1)
    long = f"{unique}/" + "long/" * 60
    for topic in (long, f"{unique}/short"):
        mqtt.publish(topic, b"", 1)
        assert mqtt.receive().topic == topic
    got = amqp.get(unique)
    assert got is not None
    assert got.routing_key == f"{unique}.short"
