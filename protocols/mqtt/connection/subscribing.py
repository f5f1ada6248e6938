"""Carries out SUBSCRIBE and UNSUBSCRIBE, in slices if the packet has many topic filters.

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
from protocols.mqtt.codec.connect import LEVEL_5
from protocols.mqtt.codec.packets import (
    FAILURE,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    MalformedPacket,
    PacketReader,
    suback,
)
from protocols.mqtt.codec.packets5 import (
    SubscribeRequest,
    SubscriptionHead,
    read_subscribe_request,
    read_subscription_head,
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
from protocols.mqtt.connection.connection import MqttConnection
from protocols.mqtt.connection.reauthorization import read_scope
from protocols.mqtt.connection.service import MqttService
from protocols.mqtt.session.retained_delivery import send_retained
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.shared import leave_group
from protocols.mqtt.session.subscription_options import AS_PUBLISHED, IDENTIFIER
from protocols.mqtt.session.sys_topics import ROOT
from protocols.refusal_fields import ACCESS, CAUSE, LIMIT

#: Limits of the reading in one turn of the event loop, which takes up to 3 ms: the number of topic
#: filters of a packet, and the sum of their sizes in bytes.
READ_SLICE: Final = 4_000
READ_BYTES: Final = 262_144
#: Limits of the subscribing in one turn of the event loop: the number of topic filters, and the sum
#: of their levels. The cost of a filter grows with its levels: 500 filters of 128 levels take 13 ms
#: in interpreted Python. A shared subscription may begin or end a group, so it counts as
#: SHARED_LEVELS further levels. At least one filter is handled in each turn.
FILTERS_PER_SLICE: Final = 500
LEVELS: Final = 5_000
SHARED_LEVELS: Final = 100
#: The return code of levels 3 and 4 for each reason code of level 5 (the index).
_CODES_4: Final = bytes(code if code <= EXACTLY_ONCE else FAILURE for code in range(256))


def subscribe(
    connection: MqttConnection,
    session: Session,
    identity: Identity,
    service: MqttService,
    reader: PacketReader,
    level: int,
) -> int:
    """Handle a SUBSCRIBE, and return the number of topic filters that were read in this turn of the
    event loop.

    `level` is the protocol level. Raises MalformedPacket.
    """
    head = _read_head(reader, SUBSCRIBE, level)
    task = SubscribeTask(connection, session, service, identity, head, reader, level)
    return task.begin()


def unsubscribe(
    connection: MqttConnection,
    session: Session,
    service: MqttService,
    reader: PacketReader,
    level: int,
) -> int:
    """Handle an UNSUBSCRIBE, and return the number of topic filters that were read in this turn of
    the event loop.

    `level` is the protocol level. Raises MalformedPacket.
    """
    head = _read_head(reader, UNSUBSCRIBE, level)
    return UnsubscribeTask(connection, session, service, head, reader, level).begin()


def _read_head(reader: PacketReader, kind: int, level: int) -> SubscriptionHead:
    """Read a SUBSCRIBE or UNSUBSCRIBE (`kind` says which) up to its first topic filter.

    `level` is the protocol level. Raises MalformedPacket.
    """
    if level == LEVEL_5:
        return read_subscription_head(reader, kind)
    head = SubscriptionHead(reader.packet_id(), Properties5())
    if not reader.more:
        raise MalformedPacket(
            f"{'SUBSCRIBE' if kind == SUBSCRIBE else 'UNSUBSCRIBE'} has no topic filter"
        )  # [MQTT-3.8.3-3 of 3.1.1], [MQTT-3.10.3-2]
    return head


def _read_request_4(reader: PacketReader) -> SubscribeRequest:
    """Read the next topic filter of a SUBSCRIBE of level 3 or 4. Raises MalformedPacket."""
    topic_filter, qos = reader.text(), reader.byte()
    if qos > EXACTLY_ONCE:
        raise MalformedPacket("the QoS of a subscription is above 2")  # [MQTT-3.8.3-4 of 3.1.1]
    return SubscribeRequest(topic_filter, qos)


class SubscriptionChange(Task):
    """A task that carries out one packet that changes a session's subscriptions, in slices.

    The task reads all topic filters before it changes a subscription, so a malformed packet has no
    effect.
    """

    def __init__(
        self,
        connection: MqttConnection,
        session: Session,
        reader: PacketReader,
        weight: int = 1,
    ) -> None:
        """Create a task that starts at the first topic filter. `weight` is a factor for the cost of
        each level of a topic filter; with a higher weight, fewer filters fit into a slice.
        """
        self.session = session
        self.ticket: Ticket = connection.ticket()
        self._connection = connection
        self._reader = reader
        self._requests: list[SubscribeRequest] = []
        self._weight = weight
        self._at = 0

    def begin(self) -> int:
        """Carry out the first slice; return the number of topic filters that were read.

        Raises MalformedPacket.
        """
        if self._read():
            self._change()
        return len(self._requests)

    def run(self) -> None:
        if self._connection.finished:
            return
        try:
            if not self._reader.more or self._read():
                self._change()
        except MalformedPacket as error:
            self._connection.reject(0, error.code, error.reason, str(error))

    def _read(self) -> bool:
        """Read the topic filters of the packet, as many as one turn may read.

        Return True if all topic filters of the packet are read. Raises MalformedPacket.
        """
        reader, requests = self._reader, self._requests
        left, size = READ_SLICE, READ_BYTES
        while reader.more:
            if left == 0 or size <= 0:
                self._continue_later()
                return False
            request = self.read(reader)
            requests.append(request)
            left -= 1
            size -= len(request.topic_filter)
        if len(requests) > READ_SLICE:
            # A long packet took several turns to read. The changes begin in the next turn.
            self._continue_later()
            return False
        return True

    def _continue_later(self) -> None:
        """Schedule the next slice for the next turn of the event loop, and stall the connection
        until then.
        """
        self._connection.stall()
        self._connection.agenda.later(self)

    def _change(self) -> None:
        """Carry out the requests of one slice; send the reply after the packet's last request."""
        connection = self._connection
        requests = self._slice()
        self._at += len(requests)
        for request in requests:
            self.change(request)
        if self._at < len(self._requests):
            self._continue_later()
            self.after_slice(True)
            return
        self.finish()
        waited, connection.stalled = connection.stalled, False
        connection.reply_when_durable(self.ticket, self.reply())
        self.after_slice(connection.stalled)
        if waited and not connection.stalled:
            connection.resume_input()

    def _slice(self) -> list[SubscribeRequest]:
        """Return the next topic filters of the packet, as many as one turn may carry out."""
        requests = self._requests[self._at : self._at + FILTERS_PER_SLICE]
        levels = 0
        for number, request in enumerate(requests):
            further = SHARED_LEVELS if request.topic_filter.startswith(SHARE) else 0
            levels += (1 + request.topic_filter.count("/") + further) * self._weight
            if levels > LEVELS and number:
                return requests[:number]
        return requests

    def read(self, reader: PacketReader) -> SubscribeRequest:
        """Read and check the next topic filter; change no subscription. Raises MalformedPacket."""
        raise NotImplementedError

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

    The permission for a topic filter is checked in the slice that subscribes to the filter, with
    the user's permissions at that time. With many access rules, fewer filters fit into a slice.
    Shared subscriptions receive no retained messages.
    """

    def __init__(
        self,
        connection: MqttConnection,
        session: Session,
        service: MqttService,
        identity: Identity,
        head: SubscriptionHead,
        reader: PacketReader,
        level: int,
    ) -> None:
        super().__init__(connection, session, reader, int(identity.weight))
        self._service = service
        self._packet_id = head.packet_id
        self._identifier = head.identifier
        self._level = level
        #: Reason codes of the topic filters: the requested QoS, or an error.
        self._codes = bytearray()
        #: The first refused topic filter, the cause of its refusal, and the number of refused ones.
        self._first_refused = self._cause = ""
        self._refused = 0
        self._done = 0
        #: Topic filters whose retained messages were not sent yet.
        self._retained: list[str] = []
        self._has_shared = False

    def read(self, reader: PacketReader) -> SubscribeRequest:
        request = (
            read_subscribe_request(reader) if self._level == LEVEL_5 else _read_request_4(reader)
        )
        code = request.qos
        topics = self._service.topics
        if not topics.check_filter(request.topic_filter):
            code = TOPIC_FILTER_INVALID
        elif not topics.allows(request.topic_filter):
            # No user may subscribe to the filter, so NOT_AUTHORISED would be misleading.
            code = UNSPECIFIED
        self._codes.append(code)
        return request

    def change(self, request: SubscribeRequest) -> None:
        at = self._done
        self._done += 1
        if self._codes[at] != request.qos:
            return
        # The permissions may have changed since the packet arrived: a long packet takes many turns.
        identity = self.session.identity
        assert identity is not None, "the login has set the permissions of the session"
        verdict = read_scope(identity, request.topic_filter, self.session.vhost.name)
        if verdict == READ_NONE:
            self._refuse(at, request.topic_filter, NOT_AUTHORISED)
        elif self._exceeds_quota(request.topic_filter):
            self._refuse(at, request.topic_filter, QUOTA_EXCEEDED)
            self._service.sessions.refused_subscriptions += 1
        else:
            try:
                self._subscribe(request, verdict == READ_SOME)
            except LimitExceeded:
                self._refuse(at, request.topic_filter, QUOTA_EXCEEDED)

    def _exceeds_quota(self, topic_filter: str) -> bool:
        """True if a subscription to this filter would be new and exceed a limit of the session."""
        subscriptions, options = self.session.subscriptions, self._service.options
        shared = len(subscriptions.memberships)
        if not 0 < options.subscriptions <= len(subscriptions) + shared and not (
            topic_filter.startswith(SHARE) and 0 < options.shared_subscriptions <= shared
        ):
            return False
        return (
            subscriptions.get(topic_filter) is None
            and topic_filter not in subscriptions.memberships
        )

    def _subscribe(self, request: SubscribeRequest, partly: bool) -> None:
        """Subscribe to a topic filter. `partly` is True if the user may read only some topics.

        Raises LimitExceeded if lookups of topics would take too long with this filter.
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
        bridge = self._connection.bridge
        if request.no_local or bridge:
            arguments[NO_LOCAL] = True
        if request.retain_as_published or bridge:
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
        if self._first_refused:
            self._log_refused()

    def after_slice(self, reply_pending: bool) -> None:
        self.session.suback_pending = reply_pending
        topic_filters, self._retained = self._retained, []
        for topic_filter in topic_filters:
            if topic_filter.startswith(ROOT):
                self._service.sys.send_all(self.session, topic_filter)
            else:
                send_retained(self.session, topic_filter)

    def _refuse(self, at: int, topic_filter: str, code: int) -> None:
        """Refuse the topic filter number `at` with the reason code `code`."""
        self._codes[at] = code
        self._refused += 1
        if not self._first_refused:
            self._first_refused = topic_filter
            self._cause = ACCESS if code == NOT_AUTHORISED else LIMIT

    def _log_refused(self) -> None:
        """Log the first refused topic filter of the packet, and the number of the others."""
        reason = (
            "the user may not read topics of this filter: grant `read` on the exchange, or allow "
            "the filter with a rule"
            if self._cause == ACCESS
            else "a limit on subscriptions is reached: see mqtt.subscriptions, "
            "mqtt.shared_subscriptions and limits.pattern_nodes"
        )
        if self._refused > 1:
            reason += f"; further refused filters of this SUBSCRIBE: {self._refused - 1}"
        self._service.log_refusal(
            "subscription_refused",
            self._connection,
            reason,
            {"client_id": self.session.name, "filter": self._first_refused, CAUSE: self._cause},
        )

    def reply(self) -> bytes:
        if self._level == LEVEL_5:
            return reason_codes5(SUBACK << 4, self._packet_id, bytes(self._codes))
        return suback(self._packet_id, bytes(self._codes).translate(_CODES_4))


class UnsubscribeTask(SubscriptionChange):
    """A task that carries out an UNSUBSCRIBE.

    At level 5, the UNSUBACK has a reason code for each topic filter: the code says if a
    subscription with this filter existed.
    """

    def __init__(
        self,
        connection: MqttConnection,
        session: Session,
        service: MqttService,
        head: SubscriptionHead,
        reader: PacketReader,
        level: int,
    ) -> None:
        super().__init__(connection, session, reader)
        self._service = service
        self._packet_id = head.packet_id
        self._level = level
        self._codes = bytearray()
        self._has_shared = False

    def read(self, reader: PacketReader) -> SubscribeRequest:
        topic_filter = reader.text()
        self._service.topics.check_filter(topic_filter)
        return SubscribeRequest(topic_filter, 0)

    def change(self, request: SubscribeRequest) -> None:
        name = request.topic_filter
        session = self.session
        if name.startswith(SHARE):
            existed = leave_group(session, name, self.ticket)
            self._has_shared |= existed
        else:
            existed = session.unsubscribe(name, self.ticket)
        self._codes.append(SUCCESS if existed else NO_SUBSCRIPTION_EXISTED)

    def finish(self) -> None:
        if self._has_shared and self.session.persistent:
            self._service.sessions.store(self.session, 0, self.ticket)

    def reply(self) -> bytes:
        if self._level == LEVEL_5:
            return reason_codes5(UNSUBACK << 4, self._packet_id, bytes(self._codes))
        return bytes([UNSUBACK << 4, 2]) + self._packet_id.to_bytes(2, "big")
