"""The scenarios of Eclipse's interoperability suite (paho.mqtt.testing), with the settings of
config/conformance.toml: 10 scenarios for MQTT 3.1.1, 27 for MQTT 5.

The tests are new implementations of the steps of each scenario (client_test5.py of commit
1bfd446d), without the suite's delays.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import mqtt5

from protocols.mqtt.options import MqttOptions
from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    ACCEPTED,
    DISCONNECT,
    RESUMED,
    RETAIN,
    Client,
    Will,
    connect,
    packets,
    publications,
    suback,
    subscribe,
    unsubscribe,
)
from tests.wire.mqtt5.client import Client5, publish, subscription

PROFILE = Path(__file__).parents[3] / "config" / "conformance.toml"
TOPICS = ("TopicA", "TopicA/B", "Topic/C", "TopicA/C", "/TopicA")
KEPT: dict[str, Any] = {"session_expiry_interval": 100}


def world() -> World:
    """Return a broker with the settings of config/conformance.toml."""
    options = MqttOptions()
    settings = tomllib.loads(PROFILE.read_text())["mqtt"]
    options.receive_maximum = settings["receive_maximum"]
    options.keep_alive_max = settings["keep_alive_max"]
    options.topic_alias_maximum = settings["topic_alias_maximum"]
    options.no_subscribe = settings["no_subscribe"]
    return World(mqtt=options)


# -- 3.1.1


class TestOf311:
    def test_basic(self) -> None:
        client = Client(world(), connect("myclientid"))
        client.send(subscribe(1, (TOPICS[0], 2)))
        data = client.send(*[mqtt_publish(TOPICS[0], b"qos %d" % qos, qos, 1) for qos in range(3)])
        assert [one.body for one in publications(data)] == [b"qos 0", b"qos 1", b"qos 2"]
        client.send(connect("myclientid"))
        assert client.closed == "protocol_error"
        assert Client(world(), connect("c", name=b"hj")).closed == "protocol_error"

    def test_retained_messages(self) -> None:
        broker = world()
        client = Client(broker, connect("a"))
        for qos in range(3):
            client.send(mqtt_publish(TOPICS[qos + 1], b"qos %d" % qos, qos, 1, RETAIN))
        heard = publications(client.send(subscribe(1, ("+/+", 2))))
        assert sorted((one.qos, one.retain) for one in heard) == [(0, True), (1, True), (2, True)]
        for qos in range(3):
            client.send(mqtt_publish(TOPICS[qos + 1], b"", qos, 2, RETAIN))
        assert publications(Client(broker, connect("b")).send(subscribe(1, ("+/+", 2)))) == []

    def test_zero_length_clientid(self) -> None:
        assert Client(world(), connect("", clean=False)).greeting == b"\x20\x02\x00\x02"
        assert Client(world(), connect("")).greeting == ACCEPTED

    def test_offline_message_queueing(self) -> None:
        broker = world()
        client = Client(broker, connect("a", clean=False))
        client.send(subscribe(1, ("+/+", 2)), DISCONNECT)
        Client(broker, connect("b")).send(
            *[mqtt_publish(TOPICS[qos + 1], b"", qos, 1) for qos in range(3)]
        )
        assert [
            one.qos for one in publications(Client(broker, connect("a", clean=False)).greeting)
        ] == [1, 2]

    def test_will_message(self) -> None:
        broker = world()
        watcher = Client(broker, connect("b"))
        watcher.send(subscribe(1, (TOPICS[2], 2)))
        Client(broker, connect("a", will=Will(TOPICS[2], b"client not disconnected"))).vanish()
        assert [one.body for one in publications(watcher.read())] == [b"client not disconnected"]

    def test_overlapping_subscriptions(self) -> None:
        client = Client(world(), connect("a"))
        client.send(subscribe(1, ("TopicA/#", 2), ("TopicA/+", 1)))
        assert [
            one.qos for one in publications(client.send(mqtt_publish(TOPICS[3], b"", 2, 1)))
        ] == [2]

    def test_keepalive(self) -> None:
        broker = world()
        watcher = Client(broker, connect("b", keep_alive=0))
        watcher.send(subscribe(1, (TOPICS[4], 2)))
        client = Client(
            broker, connect("a", keep_alive=5, will=Will(TOPICS[4], b"keepalive expiry"))
        )
        broker.sleep(7_500)
        client.connection.advance(int(broker.broker.agenda.now))
        assert [one.body for one in publications(watcher.read())] == [b"keepalive expiry"]

    def test_redelivery_on_reconnect(self) -> None:
        broker = world()
        client = Client(broker, connect("b", clean=False))
        client.send(subscribe(1, ("TopicA/#", 2)))
        client.send(mqtt_publish(TOPICS[1], b"", 1, 1), mqtt_publish(TOPICS[3], b"", 2, 2))
        client.vanish()
        greeting = Client(broker, connect("b", clean=False)).greeting
        assert greeting.startswith(RESUMED)
        assert [(one.qos, one.dup) for one in publications(greeting)] == [(1, True), (2, True)]

    def test_subscribe_failure(self) -> None:
        assert Client(world(), connect("a")).send(subscribe(1, ("test/nosubscribe", 2))) == suback(
            1, 0x80
        )

    def test_dollar_topics(self) -> None:
        client = Client(world(), connect("a"))
        client.send(subscribe(1, ("+/+", 2)))
        assert publications(client.send(mqtt_publish("$" + TOPICS[1], b"", 1, 1))) == []

    def test_unsubscribe(self) -> None:
        client = Client(world(), connect("a"))
        client.send(subscribe(1, *[(topic, 2) for topic in TOPICS[:3]]), unsubscribe(2, TOPICS[0]))
        data = client.send(*[mqtt_publish(topic, b"", 1, 1) for topic in TOPICS[:3]])
        assert [one.topic for one in publications(data)] == list(TOPICS[1:3])


# -- 5


class TestOf5:
    def test_basic(self) -> None:
        client = Client5(world())
        client.subscribe(subscription(TOPICS[0], 2))
        got = client.send(*[publish(TOPICS[0], b"qos %d" % qos, qos) for qos in range(3)])
        assert [one.payload for one in got if isinstance(one, mqtt5.PublishPacket)] == [
            b"qos 0",
            b"qos 1",
            b"qos 2",
        ]

    def test_retained_message(self) -> None:
        client = Client5(world())
        for qos in range(3):
            client.send(
                publish(
                    TOPICS[qos + 1],
                    b"x",
                    qos,
                    retain=True,
                    user_properties=[("a", "2"), ("c", "3")],
                )
            )
        _, *kept = client.subscribe(subscription("+/+", 2))
        assert sorted(int(one.qos) for one in kept) == [0, 1, 2]
        assert [one.user_properties for one in kept] == [[("a", "2"), ("c", "3")]] * 3

    def test_will_message(self) -> None:
        broker = world()
        watcher = Client5(broker, "b")
        watcher.subscribe(subscription(TOPICS[2]))
        Client5(
            broker,
            "a",
            will=mqtt5.Will(TOPICS[2], payload=b"gone", user_properties=[("a", "2"), ("c", "3")]),
        ).vanish()
        assert [(one.payload, one.user_properties) for one in watcher.publications()] == [
            (b"gone", [("a", "2"), ("c", "3")])
        ]

    def test_zero_length_clientid(self) -> None:
        for clean in (False, True):
            assert Client5(world(), "", clean=clean).connack.assigned_client_id

    def test_assigned_clientid(self) -> None:
        broker = world()
        first = Client5(broker, "", **KEPT)
        name = first.connack.assigned_client_id
        first.vanish()
        again = Client5(broker, name, clean=False, **KEPT)
        assert (again.connack.session_present, again.connack.assigned_client_id) == (True, None)

    def test_offline_message_queueing(self) -> None:
        broker = world()
        client = Client5(broker, "a", **KEPT)
        client.subscribe(subscription("+/+"))
        client.send(mqtt5.DisconnectPacket())
        Client5(broker, "b").send(*[publish(TOPICS[qos + 1], b"", qos) for qos in range(3)])
        assert [int(one.qos) for one in Client5(broker, "a", clean=False, **KEPT).greeting[1:]] == [
            1,
            2,
        ]

    def test_overlapping_subscriptions(self) -> None:
        client = Client5(world())
        client.subscribe(subscription("TopicA/#", 2), subscription("TopicA/+", 1))
        assert [
            int(one.qos)
            for one in client.send(publish(TOPICS[3], b"", 2))
            if isinstance(one, mqtt5.PublishPacket)
        ] == [2]

    def test_keepalive(self) -> None:
        broker = world()
        watcher = Client5(broker, "b")
        watcher.subscribe(subscription(TOPICS[4]))
        client = Client5(
            broker, "a", keep_alive=5, will=mqtt5.Will(TOPICS[4], payload=b"keepalive expiry")
        )
        broker.sleep(7_500)
        client.connection.advance(int(broker.broker.agenda.now))
        assert watcher.bodies() == [b"keepalive expiry"]

    def test_redelivery_on_reconnect(self) -> None:
        broker = world()
        client = Client5(broker, "b", **KEPT)
        client.subscribe(subscription("TopicA/#", 2))
        client.send(publish(TOPICS[1], b"", 1, 1), publish(TOPICS[3], b"", 2, 2))
        client.vanish()
        assert [
            (int(one.qos), one.duplicate)
            for one in Client5(broker, "b", clean=False, **KEPT).greeting[1:]
        ] == [(1, True), (2, True)]

    def test_subscribe_failure(self) -> None:
        assert Client5(world()).subscribe(subscription("test/nosubscribe")) == [[0x80]]

    def test_dollar_topics(self) -> None:
        client = Client5(world())
        client.subscribe(subscription("+/+"))
        [answer] = client.send(publish("$" + TOPICS[1], b"", 1))
        assert isinstance(answer, mqtt5.PubAckPacket)

    def test_unsubscribe(self) -> None:
        client = Client5(world())
        client.subscribe(*[subscription(topic, 0) for topic in TOPICS[:3]])
        client.send(mqtt5.UnsubscribePacket(2, [TOPICS[0]]))
        got = client.send(*[publish(topic) for topic in TOPICS[:3]])
        assert [one.topic for one in got] == list(TOPICS[1:3])

    def test_session_expiry(self) -> None:
        broker = world()
        for expiry, after, present in ((0, 0, False), (5, 2, True), (5, 6, False), (5, 0, True)):
            Client5(broker, "a", session_expiry_interval=expiry).send(mqtt5.DisconnectPacket())
            broker.sleep(after * 1_000)
            again = Client5(broker, "a", clean=False, session_expiry_interval=expiry)
            assert again.connack.session_present is present
            again.send(mqtt5.DisconnectPacket(session_expiry_interval=0))
            assert (
                Client5(broker, "a", clean=False, session_expiry_interval=1).connack.session_present
                is False
            )
        Client5(broker, "a", session_expiry_interval=1).send(
            mqtt5.DisconnectPacket(session_expiry_interval=5)
        )
        broker.sleep(3_000)
        again = Client5(broker, "a", clean=False, session_expiry_interval=1)
        assert again.connack.session_present is True
        again.send(mqtt5.DisconnectPacket(session_expiry_interval=0))
        assert (
            Client5(broker, "a", clean=False, session_expiry_interval=1).connack.session_present
            is False
        )

    def test_shared_subscriptions(self) -> None:
        broker = world()
        one, two, writer = Client5(broker, "1"), Client5(broker, "2"), Client5(broker, "w")
        for client in (one, two):
            client.subscribe(
                subscription("$share/sharename/+/+", 2), subscription("TopicA/#", 2, handling=2)
            )
        writer.send(publish("x/y", b"shared", 1), publish("TopicA/B", b"both", 1, 2))
        heard = one.bodies() + two.bodies()
        assert sorted(heard) == [b"both"] * 3 + [b"shared"]

    def test_user_properties(self) -> None:
        client = Client5(world())
        client.subscribe(subscription(TOPICS[0]))
        pairs = [("a", "2"), ("c", "3")]
        got = client.send(
            *[publish(TOPICS[0], b"", qos, user_properties=pairs) for qos in range(3)]
        )
        assert [one.user_properties for one in got if isinstance(one, mqtt5.PublishPacket)] == [
            pairs
        ] * 3

    def test_payload_format(self) -> None:
        client = Client5(world())
        client.subscribe(subscription(TOPICS[0]))
        got = client.send(
            *[
                publish(TOPICS[0], b"", qos, payload_format_indicator=1, content_type="My name")
                for qos in range(3)
            ]
        )
        received = [
            (one.payload_format_indicator, one.content_type)
            for one in got
            if isinstance(one, mqtt5.PublishPacket)
        ]
        assert received == [(1, "My name")] * 3

    def test_publication_expiry(self) -> None:
        broker = world()
        reader = Client5(broker, "b", **KEPT)
        reader.subscribe(subscription(TOPICS[0]))
        reader.send(mqtt5.DisconnectPacket())
        writer = Client5(broker, "a")
        for number, (qos, seconds) in enumerate([(1, 1), (2, 1), (1, 6), (2, 6)], start=1):
            writer.send(
                publish(TOPICS[0], b"%d" % seconds, qos, number, message_expiry_interval=seconds)
            )
        broker.sleep(3_000)
        got = Client5(broker, "b", clean=False, **KEPT).greeting[1:]
        assert [(one.payload, one.message_expiry_interval) for one in got] == [(b"6", 3), (b"6", 3)]

    def test_request_response(self) -> None:
        broker = world()
        asking, answering = Client5(broker, "a"), Client5(broker, "b")
        for client in (asking, answering):
            client.subscribe(subscription(TOPICS[0], 2, no_local=True))
        asking.send(
            publish(TOPICS[0], b"request", 1, response_topic=TOPICS[0], correlation_data=b"334")
        )
        [question] = answering.publications()
        answering.send(
            publish(
                question.response_topic,
                b"response",
                1,
                response_topic=question.response_topic,
                correlation_data=question.correlation_data,
            )
        )
        assert [(one.payload, one.correlation_data) for one in asking.publications()] == [
            (b"response", b"334")
        ]

    def test_client_topic_alias(self) -> None:
        broker = world()
        client = Client5(broker)
        assert client.connack.topic_alias_max == 10
        client.subscribe(subscription(TOPICS[0]))
        got = client.send(
            publish(TOPICS[0], b"1", 1, 1, topic_alias=1), publish("", b"2", 1, 2, topic_alias=1)
        )
        assert [one.payload for one in got if isinstance(one, mqtt5.PublishPacket)] == [b"1", b"2"]
        client.send(mqtt5.DisconnectPacket())
        again = Client5(broker, clean=False, **KEPT)
        [*_, farewell] = again.send(
            publish(TOPICS[0], b"3", 1, 3), publish("", b"4", 1, 4, topic_alias=1)
        )
        # The topic alias ended with its connection, so the broker refuses it now.
        assert int(farewell.reason_code) == 0x82
        for alias in (0, 11):
            data = publish(TOPICS[0], b"", 1, topic_alias=1).replace(
                b"\x23\x00\x01", b"\x23\x00" + bytes([alias])
            )
            assert int(Client5(broker, "d").send(data)[-1].reason_code) == 0x94

    def test_server_topic_alias(self) -> None:
        for most in (1, 0):
            client = Client5(world(), topic_alias_max=most)
            client.subscribe(subscription(TOPICS[0]))
            client.connection.receive_data(
                b"".join(publish(TOPICS[0], b"%d" % qos, qos, qos) for qos in range(3))
            )
            heard = [one for one in packets(client.read_bytes()) if one[0] >> 4 == 3]
            assert [one[0] >> 1 & 3 for one in heard] == [0, 1, 2]
            assert [b"TopicA" in one for one in heard] == (
                [True, False, False] if most else [True] * 3
            )
            assert [b"\x03\x23\x00\x01" in one for one in heard] == [bool(most)] * 3

    def test_maximum_packet_size(self) -> None:
        broker = world()
        client = Client5(broker, max_packet_size=64)
        client.subscribe(subscription(TOPICS[0]))
        got = client.send(publish(TOPICS[0], b"." * 32), publish(TOPICS[0], b"." * 64, 1, 1))
        assert [one.payload for one in got if isinstance(one, mqtt5.PublishPacket)] == [b"." * 32]
        assert client.connack.max_packet_size == 16 << 20

    def test_server_keep_alive(self) -> None:
        assert Client5(world(), keep_alive=120).connack.server_keep_alive == 60

    def test_flow_control2(self) -> None:
        broker = world()
        client = Client5(broker)
        assert client.connack.receive_max == 20
        got = client.send(*[publish(TOPICS[0], b"", 2, number) for number in range(1, 22)])
        assert [int(one.reason_code) for one in got] == [0x10] * 20 + [0x93]
        assert isinstance(got[-1], mqtt5.DisconnectPacket)

    def test_flow_control1(self) -> None:
        broker = world()
        reader, writer = Client5(broker, "r", receive_max=10), Client5(broker, "w")
        reader.subscribe(subscription(TOPICS[0]))
        for number in range(1, 31):
            writer.send(publish(TOPICS[0], b"", 1, number))
        heard = reader.publications()
        assert len(heard) == 10
        count = 10
        while heard:
            one: Any = heard.pop()
            more = reader.send(mqtt5.PubAckPacket(one.packet_id))
            assert len(more) <= 1
            count += len(more)
            heard += more
        assert count == 30

    def test_will_delay(self) -> None:
        broker = world()
        watcher = Client5(broker, "b")
        watcher.subscribe(subscription(TOPICS[0]))
        for delay, expiry, after in ((3, 5, 3), (5, 0, 0), (5, 2, 2)):
            will = mqtt5.Will(TOPICS[0], payload=b"test_will_delay", will_delay_interval=delay)
            Client5(broker, "a", will=will, session_expiry_interval=expiry).vanish()
            if after:
                broker.sleep(after * 1_000 - 1)
                assert watcher.bodies() == []
                broker.sleep(1)
                broker.turn()
            assert watcher.bodies() == [b"test_will_delay"]

    def test_subscribe_options(self) -> None:
        broker = world()
        one, two = Client5(broker, "1"), Client5(broker, "2")
        for client in (one, two):
            client.subscribe(subscription(TOPICS[0], 2, no_local=True))
        assert [type(got) for got in one.send(publish(TOPICS[0], b"noLocal test", 1))] == [
            mqtt5.PubAckPacket
        ]
        assert two.bodies() == [b"noLocal test"]
        two.subscribe(subscription(TOPICS[0], 2, as_published=True))
        one.send(publish(TOPICS[0], b"", 1, 2), publish(TOPICS[0], b"x", 1, 3, retain=True))
        assert [got.retain for got in two.publications()] == [False, True]
        counts = [
            len(two.subscribe(subscription("+", 0, handling=handling))) - 1
            for handling in (1, 1, 2, 0, 0)
        ]
        assert counts == [1, 0, 0, 1, 1]

    def test_subscribe_identifiers(self) -> None:
        broker = world()
        one, two = Client5(broker, "1"), Client5(broker, "2")
        one.subscribe(subscription(TOPICS[0], 2), identifier=456_789)
        two.subscribe(subscription(TOPICS[0], 2), identifier=2)
        two.subscribe(subscription(f"{TOPICS[0]}/#", 2), identifier=3)
        [got] = [
            answer
            for answer in two.send(publish(TOPICS[0], b"x", 1))
            if isinstance(answer, mqtt5.PublishPacket)
        ]
        assert sorted(got.subscription_ids) == [2, 3]
        assert [other.subscription_ids for other in one.publications()] == [[456_789]]


def test_all_scenarios_are_there() -> None:
    """There are 27 tests for the 27 scenarios for MQTT 5.

    There are 11 tests for MQTT 3.1.1: 10 scenarios, and one test of UNSUBSCRIBE.
    """
    assert sum(name.startswith("test_") for name in vars(TestOf5)) == 27
    assert sum(name.startswith("test_") for name in vars(TestOf311)) == 11
