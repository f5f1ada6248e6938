"""A CONNACK is the first packet of every connection; in MQTT 5, only AUTH comes before it.

A state machine of hypothesis mixes all events that can make the broker write to a client: relays,
inboxes, retained messages, shared subscriptions, wills, $SYS, take-overs, time limits, changed
permissions, alarms and a shutdown. Meanwhile the disk and the checks of credentials are slow.
[MQTT-3.2.0-1], [MQTT-3.1.4-5]
"""

from __future__ import annotations

from typing import Any, Final

import mqtt5
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.access.identity import Identity
from broker.messages.outlet import TURN_BYTES
from protocols.connection import Connection
from protocols.end_reasons import EXPELLED, SHUTDOWN, TOO_FAST
from tests.clients import Amqp, World, mqtt_publish
from tests.wire.mqtt.client import (
    PINGREQ,
    Client,
    Will,
    connect,
    packets,
    pubrec,
    subscribe,
)
from tests.wire.mqtt5.client import subscription
from tests.wire.mqtt5.test_auth import Riddling, auth

CONNACK, AUTH = 2, 15
NAMES: Final = st.sampled_from(["a", "b", ""])
LEVELS: Final = st.sampled_from([4, 5])
WAYS: Final = st.sampled_from([EXPELLED, TOO_FAST, SHUTDOWN])
SUBSCRIBE: Final = subscribe(9, ("t", 2), ("r", 2), ("q", 0))
#: Input that a client sends behind its CONNECT, without waiting for the CONNACK.
BEHIND: Final = st.sampled_from(
    [
        b"",
        PINGREQ,
        SUBSCRIBE,
        SUBSCRIBE,
        mqtt_publish("t", b"early", 1, 1),
        mqtt_publish("t", b"early", 2, 2),
        b"\x00\x00",
        connect("a"),
    ]
)


class Conversation:
    """One connection, and all the bytes that the broker has sent over it."""

    def __init__(self, connection: Connection, level: int, first: bytes) -> None:
        self.connection = connection
        self.level = level
        self.first = first
        self.heard = b""


class Broker(RuleBasedStateMachine):
    """A broker with a slow disk, and clients that keep connecting as `a`, `b` or without a name."""

    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.guests = Riddling()
        self.world.broker.authenticator = self.guests
        self.guests.identities["other"] = Identity("other")
        self.publisher: Amqp = self.world.amqp(user="other")
        self.watcher = Client(self.world, connect("watcher", user="other", password=b"guest"))
        self.conversations: list[Conversation] = []
        for name in ("a", "b"):
            self.connect(name, 4, False, False, b"", SUBSCRIBE)
        self.world.slow_disk = True

    def latest(self, at: int) -> Conversation:
        return self.conversations[-1 - at % min(4, len(self.conversations))]

    def read(self) -> None:
        for one in self.conversations:
            one.heard += one.connection.data_to_send()

    # -- clients

    @rule(
        name=NAMES,
        level=LEVELS,
        clean=st.sampled_from([False, False, True]),
        will=st.sampled_from([True, True, False]),
        behind=BEHIND,
    )
    def connect(
        self,
        name: str,
        level: int,
        clean: bool,
        will: bool,
        behind: bytes,
        more: bytes = b"",
    ) -> None:
        if level == 4:
            first = connect(
                name,
                clean=clean or not name,
                will=Will("t", b"will", 1, True) if will else None,
                keep_alive=10,
            )
        else:
            first = mqtt5.ConnectPacket(
                name,
                clean_start=clean,
                keep_alive=10,
                session_expiry_interval=100,
                receive_max=2,
                will=mqtt5.Will(topic="t", payload=b"will") if will else None,
            ).write()
        connection = self.world.raw_mqtt()
        self.conversations.append(Conversation(connection, level, first))
        connection.receive_data(first + behind)
        if more:
            self.world.turn()
            connection.receive_data(more)

    @rule(name=NAMES, data=st.sampled_from([b"hello", b"42", b"no"]), late=st.booleans())
    def begin_conversation(self, name: str, data: bytes, late: bool) -> None:
        self.guests.late = late
        first = mqtt5.ConnectPacket(
            name,
            session_expiry_interval=100,
            authentication_method="RIDDLE",
            authentication_data=data,
        ).write()
        connection = self.world.raw_mqtt()
        self.conversations.append(Conversation(connection, 5, first))
        connection.receive_data(first)

    @rule(at=st.integers(0, 3), data=st.sampled_from([b"42", b"no"]))
    def answer(self, at: int, data: bytes) -> None:
        self.latest(at).connection.receive_data(auth(data))

    @rule()
    def say(self) -> None:
        self.guests.say()

    @rule(at=st.integers(0, 3), data=BEHIND)
    def send(self, at: int, data: bytes) -> None:
        self.latest(at).connection.receive_data(data)

    @rule(at=st.integers(0, 3), number=st.integers(1, 4))
    def acknowledge(self, at: int, number: int) -> None:
        self.latest(at).connection.receive_data(pubrec(number))

    @rule(at=st.integers(0, 3))
    def share(self, at: int) -> None:
        one = self.latest(at)
        if one.level == 5 and not one.connection.stalled and one.connection.admitted:
            packet = mqtt5.SubscribePacket(
                7, [subscription("$share/g/t"), subscription("$SYS/#", 0)]
            )
            one.connection.receive_data(packet.write())

    @rule(at=st.integers(0, 3))
    def vanish(self, at: int) -> None:
        self.latest(at).connection.on_closed()

    @rule(at=st.integers(0, 3), paused=st.booleans())
    def read_slowly(self, at: int, paused: bool) -> None:
        connection = self.latest(at).connection
        if paused:
            connection.pause_writing()
        else:
            connection.resume_writing()

    # -- messages

    @rule(topic=st.sampled_from(["t", "r", "q"]), qos=st.integers(0, 2), kept=st.booleans())
    def publish(self, topic: str, qos: int, kept: bool) -> None:
        packet_id = len(self.conversations) + 1 if qos else 0
        self.watcher.send(mqtt_publish(topic, b"from MQTT", qos, packet_id, int(kept)))

    @rule(name=st.sampled_from(["a", "b"]), level=LEVELS, mode=st.sampled_from([1, 2]))
    def publish_while_a_client_connects(self, name: str, level: int, mode: int) -> None:
        self.connect(name, level, False, True, b"")
        self.publish("q", 0, False)
        self.publish_over_amqp(1, mode)

    @rule(size=st.sampled_from([1, 20_000, int(TURN_BYTES)]), mode=st.sampled_from([1, 2]))
    def publish_over_amqp(self, size: int, mode: int) -> None:
        self.publisher.publish("amq.topic", "t", b"x" * size, delivery_mode=mode)

    # -- the broker

    @rule()
    def turn(self) -> None:
        self.world.settle(*(one.connection for one in self.conversations))

    @rule()
    def durable(self) -> None:
        self.world.durable()

    @rule(slow=st.sampled_from([True, True, False]))
    def disk(self, slow: bool) -> None:
        self.world.slow_disk = slow

    @rule(hold=st.booleans())
    def hold_verdicts(self, hold: bool) -> None:
        self.guests.hold = hold
        if not hold:
            self.guests.decide()

    @rule(seconds=st.sampled_from([1, 1, 16, 200]))
    def sleep(self, seconds: int) -> None:
        self.world.sleep(seconds * 1_000)
        now = int(self.world.broker.agenda.now)
        for one in self.conversations:
            connection = one.connection
            if 0 < connection.deadline <= now and not connection.finished:
                connection.advance(now)

    @rule(at=st.integers(0, 3), way=WAYS)
    def close(self, at: int, way: str) -> None:
        connection = self.latest(at).connection
        if not connection.finished:
            connection.close(way)

    @rule()
    def shut_down(self) -> None:
        for one in self.conversations:
            if not one.connection.finished:
                one.connection.close(SHUTDOWN)

    @rule(present=st.sampled_from([True, True, False]))
    def change_user(self, present: bool) -> None:
        self.guests.identities.pop("guest", None)
        if present:
            self.guests.identities["guest"] = Identity("guest")
        self.world.review()
        self.guests.identities.setdefault("guest", Identity("guest"))

    @rule(on=st.sampled_from([False, False, True]))
    def alarm(self, on: bool) -> None:
        self.world.broker.alarms.set("memory", on)

    # -- the property

    @invariant()
    def connack_is_first(self) -> None:
        self.read()
        for one in self.conversations:
            kinds = [packet[0] >> 4 for packet in packets(one.heard)]
            while one.level == 5 and kinds and kinds[0] == AUTH:
                del kinds[0]
            assert kinds[:1] in ([], [CONNACK]), kinds
            assert kinds.count(CONNACK) <= 1


Broker.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestConnackFirst: Any = Broker.TestCase
