"""Queues that order their messages by a rank instead of by arrival.

HeapQueue keeps the waiting messages in a heap of (rank, sequence number): a message with a lower
rank comes first, and messages of equal rank keep the order in which they were published. A message
that a consumer returned keeps its sequence number, so it goes back to its old place. The subclasses
define the rank: PriorityQueue by priority, DelayQueue by time.

If more than `store.window` messages wait, a stored message that comes behind the head goes to a
second heap, which has positions in the store instead of messages (paged_heap.py). Messages are read
back when they come before all messages in memory. So the head is always in memory, except while no
file descriptor is free to read it. Meanwhile, no message is delivered: `_waiting.paged` is set to
`depth`, as if all messages were on disk.
"""

from __future__ import annotations

import heapq
from abc import abstractmethod
from array import array

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask
from broker.messages.fates import UNREADABLE
from broker.messages.memory import SAMPLES, estimate
from broker.messages.message import Message
from broker.messages.tracing import report_paged
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import ReturnedMessage
from broker.queues.emptying import release_purged
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.paged_heap import PagedHeap, position_of, rank_of, sequence_of
from broker.queues.paged_tail import read_stored
from broker.queues.recount import COUNTED_PER_SLICE, uncounted_size
from broker.queues.slices import MESSAGES_PER_SLICE
from broker.queues.upkeep import TAIL_RETRY_MS, TailRetry
from broker.store.contract import Store
from broker.store.disk import OutOfDescriptors


class HeapQueue(LimitedQueue):
    """A queue whose waiting messages are ordered by a rank."""

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
        #: The messages in memory.
        self._heap: list[tuple[int, int, ReturnedMessage]] = []
        self._paged_heap = PagedHeap()
        #: Paged messages up to this sequence number are not in `waiting_bytes`: they were not in
        #: memory when the bodies of the queue were counted.
        self._uncounted_paged: i64 = 0
        #: `waiting_bytes` includes the bodies of the messages from this index of the heap on.
        self._counted_from: i64 = 0

    @abstractmethod
    def _rank(self, message: Message) -> i64:
        """Return the rank of a message: the lowest rank comes first."""
        raise NotImplementedError

    def in_memory(self) -> list[ReturnedMessage]:
        return [entry[2] for entry in self._heap]

    def mark_rank(self, message: Message) -> i64:
        """Return the message's priority in a priority queue; 0 in other queues.

        A durable priority queue has a delivery mark for each priority.
        """
        return 0

    def restore(self, positions: array[int], sequence: i64) -> None:
        latest: i64 = self.latest_expiry()
        restored = self._waiting.take_restored()
        for message in read_stored(self.store, self.number, positions, latest >= 0):
            self._waiting.sequence += 1
            if message is None:
                self.count(UNREADABLE)
                continue
            if latest >= 0 and (message.expires == 0 or message.expires > latest):
                message.expires = latest
            rank: i64 = self.mark_rank(message)
            attempts = 0 if restored is None else restored.attempts(message.position, rank)
            self._insert(ReturnedMessage(message, self._waiting.sequence, attempts))
            self.count_bytes(message)
        self._trim_restored()

    def _insert(self, returned: ReturnedMessage) -> None:
        """Add a message, and schedule the expiry of the first message."""
        rank, sequence = int(self._rank(returned.message)), int(returned.sequence)
        self.depth += 1
        if self.depth == 1:
            self._waiting.mark_first(sequence, self.agenda.now)
        elif self.agenda.now >= self._waiting.next_mark and returned.attempts == 0:
            self._waiting.mark_among(sequence, self.agenda.now)
        if self._is_paged_out(rank, sequence, returned):
            if returned.message.address.traced:
                report_paged(returned.message)
            self.store.page_out(returned.message)
            self._paged_heap.push(rank, sequence, returned.message)
        else:
            # The caller adds the size of the body to `waiting_bytes`.
            returned.counted = self._count_number
            self._push(rank, sequence, returned)
        self._load_head()
        if self.depth > self._waiting.paged:
            # Only the head of a queue expires, and this message may be the new head.
            self._schedule_expiry(self._head().expires)

    def _push(self, rank: int, sequence: int, returned: ReturnedMessage) -> None:
        heapq.heappush(self._heap, (rank, sequence, returned))
        if self._counted_from > 0:
            self._count_moved()

    def _is_paged_out(self, rank: int, sequence: int, returned: ReturnedMessage) -> bool:
        """True if a new message is paged out: only its position in the store stays in memory.

        While fewer than `store.window` messages are in memory, no message is paged out. Above this
        number, each new stored message is paged out, unless it becomes the head. Above twice this
        number, a new head is paged out too, because each new message may be a new head.
        """
        waiting: i64 = len(self._heap)
        if (
            waiting < self.store.window
            or not self.durable
            or returned.message.position == 0
            or returned.attempts > 0
        ):
            return False
        first = self._heap[0]
        return waiting >= 2 * self.store.window or (first[0], first[1]) < (rank, sequence)

    def _load_head(self) -> None:
        """Read paged messages until the head is in memory.

        If no file descriptor is free, no message is delivered until a retry succeeds.
        """
        heap, paged = self._heap, self._paged_heap
        while paged.entries and (not heap or paged.precedes(heap[0][0], heap[0][1])):
            if paged.waits:
                self._waiting.paged = self.depth
                return
            try:
                pairs = paged.read(self.store, self.number)
            except OutOfDescriptors:
                paged.waits = True
                self.agenda.at(self.agenda.now + TAIL_RETRY_MS, TailRetry(self))
                continue
            for entry, message in pairs:
                if message is None:
                    self.depth -= 1
                    self.count(UNREADABLE)
                    continue
                loaded = ReturnedMessage(message, sequence_of(entry), 0)
                if loaded.sequence > self._uncounted_paged:
                    loaded.counted = self._count_number
                self._push(rank_of(entry), int(loaded.sequence), loaded)
        self._waiting.paged = 0

    def retry_tail(self) -> None:
        self._paged_heap.waits = False
        self._load_head()
        self.schedule_drain()
        self._schedule_upkeep()

    def _pop_first(self) -> tuple[int, int, ReturnedMessage]:
        """Remove the head and return its rank, its sequence number and the message."""
        self.depth -= 1
        first = heapq.heappop(self._heap)
        self._load_head()
        return first

    def _remove_head(self) -> ReturnedMessage:
        return self._pop_first()[2]

    @property
    def head_attempts(self) -> int:
        return int(self._heap[0][2].attempts) if self._heap else 0

    @property
    def head_age(self) -> int | None:
        if self.depth == 0:
            return None
        return self._waiting.age_of(self._heap[0][1] if self._heap else 0, self.agenda.now)

    def _head(self) -> Message:
        return self._heap[0][2].message

    # -- counting the bodies, from the end of the heap to its head

    def count_waiting(self) -> None:
        self._count_number += 1
        self._uncounted_paged = self._waiting.sequence
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
            self.waiting_bytes += uncounted_size(heap[at][2], self._count_number)
        self._counted_from = at
        if at > 0:
            self._schedule_upkeep()

    def _count_moved(self) -> None:
        """Count the bodies of messages that an insertion into the heap has moved.

        While the queue counts its bytes, it visits the heap in slices, from the end to the head. An
        insertion moves messages to higher indexes, which the slices may have visited already. These
        messages are counted here, because no later slice would count them.
        """
        at: i64 = len(self._heap) - 1
        while at >= self._counted_from:
            self.waiting_bytes += uncounted_size(self._heap[at][2], self._count_number)
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
        total += self._paged_heap.memory_bytes()
        return total if self.retries is None else total + self.retries.memory_bytes()

    def purge(self) -> int:
        heap, self._heap = self._heap, []
        paged, self._paged_heap.entries = self._paged_heap.entries, []
        self._waiting.paged = 0
        purged = super().purge()
        HeapPurge(self, heap, paged).run_first_slice()
        return purged

    def insert_returned(self, returned: ReturnedMessage) -> None:
        self._insert(returned)
        self.count_bytes(returned.message)


class HeapPurge(BulkTask):
    """A task that releases the purged messages of a heap in the store, in slices."""

    def __init__(
        self, queue: HeapQueue, heap: list[tuple[int, int, ReturnedMessage]], paged: list[int]
    ) -> None:
        super().__init__(queue.agenda)
        self._queue = queue
        self._heap = heap
        self._paged = paged

    def has_work(self) -> bool:
        return bool(self._heap) or bool(self._paged)

    def do_slice(self) -> None:
        left: i64 = MESSAGES_PER_SLICE
        while left > 0 and self._heap:
            left -= 1
            release_purged(self._queue, self._heap.pop()[2].message)
        while left > 0 and self._paged:
            left -= 1
            self._queue.release_position(position_of(self._paged.pop()))
