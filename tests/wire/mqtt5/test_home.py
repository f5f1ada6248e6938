"""Tests of the traffic of home automation: discovery topics, wills, take-over, bursts at boot.

One test makes thousands of connections that misbehave.
"""

from __future__ import annotations

import gc
import random

import mqtt5
import pytest

from protocols.mqtt.connection.connection import MqttConnection
from protocols.mqtt.session.session import Session
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import RETAIN, Client, Will, connect, publications, subscribe
from tests.wire.mqtt5.client import Client5, publish, raw_connect, subscription
from tests.wire.mqtt5.test_connect import WRONG as WRONG_CONNECTS
from tests.wire.mqtt5.test_publish import WRONG

DEVICES = 2_000


def test_a_house_comes_up() -> None:
    world = World()
    devices = [
        Client(
            world,
            connect(
                f"device-{number}", will=Will(f"device/{number}/availability", b"offline", 1, True)
            ),
        )
        for number in range(20)
    ]
    for number in range(DEVICES):
        topic = f"homeassistant/sensor/{number}/config"
        devices[number % 20].send(mqtt_publish(topic, b'{"name": "%d"}' % number, 1, 1, RETAIN))
    for number, device in enumerate(devices):
        device.send(mqtt_publish(f"device/{number}/availability", b"online", 1, 2, RETAIN))
    # Home Assistant subscribes to all topics at once, and receives every message, though it reads
    # slowly.
    home = Client5(world, "home", session_expiry_interval=300, receive_max=50)
    heard = home.send(
        mqtt5.SubscribePacket(
            1, [subscription("homeassistant/#", 1), subscription("device/+/availability", 1)]
        )
    )
    topics: list[str] = []
    while heard:
        received = [one for one in heard if isinstance(one, mqtt5.PublishPacket)]
        assert len(received) <= 50
        assert all(one.retain for one in received)
        topics += [one.topic for one in received]
        heard = (
            home.send(*[mqtt5.PubAckPacket(one.packet_id or 0) for one in received])
            if received
            else []
        )
    assert len(topics) == len(set(topics)) == DEVICES + 20
    # All devices lose the network. Some of them connect again before the broker notices: each takes
    # over the session from its own old connection.
    for number in range(0, 20, 2):
        devices[number].vanish()
    again = [
        Client(
            world,
            connect(
                f"device-{number}", will=Will(f"device/{number}/availability", b"offline", 1, True)
            ),
        )
        for number in range(20)
    ]
    states: dict[str, list[bytes]] = {}
    heard = home.read()
    while heard:
        for one in heard:
            assert not one.retain
            states.setdefault(one.topic, []).append(one.payload)
        heard = home.send(*[mqtt5.PubAckPacket(one.packet_id) for one in heard])
    assert states == {f"device/{number}/availability": [b"offline"] for number in range(20)}
    for number, device in enumerate(again):
        device.send(mqtt_publish(f"device/{number}/availability", b"online", 1, 2, RETAIN))
    late = Client(world, connect("late"))
    assert {
        one.body for one in publications(late.send(subscribe(1, ("device/+/availability", 0))))
    } == {b"online"}


@pytest.mark.parametrize("count", [1_000, pytest.param(20_000, marks=pytest.mark.long)])
def test_connections_that_misbehave_leave_no_object(count: int) -> None:
    chance = random.Random(count)
    world = World()
    faults = [
        b"",
        *WRONG,
        publish("a", b"x", 2, 5),
        b"\xe0\x00",
        raw_connect(),
        b"\x30\xff\xff\xff\x7f",
        b"\x32",
    ]
    greetings = [raw_connect(f"c{number}") for number in range(5)] + [
        raw_connect("kept", properties=b"\x11\x00\x00\x00\x01"),
        raw_connect("bad", properties=b"\x21\x00\x00"),
        connect("old"),
        raw_connect(
            "stays",
            flags=6,
            properties=b"\x11\x00\x00\x00\x05",
            payload=b"\x05\x18\x00\x00\x00\x09\x00\x01w\x00\x01x",
        ),
        *[raw_connect("wrong", properties=properties) for properties in WRONG_CONNECTS],
        raw_connect("dies", flags=6, payload=b"\x05\x18\x00\x00\x00\x01\x00\x01w\x00\x01x"),
        b"\x10\x00",
        b"GET /",
        b"",
    ]
    more = [
        mqtt5.SubscribePacket(
            1,
            [subscription("$share/g/a", 1), subscription("a/#", 2, no_local=True)],
            subscription_id=3,
        ).write(),
        publish("a/b", b"x", 1, content_type="t", topic_alias=3),
        publish("a/b", b"x", 0, retain=True, message_expiry_interval=1),
    ]

    def misbehave(times: int) -> None:
        for _ in range(times):
            connection = world.raw_mqtt()
            for data in (
                chance.choice(greetings),
                *chance.sample(more, chance.randrange(4)),
                chance.choice(faults),
            ):
                connection.receive_data(data)
            world.turn()
            connection.data_to_send()
            connection.on_closed()
        for _ in range(5):  # The broker removes expired sessions in slices.
            world.sleep(100_000)
            world.settle()

    misbehave(300)
    gc.collect()
    gc.disable()
    others = {id(one) for one in gc.get_objects() if isinstance(one, (MqttConnection, Session))}
    try:
        # In the compiled broker, messages in flight at the end of a test are not collected, so
        # clients of earlier tests may exist.
        others = {id(one) for one in gc.get_objects() if isinstance(one, (MqttConnection, Session))}
        before = len(gc.get_objects())
        misbehave(count)
        left = [
            one
            for one in gc.get_objects()
            if isinstance(one, (MqttConnection, Session)) and id(one) not in others
        ]
        after = len(gc.get_objects())
    finally:
        gc.enable()
    assert left == []
    assert gc.collect() < 50
    assert after - before < 500
    assert len(world.mqtt_front.sessions) == len(world.mqtt_front.sessions.groups) == 0
    assert len(world.mqtt_front.connections) == 0
    world.fates()
