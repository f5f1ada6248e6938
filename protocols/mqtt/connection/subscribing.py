"""SUBSCRIBE and UNSUBSCRIBE at work: many topic filters take many turns.

A connection hears nothing else until it has its answer, so that packets keep their order.
"""

from __future__ import annotations

from typing import Final

from broker.access.identity import READ_NONE, READ_SOME, Identity
from broker.agenda import Task
from broker.messages.message import EXACTLY_ONCE
from broker.routing.binding import NO_LOCAL, PARTLY
from broker.store.contract import Ticket
from protocols.connection import Connection
from protocols.mqtt.codec.connect import LEVEL_5
from protocols.mqtt.codec.packets import (
    FAILURE,
    SUBACK,
    UNSUBACK,
    MalformedPacket,
    PacketReader,
    suback,
)
from protocols.mqtt.codec.packets5 import (
    SubscribePacket,
    SubscribeRequest,
    UnsubscribePacket,
    codes5,
    read_subscribe,
    read_unsubscribe,
)
from protocols.mqtt.codec.properties import Properties5
from protocols.mqtt.codec.reasons import (
    NO_SUBSCRIPTION_EXISTED,
    NOT_AUTHORISED,
    QUOTA_EXCEEDED,
    SUCCESS,
    TOPIC_FILTER_INVALID,
    UNSPECIFIED,
)
from protocols.mqtt.codec.topics import SHARE
from protocols.mqtt.connection.reauthorization import judge
from protocols.mqtt.connection.service import MqttService
from protocols.mqtt.session.retained_delivery import send_retained
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.subscription_options import AS_PUBLISHED, IDENTIFIER
from protocols.mqtt.session.sys_topics import ROOT

#: Topic filters of one packet that are looked at in one turn, and levels of these: what a filter
#: costs grows with them (500 filters of 128 levels take 13 ms uncompiled). One filter is looked at
#: in any case.
SLICE: Final = 500
LEVELS: Final = 5_000


def subscribe(
    connection: Connection,
    session: Session,
    identity: Identity,
    service: MqttService,
    reader: PacketReader,
    level: int,
) -> int:
    """SUBSCRIBE; returns how many topic filters there were.

    Raises MalformedPacket before anything has changed.
    """
    packet = read_subscribe(reader) if level == LEVEL_5 else _read_older(reader)
    codes: list[int] = []
    for wish in packet.requests:
        code = wish.qos
        if not service.topics.check_filter(wish.topic_filter):
            code = TOPIC_FILTER_INVALID
        elif not service.topics.allows(wish.topic_filter):
            code = UNSPECIFIED  # Whoever asks: it is no matter of rights.
        codes.append(code)
    SubscribeTask(connection, session, service, identity, packet, codes, level).run()
    return len(packet.requests)


def unsubscribe(
    connection: Connection, session: Session, service: MqttService, reader: PacketReader, level: int
) -> int:
    """UNSUBSCRIBE; returns how many topic filters there were.

    Raises MalformedPacket before anything has changed.
    """
    packet = read_unsubscribe(reader) if level == LEVEL_5 else _read_older_filters(reader)
    for topic_filter in packet.filters:
        service.topics.check_filter(topic_filter)
    wanted = [SubscribeRequest(topic_filter, 0) for topic_filter in packet.filters]
    UnsubscribeTask(connection, session, wanted, packet.packet_id, level).run()
    return len(wanted)


def _read_older(reader: PacketReader) -> SubscribePacket:
    """SUBSCRIBE of levels 3 and 4."""
    packet_id = reader.packet_id()
    wishes: list[SubscribeRequest] = []
    while reader.more:
        topic_filter, qos = reader.text(), reader.byte()
        if qos > EXACTLY_ONCE:
            raise MalformedPacket("QoS")  # [MQTT-3.8.3-4 of 3.1.1]
        wishes.append(SubscribeRequest(topic_filter, qos))
    if not wishes:
        raise MalformedPacket("no topic filter")  # [MQTT-3.8.3-3 of 3.1.1]
    return SubscribePacket(packet_id, Properties5(), wishes)


def _read_older_filters(reader: PacketReader) -> UnsubscribePacket:
    packet_id = reader.packet_id()
    filters: list[str] = []
    while reader.more:
        filters.append(reader.text())
    if not filters:
        raise MalformedPacket("no topic filter")  # [MQTT-3.10.3-2]
    return UnsubscribePacket(packet_id, Properties5(), filters)


class SubscriptionChange(Task):
    """What one packet changes of a session's subscriptions."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        wanted: list[SubscribeRequest],
        weight: int = 1,
    ) -> None:
        """`weight` is how much more work a topic filter is than usual."""
        self.session = session
        self.ticket: Ticket = connection.ticket()
        self._connection = connection
        self._wanted = wanted
        self._weight = weight
        self._at = 0

    def run(self) -> None:
        connection = self._connection
        if connection.finished:
            return
        some = self._next()
        self._at += len(some)
        for wish in some:
            self.change(wish)
        if self._at < len(self._wanted):
            connection.stall()
            connection.agenda.later(self)
            self.changed(True)
            return
        self.close()
        waited, connection.stalled = connection.stalled, False
        connection.reply_when_durable(self.ticket, self.answer())
        self.changed(connection.stalled)
        if waited and not connection.stalled:
            connection.resume_input()

    def _next(self) -> list[SubscribeRequest]:
        """What is looked at in this turn."""
        some = self._wanted[self._at : self._at + SLICE]
        levels = 0
        for place, wish in enumerate(some):
            levels += (1 + wish.topic_filter.count("/")) * self._weight
            if levels > LEVELS and place:
                return some[:place]
        return some

    def change(self, wish: SubscribeRequest) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """That was the last one."""

    def changed(self, unheard: bool) -> None:
        """Some more are done; `unheard` is whether the answer is still to come."""

    def answer(self) -> bytes:
        raise NotImplementedError


class SubscribeTask(SubscriptionChange):
    """After the SUBACK come the retained messages; of shared subscriptions there are none.

    Rights are decided here, once a subscription, some a turn: who has many rules takes longer.
    """

    def __init__(
        self,
        connection: Connection,
        session: Session,
        service: MqttService,
        identity: Identity,
        packet: SubscribePacket,
        codes: list[int],
        level: int,
    ) -> None:
        super().__init__(connection, session, packet.requests, int(identity.weight))
        self._service = service
        self._identity = identity
        self._packet_id = packet.packet_id
        self._identifier = packet.identifier
        self._level = level
        #: What the client is told of each; the QoS that it asked for, where nothing is wrong so
        #: far.
        self._codes = codes
        self._done = 0
        self._curious: list[str] = []
        self._shared = False

    def change(self, wish: SubscribeRequest) -> None:
        at = self._done
        self._done += 1
        if self._codes[at] != wish.qos:
            return
        verdict = judge(self._identity, wish.topic_filter, self.session.vhost.name)
        if verdict == READ_NONE:
            self._codes[at] = NOT_AUTHORISED
        elif self._is_too_many(wish.topic_filter):
            self._codes[at] = QUOTA_EXCEEDED
        else:
            self._subscribe(wish, verdict == READ_SOME)

    def _is_too_many(self, topic_filter: str) -> bool:
        subscriptions, most = self.session.subscriptions, self._service.options.subscriptions
        if most == 0 or len(subscriptions) + len(subscriptions.memberships) < most:
            return False
        return (
            subscriptions.get(topic_filter) is None
            and topic_filter not in subscriptions.memberships
        )

    def _subscribe(self, wish: SubscribeRequest, partly: bool) -> None:
        session, name = self.session, wish.topic_filter
        if name.startswith(SHARE):
            self._service.sessions.groups.join(
                session, name, wish.qos, self._identifier, self.ticket
            )
            self._shared = True
            return
        known = session.subscriptions.get(name) is not None
        wishes: dict[str, object] = {}
        if self._identifier:
            wishes[IDENTIFIER] = self._identifier
        if wish.no_local:
            wishes[NO_LOCAL] = True
        if wish.as_published:
            wishes[AS_PUBLISHED] = True
        if partly:
            wishes[PARTLY] = True
        session.subscribe(name, wish.qos, self.ticket, wishes)
        if name.startswith(ROOT):
            self._service.sys.watch(session)
        if wish.handling == 0 or wish.handling == 1 and not known:
            self._curious.append(name)

    def close(self) -> None:
        if self._shared and self.session.persistent:
            self._service.sessions.note(self.session, 0, self.ticket)

    def changed(self, unheard: bool) -> None:
        self.session.suback_pending = unheard
        curious, self._curious = self._curious, []
        for topic_filter in curious:
            if topic_filter.startswith(ROOT):
                self._service.sys.tell(self.session, topic_filter)
            else:
                send_retained(self.session, topic_filter)

    def answer(self) -> bytes:
        if self._level == LEVEL_5:
            return codes5(SUBACK << 4, self._packet_id, bytes(self._codes))
        return suback(
            self._packet_id,
            bytes([code if code <= EXACTLY_ONCE else FAILURE for code in self._codes]),
        )


class UnsubscribeTask(SubscriptionChange):
    """Level 5 tells which of the subscriptions were there."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        wanted: list[SubscribeRequest],
        packet_id: int,
        level: int,
    ) -> None:
        super().__init__(connection, session, wanted)
        self._packet_id = packet_id
        self._level = level
        self._codes = bytearray()

    def change(self, wish: SubscribeRequest) -> None:
        name = wish.topic_filter
        session = self.session
        there = (
            session.leave_group(name, self.ticket)
            if name.startswith(SHARE)
            else session.unsubscribe(name, self.ticket)
        )
        self._codes.append(SUCCESS if there else NO_SUBSCRIPTION_EXISTED)

    def answer(self) -> bytes:
        if self._level == LEVEL_5:
            return codes5(UNSUBACK << 4, self._packet_id, bytes(self._codes))
        return bytes([UNSUBACK << 4, 2]) + self._packet_id.to_bytes(2, "big")
