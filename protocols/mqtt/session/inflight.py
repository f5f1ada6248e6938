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
from broker.store.contract import Ticket
from protocols.window import Window

#: Number of packet identifiers; the smallest is 1.
IDENTIFIERS: Final[i64] = 65_535
#: Empty dictionaries that all windows without entries share, and that never change.
_NONE_RECEIVED: Final[dict[int, Ticket | None]] = {}
_NONE_RELEASED: Final[dict[int, int]] = {}


class InflightWindow(Window):
    """Messages and packet identifiers that wait for an acknowledgement of one client.

    A delivery is found by its message's sequence number in the session's inbox.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Packet identifiers of QoS 2 messages from the client, until their PUBREL. Each has the
        #: ticket for which its PUBREC waits; None if the PUBREC need not wait.
        self.received: dict[int, Ticket | None] = _NONE_RECEIVED
        #: Packet identifiers of QoS 2 messages to the client for which the client has sent a
        #: PUBREC. Each has the position of the PUBREC in the store; 0 if the PUBREC is not stored.
        self.released: dict[int, int] = _NONE_RELEASED

    @property
    def idle(self) -> bool:
        """True if no message and no packet identifier waits for a packet from the client."""
        return self.count == 0 and not self.received and not self.released

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

    def hold(self, packet_id: int, ticket: Ticket | None) -> None:
        """Hold the packet identifier of a QoS 2 message from the client until its PUBREL."""
        if self.received is _NONE_RECEIVED:
            self.received = {}
        self.received[packet_id] = ticket

    def mark_released(self, packet_id: int, position: int) -> None:
        """Record that the PUBREC of an outstanding delivery has arrived.

        `position` is the position of the PUBREC in the store; 0 if the PUBREL need not wait for
        the store.
        """
        if self.released is _NONE_RELEASED:
            self.released = {}
        self.released[packet_id] = position


#: The window of every session without a connection whose in-flight window would be empty. All these
#: sessions share it, so it is never changed.
EMPTY_WINDOW: Final = InflightWindow()


def packet_identifier(sequence: i64) -> i64:
    """Return the packet identifier of a message by its sequence number in the inbox."""
    return (sequence - 1) % IDENTIFIERS + 1
