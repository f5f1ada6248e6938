"""The queue that holds the recent messages of an `x-recent-history` exchange.

Each such exchange has one. Clients do not see this queue, and it has no consumers. When it is full,
its oldest message is dropped. All of its messages are in memory, because each new binding of the
exchange reads them.
"""

from __future__ import annotations

from array import array

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.fates import RELEASED
from broker.messages.message import Message
from broker.queues.paged_tail import read_stored
from broker.queues.queue import Queue
from broker.store.contract import Store


class RecentQueue(Queue):
    """The last `length` messages of one exchange; an expired message leaves the queue earlier."""

    def __init__(
        self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool, length: int
    ) -> None:
        super().__init__(vhost, name, agenda, store, durable)
        self.max_length = length

    def _overflow(self) -> None:
        while self.depth > self._max_length:
            self.drop_head(RELEASED)

    def _set_overflow_depth(self) -> None:
        self._overflow_depth = self._max_length

    def restore(self, positions: array[int], sequence: i64) -> None:
        for message in read_stored(self.store, self.number, positions, False):
            if message is None:
                self.count_unreadable()
            else:
                self.put(message)

    def recent(self) -> list[Message]:
        """Return the messages that have not expired, the oldest first."""
        now = self.agenda.now
        return [message for message in self._waiting.items() if not 0 < message.expires <= now]
