"""The acknowledgements of QoS 2 in a session: PUBREC, PUBREL and PUBCOMP (section 4.3.3).

    broker --PUBLISH--> client    PUBREC (pubrec), PUBREL, PUBCOMP (pubcomp)
    client --PUBLISH--> broker    hold_packet_id, PUBREC, PUBREL (release_packet_id), PUBCOMP

Both directions record their packet identifiers in the store if the session is persistent.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.message import EXACTLY_ONCE
from broker.queues.consumer import Delivery
from broker.store.contract import Ticket
from broker.store.entries import PacketIdHeld, PacketIdReleased
from protocols.mqtt.session.session import Session

# -- messages to the client


def pubrec(session: Session, packet_id: i64, ticket: Ticket) -> bool:
    """Handle a PUBREC; return False if the packet identifier belongs to a QoS 1 message.

    The PUBREL waits for `ticket`. Return True for an unknown packet identifier too: the broker
    answers such a PUBREC, because the client waits for the PUBREL [MQTT-4.3.3-1].
    """
    delivery = session.in_flight.delivery(packet_id)
    return delivery is None or pubrec_for(session, packet_id, delivery, ticket)


def pubrec_for(session: Session, packet_id: i64, delivery: Delivery, ticket: Ticket) -> bool:
    """Handle a PUBREC for an outstanding delivery; return False if it is of QoS 1. Hot path.

    The PUBREL waits for `ticket`.
    """
    message = delivery.message
    if message.qos != EXACTLY_ONCE:
        return False
    window = session.in_flight
    if window.released.contains(packet_id):
        session.vhost.store.wait_for(window.released_position, ticket)
    elif message.position > 0 and session.persistent:
        store = session.vhost.store
        window.mark_released(
            packet_id, store.append_pubrec(session.inbox.number, message.position, ticket)
        )
    else:
        window.mark_released(packet_id, 0)
    return True


def refuse(session: Session, packet_id: i64) -> None:
    """Handle a PUBREC with an error code: settle the message, because the client has refused
    it.
    """
    session.in_flight.released.remove(packet_id)
    session.settle(session.in_flight.number_of(packet_id))


def pubcomp(session: Session, packet_id: i64) -> bool:
    """Handle a PUBCOMP; ignore it, and return False, if the client has sent no PUBREC with its
    packet identifier. Hot path.
    """
    if not session.in_flight.released.remove(packet_id):
        return False
    session.settle(session.in_flight.number_of(packet_id))
    return True


# -- messages of the client


def hold_packet_id(session: Session, packet_id: i64, ticket: Ticket) -> None:
    """Hold the packet identifier of a QoS 2 message that the client has published.

    Until the PUBREL, another PUBLISH with this packet identifier is dropped as a copy.
    """
    session.own_window().hold(packet_id)
    if session.persistent:
        session.vhost.store.append(PacketIdHeld(session.number, packet_id), ticket)


def wait_for_copy(session: Session, ticket: Ticket) -> None:
    """Make the PUBREC for a repeated PUBLISH wait until the first copy is durable.

    The first copy may have been stored as a row of a stream.
    """
    store = session.vhost.store
    if store.unbatched:
        store.wait_for_next_batch(ticket)
    else:
        store.wait_for_all(ticket)


def release_packet_id(session: Session, packet_id: i64, ticket: Ticket) -> bool:
    """Handle a PUBREL; return False if its packet identifier is not held. Hot path.

    The client may use the packet identifier again after the PUBCOMP, which waits for the ticket.
    """
    held = session.in_flight.received.remove(packet_id)
    if session.persistent:
        store = session.vhost.store
        if held:
            store.append(PacketIdReleased(session.number, packet_id), ticket)
        else:
            # The release of an earlier PUBREL may not be durable yet. The client uses the packet
            # identifier again after this PUBCOMP, so the identifier must not be held after a crash.
            store.wait_for_all(ticket)
    return held
