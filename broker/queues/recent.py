"""The queue that holds the recent messages of an `x-recent-history` exchange.

Each such exchange has one such queue. Clients do not see this queue, and it has no consumers. When
it is full, its oldest message is dropped. All of its messages are in memory, because each new
binding of the exchange reads them. Therefore the queue also has a limit in bytes.
"""

from __future__ import annotations

from array import array
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.fates import RELEASED, UNREADABLE
from broker.messages.message import Message
from broker.queues.paged_tail import read_stored
from broker.queues.private import ShortQueue
from broker.store.contract import Store

#: Largest size in bytes of the bodies and properties that one history holds, unless its newest
#: message alone is larger.
RECENT_BYTES_MAX: Final[i64] = 64 << 20


class RecentQueue(ShortQueue):
    """The last `length` messages of one exchange; an expired message leaves the queue earlier.

    The queue holds fewer messages if they are large: at most RECENT_BYTES_MAX bytes.
    """

    def __init__(
        self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool, length: int
    ) -> None:
        super().__init__(vhost, name, agenda, store, durable, length)
        #: Size in bytes of the messages in the queue.
        self._bytes: i64 = 0

    def put(self, message: Message) -> None:
        self._bytes += message.encoding.size(message.content)
        super().put(message)
        if self._bytes > RECENT_BYTES_MAX:
            self._overflow()

    def discard(self, message: Message, fate: i64) -> None:
        self._bytes -= message.encoding.size(message.content)
        super().discard(message, fate)

    def _overflow(self) -> None:
        while self.depth > self.max_length or self._bytes > RECENT_BYTES_MAX and self.depth > 1:
            self.drop_head(RELEASED)

    def _set_overflow_depth(self) -> None:
        self._overflow_depth = self.max_length

    def restore(self, positions: array[int], sequence: i64) -> None:
        for message in read_stored(self.store, self.number, positions, False):
            if message is None:
                self.count(UNREADABLE)
            else:
                self.put(message)

    def recent(self) -> list[Message]:
        """Return the messages that have not expired, the oldest first."""
        now = self.agenda.now
        messages = self._waiting.memory.items()
        return [message for message in messages if not 0 < message.expires <= now]
