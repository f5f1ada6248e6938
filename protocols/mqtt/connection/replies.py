"""Acknowledges publications once they are durable, in the order of the client's packets.

A PUBACK, PUBREC, PUBREL or PUBCOMP waits for the ticket of the packet that it answers, and for all
replies before it [MQTT-4.6.0-2], [MQTT-4.6.0-3].
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

from broker.messages.outlet import Outlet
from broker.store.contract import Ticket, Waiter
from protocols.mqtt.codec.packets import PUBREC, PUBREL, write_answer
from protocols.mqtt.codec.packets5 import acknowledgement5
from protocols.mqtt.codec.reasons import UNSPECIFIED


class PendingReplies:
    """A run of replies that wait for their ticket or for earlier replies.

    The replies are equal except for their packet identifiers, which are `packet_id` and the next
    `count` - 1 identifiers. `first` is the first byte of the packets, `code` their reason code.
    """

    __slots__ = ("code", "count", "first", "packet_id", "ticket")

    def __init__(self, first: i64, packet_id: i64, ticket: Ticket | None, code: i64) -> None:
        self.first: i64 = first
        self.packet_id: i64 = packet_id
        self.ticket = ticket
        self.code: i64 = code
        self.count: i64 = 1

    @property
    def ends_publication(self) -> bool:
        """True for a PUBACK, a PUBCOMP and a PUBREC with an error: after this reply, the client may
        publish another message within the Receive Maximum (section 4.9).
        """
        kind: i64 = self.first >> 4
        return kind != PUBREL and (kind != PUBREC or self.code >= UNSPECIFIED)

    def accepts(self, first: i64, packet_id: i64, ticket: Ticket | None, code: i64) -> bool:
        """True if the run can be extended by a reply with these values."""
        return (
            packet_id == self.packet_id + self.count
            and first == self.first
            and ticket is self.ticket
            and code == self.code
        )

    def write(self, out: BytesWriter) -> None:
        """Write all replies of the run."""
        packet_id: i64 = self.packet_id
        end: i64 = packet_id + self.count
        if self.code > 0:
            while packet_id < end:
                out.write(acknowledgement5(int(self.first), int(packet_id), int(self.code)))
                packet_id += 1
        else:
            first: i64 = self.first
            while packet_id < end:
                write_answer(out, first, packet_id)
                packet_id += 1


#: The `_waiting` of all connections without waiting replies. It is never changed.
_NO_REPLIES: Final[list[PendingReplies]] = []


class PublishReplies(Waiter):
    """The queue of the PUBACK, PUBREC, PUBREL and PUBCOMP packets that one connection sends."""

    def __init__(self, outlet: Outlet) -> None:
        self._outlet: Outlet | None = outlet
        self._waiting = _NO_REPLIES
        #: Number of the client's publications whose last reply waits (`ends_publication`). QoS 2
        #: publications that wait for their PUBREL are counted by the window of the session instead.
        self.unanswered: i64 = 0
        #: The ticket for the messages of the store's latest batch, and the number of that batch.
        self._ticket: Ticket | None = None
        self._batch: i64 = -1

    def ticket_for(self, batch: i64) -> Ticket:
        """Return the ticket for all messages that the store writes in one batch. Hot path.

        The messages of a batch become durable together, so they share one ticket. A later batch
        gets another ticket, so that its messages do not delay the replies for earlier messages.
        """
        ticket = self._ticket
        if ticket is None or self._batch != batch:
            ticket = self._ticket = Ticket(self)
            self._batch = batch
        return ticket

    def give(self, first: i64, packet_id: i64, ticket: Ticket | None) -> None:
        """Write a reply once its ticket is settled and all replies before it are written. Hot path.

        `first` is the first byte of the packet.
        """
        if ticket is not None and ticket.outstanding > 0:
            self._wait(first, packet_id, ticket, 0)
        elif self._waiting:
            self._wait(first, packet_id, None, 0)
        elif self._outlet is not None:
            write_answer(self._outlet.out, first, packet_id)

    def give_code(self, first: i64, packet_id: i64, ticket: Ticket | None, code: i64) -> None:
        """Write a reply once its ticket is settled and all replies before it are written.

        `first` is the first byte of the packet, `code` its reason code. A code other than 0 may be
        sent only to clients of level 5.
        """
        if code == 0:
            self.give(first, packet_id, ticket)
        elif ticket is not None and ticket.outstanding > 0:
            self._wait(first, packet_id, ticket, code)
        elif self._waiting:
            self._wait(first, packet_id, None, code)
        elif self._outlet is not None:
            self._outlet.out.write(acknowledgement5(int(first), int(packet_id), int(code)))

    def _wait(self, first: i64, packet_id: i64, ticket: Ticket | None, code: i64) -> None:
        """Append a reply to the replies that wait."""
        waiting = self._waiting
        if waiting:
            last = waiting[-1]
            if last.accepts(first, packet_id, ticket, code):
                last.count += 1
                if last.ends_publication:
                    self.unanswered += 1
                return
        reply = PendingReplies(first, packet_id, ticket, code)
        if reply.ends_publication:
            self.unanswered += 1
        if waiting is _NO_REPLIES:
            self._waiting = [reply]
        else:
            waiting.append(reply)

    def settled(self) -> None:
        waiting, outlet = self._waiting, self._outlet
        if outlet is None:
            return
        done = 0
        for reply in waiting:
            if reply.ticket is not None and reply.ticket.outstanding > 0:
                break
            done += 1
            if reply.ends_publication:
                self.unanswered -= reply.count
            reply.write(outlet.out)
        if done:
            del waiting[:done]
            outlet.touch()

    def close(self) -> None:
        """Drop the waiting replies, because the connection has ended."""
        self._waiting = _NO_REPLIES
        self._ticket = None  # Break a reference cycle: the ticket refers to this object.
        self._outlet = None
