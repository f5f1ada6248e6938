"""Resends the messages in flight, when the client of a session has connected again [MQTT-4.4.0-1].

messages in flight, oldest first --> PUBLISH with DUP, or PUBREL --> deliveries of the inbox
"""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from broker.messages.message import EXACTLY_ONCE
from broker.messages.outlet import Outlet
from broker.store.contract import Store, Ticket
from protocols.mqtt.codec.packets import DUP, PUBREL, write_answer
from protocols.mqtt.session.inbox_consumer import DurableWaiter, skip
from protocols.mqtt.session.inflight import InflightWindow, packet_identifier
from protocols.mqtt.session.publish_writer import PublishWriter
from protocols.tally import FrontCounters


class Resending:
    """The messages in flight that were not resent yet over the present connection."""

    def __init__(
        self,
        window: InflightWindow,
        outlet: Outlet,
        writer: PublishWriter,
        store: Store,
        tally: FrontCounters,
        room: i64,
        on_durable: Callable[[], None],
    ) -> None:
        """Prepare to resend all messages of `window`.

        `room` is the number of messages in flight that the client accepts (Receive Maximum).
        `on_durable` is called once the store has written a change for which the next message waits.
        """
        #: Number of further messages in flight that the client accepts now. It is negative if more
        #: PUBRELs are resent than the client accepts messages.
        self._room: i64 = room
        #: The messages that are not resent yet, with their sequence numbers, oldest last.
        self._unsent = window.outstanding()
        self._unsent.reverse()
        self._window = window
        self._outlet = outlet
        self._writer = writer
        self._store = store
        self._tally = tally
        self._on_durable = on_durable

    def advance(self) -> bool:
        """Resend messages until one must wait for the client, the connection or the store.

        Return True once all messages are resent.
        """
        while self._unsent:
            if not self._outlet.open() or self._waits_for_room() or self._waits_for_store():
                return False
            self._resend_next()
        return True

    def on_settled(self, sequence: i64) -> None:
        """Note that the client has acknowledged the message `sequence` and accepts another one.

        A message that is not resent yet does not count against Receive Maximum.
        """
        if not self._unsent or sequence < self._unsent[-1][0]:
            self._room += 1

    def _waits_for_room(self) -> bool:
        """True if the next message must wait until the client acknowledges another message.

        A PUBREL need not wait [MQTT-4.9.0-3]. But its message counts until the PUBCOMP, so that no
        client has more than Receive Maximum messages to acknowledge [MQTT-3.3.4-9].
        """
        return self._room <= 0 and not self._window.released.contains(
            packet_identifier(self._unsent[-1][0])
        )

    def _waits_for_store(self) -> bool:
        """True if the next message must not be resent before a change in the store is durable."""
        sequence, delivery = self._unsent[-1]
        needed: i64 = 0
        if self._window.released.contains(packet_identifier(sequence)):
            needed = self._window.released_position
        if delivery.message.qos == EXACTLY_ONCE:
            needed = max(needed, delivery.message.position)
        if needed <= self._store.durable:
            return False
        self._store.wait_for(needed, Ticket(DurableWaiter(self._on_durable)))
        return True

    def _resend_next(self) -> None:
        """Resend the next message, unless the client has acknowledged it meanwhile."""
        window, outlet = self._window, self._outlet
        sequence, delivery = self._unsent.pop()
        packet_id = packet_identifier(sequence)
        if window.get(sequence) is not delivery:
            return
        if window.released.contains(packet_id):
            self._room -= 1
            write_answer(outlet.out, PUBREL << 4 | 2, packet_id)
            outlet.touch()
            return
        self._tally.redelivered += 1
        if self._writer.write(delivery.message, delivery.message.qos, packet_id, DUP):
            self._room -= 1
        else:
            skip(window, sequence)
