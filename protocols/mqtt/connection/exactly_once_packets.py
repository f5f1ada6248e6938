"""The hot path of QoS 2: packets without properties, in the usual order.

    handle_exactly_once --> _publish       PUBLISH
                        --> _acknowledge   PUBREC, PUBREL, PUBCOMP

The packet handler of the protocol level handles all rarer cases: for example malformed packets,
repeated packets and unknown packet identifiers.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i16_be
from mypy_extensions import i64

from broker.messages.fates import ROUTED
from broker.messages.message import ALWAYS, EXACTLY_ONCE, PERSISTENCE, Message
from broker.routing.publish_context import PublishContext
from broker.routing.relay import EMPTY_RELAY
from protocols.mqtt.codec.content import encoding_of
from protocols.mqtt.codec.packets import PUBCOMP, PUBLISH, PUBREC, PUBREL
from protocols.mqtt.connection.connection import MqttConnection
from protocols.mqtt.connection.replies import PublishReplies
from protocols.mqtt.session.exactly_once import (
    hold_packet_id,
    pubcomp,
    pubrec_for,
    release_packet_id,
)
from protocols.mqtt.session.session import Session

#: The cost of a packet that `handle_exactly_once` has not handled.
RARE: Final[i64] = -2
_PUBLISH: Final[i64] = PUBLISH << 4 | EXACTLY_ONCE << 1
_PUBREC: Final[i64] = PUBREC << 4
_PUBREL: Final[i64] = PUBREL << 4 | 2
_PUBCOMP: Final[i64] = PUBCOMP << 4
#: The encoding of a payload without properties that was published with QoS 2.
_ENCODING: Final = encoding_of(False, False, True)


def handle_exactly_once(
    connection: MqttConnection,
    session: Session,
    context: PublishContext,
    first: i64,
    data: bytes,
    start: i64,
    end: i64,
    publications_max: i64,
) -> i64:
    """Handle a packet of QoS 2 without properties; return its cost in units of BUDGET.

    `first` is the packet's first byte, `data[start:end]` is the packet after its remaining length.
    `publications_max` is the largest number of the client's unacknowledged publications at level 5;
    it is 0 at the levels below. Return RARE, and do nothing, in a rarer case, and for other
    packets. Hot path.
    """
    if first == _PUBLISH:
        return _publish(connection, session, context, data, start, end, publications_max)
    if end - start == 2:
        packet_id: i64 = i64(read_i16_be(data, start)) & 0xFFFF
        if packet_id > 0 and _acknowledge(session, connection.replies, first, packet_id):
            return 1
    return RARE


def _publish(
    connection: MqttConnection,
    session: Session,
    context: PublishContext,
    data: bytes,
    start: i64,
    end: i64,
    publications_max: i64,
) -> i64:
    """Handle a PUBLISH without DUP and RETAIN; return its cost. Return RARE in a rarer case."""
    if end - start < 4:
        return RARE
    replies = connection.replies
    received = session.in_flight.received
    mark: i64 = start + 2 + (i64(read_i16_be(data, start)) & 0xFFFF)
    body: i64 = mark + 2
    if publications_max > 0:
        body += 1
        if (
            body > end
            or data[mark + 2] != 0
            or mark == start + 2
            or received.count + replies.unanswered >= publications_max
        ):
            return RARE
    elif body > end:
        return RARE
    packet_id: i64 = i64(read_i16_be(data, mark)) & 0xFFFF
    if packet_id == 0 or received.contains(packet_id):
        return RARE
    route = context.routes.get(data[start + 2 : mark])
    if route is None:
        return RARE
    plan = route.plan
    if (
        plan.slow_path_mask & ALWAYS
        or plan.fate != ROUTED
        or plan.reliable_relay is not EMPTY_RELAY
        or len(plan.qos1_inboxes) > 0
    ):
        return RARE
    context.received += 1
    message = Message(route, data[body:end], _ENCODING, EXACTLY_ONCE)
    persists = plan.slow_path_mask & PERSISTENCE != 0
    if not persists and not session.persistent:
        route.deliver(message, plan.reliable_queues)
        session.own_window().hold(packet_id)
        replies.give(_PUBREC, packet_id, None)
        return plan.weight
    vhost = connection.vhost
    store = vhost.store
    ticket = replies.ticket_for(store.batch_number)
    connection.persists = True
    if not session.persistent:
        vhost.publish_persistent(route, message, ticket)
        session.own_window().hold(packet_id)
        replies.give(_PUBREC, packet_id, ticket)
        return plan.weight
    # The message and its packet identifier become durable together. If a crash loses them, the
    # client sends the message again, and the broker handles it as a new message.
    store.begin()
    try:
        if persists:
            vhost.publish_persistent(route, message, ticket)
        else:
            route.deliver(message, plan.reliable_queues)
        hold_packet_id(session, packet_id, ticket)
    finally:
        store.commit()
    replies.give(_PUBREC, packet_id, ticket)
    return plan.weight


def _acknowledge(session: Session, replies: PublishReplies, first: i64, packet_id: i64) -> bool:
    """Handle a PUBREC, PUBREL or PUBCOMP. Return False, and do nothing, in a rarer case."""
    if first == _PUBREC:
        delivery = session.in_flight.delivery(packet_id)
        if delivery is None:
            return False
        ticket = replies.ticket_for(session.vhost.store.batch_number)
        if not pubrec_for(session, packet_id, delivery, ticket):
            return False
        replies.give(_PUBREL, packet_id, ticket)
        return True
    if first == _PUBREL:
        if not session.in_flight.received.contains(packet_id):
            return False
        ticket = replies.ticket_for(session.vhost.store.batch_number)
        release_packet_id(session, packet_id, ticket)
        replies.give(_PUBCOMP, packet_id, ticket)
        return True
    return first == _PUBCOMP and pubcomp(session, packet_id)
