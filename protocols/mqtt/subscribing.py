"""SUBSCRIBE and UNSUBSCRIBE at work: many topic filters take many turns.

A connection hears nothing else until it has its answer, so that packets keep their order.
"""

from __future__ import annotations

from typing import Final

from broker.access import Identity
from broker.agenda import Task
from broker.errors import AccessRefused
from broker.message import AT_MOST_ONCE, EXACTLY_ONCE
from broker.store.contract import Ticket
from protocols.connection import Connection
from protocols.mqtt.packets import FAILURE, UNSUBACK, MalformedPacket, Reader, suback
from protocols.mqtt.session import Session
from protocols.mqtt.topics import EXCHANGE, TopicRules

#: Topic filters of one packet that are looked at in one turn, and levels of these: what a filter costs grows with them
#: (500 filters of 128 levels take 13 ms uncompiled). One filter is looked at in any case.
SLICE: Final = 500
LEVELS: Final = 5_000


def subscribe(connection: Connection, session: Session, identity: Identity, rules: TopicRules, reader: Reader) -> int:
    """SUBSCRIBE; returns how many topic filters there were. Raises MalformedPacket before anything has changed."""
    packet_id = reader.packet_id()
    granted: list[tuple[str, int]] = []
    codes = bytearray()
    while reader.more:
        topic_filter = reader.text()
        served = rules.check_filter(topic_filter) and _may_subscribe(identity, topic_filter, session.vhost.name)
        quality = reader.byte()
        if quality > EXACTLY_ONCE:
            raise MalformedPacket("QoS")  # [MQTT-3.8.3-4]
        codes.append(quality if served else FAILURE)
        if served:
            granted.append((topic_filter, quality))
    if not codes:
        raise MalformedPacket("no topic filter")  # [MQTT-3.8.3-3]
    Subscribing(connection, session, granted, suback(packet_id, bytes(codes))).run()
    return len(codes)


def unsubscribe(connection: Connection, session: Session, rules: TopicRules, reader: Reader) -> int:
    """UNSUBSCRIBE; returns how many topic filters there were. Raises MalformedPacket before anything has changed."""
    packet_id = reader.packet_id()
    wanted: list[tuple[str, int]] = []
    while reader.more:
        topic_filter = reader.text()
        rules.check_filter(topic_filter)
        wanted.append((topic_filter, AT_MOST_ONCE))
    if not wanted:
        raise MalformedPacket("no topic filter")  # [MQTT-3.10.3-2]
    Unsubscribing(connection, session, wanted, bytes([UNSUBACK << 4, 2]) + packet_id.to_bytes(2, "big")).run()
    return len(wanted)


def _may_subscribe(identity: Identity, topic_filter: str, vhost: str) -> bool:
    try:
        identity.may("read", "exchange", EXCHANGE, vhost)
    except AccessRefused:
        return False
    return identity.may_subscribe(topic_filter)


class Change(Task):
    """What one packet changes of a session's subscriptions: topic filters with the QoS granted to each."""

    def __init__(self, connection: Connection, session: Session, wanted: list[tuple[str, int]], answer: bytes) -> None:
        self.session = session
        self.ticket: Ticket = connection.ticket()
        self._connection = connection
        self._wanted = wanted
        self._answer = answer
        self._at = 0

    def run(self) -> None:
        connection = self._connection
        if connection.finished:
            return
        some = self._next()
        self._at += len(some)
        for topic_filter, quality in some:
            self.change(topic_filter, quality)
        if self._at < len(self._wanted):
            connection.stall()
            connection.agenda.later(self)
            self.changed(some, True)
            return
        waited, connection.stalled = connection.stalled, False
        connection.answer_when_settled(self.ticket, self._answer)
        self.changed(some, connection.stalled)
        if waited and not connection.stalled:
            connection.go_on()

    def _next(self) -> list[tuple[str, int]]:
        """What is looked at in this turn."""
        some = self._wanted[self._at:self._at + SLICE]
        levels = 0
        for place, (topic_filter, _) in enumerate(some):
            levels += 1 + topic_filter.count("/")
            if levels > LEVELS and place:
                return some[:place]
        return some

    def change(self, topic_filter: str, quality: int) -> None:
        raise NotImplementedError

    def changed(self, some: list[tuple[str, int]], unheard: bool) -> None:
        """These are done; `unheard` is whether the answer is still to come."""


class Subscribing(Change):
    """After the SUBACK come the retained messages."""

    def change(self, topic_filter: str, quality: int) -> None:
        self.session.subscribe(topic_filter, quality, self.ticket)

    def changed(self, some: list[tuple[str, int]], unheard: bool) -> None:
        self.session.unheard = unheard
        for topic_filter, _ in some:
            self.session.send_retained(topic_filter)


class Unsubscribing(Change):
    """The QoS does not matter."""

    def change(self, topic_filter: str, quality: int) -> None:
        self.session.unsubscribe(topic_filter, self.ticket)
