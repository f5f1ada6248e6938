"""The queue in which messages with an `x-delay` header wait until their delay is over.

Each `x-delayed-message` exchange has one such queue. Clients do not see this queue, and it has no
consumers. The message whose delay ends first comes first. When its delay is over, the queue hands
the message to its virtual host, which publishes the message through the exchange.
"""

from __future__ import annotations

import heapq

from mypy_extensions import i64

from broker.messages.fates import EXPIRED, PURGED, RELEASED
from broker.messages.message import Message
from broker.queues.consumer import ReturnedMessage
from broker.queues.heap import HeapQueue


class DelayQueue(HeapQueue):
    """The delayed messages of one exchange. The `expires` of a message is the end of its delay."""

    def _rank(self, message: Message) -> i64:
        return message.expires

    def enqueue(self, message: Message) -> None:
        self._sequence += 1
        self._insert(ReturnedMessage(message, self._sequence, 0))

    def discard(self, message: Message, fate: i64) -> None:
        if fate == EXPIRED and self._host is not None:
            self.count(RELEASED)
            # The virtual host settles the message in the store once it is published.
            self._host.publish_delayed(self, message)
        else:
            super().discard(message, fate)

    def withdraw(self, sequence: i64) -> bool:
        """Discard the message with this sequence number; return True if it was in the queue.

        Slow: it searches the whole queue.
        """
        for at, entry in enumerate(self._heap):
            if entry[1] == sequence:
                self._heap[at] = self._heap[-1]
                self._heap.pop()
                heapq.heapify(self._heap)
                self.depth -= 1
                self.discard(entry[2].message, PURGED)
                return True
        return False

    def waiting(self) -> list[ReturnedMessage]:
        """Return the delayed messages, ordered by the end of their delay.

        Slow: it sorts the whole queue.
        """
        return [entry[2] for entry in sorted(self._heap)]
