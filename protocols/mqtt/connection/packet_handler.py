"""Reads publications at every protocol level, and passes them to the core as messages.

    PUBLISH   topic name   packet identifier (QoS 1, 2)   properties (level 5)   payload

The levels differ only in the properties: a publication without properties has one byte more at
level 5, the length 0 of the properties. So one loop reads publications of all levels. Adjacent QoS
0 packets to the same subscribers are a run: their bytes are relayed together, as they are in the
input. All packets other than PUBLISH are handled by the subclass for the level.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from broker.messages.fates import REFUSED, ROUTED, TOO_LARGE
from broker.messages.message import (
    ALWAYS,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    PERSISTENCE,
    PLAIN,
    QUEUES,
    Message,
)
from broker.routing.plan import Plan
from broker.routing.publish_context import PublishContext
from broker.routing.relay import EMPTY_RELAY, Relay
from broker.routing.route import Route
from broker.store.contract import Ticket
from protocols.budget import BUDGET, COLD, SEARCHING
from protocols.mqtt.codec.packets import PUBACK, PUBLISH, PUBREC, MalformedPacket, PacketReader
from protocols.mqtt.codec.publish_properties import PublishProperties
from protocols.mqtt.codec.reasons import (
    IMPLEMENTATION_SPECIFIC,
    PACKET_TOO_LARGE,
    PAYLOAD_FORMAT_INVALID,
    RECEIVE_MAXIMUM_EXCEEDED,
    UNSPECIFIED,
)
from protocols.mqtt.codec.relay_formats import APART_4, APART_5
from protocols.mqtt.connection.connection import InputHandler, MqttConnection
from protocols.mqtt.connection.exactly_once_packets import RARE, handle_exactly_once
from protocols.mqtt.connection.publications import is_text, message_of, reason_of
from protocols.mqtt.connection.topic_routes import TopicRoutes
from protocols.mqtt.session.exactly_once import hold_packet_id, wait_for_copy
from protocols.mqtt.session.session import Session

#: Size of the longest fixed header in bytes: type and flags, and the remaining length.
FIXED_HEADER_MAX: Final[i64] = 5
_PUBLISH_0: Final[i64] = PUBLISH << 4
_PUBLISH_1: Final[i64] = PUBLISH << 4 | AT_LEAST_ONCE << 1
_PUBACK: Final[i64] = PUBACK << 4
_PUBREC: Final[i64] = PUBREC << 4
#: The bits of `Plan.slow_path_mask` that each prevent a packet from being relayed unchanged:
#: _SLOW_4 for packets of levels 3 and 4, _SLOW_5 for packets of level 5.
_SLOW_4: Final[i64] = ALWAYS | QUEUES | APART_4
_SLOW_5: Final[i64] = ALWAYS | QUEUES | APART_5


class PacketHandler(InputHandler):
    """The handler of the packets of a client that has a session: the base class for all levels."""

    def __init__(self, connection: MqttConnection, has_properties: bool) -> None:
        """Create the handler of a connection.

        `has_properties` is True for level 5, whose publications have properties.
        """
        self.connection = connection
        self.service = connection.service
        self.replies = connection.replies
        self._topics = TopicRoutes(connection)
        self._has_properties = has_properties
        self._slow_mask: i64 = _SLOW_5 if has_properties else _SLOW_4
        session = connection.session
        #: Largest number of the client's unacknowledged publications; 0 at levels 3 and 4. The
        #: client's send quota begins anew with each connection (section 4.9), so the publications
        #: of an earlier connection that wait for their PUBREL do not count.
        self._publications_max: i64 = 0
        if has_properties:
            held: i64 = 0 if session is None else session.in_flight.received.count
            self._publications_max = self.service.options.receive_maximum + held

    # -- implemented for each level

    @abstractmethod
    def on_packet(self, session: Session, context: PublishContext, first: i64, body: bytes) -> i64:
        """Handle any packet, and return its cost in units of the connection's BUDGET.

        `first` is the first byte of the packet, `body` are the bytes after the remaining length.
        """
        raise NotImplementedError

    @abstractmethod
    def publish_properties(self, reader: PacketReader) -> PublishProperties:
        """Read and return the properties of a PUBLISH. Raises MalformedPacket.

        Below level 5, a PUBLISH has no properties: read nothing.
        """
        raise NotImplementedError

    @abstractmethod
    def full_topic(self, topic: bytes, properties: PublishProperties) -> bytes:
        """Return the topic name of a publication. If the publication has a topic alias, `topic` may
        be empty.

        Raises MalformedPacket for an unknown alias.
        """
        raise NotImplementedError

    # -- the loop

    def parse(self, data: bytes, position: i64) -> i64:
        """Handle the complete packets in `data` from `position` on; return the position after the
        last of them.

        Raises MalformedPacket. Hot path.
        """
        connection = self.connection
        size: i64 = len(data)
        context, session = connection.context, connection.session
        if context is None or session is None:
            return size
        budget: i64 = BUDGET
        has_properties = self._has_properties
        slow_mask: i64 = self._slow_mask
        packet_max: i64 = connection.packet_max
        surely_allowed: i64 = packet_max - FIXED_HEADER_MAX
        # The least remaining length of a publication of QoS 0, in bytes.
        shortest: i64 = 3 if has_properties else 2
        run = EMPTY_RELAY
        run_start: i64 = 0
        run_count: i64 = 0
        while size - position >= 2 and budget > 0:
            first: i64 = data[position]
            length: i64 = data[position + 1]
            start: i64 = position + 2
            if length >= 128:
                length &= 127
                shift: i64 = 7
                digit: i64 = 128
                while digit >= 128 and start < size:
                    digit = data[start]
                    start += 1
                    length |= (digit & 127) << shift
                    shift += 7
                    if shift > 21 and digit >= 128:
                        digit = 0
                        length = -1
                if digit >= 128:
                    break
                if length < 0 or digit == 0:
                    self._send(run, run_count, data, run_start, position)
                    raise MalformedPacket("the remaining length is invalid")
            end: i64 = start + length
            # At level 5, the limit (Maximum Packet Size) is for the whole packet. At the older
            # levels, it is for the bytes after the remaining length.
            if length > surely_allowed and (
                end - (position if has_properties else start) > packet_max
            ):
                self._send(run, run_count, data, run_start, position)
                self._refuse_size(context, first)
            if end > size:
                connection.need = end - position
                break
            if first == _PUBLISH_0 and length >= shortest:
                mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
                if has_properties and (mark >= end or data[mark] != 0 or mark == start + 2):
                    self._send(run, run_count, data, run_start, position)
                    run_count = 0
                    cost = self.on_publish(session, context, first, PacketReader(data[start:end]))
                    if cost == SEARCHING:
                        connection.behind = True
                        return position
                    budget -= cost
                    if connection.stalled:
                        return end
                    position = end
                    continue
                if mark > end:
                    self._send(run, run_count, data, run_start, position)
                    raise MalformedPacket("topic name is longer than its packet")
                topic = data[start + 2 : mark]
                route = context.routes.get(topic)
                if route is None:
                    self._send(run, run_count, data, run_start, position)
                    run_count = 0
                    route = self._topics.find(context, topic, connection.search_slot())
                    if route is None:
                        connection.behind = True
                        return position
                    if not route.plan.slow_path_mask & slow_mask:
                        budget -= connection.end_search()
                plan = route.plan
                if plan.slow_path_mask & slow_mask:
                    self._send(run, run_count, data, run_start, position)
                    run_count = 0
                    body = data[mark + 1 : end] if has_properties else data[mark:end]
                    message = Message(route, body, PLAIN, AT_MOST_ONCE)
                    message_plan = connection.plan_of(context, route, message)
                    if message_plan is None:
                        connection.behind = True
                        return position
                    context.received += 1
                    budget -= message_plan.weight + connection.end_search()
                    connection.publish(context, route, message_plan, message, None)
                    if connection.stalled:
                        return end
                else:
                    context.received += 1
                    budget -= plan.weight
                    route.count += 1
                    if plan.relay is not run:
                        self._send(run, run_count, data, run_start, position)
                        run_count = 0
                        run = plan.relay
                        run_start = position
                    elif run_count == 0:
                        run_start = position
                    run_count += 1
                position = end
                continue
            if run_count > 0:
                self._send(run, run_count, data, run_start, position)
                run_count = 0
            if first == _PUBLISH_1 and length >= shortest + 2:
                cost = self._on_publish_1(session, context, data, start, end)
                if cost == SEARCHING:
                    connection.behind = True
                    return position
                budget -= cost
            elif (
                first == _PUBACK
                and length == 2
                and session.puback(i64(read_i16_be(data, start)) & 0xFFFF)
            ):
                budget -= 1
            elif (
                cost := handle_exactly_once(
                    connection, session, context, first, data, start, end, self._publications_max
                )
            ) != RARE:
                budget -= cost
            else:
                cost = self.on_packet(session, context, first, data[start:end])
                if cost == SEARCHING:
                    connection.behind = True
                    return position
                budget -= cost
                renewed = connection.context
                if renewed is None:
                    return size  # The packet has ended the connection.
                context = renewed
            if connection.stalled:
                return end
            position = end
        if run_count > 0:
            self._send(run, run_count, data, run_start, position)
        connection.behind = budget <= 0
        return position

    def _send(self, run: Relay, count: i64, data: bytes, start: i64, end: i64) -> None:
        """Send the `count` packets in data[start:end] to the subscribers of the relay `run`.

        Do nothing if `count` is 0.
        """
        if count > 0:
            if self._has_properties:
                run.send_with_properties(data[start:end], count)
            else:
                run.send(data[start:end], count)

    def _refuse_size(self, context: PublishContext, first: i64) -> None:
        """Raise MalformedPacket for a packet that is too large; count it if it is a publication."""
        if first >> 4 == PUBLISH:
            context.received += 1
            context.count_fate(TOO_LARGE)
        raise MalformedPacket(
            f"the packet is larger than the limit of {self.connection.packet_max} bytes",
            "too_large",
            PACKET_TOO_LARGE,
        )

    # -- publications that are acknowledged, or have properties

    def _on_publish_1(
        self, session: Session, context: PublishContext, data: bytes, start: i64, end: i64
    ) -> i64:
        """Handle a publication of QoS 1. Hot path if it has no properties.

        `data[start:end]` is the packet after its remaining length. Return the publication's cost in
        units of the connection's BUDGET. Return SEARCHING if the search for the destinations
        pauses; the packet is then handled again in the next turn. Raises MalformedPacket.
        """
        replies = self.replies
        mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
        body: i64 = mark + 2
        if self._has_properties:
            body += 1
            if (
                body > end
                or data[mark + 2] != 0
                or mark == start + 2
                or self._exceeds_receive_maximum(session)
            ):
                return self.on_publish(session, context, _PUBLISH_1, PacketReader(data[start:end]))
        elif body > end:
            raise MalformedPacket("topic name is longer than its packet")
        packet_id: i64 = i64(read_i16_be(data, mark)) & 0xFFFF
        if packet_id == 0:
            raise MalformedPacket("packet identifier must not be 0")  # [MQTT-2.3.1-1]
        topic = data[start + 2 : mark]
        searched = False
        route = context.routes.get(topic)
        if route is None:
            route = self._topics.find(context, topic, self.connection.search_slot())
            if route is None:
                return SEARCHING
            searched = True
        message = Message(route, data[body:end], PLAIN, AT_LEAST_ONCE)
        plan = route.plan
        if plan.slow_path_mask & ALWAYS or plan.reliable_relay is not EMPTY_RELAY:
            message_plan = self.connection.plan_of(context, route, message)
            if message_plan is None:
                return SEARCHING
            context.received += 1
            ticket = Ticket(replies)
            self.connection.persists = True
            fate = self.connection.publish(context, route, message_plan, message, ticket)
            replies.give_code(_PUBACK, packet_id, ticket, reason_of(fate, self._has_properties))
            return message_plan.weight + self.connection.end_search()
        context.received += 1
        if plan.slow_path_mask & PERSISTENCE:
            vhost = self.connection.vhost
            ticket = replies.ticket_for(vhost.store.batch_number)
            self.connection.persists = True
            vhost.publish_persistent(route, message, ticket)
            replies.give(_PUBACK, packet_id, ticket)
        else:
            route.deliver(message, plan.reliable_queues)
            if plan.fate == ROUTED:
                replies.give(_PUBACK, packet_id, None)
            else:
                replies.give_code(
                    _PUBACK, packet_id, None, reason_of(plan.fate, self._has_properties)
                )
        return plan.weight + self.connection.end_search() if searched else plan.weight

    def on_publish(
        self, session: Session, context: PublishContext, first: i64, reader: PacketReader
    ) -> i64:
        """Handle any PUBLISH, and return its cost in units of the connection's BUDGET.

        `first` is the first byte of the packet; `reader` reads the bytes after the remaining
        length. Return SEARCHING if the search for the destinations pauses; the packet is then
        handled again in the next turn of the event loop. Raises MalformedPacket.
        """
        connection, replies = self.connection, self.replies
        qos = first >> 1 & 3
        if qos == 3 or qos == AT_MOST_ONCE and first & 8:
            raise MalformedPacket(
                "QoS is 3, or DUP is set with QoS 0"
            )  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
        topic = reader.binary()
        packet_id: i64 = reader.packet_id() if qos else 0
        properties = self.publish_properties(reader)
        topic = self.full_topic(topic, properties)
        if qos == EXACTLY_ONCE and session.in_flight.received.contains(packet_id):
            ticket = Ticket(replies)
            wait_for_copy(session, ticket)
            replies.give(_PUBREC, packet_id, ticket)
            return COLD
        if qos and self._has_properties and self._exceeds_receive_maximum(session):
            raise MalformedPacket(
                "the client has more unacknowledged publications than Receive Maximum permits "
                f"({self.service.options.receive_maximum})",
                "receive_maximum",
                RECEIVE_MAXIMUM_EXCEEDED,
            )  # [MQTT-3.3.4-7]
        slot = connection.search_slot()
        route = context.routes.get(topic) or self._topics.find(context, topic, slot)
        if route is None:
            return SEARCHING
        message = message_of(route, properties, reader.rest(), first)
        plan = connection.plan_of(context, route, message)
        if plan is None:
            return SEARCHING
        ticket = Ticket(replies)
        connection.persists = True
        store = connection.vhost.store
        # The message and its packet identifier become durable together. If a crash loses them, the
        # client sends the message again, and the broker handles it as a new message.
        store.begin()
        try:
            code = self._publish(context, route, plan, properties, message, bool(first & 1), ticket)
            if qos == EXACTLY_ONCE and code < UNSPECIFIED:
                hold_packet_id(session, packet_id, ticket)
        finally:
            store.commit()
        if qos == AT_LEAST_ONCE:
            replies.give_code(_PUBACK, packet_id, ticket, code)
        elif qos == EXACTLY_ONCE:
            replies.give_code(_PUBREC, packet_id, ticket, code)
        return COLD + plan.weight + connection.end_search()

    def _publish(
        self,
        context: PublishContext,
        route: Route,
        plan: Plan,
        properties: PublishProperties,
        message: Message,
        retain: bool,
        ticket: Ticket,
    ) -> int:
        """Publish a message; return the reason code for its publisher.

        If `retain` is True, also store the message as the retained message of its topic.
        """
        connection = self.connection
        context.received += 1
        if properties.text and not is_text(message.content[len(properties.relayed) :]):
            context.count_fate(REFUSED)
            return PAYLOAD_FORMAT_INVALID
        if properties.misnumbered:
            context.count_fate(REFUSED)
            return IMPLEMENTATION_SPECIFIC
        if properties.expiry >= 0:
            message.expires = connection.agenda.now + properties.expiry * 1000
        publication = properties.publication
        if retain and plan.refusal is None:
            producers = connection.vhost.producers
            if publication is None or not producers.is_repeat(context.producer_owner, publication):
                connection.vhost.retain(message, ticket)
        fate = connection.publish(context, route, plan, message, ticket, publication)
        return int(reason_of(fate, self._has_properties))

    def _exceeds_receive_maximum(self, session: Session) -> bool:
        """True if the client has as many unacknowledged publications as Receive Maximum permits."""
        unacknowledged: i64 = session.in_flight.received.count + self.replies.unanswered
        return unacknowledged >= self._publications_max
