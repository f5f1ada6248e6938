"""Messages that queues have paged out, and that stay in memory until the log has them."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask
from broker.messages.message import Message

#: Binary logarithm of the number of positions that share a part of `PagedMessages`: freeing the
#: messages of a part takes up to 3 ms, because their memory has left the CPU caches.
PART_BITS: Final[i64] = 8


class PagedMessages:
    """Messages in memory that queues paged out before the log had them.

    A batch may page out several hundred thousand messages. To free them at once, or to let one
    dictionary grow to this size, would hold the event loop for more than 10 ms. So the messages
    are in parts by position. Once the log has the messages, PagedRelease frees the parts.
    """

    def __init__(self) -> None:
        self._parts: dict[i64, dict[i64, Message]] = {}

    def add(self, message: Message) -> bool:
        """Keep a message until PagedRelease frees it. Return True if a new part begins with the
        message.
        """
        position = message.position
        part = self._parts.get(position >> PART_BITS)
        begun = part is None
        if part is None:
            part = self._parts[position >> PART_BITS] = {}
        part[position] = message
        return begun

    def find(self, position: i64) -> Message | None:
        """Return the message at a position; None if no queue paged it out."""
        part = self._parts.get(position >> PART_BITS)
        return None if part is None else part.get(position)

    def take(self) -> list[dict[i64, Message]]:
        """Remove and return all parts, so that PagedRelease can free their messages."""
        parts, self._parts = self._parts, {}
        return list(parts.values())


class PagedRelease(BulkTask):
    """A task that frees parts of PagedMessages once the log has them, one part in each slice.

    The store also frees one part whenever PagedMessages begins a new part. So the number of waiting
    parts is limited: it is at most the number of parts of two consecutive batches.
    """

    def __init__(self, agenda: Agenda) -> None:
        super().__init__(agenda)
        self.parts: list[dict[i64, Message]] = []

    def add(self, paged: PagedMessages, agenda: Agenda) -> None:
        """Free all parts of a PagedMessages, as bulk work of the broker's agenda."""
        self._agenda = agenda
        self.parts += paged.take()
        self.schedule()

    def has_work(self) -> bool:
        return bool(self.parts)

    def do_slice(self) -> None:
        if self.parts:
            self.parts.pop()
