"""Levels 3 and 4 (MQTT 3.1 and 3.1.1): packets out of chunks, and what each means to the session
and the core.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

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
from broker.routing.publish_context import PublishContext
from broker.routing.route import EMPTY_RELAY
from broker.store.contract import Ticket
from protocols.connection import BUDGET, COLD
from protocols.mqtt.codec.connect import LEVEL_5
from protocols.mqtt.codec.content import encoding_of
from protocols.mqtt.codec.packets import (
    CONNECT,
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
)
from protocols.mqtt.codec.relay_formats import APART_4
from protocols.mqtt.connection.login import MqttClient
from protocols.mqtt.connection.subscribing import subscribe, unsubscribe
from protocols.mqtt.session.session import Session

_PUBLISH_0: Final[i64] = PUBLISH << 4
_PUBLISH_1: Final[i64] = PUBLISH << 4 | AT_LEAST_ONCE << 1
_PUBACK: Final[i64] = PUBACK << 4
#: Plans that whole packets of level 4 may not follow.
_CARE: Final[i64] = ALWAYS | QUEUES | APART_4


class Level4(MqttClient):
    """Speaks the older versions; what comes first, a CONNECT, is somebody else's."""

    def on_first(self, first: i64, body: bytes) -> None:
        """A packet before the session is there."""
        raise NotImplementedError

    def _parse(self, data: bytes) -> i64:
        """Handle every complete packet; returns how many octets they took. Hot path.

        Adjacent QoS 0 packets for the same listeners are a run, relayed as one slice.
        """
        size: i64 = len(data)
        position: i64 = 0
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
            if length > self.packet_max:
                self._flush(run_count, run, data, run_start, position)
                self._too_large(first)
            end: i64 = start + length
            if end > size:
                if context is None and first != CONNECT << 4:
                    raise MalformedPacket(
                        "expected CONNECT"
                    )  # We need not wait for the rest of something else.
                self.need = end - position
                break
            if context is not None and first == _PUBLISH_0 and length >= 2:
                mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
                if mark > end:
                    self._flush(run_count, run, data, run_start, position)
                    raise MalformedPacket("topic name")
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
                        run.send(data[run_start:position], run_count)
                        run_count = 0
                    self._publish(
                        context, route, Message(route, data[mark:end], PLAIN, AT_MOST_ONCE), None
                    )
                else:
                    route.count += 1
                    if plan.relay is not run:
                        if run_count > 0:
                            run.send(data[run_start:position], run_count)
                            run_count = 0
                        run = plan.relay
                        run_start = position
                    elif run_count == 0:
                        run_start = position
                    run_count += 1
                budget -= plan.weight
            else:
                if run_count > 0:
                    run.send(data[run_start:position], run_count)
                    run_count = 0
                if context is not None and first == _PUBLISH_1 and length >= 4:
                    budget -= self._on_publish_1(context, data, start, end)
                elif (
                    session is not None
                    and first == _PUBACK
                    and length == 2
                    and session.puback(i64(read_i16_be(data, start)) & 0xFFFF)
                ):
                    budget -= 1
                else:
                    budget -= self._on_packet(first, data[start:end])
                    context = self.context
                    session = self.session
                    if self.finished:
                        return size
                    if self.stalled or self.level == LEVEL_5:
                        return end
            position = end
        if run_count > 0:
            run.send(data[run_start:position], run_count)
        self.behind = budget <= 0
        return position

    def _on_publish_1(self, context: PublishContext, data: bytes, start: i64, end: i64) -> i64:
        """A QoS 1 publication; returns its weight. Hot path."""
        mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
        if mark + 2 > end:
            raise MalformedPacket("topic name")
        topic = data[start + 2 : mark]
        packet_id: i64 = i64(read_i16_be(data, mark)) & 0xFFFF
        if packet_id == 0:
            raise MalformedPacket("packet identifier 0")  # [MQTT-2.3.1-1]
        route = context.routes.get(topic)
        if route is None:
            route = self.mqtt.topics.resolve(context, topic)
        context.received += 1
        message = Message(route, data[mark + 2 : end], PLAIN, AT_LEAST_ONCE)
        plan = route.plan
        ticket: Ticket | None = None
        if plan.slow_path_mask & (ALWAYS | PERSISTENCE) or plan.reliable_relay is not EMPTY_RELAY:
            ticket = Ticket(self._answers)
            self.persists = True
            self._publish(context, route, message, ticket)
        else:
            for queue in plan.reliable_queues:
                queue.put(message)
            route.count += 1
        self._answers.give(_PUBACK, packet_id, ticket)
        return plan.weight

    # -- packets that come rarely

    def _on_packet(self, first: i64, body: bytes) -> i64:
        """Returns what it costs of the budget."""
        kind = first >> 4
        reader = PacketReader(body)
        session = self.session
        context = self.context
        if session is None or context is None:
            self.on_first(first, body)
        elif kind == PUBLISH:
            return COLD + self._on_publish(session, context, first, reader)
        elif first == PUBACK << 4:
            reader.packet_id()  # Of nothing that is in flight.
            reader.end()
        elif first == PUBREC << 4:
            packet_id = reader.packet_id()
            reader.end()
            ticket = Ticket(self._answers)
            if session.release(packet_id, ticket):
                self._answers.give(PUBREL << 4 | 2, packet_id, ticket)
        elif first == PUBREL << 4 | 2:
            packet_id = reader.packet_id()
            reader.end()
            ticket = Ticket(self._answers)
            session.release_packet_id(packet_id, ticket)
            self._answers.give(PUBCOMP << 4, packet_id, ticket)
        elif first == PUBCOMP << 4:
            packet_id = reader.packet_id()
            reader.end()
            session.complete(packet_id)
        elif first == SUBSCRIBE << 4 | 2:
            return COLD * subscribe(self, session, context.identity, self.mqtt, reader, self.level)
        elif first == UNSUBSCRIBE << 4 | 2:
            return COLD * unsubscribe(self, session, self.mqtt, reader, self.level)
        elif first == PINGREQ << 4:
            reader.end()
            self.out.write(PINGRESP)
        elif first == DISCONNECT << 4:
            reader.end()
            self.will = None  # [MQTT-3.14.4-3]
            self.on_closed("client")
        else:
            raise MalformedPacket("packet type or flags")  # [MQTT-2.2.2-2], [MQTT-3.1.0-2]
        return COLD

    def _on_publish(
        self, session: Session, context: PublishContext, first: i64, reader: PacketReader
    ) -> i64:
        """PUBLISH with RETAIN, DUP or QoS 2; returns its weight."""
        qos = first >> 1 & 3
        if qos == 3 or qos == AT_MOST_ONCE and first & 8:
            raise MalformedPacket("QoS or DUP")  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
        topic = reader.binary()
        packet_id: i64 = reader.packet_id() if qos else 0
        if qos == EXACTLY_ONCE and packet_id in session.received:
            known = session.received[packet_id]
            if known is not None:
                known.waiter = self._answers  # It came over an earlier connection, perhaps.
            self._answers.give(PUBREC << 4, packet_id, known)
            return 0
        ticket = Ticket(self._answers)
        self.persists = True
        route = context.routes.get(topic) or self.mqtt.topics.resolve(context, topic)
        if route.plan.stale:
            context.renew(route)
        message = Message(
            route,
            reader.rest(),
            encoding_of(False, bool(first & 1), qos == EXACTLY_ONCE),
            qos,
        )
        context.received += 1
        store = self._vhost.store
        # The message and its identifier are durable together, or it would come twice, or never.
        store.begin()
        try:
            if qos == EXACTLY_ONCE:
                session.hold_packet_id(packet_id, ticket)
            if first & 1 and route.plan.refusal is None:
                self._vhost.retain(message, ticket)
            self._publish(context, route, message, ticket)
        finally:
            store.commit()
        if qos == AT_LEAST_ONCE:
            self._answers.give(_PUBACK, packet_id, ticket)
        elif qos == EXACTLY_ONCE:
            if ticket.outstanding == 0:
                session.received[packet_id] = None
            self._answers.give(PUBREC << 4, packet_id, ticket)
        return route.plan.weight
