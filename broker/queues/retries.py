"""Delayed retry: returned messages that wait before they are delivered again.

    requeue --> delay = min(x-delayed-retry-min * returns, x-delayed-retry-max) --> RetryDelay
                                    the time has come --> back to the old place in the queue

While a message waits here, its queue counts it as unacknowledged. The delays are in memory: after a
restart, the message waits in its queue again and is delivered at once.
"""

from __future__ import annotations

import heapq
from typing import Final, Protocol

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask
from broker.messages.memory import SAMPLES, estimate
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import ReturnedMessage

#: Largest number of messages that return to their queue in one slice.
RETURNED_PER_SLICE: Final[i64] = 1_000


class RetryingQueue(Protocol):
    """The method of a queue by which delayed messages return to the queue."""

    agenda: Agenda
    dead: bool

    def end_delay(self, returned: ReturnedMessage) -> None:
        """Put a message back into the queue, because the delay before its next delivery is over."""


def retry_delay(arguments: QueueArguments, attempts: i64, failed: bool) -> i64:
    """Return the delay in ms of a message that is returned for the `attempts`-th time; 0 for none.

    `failed` is True if the return counts as a failed delivery: basic.reject, or the end of the
    channel. `failed` is False if the client returned the message with basic.nack or basic.recover.
    """
    kind = arguments.retry_type
    if kind == "disabled" or kind == "failed" and not failed or kind == "returned" and failed:
        return 0
    return min(arguments.retry_min * attempts, arguments.retry_max)


class RetryDelay(BulkTask):
    """The returned messages of one queue whose next delivery is delayed, with a timer."""

    def __init__(self, queue: RetryingQueue) -> None:
        super().__init__(queue.agenda)
        self._queue = queue
        #: Heap of (end of the delay in ms, sequence number, message); the earliest end comes first.
        self._heap: list[tuple[int, int, ReturnedMessage]] = []
        #: The time of the timer in ms of Agenda.now; 0 if no timer is set.
        self._due: i64 = 0

    def add(self, returned: ReturnedMessage, ends: i64) -> None:
        """Put the message back into its queue once the clock reaches the time `ends`, in ms."""
        heapq.heappush(self._heap, (int(ends), int(returned.sequence), returned))
        self._set_timer()

    def messages(self) -> list[ReturnedMessage]:
        """Return the delayed messages, in no particular order."""
        return [entry[2] for entry in self._heap]

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the delayed messages in bytes."""
        heap = self._heap
        stride = max(1, len(heap) // int(SAMPLES))
        return estimate([entry[2].message for entry in heap[::stride]], len(heap))

    def has_work(self) -> bool:
        heap = self._heap
        return bool(heap) and (self._queue.dead or heap[0][0] <= self._agenda.now)

    def do_slice(self) -> None:
        if self._due <= self._agenda.now:
            self._due = 0
        left: i64 = RETURNED_PER_SLICE
        try:
            while left > 0 and self.has_work():
                left -= 1
                self._queue.end_delay(heapq.heappop(self._heap)[2])
        finally:
            self._set_timer()

    def needs_timer(self, when: i64) -> bool:
        return when == self._due

    def _set_timer(self) -> None:
        """Set the timer to the earliest end of a delay, unless it is set to that time or earlier.

        Drop the timer if the queue is deleted: a delay may be so long that the timer would keep the
        deleted queue in memory for years.
        """
        if self._queue.dead:
            if self._due > 0:
                self._due = 0
                self._agenda.drop_timer()
            return
        if not self._heap:
            return
        first: i64 = self._heap[0][0]
        due = self._due
        if first > self._agenda.now and (due == 0 or first < due):
            self._due = first
            self._agenda.at(first, self)
            if due > 0:
                self._agenda.drop_timer()
