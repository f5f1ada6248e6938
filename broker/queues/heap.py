"""Queues that order their messages by a rank instead of by arrival.

HeapQueue keeps the waiting messages in a heap of (rank, sequence number): a message with a lower
rank comes first, and messages of equal rank keep the order in which they were published. A message
that a consumer returned keeps its sequence number, so it goes back to its old place. The subclasses
define the rank: PriorityQueue by priority, DelayQueue by time.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from array import array

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask
from broker.messages.memory import SAMPLES, estimate
from broker.messages.message import Message
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import Delivery, ReturnedMessage
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.paged_tail import read_stored
from broker.queues.queue import MESSAGES_PER_SLICE
from broker.store.contract import Store


class HeapQueue(LimitedQueue):
    """A queue whose waiting messages are ordered by a rank; all of them stay in memory."""

    def __init__(
        self,
        vhost: str,
        name: str,
        agenda: Agenda,
        store: Store,
        durable: bool,
        arguments: QueueArguments,
        host: DeadLetterHost,
    ) -> None:
        super().__init__(vhost, name, agenda, store, durable, arguments, host)
        self._heap: list[tuple[int, int, ReturnedMessage]] = []

    @abstractmethod
    def _rank(self, message: Message) -> i64:
        """Return the rank of a message: the lowest rank comes first."""
        raise NotImplementedError

    def restore(self, positions: array[int], sequence: i64) -> None:
        latest: i64 = self.latest_expiry()
        for message in read_stored(self.store, self.number, positions, latest >= 0):
            self._sequence += 1
            if message is None:
                self.count_unreadable()
                continue
            if latest >= 0 and (message.expires == 0 or message.expires > latest):
                message.expires = latest
            self._insert(ReturnedMessage(message, self._sequence, 0))
            self.count_bytes(message)
        self._trim_restored()

    def _insert(self, returned: ReturnedMessage) -> None:
        """Add a message to the heap, and schedule the expiry of the first message."""
        heapq.heappush(
            self._heap, (int(self._rank(returned.message)), int(returned.sequence), returned)
        )
        self.depth += 1
        # Only the head of a queue expires, and this message may be the new head.
        self._schedule_expiry(self._head().expires)

    def _remove_head(self) -> ReturnedMessage:
        self.depth -= 1
        return heapq.heappop(self._heap)[2]

    def _head(self) -> Message:
        return self._heap[0][2].message

    def count_waiting(self) -> None:
        for entry in self._heap:
            self.count_bytes(entry[2].message)

    def memory_bytes(self) -> i64:
        heap = self._heap
        stride = max(1, len(heap) // int(SAMPLES))
        return estimate([entry[2].message for entry in heap[::stride]], len(heap))

    def purge(self) -> int:
        heap, self._heap = self._heap, []
        purged = super().purge()
        HeapPurge(self, heap).run()
        return purged

    def put_back(self, delivery: Delivery) -> None:
        self._insert(ReturnedMessage(delivery.message, delivery.sequence, delivery.attempts))
        self.count_bytes(delivery.message)


class HeapPurge(BulkTask):
    """A task that releases the purged messages of a heap in the store, some in each turn."""

    def __init__(self, queue: HeapQueue, heap: list[tuple[int, int, ReturnedMessage]]) -> None:
        self._queue = queue
        self._heap = heap

    def run(self) -> None:
        left: i64 = MESSAGES_PER_SLICE
        while left > 0 and self._heap:
            left -= 1
            self._queue.release(self._heap.pop()[2].message)
        if self._heap:
            self._queue.agenda.add_bulk(self)
