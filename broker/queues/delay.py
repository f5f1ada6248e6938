"""The queue in which messages with an `x-delay` header wait until their delay is over.

Each `x-delayed-message` exchange has one such queue. Clients do not see this queue, and it has no
consumers. The message whose delay ends first comes first. When its delay is over, the queue hands
the message to its virtual host, which publishes the message through the exchange.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from mypy_extensions import i64

from broker.messages.fates import EXPIRED, PURGED, RELEASED
from broker.messages.message import Message
from broker.queues.consumer import ReturnedMessage
from broker.queues.heap import HeapQueue
from broker.queues.paged_heap import key_of, position_of, rank_of, read_entries, sequence_of
from broker.queues.paged_tail import CHUNK_MESSAGES


class DelayQueue(HeapQueue):
    """The delayed messages of one exchange. The `expires` of a message is the end of its delay."""

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

    def withdraw(self, sequence: i64) -> bool:
        """Discard the message with this sequence number; return True if it was in the queue.

        The method is slow, because it searches the whole queue.
        """
        for at, entry in enumerate(self._heap):
            if entry[1] == sequence:
                self._heap[at] = self._heap[-1]
                self._heap.pop()
                heapq.heapify(self._heap)
                self.depth -= 1
                self.discard(entry[2].message, PURGED)
                self._load_head()
                return True
        paged = self._paged_heap.entries
        for at, packed in enumerate(paged):
            if sequence_of(packed) == sequence:
                paged[at] = paged[-1]
                paged.pop()
                heapq.heapify(paged)
                self.depth -= 1
                self.count(PURGED)
                self.release_position(position_of(packed))
                self._load_head()
                return True
        return False

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
