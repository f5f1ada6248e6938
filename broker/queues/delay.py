"""The queue in which messages with an `x-delay` header wait until their delay is over.

Each `x-delayed-message` exchange has one such queue. Clients do not see this queue, and it has no
consumers. The message whose delay ends first comes first. When its delay is over, the queue hands
the message to its virtual host, which publishes the message through the exchange.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask
from broker.messages.fates import EXPIRED, PURGED, RELEASED
from broker.messages.message import Message
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import ReturnedMessage
from broker.queues.heap import HeapQueue
from broker.queues.heap_search import HeapSearch, remove_at
from broker.queues.limited import DeadLetterHost
from broker.queues.paged_heap import key_of, position_of, rank_of, read_entries, sequence_of
from broker.queues.paged_tail import CHUNK_MESSAGES
from broker.store.contract import Store

#: Number of delayed messages that one slice of a withdrawal compares. A slice takes up to 2 ms.
COMPARED_PER_SLICE: Final[i64] = 10_000


class DelayQueue(HeapQueue):
    """The delayed messages of one exchange. The `expires` of a message is the end of its delay."""

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
        #: The withdrawals that have not ended. Only the first one runs.
        self._withdrawals: deque[Withdrawal] = deque()

    def _rank(self, message: Message) -> i64:
        return message.expires

    def enqueue(self, message: Message) -> None:
        self._insert(ReturnedMessage(message, self._waiting.reserve(), 0))

    def discard(self, message: Message, fate: i64) -> None:
        if fate == EXPIRED and self._host is not None:
            self.count(RELEASED)
            # The virtual host settles the message in the store after it has published the message.
            self._host.publish_delayed(self, message)
        else:
            super().discard(message, fate)

    def withdraw(self, sequence: int, answer: Callable[[bool], None]) -> Withdrawal:
        """Discard the message with this sequence number; return the task, which may be cancelled.

        Call `answer` afterwards: with True, or with False if the queue does not have the message.
        The search runs as bulk work, because it compares all messages. Withdrawals of one queue run
        one after the other.
        """
        withdrawal = Withdrawal(self, sequence, answer)
        self._withdrawals.append(withdrawal)
        if len(self._withdrawals) == 1:
            withdrawal.schedule()
        return withdrawal

    def _push(self, rank: int, sequence: int, returned: ReturnedMessage) -> None:
        super()._push(rank, sequence, returned)
        if self._withdrawals:
            self._withdrawals[0].on_push()

    def search_paged(self, sequence: int) -> HeapSearch:
        """Return a search among the messages on disk for the message with this sequence number.

        Until the search ends, the paged heap calls `search.on_push` for each message added to it.
        """
        search = HeapSearch(self._paged_heap.entries, sequence_of, sequence)
        self._paged_heap.search = search
        return search

    def search_memory(self, sequence: int) -> HeapSearch:
        """End the search on disk; return a search for the message among the messages in memory."""
        self._paged_heap.search = None
        return HeapSearch(self._heap, _sequence_in, sequence)

    def searches(self, search: HeapSearch) -> bool:
        """True if the list that `search` searches still belongs to this queue.

        False after a purge, which gives the queue new lists.
        """
        return search.entries is self._heap or search.entries is self._paged_heap.entries

    def remove_found(self, search: HeapSearch, at: i64) -> None:
        """Discard the message at the index `at` of the heap that was searched."""
        entry = search.entries[at]
        remove_at(search.entries, at)
        self.depth -= 1
        if search.entries is self._heap:
            self.discard(entry[2].message, PURGED)
        else:
            self.count(PURGED)
            self.release_position(position_of(entry))
        self._load_head()

    def end_withdrawal(self) -> None:
        """Begin the next withdrawal, because the first one has ended."""
        self._paged_heap.search = None
        self._withdrawals.popleft()
        if self._withdrawals:
            self._withdrawals[0].schedule()

    def waiting(self) -> Iterator[ReturnedMessage]:
        """Yield the present delayed messages, ordered by the end of their delay."""
        heap, paged = list(self._heap), list(self._paged_heap.entries)
        while heap or paged:
            if not paged or heap and (heap[0][0], heap[0][1]) < key_of(paged[0]):
                yield heapq.heappop(heap)[2]
                continue
            first = [heapq.heappop(paged) for _ in range(min(int(CHUNK_MESSAGES), len(paged)))]
            pairs = read_entries(self.store, self.number, first)
            for entry in first[len(pairs) :]:
                heapq.heappush(paged, entry)
            for entry, message in pairs:
                if message is not None:
                    loaded = ReturnedMessage(message, sequence_of(entry), 0)
                    heapq.heappush(heap, (rank_of(entry), int(loaded.sequence), loaded))


class Withdrawal(BulkTask):
    """A task that finds and discards one message of a DelayQueue, in slices.

    The task searches the messages on disk first, then the messages in memory. So it does not miss a
    message that moves from disk to memory meanwhile. No message moves from memory to disk.
    """

    def __init__(self, queue: DelayQueue, sequence: int, answer: Callable[[bool], None]) -> None:
        super().__init__(queue.agenda)
        self._queue = queue
        self._sequence = sequence
        self._answer = answer
        #: The present search; None before the first slice. `_in_memory` says which search it is.
        self._search: HeapSearch | None = None
        self._in_memory = False
        self._cancelled = self._ended = False

    def cancel(self) -> None:
        """End the withdrawal with its next slice, without a further search."""
        self._cancelled = True

    def on_push(self) -> None:
        """Tell a search in memory that a message was added to the heap in memory."""
        if self._search is not None and self._in_memory:
            self._search.on_push()

    def has_work(self) -> bool:
        return not self._ended

    def do_slice(self) -> None:
        if self._cancelled:
            self._end(False)
            return
        queue = self._queue
        search = self._search
        if search is None:
            search = self._search = queue.search_paged(self._sequence)
        if not queue.searches(search):
            self._end(False)
            return
        at = search.find(COMPARED_PER_SLICE)
        if at >= 0:
            try:
                queue.remove_found(search, at)
            finally:
                self._end(True)
        elif search.is_over and self._in_memory:
            self._end(False)
        elif search.is_over:
            self._search, self._in_memory = queue.search_memory(self._sequence), True

    def _end(self, existed: bool) -> None:
        self._ended = True
        self._queue.end_withdrawal()
        self._answer(existed)


def _sequence_in(entry: tuple[int, int, ReturnedMessage]) -> int:
    return entry[1]
