"""A reply that waits until the store has written the changes that the reply confirms."""

from __future__ import annotations

from typing import Protocol

from librt.strings import BytesWriter

from broker.store.contract import Ticket, Waiter


class StalledConnection(Protocol):
    """The part of a connection that a DeferredReply uses."""

    out: BytesWriter
    stalled: bool
    finished: bool

    def resume_input(self) -> None:
        """End the stall of the connection."""


class DeferredReply(Waiter):
    """A reply that waits until changes are durable, while its connection is stalled."""

    def __init__(self, connection: StalledConnection) -> None:
        self._connection = connection
        self.reply = b""

    def settled(self) -> None:
        """Send the reply, because its ticket is settled, and resume the input of the connection."""
        connection = self._connection
        if connection.stalled and self.reply and not connection.finished:
            connection.out.write(self.reply)
            connection.resume_input()


def add_reply(ticket: Ticket, reply: bytes) -> None:
    """Add a reply that is sent, with the earlier replies of this ticket, once the ticket is
    settled.

    The replies are sent in the order in which they were added.
    """
    waiter = ticket.waiter
    assert isinstance(waiter, DeferredReply)
    waiter.reply += reply
