"""Tests of MQTT 3.1.1: the bytes with which the broker answers the bytes of a client.

Some messages cross to AMQP.
"""

from __future__ import annotations

import pamqp.commands as spec

from tests.clients import World, mqtt_publish, packet, text


def test_connect_subscribe_publish_qos_0() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    assert reader.greeting == b"\x20\x02\x00\x00"
    assert reader.subscribe("home/+/temp", 0) == b"\x90\x03\x00\x01\x00"
    assert (
        writer.send(
            mqtt_publish("home/x/temp", b"1")
            + mqtt_publish("home/y/temp", b"2")
            + mqtt_publish("other", b"3")
        )
        == b""
    )
    assert reader.read() == mqtt_publish("home/x/temp", b"1") + mqtt_publish("home/y/temp", b"2")
    assert world.fates() == {"routed": 2, "unroutable": 1}


def test_qos_1_is_acknowledged_on_both_sides() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("a/#", 1)
    assert writer.send(mqtt_publish("a", b"x", 1, 77)) == b"\x40\x02\x00\x4d"
    assert reader.read() == mqtt_publish("a", b"x", 1, 1)
    inbox = world.inbox("r")
    assert inbox.unacked == 1
    reader.send(b"\x40\x02\x00\x01")
    assert inbox.unacked == 0


def test_qos_2_arrives_once_though_sent_twice() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("a", 2)
    assert writer.send(mqtt_publish("a", b"x", 2, 5)) == b"\x50\x02\x00\x05"
    assert writer.send(mqtt_publish("a", b"x", 2, 5, flags=8)) == b"\x50\x02\x00\x05"
    assert writer.send(b"\x62\x02\x00\x05") == b"\x70\x02\x00\x05"
    assert reader.read() == mqtt_publish("a", b"x", 2, 1)
    assert reader.send(b"\x50\x02\x00\x01") == b"\x62\x02\x00\x01"
    assert reader.send(b"\x70\x02\x00\x01") == b""
    assert world.inbox("r").unacked == 0


def test_the_lower_of_both_qos_counts() -> None:
    world = World()
    zero, one, writer = world.mqtt("0"), world.mqtt("1"), world.mqtt("w")
    zero.subscribe("a", 0)
    one.subscribe("a", 1)
    writer.send(mqtt_publish("a", b"x", 2, 1))
    assert (zero.read(), one.read()) == (mqtt_publish("a", b"x"), mqtt_publish("a", b"x", 1, 1))
    writer.send(mqtt_publish("a", b"y"))
    assert (zero.read(), one.read()) == (mqtt_publish("a", b"y"), mqtt_publish("a", b"y"))


def test_overlapping_subscriptions_deliver_once_with_the_highest_qos() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("a/+", 0)
    reader.subscribe("a/b", 1)
    writer.send(mqtt_publish("a/b", b"x", 1, 1))
    assert reader.read() == mqtt_publish("a/b", b"x", 1, 1)


def test_retained_messages_reach_later_subscribers_with_the_retain_flag() -> None:
    world = World()
    writer = world.mqtt("w")
    writer.send(mqtt_publish("home/door", b"open", 1, 1, flags=1))
    late = world.mqtt("late")
    assert late.subscribe("home/#", 1) == b"\x90\x03\x00\x01\x01" + mqtt_publish(
        "home/door", b"open", 1, 1, flags=1
    )
    writer.send(mqtt_publish("home/door", b"", flags=1))
    assert world.mqtt("later").subscribe("home/#", 1) == b"\x90\x03\x00\x01\x01"


def test_a_retained_message_can_be_acknowledged_by_every_later_session() -> None:
    world = World()
    keeper, writer = world.mqtt("k", clean=False), world.mqtt("w")
    keeper.subscribe("a", 1)
    writer.send(mqtt_publish("a", b"1", 1, 1, flags=1))
    keeper.send(b"\x40\x02\x00\x01")
    late = world.mqtt("late", clean=False)
    late.subscribe("a", 1)
    late.send(b"\x40\x02\x00\x01")
    assert world.inbox("late").unacked == 0


def test_persistent_session_keeps_messages_and_resends_those_in_flight() -> None:
    world = World()
    reader, writer = world.mqtt("r", clean=False), world.mqtt("w")
    reader.subscribe("a", 1)
    writer.send(mqtt_publish("a", b"1", 1, 1))
    assert reader.read() == mqtt_publish("a", b"1", 1, 1)
    reader.connection.on_closed()
    writer.send(mqtt_publish("a", b"2", 1, 2))
    again = world.mqtt("r", clean=False)
    assert again.greeting == b"\x20\x02\x01\x00" + mqtt_publish(
        "a", b"1", 1, 1, flags=8
    ) + mqtt_publish("a", b"2", 1, 2)


def test_puback_of_a_message_for_a_persistent_session_waits_for_the_store() -> None:
    world = World()
    reader, writer = world.mqtt("r", clean=False), world.mqtt("w")
    reader.subscribe("a", 1)
    world.slow_disk = True
    assert writer.send(mqtt_publish("a", b"1", 1, 9)) == b""
    world.durable()
    assert writer.read() == b"\x40\x02\x00\x09"


def test_the_will_is_published_unless_disconnect_comes_first() -> None:
    world = World()
    reader = world.mqtt("r")
    reader.subscribe("gone", 0)
    polite, rude = world.mqtt("p", will=("gone", b"p")), world.mqtt("q", will=("gone", b"q"))
    polite.send(b"\xe0\x00")
    assert polite.connection.finished
    polite.connection.on_closed()
    rude.connection.on_closed()
    assert reader.read() == mqtt_publish("gone", b"q")


def test_a_second_connection_takes_the_session_over() -> None:
    world = World()
    first = world.mqtt("same", clean=False)
    world.mqtt("same", clean=False)
    assert first.connection.finished


def test_silence_longer_than_one_and_a_half_keep_alives_ends_the_connection() -> None:
    world = World()
    client = world.mqtt("c")
    world.sleep(80_000)
    client.send(b"\xc0\x00")
    world.sleep(89_000)
    client.connection.advance(int(world.broker.agenda.now))
    assert not client.connection.finished
    assert client.connection.deadline == world.broker.agenda.now + 1_000
    world.sleep(1_000)
    client.connection.advance(int(world.broker.agenda.now))
    assert client.connection.finished and client.connection.reason == "keep_alive_timeout"


def test_a_leading_wildcard_does_not_match_dollar_topics() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("#", 0)
    reader.subscribe("$dev/x", 0)
    writer.send(mqtt_publish("$dev/x", b"1") + mqtt_publish("$dev/y", b"2"))
    assert reader.read() == mqtt_publish("$dev/x", b"1")


def test_a_dot_in_a_topic_is_no_level() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("a/+", 0)
    writer.send(mqtt_publish("a/b.c", b"1") + mqtt_publish("a/b/c", b"2"))
    assert reader.read() == mqtt_publish("a/b.c", b"1")


def test_unsubscribe_ends_delivery() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("a", 0)
    writer.send(mqtt_publish("a", b"1"))
    reader.read()
    assert reader.send(packet(0xA2, b"\x00\x02" + text("a"))) == b"\xb0\x02\x00\x02"
    writer.send(mqtt_publish("a", b"2"))
    assert reader.read() == b""


def test_a_slow_qos_0_reader_loses_messages_and_they_are_counted() -> None:
    world = World()
    reader, writer = world.mqtt("r"), world.mqtt("w")
    reader.subscribe("a", 0)
    reader.connection.pause_writing()
    writer.send(mqtt_publish("a", b"1") * 3)
    reader.connection.resume_writing()
    session = world.mqtt_front.sessions.find(world.vhost, "r")
    assert session is not None
    assert (reader.read(), session.dropped) == (b"", 3)


def test_garbage_ends_the_connection() -> None:
    client = World().mqtt("c")
    client.send(b"\xf0\x00")
    assert client.connection.finished


def test_mqtt_publish_reaches_an_amqp_queue() -> None:
    world = World()
    amqp, mqtt = world.amqp(), world.mqtt("m")
    amqp.queue("q", "amq.topic", "sensor.#")
    amqp.send(spec.Basic.Consume(queue="q", consumer_tag="t"))
    mqtt.send(mqtt_publish("sensor/7/temp", b"21.5") + mqtt_publish("sensor/8/temp", b"22", 1, 1))
    frames = amqp.read()
    assert [f.routing_key for f in frames if isinstance(f, spec.Basic.Deliver)] == [
        "sensor.7.temp",
        "sensor.8.temp",
    ]
    assert amqp.bodies(frames) == [b"21.5", b"22"]
    assert [f.properties.delivery_mode for f in frames if f.name == "ContentHeader"] == [1, 2]


def test_amqp_publish_reaches_mqtt_sessions_with_the_right_qos() -> None:
    world = World()
    amqp, zero, one = world.amqp(), world.mqtt("0"), world.mqtt("1")
    zero.subscribe("sensor/+/temp", 0)
    one.subscribe("sensor/+/temp", 1)
    amqp.publish("amq.topic", "sensor.7.temp", b"21.5", delivery_mode=2)
    assert (zero.read(), one.read()) == (
        mqtt_publish("sensor/7/temp", b"21.5"),
        mqtt_publish("sensor/7/temp", b"21.5", 1, 1),
    )
    amqp.publish("amq.topic", "sensor.7.temp", b"22")
    assert (zero.read(), one.read()) == (
        mqtt_publish("sensor/7/temp", b"22"),
        mqtt_publish("sensor/7/temp", b"22"),
    )
    assert world.fates() == {"routed": 2}
