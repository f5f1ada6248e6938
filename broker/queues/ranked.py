"""Queues in which some messages go before others: by priority, and delayed ones by their time.

A heap of (rank, order): equals go in the order in which they came, and what came back goes to its
old place.
"""

from __future__ import annotations

import heapq
from array import array

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.fates import EXPIRED, PURGED, RELEASED
from broker.messages.message import Message
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import Delivery, ReturnedMessage
from broker.queues.fifo import Fifo
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.paged_tail import stored
from broker.queues.queue import PurgeTask
from broker.store.contract import Store


class RankedQueue(LimitedQueue):
    """`x-max-priority` ranks by priority, the highest first: a higher one than that counts as that.
    Where there are none, messages are `delaying`: the one that expires first is first, and what
    expires is released to the host.
    """

    def __init__(
        self,
        vhost: str,
        name: str,
        agenda: Agenda,
        store: Store,
        durable: bool,
        terms: QueueArguments,
        host: DeadLetterHost,
    ) -> None:
        super().__init__(vhost, name, agenda, store, durable, terms, host)
        self.delaying = not terms.ranked
        self._heap: list[tuple[int, int, ReturnedMessage]] = []

    def _rank(self, message: Message) -> i64:
        highest: i64 = self.arguments.max_priority
        if highest > 0:
            return -min(message.encoding.priority(message.content), highest)
        return message.expires

    def enqueue(self, message: Message) -> None:
        self._order += 1
        if self.depth == 0:
            consumer = self.pick()
            if consumer is not None:
                consumer.deliver(message, self._order)
                return
        self._keep(ReturnedMessage(message, self._order, 0))

    def restore(self, positions: array[int], order: i64) -> None:
        latest: i64 = self.latest_expiry()
        for message in stored(self.store, self.number, positions, latest >= 0):
            self._order += 1
            if message is None:
                self.count_unreadable()
                continue
            if latest >= 0 and (message.expires == 0 or message.expires > latest):
                message.expires = latest
            self._keep(ReturnedMessage(message, self._order, 0))
            self._came(message)

    def take_back(self, delivery: Delivery) -> None:
        if self.dead:
            self.forget(delivery.message)
            return
        self.unacked -= 1
        self._keep(ReturnedMessage(delivery.message, delivery.order, delivery.attempts + 1))
        self.schedule_drain()

    def _keep(self, returned: ReturnedMessage) -> None:
        heapq.heappush(
            self._heap, (int(self._rank(returned.message)), int(returned.order), returned)
        )
        self.depth += 1
        # What expires behind another waits for its turn; but this may be the first one now.
        self._watch(self._head().expires)

    def _leave(self) -> ReturnedMessage:
        self.depth -= 1
        return heapq.heappop(self._heap)[2]

    def _head(self) -> Message:
        return self._heap[0][2].message

    def in_memory(self) -> list[Message]:
        return [entry[2].message for entry in self._heap]

    def purge(self) -> int:
        heap, self._heap = self._heap, []
        purged = super().purge()
        PurgeTask(self, Fifo(), [entry[2] for entry in heap], None).run()
        return purged

    def discard(self, message: Message, fate: i64) -> None:
        if self.delaying and fate == EXPIRED and self._host is not None:
            self.count(RELEASED)
            self._host.publish_delayed(self, message)  # It is forgotten when it has arrived.
        else:
            super().discard(message, fate)

    def withdraw(self, order: i64) -> bool:
        """Take out the message that came as this one; whether it was there. Slow."""
        for at, entry in enumerate(self._heap):
            if entry[1] == order:
                self._heap[at] = self._heap[-1]
                self._heap.pop()
                heapq.heapify(self._heap)
                self.depth -= 1
                self.discard(entry[2].message, PURGED)
                return True
        return False

    def waiting(self) -> list[ReturnedMessage]:
        """What waits, in order. Slow."""
        return [entry[2] for entry in sorted(self._heap)]
