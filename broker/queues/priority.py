"""The queue of the argument `x-max-priority`, which delivers messages of higher priority first.

Messages of equal priority keep the order in which they were published. A priority above
`x-max-priority` counts as `x-max-priority`.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.message import Message
from broker.queues.consumer import Delivery, ReturnedMessage
from broker.queues.heap import HeapQueue


class PriorityQueue(HeapQueue):
    """A queue that delivers messages of higher priority first."""

    def _rank(self, message: Message) -> i64:
        highest: i64 = self.arguments.max_priority
        return -min(message.encoding.priority(message.content), highest)

    def enqueue(self, message: Message) -> None:
        self._sequence += 1
        if self.depth == 0 and self._holds == 0:
            consumer = self.pick()
            if consumer is not None:
                consumer.deliver(message, self._sequence)
                return
        self._insert(ReturnedMessage(message, self._sequence, 0))

    def reinsert(self, delivery: Delivery) -> None:
        if self.dead:
            self.release(delivery.message)
            return
        self.unacked -= 1
        self._insert(ReturnedMessage(delivery.message, delivery.sequence, delivery.attempts + 1))
        self.schedule_drain()
