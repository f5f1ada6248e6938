"""Packet identifiers of a session that are in use, in both directions.

    to the client      PUBLISH --> PUBACK                         an outstanding delivery
                       PUBLISH --> PUBREC --> PUBREL --> PUBCOMP  an outstanding delivery; after
                                                                  the PUBREC, also in `released`
    from the client    PUBLISH --> PUBREC --> PUBREL --> PUBCOMP  in `received` until the PUBREL

The packet identifier of a message to the client follows from the message's sequence number in the
inbox, so the packet identifier is the same after a crash.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.queues.consumer import Delivery
from protocols.mqtt.session.packet_id_set import IDENTIFIERS, NO_PACKET_IDS, PacketIdSet
from protocols.window import Window


class InflightWindow(Window):
    """Messages and packet identifiers that wait for an acknowledgement of one client.

    A delivery is found by its message's sequence number in the session's inbox.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Packet identifiers of QoS 2 messages from the client, until their PUBREL.
        self.received = NO_PACKET_IDS
        #: Packet identifiers of QoS 2 messages to the client for which the client has sent a
        #: PUBREC.
        self.released = NO_PACKET_IDS
        #: The position in the store of the last PUBREC; 0 if no PUBREC was stored.
        self.released_position: i64 = 0

    @property
    def idle(self) -> bool:
        """True if no message and no packet identifier waits for a packet from the client."""
        return self.count == 0 and self.received.count == 0 and self.released.count == 0

    def number_of(self, packet_id: i64) -> i64:
        """Return the sequence number that belongs to this packet identifier.

        The result is between the number of the oldest message in flight (`first`) and
        `first` + IDENTIFIERS - 1.
        """
        first: i64 = self.first
        return first + (packet_id - 1 - (first - 1) % IDENTIFIERS + IDENTIFIERS) % IDENTIFIERS

    def delivery(self, packet_id: i64) -> Delivery | None:
        """Return the outstanding delivery with this packet identifier; None if there is none."""
        return self.get(self.number_of(packet_id))

    def hold(self, packet_id: i64) -> None:
        """Hold the packet identifier of a QoS 2 message from the client until its PUBREL."""
        if self.received is NO_PACKET_IDS:
            self.received = PacketIdSet()
        self.received.add(packet_id)

    def mark_released(self, packet_id: i64, position: i64) -> None:
        """Record that the PUBREC of an outstanding delivery has arrived.

        `position` is the position of the PUBREC in the store; 0 if the PUBREL need not wait for
        the store.
        """
        if self.released is NO_PACKET_IDS:
            self.released = PacketIdSet()
        self.released.add(packet_id)
        if position > 0:
            self.released_position = position


#: The window of every session without a connection whose in-flight window would be empty. All these
#: sessions share it, so it is never changed.
EMPTY_WINDOW: Final = InflightWindow()


def packet_identifier(sequence: i64) -> i64:
    """Return the packet identifier of a message by its sequence number in the inbox."""
    return (sequence - 1) % IDENTIFIERS + 1
