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
from broker.queues.consumer import ReturnedMessage
from broker.queues.limited import COUNTED_PER_SLICE, DeadLetterHost, LimitedQueue
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
        #: The bodies of the messages from this index of the heap on are counted.
        self._counted_from: i64 = 0

    @abstractmethod
    def _rank(self, message: Message) -> i64:
        """Return the rank of a message: the lowest rank comes first."""
        raise NotImplementedError

    def mark_rank(self, message: Message) -> i64:
        """Return the rank whose mark covers the message (delivery_window.py)."""
        return 0

    def restore(self, positions: array[int], sequence: i64) -> None:
        latest: i64 = self.latest_expiry()
        restored, self._restored = self._restored, None
        for message in read_stored(self.store, self.number, positions, latest >= 0):
            self._sequence += 1
            if message is None:
                self.count_unreadable()
                continue
            if latest >= 0 and (message.expires == 0 or message.expires > latest):
                message.expires = latest
            rank: i64 = self.mark_rank(message)
            attempts = 0 if restored is None else restored.attempts(message.position, rank)
            self._insert(ReturnedMessage(message, self._sequence, attempts))
            self.count_bytes(message)
        self._trim_restored()

    def _insert(self, returned: ReturnedMessage) -> None:
        """Add a message to the heap, and schedule the expiry of the first message."""
        returned.counted = self._count_number  # The caller counts its body.
        heapq.heappush(
            self._heap, (int(self._rank(returned.message)), int(returned.sequence), returned)
        )
        self.depth += 1
        if self._counted_from > 0:
            self._count_moved()
        # Only the head of a queue expires, and this message may be the new head.
        self._schedule_expiry(self._head().expires)

    def _remove_head(self) -> ReturnedMessage:
        self.depth -= 1
        return heapq.heappop(self._heap)[2]

    def _head(self) -> Message:
        return self._heap[0][2].message

    # -- counting the bodies, from the end of the heap to its head

    def count_waiting(self) -> None:
        self._count_number += 1
        self._counted_from = len(self._heap)
        self.count_slice()

    @property
    def is_counting(self) -> bool:
        return self._counted_from > 0

    def count_slice(self) -> None:
        heap = self._heap
        at: i64 = min(self._counted_from, len(heap))
        end: i64 = max(0, at - COUNTED_PER_SLICE)
        while at > end:
            at -= 1
            self.count_once(heap[at][2])
        self._counted_from = at
        if at > 0:
            self._schedule_upkeep()

    def _count_moved(self) -> None:
        """Count the messages that the insertion of a message has moved to higher indexes.

        These are on the path from the end of the heap to its head. A removal moves messages to
        lower indexes only, where the next slices find them.
        """
        at: i64 = len(self._heap) - 1
        while at >= self._counted_from:
            self.count_once(self._heap[at][2])
            at = (at - 1) >> 1

    def _is_counted(self, returned: ReturnedMessage, was_returned: bool) -> bool:
        return returned.counted == self._count_number

    def _stop_counting(self) -> None:
        super()._stop_counting()
        self._counted_from = 0

    def memory_bytes(self) -> i64:
        heap = self._heap
        stride = max(1, len(heap) // int(SAMPLES))
        total = estimate([entry[2].message for entry in heap[::stride]], len(heap))
        return total if self.retries is None else total + self.retries.memory_bytes()

    def purge(self) -> int:
        heap, self._heap = self._heap, []
        purged = super().purge()
        HeapPurge(self, heap).run_first_slice()
        return purged

    def insert_returned(self, returned: ReturnedMessage) -> None:
        self._insert(returned)
        self.count_bytes(returned.message)


class HeapPurge(BulkTask):
    """A task that releases the purged messages of a heap in the store, some in each turn."""

    def __init__(self, queue: HeapQueue, heap: list[tuple[int, int, ReturnedMessage]]) -> None:
        super().__init__(queue.agenda)
        self._queue = queue
        self._heap = heap

    def has_work(self) -> bool:
        return bool(self._heap)

    def do_slice(self) -> None:
        left: i64 = MESSAGES_PER_SLICE
        while left > 0 and self._heap:
            left -= 1
            self._queue.release(self._heap.pop()[2].message)
