"""Tests that the broker's output to three clients after each step equals the output of a model."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.clients import World, mqtt_publish
from tests.wire.mqtt.client import (
    ACCEPTED,
    DISCONNECT,
    RESUMED,
    Client,
    Publication,
    Will,
    connect,
    packets,
    puback,
    pubcomp,
    publications,
    pubrec,
    pubrel,
    suback,
    subscribe,
    unsuback,
    unsubscribe,
)

NAMES = st.sampled_from(["1", "2", "3"])
TOPICS = st.sampled_from(["a", "a/b", "b", "$d"])
QOS = st.integers(0, 2)
#: Topic filter -> the topics that it matches.
MATCHES = {
    "a": {"a"},
    "a/#": {"a", "a/b"},
    "+": {"a", "b"},
    "#": {"a", "a/b", "b"},
    "b": {"b"},
    "$d": {"$d"},
    "+/b": {"a/b"},
}
FILTERS = st.sampled_from(sorted(MATCHES))


class Waiting(NamedTuple):
    """A publication that the broker must still deliver to a session, according to the model."""

    topic: str
    body: bytes
    qos: int
    retain: bool


class Session:
    """The model's state of the session of a client identifier."""

    def __init__(self, persistent: bool) -> None:
        self.persistent = persistent
        self.granted: dict[str, int] = {}
        self.waiting: list[Waiting] = []
        #: Packet identifier -> publication, and True if its PUBREC came.
        self.in_flight: dict[int, tuple[Waiting, bool]] = {}
        self.received: set[int] = set()
        self.used = 0


class Here:
    """A connection, and the output that the client must get from it in this step.

    The output has replies, QoS 0 publications and other publications, each kind in its order.
    """

    def __init__(self, client: Client, will: Will | None) -> None:
        self.client = client
        self.will = will
        self.answers: list[bytes] = []
        self.light: list[Publication] = []
        self.kept: list[Publication] = []


class Broker(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.world = World()
        self.sessions: dict[str, Session] = {}
        self.here: dict[str, Here] = {}
        self.retained: dict[str, tuple[bytes, int]] = {}
        self.serial = 0

    # -- the model

    def publish(self, topic: str, body: bytes, qos: int, retain: bool) -> None:
        if retain:
            self.retained.pop(topic, None)
            if body:
                self.retained[topic] = (body, qos)
        for name, session in self.sessions.items():
            granted = [most for one, most in session.granted.items() if topic in MATCHES[one]]
            if granted:
                self.give(name, Waiting(topic, body, min(qos, max(granted)), False))

    def give(self, name: str, message: Waiting) -> None:
        if message.qos:
            self.sessions[name].waiting.append(message)
            self.deliver(name)
        elif name in self.here:
            self.here[name].light.append(
                Publication(message.topic, message.body, 0, 0, message.retain)
            )

    def deliver(self, name: str) -> None:
        session = self.sessions[name]
        if name not in self.here:
            return
        for message in session.waiting:
            session.used += 1
            session.in_flight[session.used] = (message, False)
            self.here[name].kept.append(
                Publication(message.topic, message.body, message.qos, session.used, message.retain)
            )
        session.waiting.clear()

    def leave(self, name: str, will: bool) -> None:
        gone = self.here.pop(name)
        if not self.sessions[name].persistent:
            del self.sessions[name]
        if will and gone.will is not None:
            self.publish(*gone.will)

    def settle(self) -> None:
        """Check that each client received exactly the output that the model expects."""
        self.world.settle()
        for one in self.here.values():
            data = one.client.all()
            heard = publications(data)
            assert [packet for packet in packets(data) if packet[0] >> 4 != 3] == one.answers
            assert [publication for publication in heard if publication.qos == 0] == one.light
            assert [publication for publication in heard if publication.qos] == one.kept
            assert one.client.closed == ""
            one.answers, one.light, one.kept = [], [], []
        assert (
            self.world.mqtt_front.sessions.created
            >= len(self.world.mqtt_front.sessions)
            == len(self.sessions)
        )
        assert len(self.world.vhost.retained) == len(self.retained)
        self.world.fates()

    def body(self, empty: bool = False) -> bytes:
        self.serial += 1
        return b"" if empty else b"%d" % self.serial

    # -- steps of the clients

    @rule(name=NAMES, clean=st.booleans(), will=st.none() | st.tuples(TOPICS, QOS, st.booleans()))
    def connect(self, name: str, clean: bool, will: tuple[str, int, bool] | None) -> None:
        left = Will(will[0], self.body(), will[1], will[2]) if will else None
        old = self.here.get(name)
        client = Client(self.world, b"")
        client.connection.receive_data(connect(name, clean=clean, will=left))
        farewell = old.will if old is not None else None
        if old is not None:
            self.leave(name, will=False)
        present = name in self.sessions and not clean
        if not present:
            self.sessions[name] = Session(not clean)
        session = self.sessions[name]
        here = self.here[name] = Here(client, left)
        here.answers.append(RESUMED if present else ACCEPTED)
        for packet_id, (message, released) in session.in_flight.items():
            if released:
                here.answers.append(pubrel(packet_id))
            else:
                here.kept.append(
                    Publication(
                        message.topic, message.body, message.qos, packet_id, message.retain, True
                    )
                )
        self.deliver(name)
        if farewell is not None:
            self.publish(*farewell)
        self.settle()

    @precondition(lambda self: self.here)
    @rule(choice=st.data(), how=st.sampled_from(["politely", "rudely", "against the rules"]))
    def go(self, choice: st.DataObject, how: str) -> None:
        name = choice.draw(st.sampled_from(sorted(self.here)))
        client = self.here[name].client
        if how == "rudely":
            client.connection.on_closed()
        else:
            client.connection.receive_data(DISCONNECT if how == "politely" else b"\xf0\x00")
        self.leave(name, will=how != "politely")
        self.settle()

    @precondition(lambda self: self.here)
    @rule(
        choice=st.data(),
        wanted=st.lists(
            st.tuples(FILTERS, QOS), min_size=1, max_size=2, unique_by=lambda one: one[0]
        ),
    )
    def subscribe(self, choice: st.DataObject, wanted: list[tuple[str, int]]) -> None:
        name = choice.draw(st.sampled_from(sorted(self.here)))
        here, session = self.here[name], self.sessions[name]
        session.granted.update(wanted)
        data = here.client.send(subscribe(9, *wanted))
        assert suback(9, *[qos for _, qos in wanted]) in data
        expected = [
            (topic, body, min(qos, granted))
            for one, granted in wanted
            for topic, (body, qos) in self.retained.items()
            if topic in MATCHES[one]
        ]
        heard = publications(data)
        assert Counter((one.topic, one.body, one.qos) for one in heard) == Counter(expected)
        for one in (
            heard
        ):  # The order of retained messages is not defined: the model adopts the broker's order.
            assert one.retain
            if one.qos:
                session.used += 1
                session.in_flight[session.used] = (
                    Waiting(one.topic, one.body, one.qos, True),
                    False,
                )
                assert one.packet_id == session.used
        self.settle()

    @precondition(lambda self: self.here)
    @rule(choice=st.data(), some=st.lists(FILTERS, min_size=1, max_size=2))
    def unsubscribe(self, choice: st.DataObject, some: list[str]) -> None:
        name = choice.draw(st.sampled_from(sorted(self.here)))
        for one in some:
            self.sessions[name].granted.pop(one, None)
        self.here[name].client.connection.receive_data(unsubscribe(8, *some))
        self.here[name].answers.append(unsuback(8))
        self.settle()

    @precondition(lambda self: self.here)
    @rule(
        choice=st.data(),
        what=st.tuples(TOPICS, QOS, st.booleans(), st.booleans()),
        packet_id=st.integers(1, 3),
        count=st.integers(1, 3),
    )
    def say(
        self, choice: st.DataObject, what: tuple[str, int, bool, bool], packet_id: int, count: int
    ) -> None:
        topic, qos, retain, empty = what
        name = choice.draw(st.sampled_from(sorted(self.here)))
        here, session = self.here[name], self.sessions[name]
        for _ in range(count):
            body = self.body(empty and retain)
            here.client.connection.receive_data(
                mqtt_publish(topic, body, qos, packet_id if qos else 0, 1 if retain else 0)
            )
            if qos < 2 or packet_id not in session.received:
                self.publish(topic, body, qos, retain)
            if qos:
                here.answers.append(puback(packet_id) if qos == 1 else pubrec(packet_id))
            if qos == 2:
                session.received.add(packet_id)
        self.settle()

    @precondition(lambda self: self.here)
    @rule(choice=st.data(), packet_id=st.integers(1, 3))
    def release(self, choice: st.DataObject, packet_id: int) -> None:
        name = choice.draw(st.sampled_from(sorted(self.here)))
        self.sessions[name].received.discard(packet_id)
        self.here[name].client.connection.receive_data(pubrel(packet_id))
        self.here[name].answers.append(pubcomp(packet_id))
        self.settle()

    @precondition(lambda self: any(self.sessions[name].in_flight for name in self.here))
    @rule(choice=st.data())
    def answer(self, choice: st.DataObject) -> None:
        name = choice.draw(
            st.sampled_from(sorted(name for name in self.here if self.sessions[name].in_flight))
        )
        here, in_flight = self.here[name], self.sessions[name].in_flight
        packet_id = choice.draw(st.sampled_from(sorted(in_flight)))
        message, released = in_flight[packet_id]
        if message.qos == 1:
            here.client.connection.receive_data(puback(packet_id))
            del in_flight[packet_id]
        elif not released:
            here.client.connection.receive_data(pubrec(packet_id))
            here.answers.append(pubrel(packet_id))
            in_flight[packet_id] = (message, True)
        else:
            here.client.connection.receive_data(pubcomp(packet_id))
            del in_flight[packet_id]
        self.settle()


TestThreeClients = Broker.TestCase
TestThreeClients.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
