"""Carry out SUBSCRIBE and UNSUBSCRIBE, in slices if they have many topic filters.

The connection reads no other packet until it has sent the SUBACK or UNSUBACK, so that packets keep
their order.
"""

from __future__ import annotations

from typing import Final

from broker.access.identity import READ_NONE, READ_SOME, Identity
from broker.agenda import Task
from broker.errors import LimitExceeded
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
    read_subscribe,
    read_unsubscribe,
    reason_codes5,
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
from protocols.mqtt.connection.reauthorization import read_scope
from protocols.mqtt.connection.service import MqttService
from protocols.mqtt.session.retained_delivery import send_retained
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.subscription_options import AS_PUBLISHED, IDENTIFIER
from protocols.mqtt.session.sys_topics import ROOT

#: Limits of one slice, which is handled in one turn of the event loop: the number of topic filters,
#: and the total number of their levels. The cost of a filter grows with its levels (500 filters of
#: 128 levels take 13 ms uncompiled). Each slice has at least one filter.
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
    """Handle a SUBSCRIBE, and return the number of its topic filters.

    Raises MalformedPacket before anything has changed.
    """
    packet = read_subscribe(reader) if level == LEVEL_5 else _read_subscribe_4(reader)
    codes: list[int] = []
    for request in packet.requests:
        code = request.qos
        if not service.topics.check_filter(request.topic_filter):
            code = TOPIC_FILTER_INVALID
        elif not service.topics.allows(request.topic_filter):
            code = UNSPECIFIED  # No user may use this filter, so NOT_AUTHORISED is wrong.
        codes.append(code)
    SubscribeTask(connection, session, service, identity, packet, codes, level).run()
    return len(packet.requests)


def unsubscribe(
    connection: Connection, session: Session, service: MqttService, reader: PacketReader, level: int
) -> int:
    """Handle an UNSUBSCRIBE, and return the number of its topic filters.

    Raises MalformedPacket before anything has changed.
    """
    packet = read_unsubscribe(reader) if level == LEVEL_5 else _read_unsubscribe_4(reader)
    for topic_filter in packet.filters:
        service.topics.check_filter(topic_filter)
    requests = [SubscribeRequest(topic_filter, 0) for topic_filter in packet.filters]
    UnsubscribeTask(connection, session, requests, packet.packet_id, level).run()
    return len(requests)


def _read_subscribe_4(reader: PacketReader) -> SubscribePacket:
    """Read a SUBSCRIBE of level 3 or 4."""
    packet_id = reader.packet_id()
    requests: list[SubscribeRequest] = []
    while reader.more:
        topic_filter, qos = reader.text(), reader.byte()
        if qos > EXACTLY_ONCE:
            raise MalformedPacket("the QoS of a subscription is above 2")  # [MQTT-3.8.3-4 of 3.1.1]
        requests.append(SubscribeRequest(topic_filter, qos))
    if not requests:
        raise MalformedPacket("SUBSCRIBE has no topic filter")  # [MQTT-3.8.3-3 of 3.1.1]
    return SubscribePacket(packet_id, Properties5(), requests)


def _read_unsubscribe_4(reader: PacketReader) -> UnsubscribePacket:
    """Read an UNSUBSCRIBE of level 3 or 4."""
    packet_id = reader.packet_id()
    filters: list[str] = []
    while reader.more:
        filters.append(reader.text())
    if not filters:
        raise MalformedPacket("UNSUBSCRIBE has no topic filter")  # [MQTT-3.10.3-2]
    return UnsubscribePacket(packet_id, Properties5(), filters)


class SubscriptionChange(Task):
    """A task that carries out one SUBSCRIBE or UNSUBSCRIBE packet, in slices."""

    def __init__(
        self,
        connection: Connection,
        session: Session,
        requests: list[SubscribeRequest],
        weight: int = 1,
    ) -> None:
        """Start at the first of `requests`. `weight` is a factor for the cost of each topic filter
        level: a higher weight puts fewer filters into a slice.
        """
        self.session = session
        self.ticket: Ticket = connection.ticket()
        self._connection = connection
        self._requests = requests
        self._weight = weight
        self._at = 0

    def run(self) -> None:
        connection = self._connection
        if connection.finished:
            return
        requests = self._slice()
        self._at += len(requests)
        for request in requests:
            self.change(request)
        if self._at < len(self._requests):
            connection.stall()
            connection.agenda.later(self)
            self.after_slice(True)
            return
        self.finish()
        waited, connection.stalled = connection.stalled, False
        connection.reply_when_durable(self.ticket, self.reply())
        self.after_slice(connection.stalled)
        if waited and not connection.stalled:
            connection.resume_input()

    def _slice(self) -> list[SubscribeRequest]:
        """Return the next requests, as many as this turn may carry out."""
        requests = self._requests[self._at : self._at + SLICE]
        levels = 0
        for number, request in enumerate(requests):
            levels += (1 + request.topic_filter.count("/")) * self._weight
            if levels > LEVELS and number:
                return requests[:number]
        return requests

    def change(self, request: SubscribeRequest) -> None:
        """Carry out the request for one topic filter."""
        raise NotImplementedError

    def finish(self) -> None:
        """Do nothing: a hook for subclasses, called once between the last request and the reply."""

    def after_slice(self, reply_pending: bool) -> None:
        """Do nothing: a hook for subclasses, called after each slice of requests.

        `reply_pending` is True if the SUBACK or UNSUBACK is not sent yet.
        """

    def reply(self) -> bytes:
        """Return the SUBACK or UNSUBACK packet."""
        raise NotImplementedError


class SubscribeTask(SubscriptionChange):
    """A task that carries out a SUBSCRIBE, and sends retained messages after the SUBACK.

    The permission for a topic filter is checked in the slice that subscribes to the filter. With
    many access rules, fewer filters fit into a slice. Shared subscriptions receive no retained
    messages.
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
        #: Reason codes of the topic filters: the requested QoS, or an error.
        self._codes = codes
        self._done = 0
        #: Topic filters whose retained messages were not sent yet.
        self._retained: list[str] = []
        self._has_shared = False

    def change(self, request: SubscribeRequest) -> None:
        at = self._done
        self._done += 1
        if self._codes[at] != request.qos:
            return
        verdict = read_scope(self._identity, request.topic_filter, self.session.vhost.name)
        if verdict == READ_NONE:
            self._codes[at] = NOT_AUTHORISED
        elif self._exceeds_quota(request.topic_filter):
            self._codes[at] = QUOTA_EXCEEDED
        else:
            try:
                self._subscribe(request, verdict == READ_SOME)
            except LimitExceeded:
                self._codes[at] = QUOTA_EXCEEDED

    def _exceeds_quota(self, topic_filter: str) -> bool:
        """True if a subscription to this filter would be new and above the limit of a session."""
        subscriptions, most = self.session.subscriptions, self._service.options.subscriptions
        if most == 0 or len(subscriptions) + len(subscriptions.memberships) < most:
            return False
        return (
            subscriptions.get(topic_filter) is None
            and topic_filter not in subscriptions.memberships
        )

    def _subscribe(self, request: SubscribeRequest, partly: bool) -> None:
        """Subscribe to a topic filter. `partly` is True if the user may read only some topics.

        Raises LimitExceeded.
        """
        session, name = self.session, request.topic_filter
        if name.startswith(SHARE):
            self._service.sessions.groups.join(
                session, name, request.qos, self._identifier, self.ticket
            )
            self._has_shared = True
            return
        known = session.subscriptions.get(name) is not None
        arguments: dict[str, object] = {}
        if self._identifier:
            arguments[IDENTIFIER] = self._identifier
        if request.no_local:
            arguments[NO_LOCAL] = True
        if request.retain_as_published:
            arguments[AS_PUBLISHED] = True
        if partly:
            arguments[PARTLY] = True
        session.subscribe(name, request.qos, self.ticket, arguments)
        if name.startswith(ROOT):
            self._service.sys.watch(session)
        if request.retain_handling == 0 or request.retain_handling == 1 and not known:
            self._retained.append(name)

    def finish(self) -> None:
        if self._has_shared and self.session.persistent:
            self._service.sessions.store(self.session, 0, self.ticket)

    def after_slice(self, reply_pending: bool) -> None:
        self.session.suback_pending = reply_pending
        topic_filters, self._retained = self._retained, []
        for topic_filter in topic_filters:
            if topic_filter.startswith(ROOT):
                self._service.sys.send_all(self.session, topic_filter)
            else:
                send_retained(self.session, topic_filter)

    def reply(self) -> bytes:
        if self._level == LEVEL_5:
            return reason_codes5(SUBACK << 4, self._packet_id, bytes(self._codes))
        return suback(
            self._packet_id,
            bytes([code if code <= EXACTLY_ONCE else FAILURE for code in self._codes]),
        )


class UnsubscribeTask(SubscriptionChange):
    """A task that carries out an UNSUBSCRIBE.

    At level 5, the UNSUBACK says which subscriptions existed.
    """

    def __init__(
        self,
        connection: Connection,
        session: Session,
        requests: list[SubscribeRequest],
        packet_id: int,
        level: int,
    ) -> None:
        super().__init__(connection, session, requests)
        self._packet_id = packet_id
        self._level = level
        self._codes = bytearray()

    def change(self, request: SubscribeRequest) -> None:
        name = request.topic_filter
        session = self.session
        existed = (
            session.leave_group(name, self.ticket)
            if name.startswith(SHARE)
            else session.unsubscribe(name, self.ticket)
        )
        self._codes.append(SUCCESS if existed else NO_SUBSCRIPTION_EXISTED)

    def reply(self) -> bytes:
        if self._level == LEVEL_5:
            return reason_codes5(UNSUBACK << 4, self._packet_id, bytes(self._codes))
        return bytes([UNSUBACK << 4, 2]) + self._packet_id.to_bytes(2, "big")
