"""The queue of the argument `x-max-priority`, which delivers messages of higher priority first.

Messages of equal priority keep the order in which they were published. A priority above
`x-max-priority` counts as `x-max-priority`.

Positions in the store rise only among messages of equal priority. So a durable priority queue has a
mark for each priority (delivery_window.py).
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.message import Message
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import Delivery, ReturnedMessage
from broker.queues.delivery_window import DeliveryWindow, RestoredDeliveries
from broker.queues.fifo import Fifo
from broker.queues.heap import HeapQueue
from broker.queues.limited import DeadLetterHost
from broker.queues.paged_heap import position_of, rank_of
from broker.store.contract import Store


class Rank:
    """The messages of one priority, which have a delivery mark of their own."""

    def __init__(self, window: DeliveryWindow) -> None:
        self.window = window
        #: Positions of the waiting messages that were not delivered, in ascending order.
        self.waiting: Fifo[int] = Fifo()

    def add(self, position: i64, marked: i64) -> None:
        """Add a waiting message. Lower the mark if more than `marked` messages wait below it."""
        newest = self.waiting.peek_last()
        if newest is None or newest < position:
            self.waiting.push(position)
            if self.waiting.size > marked and position <= self.window.top:
                self.window.lower(position - 1)

    def remove(self, position: i64) -> None:
        """Remove a message, and all messages before it."""
        first = self.waiting.peek()
        while first is not None and first <= position:
            self.waiting.pop()
            first = self.waiting.peek()


class PriorityQueue(HeapQueue):
    """A queue that delivers messages of higher priority first."""

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
        #: Priority -> its messages and its mark.
        self._ranks: dict[int, Rank] = {}
        self._marks_ranks = durable and store.keeps_deliveries
        if self._marks_ranks:
            self._deliver_up_to = -1  # `permits` looks at the mark of each message's priority.

    def _rank(self, message: Message) -> i64:
        highest: i64 = self.arguments.max_priority
        return -min(message.encoding.priority(message.content), highest)

    def enqueue(self, message: Message) -> None:
        self._sequence += 1
        if self.depth == 0 and self._holds == 0:
            consumer = self.pick()
            if consumer is not None and (
                message.position <= self._deliver_up_to or self.permits(message)
            ):
                consumer.deliver(message, self._sequence)
                return
        self._insert(ReturnedMessage(message, self._sequence, 0))

    # -- which messages may be delivered

    def mark_rank(self, message: Message) -> i64:
        return -self._rank(message)

    def _rank_of(self, priority: i64) -> Rank:
        rank = self._ranks.get(priority)
        if rank is None:
            rank = self._ranks[priority] = Rank(DeliveryWindow(self, self.store, priority, 0))
        return rank

    def permits(self, message: Message) -> bool:
        rank = self._rank_of(self.mark_rank(message))
        rank.remove(message.position)
        return rank.window.permits(message.position, rank.waiting.size == 0)

    def position_ahead(self, rank: i64, count: i64) -> i64:
        ahead = self._rank_of(rank).waiting.part(count, 1)
        return ahead[0] if ahead else 0

    def window_changed(self) -> None:
        """Do nothing: `permits` looks at the windows."""

    def prepare_window(self) -> None:
        """Do nothing: the priority of the first message is unknown."""

    @property
    def waits_for_mark(self) -> bool:
        if not self._ranks or self.depth == self._paged:
            return False
        head = self._head()
        window = self._rank_of(self.mark_rank(head)).window
        return window.waits and head.position > window.mark

    def restore_deliveries(self, restored: RestoredDeliveries) -> None:
        self._restored = restored
        for priority, mark in restored.marks.items():
            self._ranks[priority] = Rank(DeliveryWindow(self, self.store, priority, mark))

    def write_deliveries(self) -> None:
        delayed = self.delayed()
        if self.dead or self.unacked > len(delayed):
            return
        marks = dict.fromkeys(self._ranks, 0)
        undelivered: dict[int, list[int]] = {priority: [] for priority in self._ranks}
        for returned in [*(entry[2] for entry in self._heap), *delayed]:
            priority, position = int(self.mark_rank(returned.message)), returned.message.position
            if priority in marks:
                if returned.attempts > 0:
                    marks[priority] = max(marks[priority], int(position))
                else:
                    undelivered[priority].append(int(position))
        for entry in self._paged_heap.entries:
            if -rank_of(entry) in marks:
                undelivered[-rank_of(entry)].append(position_of(entry))
        for priority, known in self._ranks.items():
            known.window.write_exact(marks[priority], undelivered[priority])

    def _insert(self, returned: ReturnedMessage) -> None:
        super()._insert(returned)
        position = returned.message.position
        if self._marks_ranks and returned.attempts == 0 and position > 0:
            self._rank_of(self.mark_rank(returned.message)).add(position, self.store.waiting_marked)

    def _remove_head(self) -> ReturnedMessage:
        rank, _, returned = self._pop_first()
        known = self._ranks.get(-rank)
        if known is not None:
            known.remove(returned.message.position)
        return returned

    def purge(self) -> int:
        for rank in self._ranks.values():
            rank.waiting = Fifo()
        return super().purge()

    def reinsert(self, delivery: Delivery) -> None:
        if self.dead:
            self.release(delivery.message)
            return
        self.unacked -= 1
        self._insert(ReturnedMessage(delivery.message, delivery.sequence, delivery.attempts + 1))
        self.schedule_drain()
