"""Level 5: packets out of chunks, and what each means to the session and the core.

The loop is that of level 4 but for one octet: a PUBLISH has properties behind its topic name or
packet identifier, and `no properties` is written as a length of 0. What has some goes the general
way.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from broker.errors import BrokerError
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
from broker.routing.deduplication import PRODUCER, SEQUENCE, NumberedPublication, numbered
from broker.routing.publish_context import PublishContext
from broker.routing.route import DENIED, EMPTY_RELAY, REFUSED, REPEATED, ROUTED, UNROUTABLE, Route
from broker.store.contract import Ticket
from protocols.connection import BUDGET, COLD, Peer
from protocols.mqtt.codec.connect import topic_name
from protocols.mqtt.codec.content import encoding_of
from protocols.mqtt.codec.packets import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    MalformedPacket,
    PacketReader,
    decoded,
    write_answer,
)
from protocols.mqtt.codec.packets5 import read_acknowledgement, read_disconnect
from protocols.mqtt.codec.properties import (
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    RESPONSE_TOPIC,
    SESSION_EXPIRY,
    TOPIC_ALIAS,
    read_properties,
)
from protocols.mqtt.codec.reasons import (
    DISCONNECT_WITH_WILL,
    IMPLEMENTATION_SPECIFIC,
    NO_MATCHING_SUBSCRIBERS,
    NOT_AUTHORISED,
    PACKET_IDENTIFIER_NOT_FOUND,
    PAYLOAD_FORMAT_INVALID,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    RECEIVE_MAXIMUM_EXCEEDED,
    SUCCESS,
    TOPIC_ALIAS_INVALID,
    UNSPECIFIED,
)
from protocols.mqtt.codec.relay_formats import APART_5
from protocols.mqtt.connection.level4 import Level4
from protocols.mqtt.connection.service import MqttService
from protocols.mqtt.connection.subscribing import subscribe, unsubscribe
from protocols.mqtt.session.session import Session

_PUBLISH_0: Final[i64] = PUBLISH << 4
_PUBLISH_1: Final[i64] = PUBLISH << 4 | AT_LEAST_ONCE << 1
_PUBACK: Final[i64] = PUBACK << 4
#: Plans that whole packets of level 5 may not follow.
_CARE: Final[i64] = ALWAYS | QUEUES | APART_5
#: What publishers hear, by fate.
_CODES: Final[dict[int, int]] = {
    int(ROUTED): SUCCESS,
    int(UNROUTABLE): NO_MATCHING_SUBSCRIBERS,
    int(REPEATED): SUCCESS,
    int(REFUSED): QUOTA_EXCEEDED,
    int(DENIED): NOT_AUTHORISED,
}
#: Spellings of properties that are remembered, each for one connection.
_SPELLINGS: Final = 64


class PublishProperties:
    """The properties of publications, read: what is relayed of them, and what is the broker's
    affair.
    """

    __slots__ = ("alias", "expiry", "misnumbered", "octets", "publication", "text")

    def __init__(self, octets: bytes, alias: int, expiry: int, text: bool) -> None:
        #: As they are relayed, with their length: without the alias, the expiry first; empty if
        #: nothing is left.
        self.octets = octets
        self.alias = alias
        #: Seconds; below 0 for none.
        self.expiry = expiry
        #: Whether the body says to be UTF-8.
        self.text = text
        #: Who numbers its messages; whether the number is none.
        self.publication: NumberedPublication | None = None
        self.misnumbered = False


_NOTHING: Final = PublishProperties(b"", 0, -1, False)


class Level5(Level4):
    """Speaks MQTT 5 after its CONNECT."""

    def __init__(self, front: MqttService, peer: Peer) -> None:
        super().__init__(front, peer)
        #: Topic names by the client's aliases, and properties that came. (Most connections have
        #: neither.)
        self._topics: dict[int, bytes] | None = None
        self._spellings: dict[bytes, PublishProperties] | None = None
        #: Seconds that the session outlives the connection, as the client wants it.
        self.expiry = 0

    def on_auth(self, reader: PacketReader) -> None:
        """AUTH."""
        raise NotImplementedError

    def _parse5(self, data: bytes, position: i64) -> i64:
        """Handle every complete packet from here on; returns where they end. Hot path."""
        size: i64 = len(data)
        budget: i64 = BUDGET
        context = self.context
        session = self.session
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
                octet: i64 = 128
                while octet >= 128 and start < size:
                    octet = data[start]
                    start += 1
                    length |= (octet & 127) << shift
                    shift += 7
                    if shift > 21 and octet >= 128:
                        octet = 0
                        length = -1
                if octet >= 128:
                    break
                if length < 0 or octet == 0:
                    self._flush(run_count, run, data, run_start, position)
                    raise MalformedPacket("remaining length")
            end: i64 = start + length
            if end - position > self.packet_max:
                self._flush(run_count, run, data, run_start, position)
                self._too_large(first)
            if end > size:
                self.need = end - position
                break
            if context is not None and first == _PUBLISH_0 and length >= 3:
                mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
                if mark >= end or data[mark] != 0 or mark == start + 2:
                    if run_count > 0:
                        run.send_described(data[run_start:position], run_count)
                        run_count = 0
                    budget -= self._on_publish5(context, first, PacketReader(data[start:end]))
                    if self.finished:
                        return size
                    position = end
                    continue
                topic = data[start + 2 : mark]
                route = context.routes.get(topic)
                if route is None:
                    self._flush(run_count, run, data, run_start, position)
                    run_count = 0
                    route = self.mqtt.topics.resolve(context, topic)
                context.received += 1
                plan = route.plan
                if plan.slow_path_mask & _CARE:
                    if run_count > 0:
                        run.send_described(data[run_start:position], run_count)
                        run_count = 0
                    self._publish(
                        context,
                        route,
                        Message(route, data[mark + 1 : end], PLAIN, AT_MOST_ONCE),
                        None,
                    )
                else:
                    route.count += 1
                    if plan.relay is not run:
                        if run_count > 0:
                            run.send_described(data[run_start:position], run_count)
                            run_count = 0
                        run = plan.relay
                        run_start = position
                    elif run_count == 0:
                        run_start = position
                    run_count += 1
                budget -= plan.weight
            else:
                if run_count > 0:
                    run.send_described(data[run_start:position], run_count)
                    run_count = 0
                if context is not None and first == _PUBLISH_1 and length >= 5:
                    budget -= self._on_publish5_1(context, data, start, end)
                elif (
                    session is not None
                    and first == _PUBACK
                    and length == 2
                    and session.puback(i64(read_i16_be(data, start)) & 0xFFFF)
                ):
                    budget -= 1
                else:
                    budget -= self._on_packet5(first, data[start:end])
                    context = self.context
                    session = self.session
                if self.finished:
                    return size
                if self.stalled:
                    return end
            position = end
        if run_count > 0:
            run.send_described(data[run_start:position], run_count)
        self.behind = budget <= 0
        return position

    def _on_publish5_1(self, context: PublishContext, data: bytes, start: i64, end: i64) -> i64:
        """A QoS 1 publication; returns its weight. Hot path for one without properties."""
        mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
        if mark + 3 > end or data[mark + 2] != 0 or mark == start + 2 or self._answers.waiting:
            return self._on_publish5(context, _PUBLISH_1, PacketReader(data[start:end]))
        packet_id: i64 = i64(read_i16_be(data, mark)) & 0xFFFF
        if packet_id == 0:
            raise MalformedPacket("packet identifier 0")  # [MQTT-2.2.1-3]
        topic = data[start + 2 : mark]
        route = context.routes.get(topic)
        if route is None:
            route = self.mqtt.topics.resolve(context, topic)
        plan = route.plan
        if (
            plan.slow_path_mask & (ALWAYS | PERSISTENCE)
            or plan.reliable_relay is not EMPTY_RELAY
            or plan.fate != ROUTED
        ):
            return self._on_publish5(context, _PUBLISH_1, PacketReader(data[start:end]))
        context.received += 1
        message = Message(route, data[mark + 3 : end], PLAIN, AT_LEAST_ONCE)
        for queue in plan.reliable_queues:
            queue.put(message)
        route.count += 1
        write_answer(self.out, _PUBACK, packet_id)
        return plan.weight

    def _on_publish5(self, context: PublishContext, first: i64, reader: PacketReader) -> i64:
        """Any PUBLISH; returns its weight."""
        qos = first >> 1 & 3
        if qos == 3 or qos == AT_MOST_ONCE and first & 8:
            raise MalformedPacket("QoS or DUP")  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
        topic = reader.binary()
        packet_id: i64 = reader.packet_id() if qos else 0
        spelling = self._spelling(reader)
        if spelling.alias:
            topic = self._by_alias(spelling.alias, topic)
        elif not topic:
            raise MalformedPacket("no topic name", code=PROTOCOL_ERROR)
        session = self.session
        assert session is not None
        if qos == EXACTLY_ONCE and packet_id in session.received:
            known = session.received[packet_id]
            if known is not None:
                known.waiter = self._answers  # It came over an earlier connection, perhaps.
            self._answers.give(PUBREC << 4, packet_id, known)
            return COLD
        if (
            qos
            and len(session.received) + self._answers.waiting >= self.mqtt.options.receive_maximum
        ):
            raise MalformedPacket(
                "more than Receive Maximum", "receive_maximum", RECEIVE_MAXIMUM_EXCEEDED
            )  # [MQTT-3.3.4-7]
        route = context.routes.get(topic) or self.mqtt.topics.resolve(context, topic)
        if route.plan.stale:
            context.renew(route)
        ticket = Ticket(self._answers)
        self.persists = True
        store = self._vhost.store
        # The message and its identifier are durable together, or it would come twice, or never.
        store.begin()
        try:
            code = self._publish_described(context, route, spelling, reader.rest(), first, ticket)
            if qos == EXACTLY_ONCE and code < UNSPECIFIED:
                session.hold_packet_id(packet_id, ticket)
        finally:
            store.commit()
        if qos == AT_LEAST_ONCE:
            self._answers.give_code(PUBACK << 4, packet_id, ticket, code)
        elif qos == EXACTLY_ONCE:
            if code < UNSPECIFIED and ticket.outstanding == 0:
                session.received[packet_id] = None
            self._answers.give_code(PUBREC << 4, packet_id, ticket, code)
        return COLD + route.plan.weight

    def _publish_described(
        self,
        context: PublishContext,
        route: Route,
        spelling: PublishProperties,
        body: bytes,
        first: i64,
        ticket: Ticket | None,
    ) -> int:
        """Publish; returns the reason code."""
        context.received += 1
        qos: i64 = first >> 1 & 3
        if spelling.text and not _is_text(body):
            context.count_fate(REFUSED)
            return PAYLOAD_FORMAT_INVALID
        if spelling.misnumbered:
            context.count_fate(REFUSED)
            return IMPLEMENTATION_SPECIFIC
        described = spelling.octets != b""
        encoding = encoding_of(described, bool(first & 1), qos == EXACTLY_ONCE)
        message = Message(route, spelling.octets + body if described else body, encoding, qos)
        if spelling.expiry >= 0:
            message.expires = self.agenda.now + spelling.expiry * 1000
        publication = spelling.publication
        if (
            first & 1
            and route.plan.refusal is None
            and (publication is None or not self._vhost.producers.is_repeat(publication))
        ):
            self._vhost.retain(message, ticket)
        return _CODES.get(
            int(self._publish(context, route, message, ticket, publication)), UNSPECIFIED
        )

    def _spelling(self, reader: PacketReader) -> PublishProperties:
        """The properties that come next."""
        octets = reader.block()
        if octets == b"\0":
            return _NOTHING
        spellings = self._spellings
        if spellings is None:
            spellings = self._spellings = {}
        known = spellings.get(octets)
        if known is not None:
            return known
        properties = read_properties(PacketReader(octets), PUBLISH)
        if properties.identifiers:
            raise MalformedPacket(
                "subscription identifier from a client", code=PROTOCOL_ERROR
            )  # [MQTT-3.3.4-6]
        response = properties.text(RESPONSE_TOPIC)
        if response is not None:
            topic_name(response)  # [MQTT-3.3.2-14]
        alias = properties.numbers.pop(TOPIC_ALIAS, 0)
        relayed = properties.encoded()
        spelling = PublishProperties(
            b"" if relayed == b"\0" else relayed,
            alias,
            properties.number(MESSAGE_EXPIRY, -1),
            properties.number(PAYLOAD_FORMAT, 0) == 1,
        )
        if properties.user:
            try:
                spelling.publication = numbered(
                    {name: value for name, value in properties.user if name in (PRODUCER, SEQUENCE)}
                )
            except BrokerError:
                spelling.misnumbered = True
            if spelling.publication is not None:
                return spelling  # The next one has another number.
        if len(spellings) >= _SPELLINGS:
            spellings.clear()
        spellings[octets] = spelling
        return spelling

    def _by_alias(self, alias: int, topic: bytes) -> bytes:
        """The topic name that an alias stands for, or now stands for."""
        if alias > self.mqtt.options.topic_alias_maximum:
            raise MalformedPacket("topic alias", code=TOPIC_ALIAS_INVALID)  # [MQTT-3.3.2-9]
        topics = self._topics
        if topics is None:
            topics = self._topics = {}
        if topic:
            topic_name(decoded(topic))
            topics[alias] = topic
            return topic
        known = topics.get(alias)
        if known is None:
            raise MalformedPacket("unknown topic alias", code=PROTOCOL_ERROR)
        return known

    def _on_packet5(self, first: i64, body: bytes) -> i64:
        """Returns what it costs of the budget."""
        kind = first >> 4
        session, context = self.session, self.context
        if session is None or context is None:
            self.on_first(first, body)
            return COLD
        reader = PacketReader(body)
        if kind == PUBLISH:
            return self._on_publish5(context, first, reader)
        if first == SUBSCRIBE << 4 | 2:
            return COLD * subscribe(self, session, context.identity, self.mqtt, reader, self.level)
        if first == UNSUBSCRIBE << 4 | 2:
            return COLD * unsubscribe(self, session, self.mqtt, reader, self.level)
        if first == PUBACK << 4:
            answer = read_acknowledgement(reader, PUBACK)
            if not session.puback(answer.packet_id) and session.holds(answer.packet_id):
                raise MalformedPacket("PUBACK of a QoS 2 publication", code=PROTOCOL_ERROR)
        elif first == PUBREC << 4:
            self._on_pubrec(session, reader)
        elif first == PUBREL << 4 | 2:
            answer = read_acknowledgement(reader, PUBREL)
            known = answer.packet_id in session.received
            ticket = Ticket(self._answers)
            session.release_packet_id(answer.packet_id, ticket)
            self._answers.give_code(
                PUBCOMP << 4,
                answer.packet_id,
                ticket,
                SUCCESS if known else PACKET_IDENTIFIER_NOT_FOUND,
            )
        elif first == PUBCOMP << 4:
            session.complete(read_acknowledgement(reader, PUBCOMP).packet_id)
        elif first == PINGREQ << 4:
            reader.end()
            self.out.write(PINGRESP)
        elif first == DISCONNECT << 4:
            self._on_disconnect(session, reader)
        elif first == 0xF0:
            self.on_auth(reader)
        elif first == 0x10:
            raise MalformedPacket("a second CONNECT", code=PROTOCOL_ERROR)  # [MQTT-3.1.0-2]
        elif kind in (0, 2, 9, 11, 13):
            raise MalformedPacket("packet type", code=PROTOCOL_ERROR)
        else:
            raise MalformedPacket("flags")  # [MQTT-2.1.3-1]
        return COLD

    def _on_pubrec(self, session: Session, reader: PacketReader) -> None:
        answer = read_acknowledgement(reader, PUBREC)
        if answer.code >= UNSPECIFIED:
            session.refuse(answer.packet_id)  # [MQTT-4.3.3-6]: there is no PUBREL.
        elif not session.holds(answer.packet_id):
            self._answers.give_code(
                PUBREL << 4 | 2, answer.packet_id, None, PACKET_IDENTIFIER_NOT_FOUND
            )
        else:
            ticket = Ticket(self._answers)
            if not session.release(answer.packet_id, ticket):
                raise MalformedPacket("PUBREC of a QoS 1 publication", code=PROTOCOL_ERROR)
            self._answers.give(PUBREL << 4 | 2, answer.packet_id, ticket)

    def _on_disconnect(self, session: Session, reader: PacketReader) -> None:
        farewell = read_disconnect(reader)
        expiry = farewell.properties.number(SESSION_EXPIRY, -1)
        if expiry > 0 and self.expiry == 0:
            raise MalformedPacket(
                "session expiry of a session that has none", code=PROTOCOL_ERROR
            )  # [MQTT-3.14.2-2]
        if expiry >= 0:
            session.expiry = self.mqtt.sessions.granted(expiry)
        if farewell.code == SUCCESS:
            self.will = None  # [MQTT-3.14.4-3]
        self.on_closed(
            "client" if farewell.code in (SUCCESS, DISCONNECT_WITH_WILL) else "client_error"
        )


def _is_text(octets: bytes) -> bool:
    try:
        octets.decode()
    except UnicodeDecodeError:
        return False
    return True
