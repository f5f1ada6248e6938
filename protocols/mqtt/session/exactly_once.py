"""The acknowledgements of QoS 2 in a session: PUBREC, PUBREL and PUBCOMP (section 4.3.3).

    broker --PUBLISH--> client    PUBREC (pubrec), PUBREL, PUBCOMP (pubcomp)
    client --PUBLISH--> broker    hold_packet_id, PUBREC, PUBREL (release_packet_id), PUBCOMP

Both directions record their packet identifiers in the store if the session is persistent.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.message import EXACTLY_ONCE
from broker.store.contract import Ticket
from broker.store.entries import PacketIdHeld, PacketIdReleased, PubrecReceived
from protocols.mqtt.session.session import Session

# -- messages to the client


def pubrec(session: Session, packet_id: i64, ticket: Ticket) -> bool:
    """Handle a PUBREC; return False if the packet identifier belongs to a QoS 1 message.

    The PUBREL waits for `ticket`. Return True for an unknown packet identifier too: the broker
    answers such a PUBREC, because the client waits for the PUBREL [MQTT-4.3.3-1].
    """
    window = session.in_flight
    delivery = window.delivery(packet_id)
    if delivery is None:
        return True
    if delivery.message.qos != EXACTLY_ONCE:
        return False
    store, position = session.vhost.store, delivery.message.position
    if packet_id in window.released:
        store.wait_for(window.released[packet_id], ticket)
    elif position > 0 and session.persistent:
        record = PubrecReceived(session.inbox.number, position)
        window.mark_released(packet_id, store.append(record, ticket))
    else:
        window.mark_released(packet_id, 0)
    return True


def refuse(session: Session, packet_id: i64) -> None:
    """Handle a PUBREC with an error code: settle the message, because the client has refused
    it.
    """
    session.in_flight.released.pop(packet_id, None)
    session.settle(session.in_flight.number_of(packet_id))


def pubcomp(session: Session, packet_id: i64) -> None:
    """Handle a PUBCOMP; ignore it if the client has sent no PUBREC with its packet identifier."""
    if session.in_flight.released.pop(packet_id, -1) >= 0:
        session.settle(session.in_flight.number_of(packet_id))


# -- messages of the client


def hold_packet_id(session: Session, packet_id: i64, ticket: Ticket) -> None:
    """Hold the packet identifier of a QoS 2 message that the client has published.

    Until the PUBREL, another PUBLISH with this packet identifier is dropped as a copy.
    """
    session.own_window().hold(packet_id, ticket)
    if session.persistent:
        session.vhost.store.append(PacketIdHeld(session.number, packet_id), ticket)


def release_packet_id(session: Session, packet_id: i64, ticket: Ticket) -> None:
    """Handle a PUBREL: the client may use the packet identifier again after the PUBCOMP, which
    waits for the ticket.
    """
    received = session.in_flight.received
    if packet_id in received:
        del received[packet_id]
        if session.persistent:
            session.vhost.store.append(PacketIdReleased(session.number, packet_id), ticket)
    elif session.persistent:
        # The release of an earlier PUBREL may not be durable yet. The client uses the packet
        # identifier again after this PUBCOMP, so the identifier must not be held after a crash.
        session.vhost.store.wait_for_all(ticket)
