"""The waiting messages of a queue, first in, first out (FIFO), in memory and on disk.

        push --> [ returned | memory | tail ] --> pop
                     ^             (store)
                     insert

Each message has a sequence number in its queue. A message that a consumer returns goes back to its
old place: all sequence numbers in `returned` are lower than the numbers in `memory`, so the
messages in `returned` are delivered first.

A durable queue with more than `store.window` messages drops its newest messages from memory, and
reads them from the store when their turn comes: `push --> memory --> tail --> (store) --> memory`.
While the tail holds messages, every new message goes to the tail.

If no file descriptor is free for such a read, the messages stay in the tail until a retry succeeds.
Meanwhile messages wait, but there is no head.
"""

from __future__ import annotations

from array import array
from typing import Final

from mypy_extensions import i64

from broker.messages.memory import SAMPLES, estimate
from broker.messages.message import Message
from broker.messages.tracing import report_paged
from broker.queues.arrivals import Arrivals
from broker.queues.consumer import ReturnedMessage
from broker.queues.delivery_window import RestoredDeliveries
from broker.queues.fifo import Fifo
from broker.queues.paged_tail import PagedTail
from broker.queues.returned import NO_RETURNED, ReturnedMessages
from broker.store.contract import Store
from broker.store.disk import OutOfDescriptors

_NO_MESSAGES: Final[Fifo[Message]] = Fifo()


class WaitingMessages:
    """The waiting messages of one queue.

    The first message in `memory` has the sequence number `sequence` + 1. `paged` is the number of
    messages in the tail.
    """

    __slots__ = (
        "_arrivals",
        "_restored",
        "_tail",
        "memory",
        "next_mark",
        "paged",
        "returned",
        "sequence",
    )

    def __init__(self) -> None:
        self.sequence: i64 = 0
        self.paged: i64 = 0
        self.memory = _NO_MESSAGES
        self.returned = NO_RETURNED
        self._tail: PagedTail | None = None
        #: The deliveries recorded before the broker started. None once the tail holds no message
        #: from before the start.
        self._restored: RestoredDeliveries | None = None
        #: The arrival times of the messages; None until a message waits.
        self._arrivals: Arrivals | None = None
        #: Time in ms from which on the arrival of the next message is marked.
        self.next_mark: i64 = 0

    def reserve(self) -> i64:
        """Take and return the next sequence number, for a message that is not pushed."""
        self.sequence += 1
        return self.sequence

    def push(self, message: Message) -> None:
        """Append a new message to the messages in memory."""
        if self.memory is _NO_MESSAGES:
            self.memory = Fifo()
        self.memory.push(message)

    def insert(self, returned: ReturnedMessage) -> None:
        """Insert a message, which a consumer returned, at its old place in the queue."""
        if self.returned is NO_RETURNED:
            self.returned = ReturnedMessages()
        self.returned.insert(returned)

    def head(self) -> Message:
        """Return the first message. At least one message must wait in memory."""
        if self.returned.count > 0:
            return self.returned.peek().message
        message = self.memory.peek()
        assert message is not None
        return message

    def pop(self) -> ReturnedMessage:
        """Remove and return the first message. At least one message must wait in memory."""
        if self.returned.count > 0:
            return self.returned.pop()
        self.sequence += 1
        return ReturnedMessage(self.memory.pop(), self.sequence, 0)

    def next_sequence(self) -> i64:
        """Return the sequence number of the next message that is pushed."""
        return self.sequence + self.memory.size + self.paged + 1

    def position_ahead(self, count: i64) -> i64:
        """Return the position of a message about `count` messages after the head.

        Returned messages are left out. Return 0 if fewer messages wait.
        """
        waiting: i64 = self.memory.size
        if count >= waiting + self.paged:
            return 0
        if count >= waiting and self._tail is not None:
            return self._tail.position_ahead(count - waiting)
        position: i64 = 0
        for message in self.memory.part(0, count + 1):
            position = max(position, message.position)
        return position

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the messages in bytes.

        A message of the tail that is only on disk counts with the memory of its position.
        """
        total = estimate(self.memory.sample(SAMPLES), self.memory.size)
        if self._tail is not None:
            total += self._tail.memory_bytes()
        return total + self.returned.memory_bytes()

    # -- arrival times

    def mark_first(self, sequence: i64, now: i64) -> None:
        """Record the arrival time `now` of the only waiting message."""
        self._arrivals = Arrivals()
        self.next_mark = self._arrivals.mark(sequence, now, sequence)

    def mark_newest(self, now: i64) -> None:
        """Record the arrival time `now` of the newest message (arrivals.py).

        Called for the first waiting message, and when the time `next_mark` has come.
        """
        newest: i64 = self.next_sequence() - 1
        oldest: i64 = self.head_sequence()
        if self._arrivals is None or newest == oldest:
            self.mark_first(newest, now)
        else:
            self.next_mark = self._arrivals.mark(newest, now, oldest)

    def mark_among(self, sequence: i64, now: i64) -> None:
        """Record the arrival time `now` of a message in a queue that is not first in, first out."""
        if self._arrivals is None:
            self.mark_first(sequence, now)
        else:
            self.next_mark = self._arrivals.mark(sequence, now, 0)

    def head_sequence(self) -> i64:
        """Return the sequence number of the first message. At least one message must wait."""
        return self.returned.peek().sequence if self.returned.count > 0 else self.sequence + 1

    def head_age(self, now: i64) -> int:
        """Return the age of the first message in ms. At least one message must wait."""
        return self.age_of(self.head_sequence(), now)

    def age_of(self, sequence: i64, now: i64) -> int:
        """Return the time since the waiting message with this sequence number came, in ms."""
        return 0 if self._arrivals is None else int(now - self._arrivals.time_of(sequence))

    # -- the tail

    def page_newest(self, store: Store, queue: i64) -> None:
        """Move the newest message from memory to the tail of the queue with this number."""
        if self._tail is None:
            self._tail = PagedTail(store, queue)
        message = self.memory.pop_last()
        if message.address.traced:
            report_paged(message)
        self._tail.push(message)
        self.paged += 1

    def restore(
        self, store: Store, queue: i64, positions: array[int], sequence: i64, latest: i64
    ) -> None:
        """Restore the messages that waited when the broker stopped: all of them go to the tail.

        `positions` are their positions in the store, `sequence` is the sequence number of the first
        message. Each message expires at its own time, but not after `latest` (ms; -1: no limit).
        """
        if self._restored is not None:
            self._restored.end_at(positions[-1] if positions else 0)
        self._tail = PagedTail(store, queue)
        self._tail.restore(positions, latest)
        self.sequence = sequence - 1
        self.paged = len(positions)

    def restore_deliveries(self, restored: RestoredDeliveries) -> None:
        """Set which messages were delivered before the restart. Called before `restore`."""
        self._restored = restored

    def take_restored(self) -> RestoredDeliveries | None:
        """Remove and return the object set by `restore_deliveries`; None if there is none."""
        restored, self._restored = self._restored, None
        return restored

    @property
    def restored_mark(self) -> i64:
        """Position above which no message of the tail was delivered before the broker started."""
        return self._restored.top if self._restored is not None and self.paged > 0 else 0

    @property
    def lacks_descriptors(self) -> bool:
        """True if the tail could not be read, because no file descriptor was free.

        The caller must then schedule a retry.
        """
        return self._tail is not None and self._tail.waits

    def retry(self) -> None:
        """Let the next `read_tail` try again after a shortage of file descriptors."""
        if self._tail is not None:
            self._tail.waits = False

    def read_tail(self) -> i64:
        """Read messages of the tail until a message waits in memory, and return the number of
        unreadable messages.

        Do nothing if a message waits in `memory`, if `lacks_descriptors` is True, or, after a
        restart, if a message waits in `returned`.
        """
        unreadable: i64 = 0
        while self.paged > 0 and self.memory.size == 0:
            if self.lacks_descriptors or self._restored is not None and self.returned.count > 0:
                return unreadable
            unreadable += self._read_next()
        if self.paged == 0:
            self._tail = self._restored = None
        return unreadable

    def _read_next(self) -> i64:
        """Read the next messages of the tail; return the number of unreadable messages."""
        tail, restored = self._tail, self._restored
        assert tail is not None
        try:
            messages = tail.pop()
        except OutOfDescriptors:
            tail.waits = True
            return 0
        unreadable: i64 = 0
        for message in messages:
            self.paged -= 1
            if message is None:
                self.sequence += 1
                unreadable += 1
            elif restored is not None and message.position <= restored.top:
                self.sequence += 1
                attempts = restored.attempts(message.position, 0)
                self.insert(ReturnedMessage(message, self.sequence, attempts))
            else:
                restored = self._restored = None
                self.push(message)
        return unreadable

    def peek_tail(self, skipped: i64, count: i64) -> list[Message | None]:
        """Return up to `count` messages of the tail behind the first `skipped` messages; remove
        none. The result has None for each unreadable message.

        Raises OutOfDescriptors if no file descriptor is free to read the messages.
        """
        return [] if self._tail is None else self._tail.peek(skipped, count)

    def peek_attempts(self, message: Message | None) -> i64:
        """Return how many times a message of the tail was requeued before the broker started.

        Without a stored count, a message that may have been delivered counts as requeued once. The
        result is 0 if `message` is None.
        """
        restored = self._restored
        if restored is None or message is None or message.position > restored.top:
            return 0
        return restored.peek_attempts(message.position, 0)

    # -- purge

    def clear(self) -> WaitingMessages:
        """Remove all messages, and return them.

        The sequence numbers of later messages follow the numbers of the removed messages.
        """
        removed = WaitingMessages()
        removed.memory, removed.returned = self.memory, self.returned
        removed._tail, removed.paged = self._tail, self.paged
        self.sequence += self.memory.size + self.paged
        self.memory, self.returned = _NO_MESSAGES, NO_RETURNED
        self._tail, self.paged = None, 0
        return removed

    @property
    def empty(self) -> bool:
        """True if no message waits, in memory or in the tail."""
        return (
            self.returned.count == 0
            and self.memory.size == 0
            and (self._tail is None or self._tail.empty)
        )

    def pop_positions(self) -> array[int]:
        """Remove the next messages of the tail; return their positions in the store.

        The result is empty if the tail is empty.
        """
        return array("q") if self._tail is None else self._tail.pop_positions()
