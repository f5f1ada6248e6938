"""Tests of the broker with every MQTT library, each used as ordinary programs use it."""

from __future__ import annotations

import pytest

from tests.interop.client import LoginRefused
from tests.interop.clients import MQTT
from tests.interop.conftest import MqttPeers
from tests.interop.mqtt_client import MqttClient, Received, Will

#: Error text of a library after a CONNACK with return code 4 (MQTT 3.1.1, section 3.2.2.3).
BAD_CREDENTIALS = r"(?i)bad user ?name or password|return code 4"


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_publications_reach_subscribers_of_every_library(
    mqtt: MqttClient, every_mqtt: dict[str, MqttClient], qos: int, unique: str
) -> None:
    for subscriber in every_mqtt.values():
        assert subscriber.subscribe(f"{unique}/#", 2) == 2
    mqtt.publish(f"{unique}/kitchen", b"\x00binary\xff", qos)
    mqtt.publish(f"{unique}/grüße \N{SNOWMAN}", b"", qos)
    for subscriber in every_mqtt.values():
        assert subscriber.receive() == (f"{unique}/kitchen", b"\x00binary\xff", qos, False)
        assert subscriber.receive() == (f"{unique}/grüße \N{SNOWMAN}", b"", qos, False)


@pytest.mark.parametrize(("granted", "published"), [(0, 2), (1, 2), (1, 0), (2, 1)])
def test_delivery_has_the_lower_qos_of_subscription_and_publication(
    mqtt: MqttClient, granted: int, published: int, unique: str
) -> None:
    assert mqtt.subscribe(unique, granted) == granted
    mqtt.publish(unique, b"", published)
    assert mqtt.receive() == (unique, b"", min(granted, published), False)


@pytest.mark.parametrize(
    ("topic_filter", "expected"),
    [
        ("+/temperature", ["kitchen/temperature"]),
        ("kitchen/+", ["kitchen/temperature", "kitchen/"]),
        ("kitchen/#", ["kitchen", "kitchen/temperature", "kitchen/", "kitchen/oven/door"]),
        ("+/+/door", ["kitchen/oven/door"]),
        ("#", ["kitchen", "kitchen/temperature", "kitchen/", "kitchen/oven/door", "cellar"]),
    ],
)
def test_wildcards(mqtt: MqttClient, topic_filter: str, expected: list[str], unique: str) -> None:
    mqtt.subscribe(f"{unique}/{topic_filter}")
    for topic in ("kitchen", "kitchen/temperature", "kitchen/", "kitchen/oven/door", "cellar"):
        mqtt.publish(f"{unique}/{topic}", b"")
    assert [mqtt.receive().topic for _ in expected] == [f"{unique}/{topic}" for topic in expected]
    sentinel = f"{unique}/{expected[0]}"
    mqtt.publish(sentinel, b"last")
    assert mqtt.receive() == (sentinel, b"last", 0, False)


# mosquitto is left out, because mosquitto_sub cannot unsubscribe while it runs.
@pytest.mark.parametrize("mqtt_name", [name for name in MQTT if "mosquitto" not in name])
def test_unsubscribed_filter_receives_nothing(mqtt: MqttClient, unique: str) -> None:
    mqtt.subscribe(f"{unique}/a", 1)
    mqtt.subscribe(f"{unique}/b", 1)
    mqtt.unsubscribe(f"{unique}/a")
    mqtt.publish(f"{unique}/a", b"", 1)
    mqtt.publish(f"{unique}/b", b"", 1)
    assert mqtt.receive().topic == f"{unique}/b"


def test_retained_message_reaches_new_subscriptions_until_it_is_cleared(
    mqtt: MqttClient, mqtt_name: str, mqtt_peer: MqttPeers, unique: str
) -> None:
    topic = f"{unique}/lamp/state"
    mqtt.publish(topic, b"off", 1, retain=True)
    mqtt.publish(topic, b"on", 1, retain=True)
    for topic_filter in (topic, f"{unique}/+/state", f"{unique}/#"):
        late = mqtt_peer(mqtt_name)
        late.subscribe(topic_filter, 1)
        assert late.receive() == (topic, b"on", 1, True)
        mqtt.publish(topic, b"on", 1, retain=True)
        # The message comes without the retain flag, because the subscription existed when it was
        # published.
        assert late.receive() == (topic, b"on", 1, False)
    mqtt.publish(topic, b"", 1, retain=True)
    too_late = mqtt_peer(mqtt_name)
    too_late.subscribe(f"{unique}/#", 1)
    mqtt.publish(topic, b"live", 1)
    assert too_late.receive() == (topic, b"live", 1, False)


def test_large_retained_message_arrives_whole(
    mqtt: MqttClient, mqtt_name: str, mqtt_peer: MqttPeers, unique: str
) -> None:
    payload = bytes(range(256)) * 1_200
    mqtt.publish(unique, payload, 1, retain=True)
    late = mqtt_peer(mqtt_name)
    late.subscribe(unique, 1)
    assert late.receive() == (unique, payload, 1, True)
    mqtt.publish(unique, b"", retain=True)


@pytest.mark.parametrize("retain", [False, True])
def test_will_is_published_when_the_client_is_lost(
    mqtt_name: str, mqtt_peer: MqttPeers, retain: bool, unique: str
) -> None:
    witness = mqtt_peer("paho")
    witness.subscribe(f"{unique}/#", 1)
    mortal = mqtt_peer(mqtt_name, will=Will(f"{unique}/will", b"gone", 1, retain))
    mortal.subscribe(f"{unique}/elsewhere")
    mortal.abort()
    assert witness.receive() == (f"{unique}/will", b"gone", 1, False)
    late = mqtt_peer("paho")
    late.subscribe(f"{unique}/#", 1)
    witness.publish(f"{unique}/later", b"", 1)
    assert late.receive() == (
        (f"{unique}/will", b"gone", 1, True) if retain else (f"{unique}/later", b"", 1, False)
    )


# mosquitto5 is left out, because it sends a DISCONNECT with will message (0x04).
@pytest.mark.parametrize("mqtt_name", [name for name in MQTT if name != "mosquitto5"])
def test_disconnect_discards_the_will(mqtt_name: str, mqtt_peer: MqttPeers, unique: str) -> None:
    witness = mqtt_peer("paho")
    witness.subscribe(f"{unique}/#", 1)
    polite = mqtt_peer(mqtt_name, client_id=unique, will=Will(f"{unique}/will", b"gone", 1))
    polite.subscribe(f"{unique}/elsewhere")
    polite.disconnect()
    # The broker accepts a new connection with this identifier only after the old one has ended.
    mqtt_peer(mqtt_name, client_id=unique).subscribe(f"{unique}/elsewhere")
    witness.publish(f"{unique}/later", b"", 1)
    assert witness.receive().topic == f"{unique}/later"


@pytest.mark.parametrize("end", ["disconnect", "abort"])
def test_persistent_session_queues_messages_while_disconnected(
    mqtt_name: str, mqtt_peer: MqttPeers, end: str, unique: str
) -> None:
    sender = mqtt_peer("paho")
    client = mqtt_peer(mqtt_name, client_id=unique, clean=False)
    assert client.session_present in (False, None)
    client.subscribe(f"{unique}/#", 2)
    client.disconnect() if end == "disconnect" else client.abort()
    for qos in (1, 2):
        sender.publish(f"{unique}/{qos}", b"kept", qos)
    client = mqtt_peer(mqtt_name, client_id=unique, clean=False)
    assert client.session_present in (True, None)
    client.subscribe(f"{unique}/#", 2)
    assert [client.receive() for _ in range(2)] == [
        Received(f"{unique}/{qos}", b"kept", qos, False) for qos in (1, 2)
    ]
    client.disconnect()
    client = mqtt_peer(mqtt_name, client_id=unique, clean=True)
    assert client.session_present in (False, None)
    sender.publish(f"{unique}/clean", b"missed", 1)
    client.subscribe(f"{unique}/#", 1)
    sender.publish(f"{unique}/clean", b"delivered", 1)
    assert client.receive().payload == b"delivered"


def test_newer_connection_takes_over_the_session_and_closes_the_older_one(
    mqtt_name: str, mqtt_peer: MqttPeers, unique: str
) -> None:
    sender = mqtt_peer("paho")
    older = mqtt_peer(mqtt_name, client_id=unique)
    older.subscribe(unique, 1)
    newer = mqtt_peer(mqtt_name, client_id=unique)
    newer.subscribe(unique, 1)
    sender.publish(unique, b"for the newer", 1)
    assert newer.receive().payload == b"for the newer"
    older.wait_until_closed()


def test_libraries_report_a_refused_login(
    mqtt_name: str, mqtt_peer: MqttPeers, unique: str
) -> None:
    for user, password in (("guest", "wrong"), ("absent", "guest")):
        with pytest.raises(LoginRefused, match=BAD_CREDENTIALS):
            mqtt_peer(mqtt_name, user=user, password=password).publish(unique, b"")


def test_right_password_is_accepted(mqtt_name: str, mqtt_peer: MqttPeers, unique: str) -> None:
    client = mqtt_peer(mqtt_name, user="guest", password="guest")
    client.subscribe(unique, 1)
    client.publish(unique, b"in", 1)
    assert client.receive().payload == b"in"


@pytest.mark.long
def test_pings_keep_an_idle_connection(mqtt_name: str, mqtt_peer: MqttPeers, unique: str) -> None:
    client = mqtt_peer(mqtt_name, keep_alive=2)
    client.subscribe(unique, 1)
    client.idle(5)
    client.publish(unique, b"still there", 1)
    assert client.receive().payload == b"still there"
