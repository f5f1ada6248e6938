"""The queue of the argument `x-max-priority`, which delivers messages of higher priority first.

Messages of equal priority keep the order in which they were published. A priority above
`x-max-priority` counts as `x-max-priority`.

Only messages of equal priority are delivered in the order of their positions in the store. So a
durable priority queue has a delivery mark for each priority: the position up to which it may
deliver the messages of this priority (delivery_window.py).
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.message import Message
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import ReturnedMessage
from broker.queues.delivery_gate import DeliveryGate
from broker.queues.delivery_window import DeliveryWindow, RestoredDeliveries
from broker.queues.fifo import Fifo
from broker.queues.heap import HeapQueue
from broker.queues.limited import DeadLetterHost
from broker.queues.paged_heap import position_of, rank_of
from broker.store.contract import Store


class Rank:
    """The undelivered messages of one priority, and the delivery mark of this priority."""

    def __init__(self, window: DeliveryWindow) -> None:
        self.window = window
        #: Positions of the waiting messages that were not delivered, in ascending order.
        self.waiting: Fifo[int] = Fifo()

    def add(self, position: i64, marked: i64) -> None:
        """Add a waiting message that was not delivered yet.

        If more than `marked` messages wait below the delivery mark, lower the mark.
        """
        newest = self.waiting.peek_last()
        if newest is None or newest < position:
            self.waiting.push(position)
            if self.waiting.size > marked and position <= self.window.top:
                self.window.lower(position - 1)

    def remove(self, position: i64) -> None:
        """Remove the message at this position in the store and all earlier ones from `waiting`."""
        first = self.waiting.peek()
        while first is not None and first <= position:
            self.waiting.pop()
            first = self.waiting.peek()


class RankedGate(DeliveryGate):
    """The gate of a priority queue: it has a delivery mark for each priority."""

    def __init__(self, queue: PriorityQueue) -> None:
        super().__init__(queue)
        self._ranked = queue
        #: The Rank of each priority: its messages and its delivery mark.
        self._ranks: dict[int, Rank] = {}

    def _rank_of(self, priority: i64) -> Rank:
        rank = self._ranks.get(priority)
        if rank is None:
            window = DeliveryWindow(self, self._ranked.store, priority, 0)
            rank = self._ranks[priority] = Rank(window)
        return rank

    def add(self, message: Message) -> None:
        """Record a waiting message, which was never delivered, in the Rank of its priority."""
        rank = self._rank_of(self._ranked.mark_rank(message))
        rank.add(message.position, self._ranked.store.waiting_marked)

    def remove(self, priority: i64, position: i64) -> None:
        """Remove the messages of a priority up to this position in the store from their Rank."""
        known = self._ranks.get(priority)
        if known is not None:
            known.remove(position)

    def clear(self) -> None:
        """Remove all messages from all ranks, because the queue was purged."""
        for rank in self._ranks.values():
            rank.waiting = Fifo()

    def restore(self, restored: RestoredDeliveries) -> None:
        for priority, mark in restored.marks.items():
            window = DeliveryWindow(self, self._ranked.store, priority, mark)
            self._ranks[priority] = Rank(window)

    def permits(self, message: Message, last: bool) -> bool:
        rank = self._rank_of(self._ranked.mark_rank(message))
        rank.remove(message.position)
        return rank.window.permits(message.position, rank.waiting.size == 0)

    def holds_back(self, head: Message) -> bool:
        window = self._rank_of(self._ranked.mark_rank(head)).window
        return window.waits and head.position > window.mark

    def position_ahead(self, rank: i64, count: i64) -> i64:
        ahead = self._rank_of(rank).waiting.part(count, 1)
        return ahead[0] if ahead else 0

    def write_exact(self, known: list[ReturnedMessage]) -> None:
        marks = dict.fromkeys(self._ranks, 0)
        undelivered: dict[int, list[int]] = {priority: [] for priority in self._ranks}
        for returned in known:
            message = returned.message
            priority, position = int(self._ranked.mark_rank(message)), int(message.position)
            if priority in marks:
                if returned.attempts > 0:
                    marks[priority] = max(marks[priority], position)
                else:
                    undelivered[priority].append(position)
        for priority, position in self._ranked.paged_positions():
            if priority in marks:
                undelivered[priority].append(position)
        for priority, rank in self._ranks.items():
            rank.window.write_exact(marks[priority], undelivered[priority])


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
        #: The gate, which looks at the mark of each message's priority. None if the store does not
        #: record deliveries.
        self._ranked_gate = RankedGate(self) if durable and store.keeps_deliveries else None
        self._gate = self._ranked_gate
        if self._gate is not None:
            self.set_delivery_limit(-1)

    def _rank(self, message: Message) -> i64:
        highest: i64 = self.arguments.max_priority
        return -min(message.encoding.priority(message.content), highest)

    def mark_rank(self, message: Message) -> i64:
        return -self._rank(message)

    def enqueue(self, message: Message) -> None:
        sequence = self._waiting.reserve()
        if self.depth == 0 and self._holds == 0:
            consumer = self.pick()
            if consumer is not None and (
                message.position <= self._deliver_up_to or self.permits(message)
            ):
                consumer.deliver(message, sequence)
                return
        self._insert(ReturnedMessage(message, sequence, 0))

    def paged_positions(self) -> list[tuple[int, int]]:
        """Return the priority and the position of each message that is on disk only."""
        return [(-rank_of(entry), position_of(entry)) for entry in self._paged_heap.entries]

    def _insert(self, returned: ReturnedMessage) -> None:
        super()._insert(returned)
        gate = self._ranked_gate
        if gate is not None and returned.attempts == 0 and returned.message.position > 0:
            gate.add(returned.message)

    def _remove_head(self) -> ReturnedMessage:
        rank, _, returned = self._pop_first()
        if self._ranked_gate is not None:
            self._ranked_gate.remove(-rank, returned.message.position)
        return returned

    def purge(self) -> int:
        if self._ranked_gate is not None:
            self._ranked_gate.clear()
        return super().purge()
