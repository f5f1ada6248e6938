"""The gate of a durable queue: the queue delivers only messages up to its delivery mark.

    Queue.permits --> DeliveryGate.permits --> DeliveryWindow (delivery_window.py) --> a higher mark
                            waiting tasks <-- mark_durable <--------------------------------'

A durable queue delivers only messages at positions up to its delivery mark, which the log holds.
After a crash, messages up to the mark are delivered as redelivered. Messages above the mark wait
until a higher mark is durable.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Protocol

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.messages.message import Message
from broker.queues.consumer import ReturnedMessage
from broker.queues.delivery_window import DeliveryWindow, RestoredDeliveries
from broker.queues.waiting import WaitingMessages
from broker.store.contract import Store

#: A position above the positions of all messages.
NO_LIMIT: Final[i64] = (1 << 62) - 1


class GatedQueue(Protocol):
    """The attributes and methods of a durable queue that its delivery gate (DeliveryGate) uses."""

    number: i64
    agenda: Agenda

    def set_delivery_limit(self, position: i64) -> None:
        """Set the position in the store up to which the queue delivers without asking the gate."""

    def on_mark_durable(self) -> None:
        """Drain the queue, because the delivery mark for which its messages waited is durable."""


class DeliveryGate:
    """The gate of one queue: permits deliveries up to the queue's durable delivery mark.

    The delivery mark is a position in the log. After a crash, messages up to the mark are delivered
    as redelivered. `queue` is the queue that the gate belongs to; if a policy replaces the queue,
    `queue` becomes the replacement.
    """

    def __init__(self, queue: GatedQueue) -> None:
        self.queue = queue
        #: The tasks of basic.get that wait until a higher delivery mark is durable.
        self._tasks: list[Task] = []

    @abstractmethod
    def restore(self, restored: RestoredDeliveries) -> None:
        """Set the delivery marks and counts that the log recorded before the broker started."""
        raise NotImplementedError

    @abstractmethod
    def permits(self, message: Message, last: bool) -> bool:
        """True if the message may be delivered now.

        If the message must wait, the gate drains the queue later, when the message may be
        delivered. `last` is True if no other message waits.
        """
        raise NotImplementedError

    @abstractmethod
    def holds_back(self, head: Message) -> bool:
        """True while the first message must wait, because it is above the durable delivery mark."""
        raise NotImplementedError

    @abstractmethod
    def write_exact(self, known: list[ReturnedMessage]) -> None:
        """Store exactly which waiting messages were delivered before, for a clean stop.

        `known` has at least all waiting messages that were delivered and requeued. A message in
        `known` that was requeued 0 times was never delivered.
        """
        raise NotImplementedError

    def prepare(self) -> None:
        """Append a delivery mark to the log early, so that a new consumer need not wait for it."""

    def lower_below(self, newest: Message | None) -> None:
        """Lower the delivery mark to below the message `newest`, which was just added, if any.

        Called when too many undelivered messages wait below the present mark. After a crash, all
        messages below the mark are marked as redelivered, even if they were not delivered.
        """

    @property
    def covers_later(self) -> bool:
        """True if the present delivery mark also covers messages that will be added later."""
        return False

    def wait(self, task: Task) -> None:
        """Run `task` once the first message may be delivered: once its delivery mark is durable."""
        self._tasks.append(task)

    # -- called by the windows

    @property
    def number(self) -> i64:
        """The number of the queue in the store."""
        return self.queue.number

    @property
    def agenda(self) -> Agenda:
        """The agenda of the queue."""
        return self.queue.agenda

    @abstractmethod
    def position_ahead(self, rank: i64, count: i64) -> i64:
        """Return the position of a waiting message about `count` messages after the head.

        Return 0 if fewer messages wait. In a priority queue, only messages of the priority `rank`
        count.
        """
        raise NotImplementedError

    def window_changed(self) -> None:
        """Set how far the queue delivers without asking the gate, after a window got a new mark."""

    def mark_durable(self) -> None:
        """Drain the queue, because the delivery mark for which its messages waited is durable."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            self.queue.agenda.add_bulk(task)
        self.queue.on_mark_durable()


class FifoGate(DeliveryGate):
    """The delivery gate of a queue without priorities. Such a queue has one delivery mark."""

    def __init__(self, queue: GatedQueue, store: Store, waiting: WaitingMessages) -> None:
        super().__init__(queue)
        self._store = store
        self._waiting = waiting
        self._window = DeliveryWindow(self, store, 0, 0)

    def restore(self, restored: RestoredDeliveries) -> None:
        self._window = DeliveryWindow(self, self._store, 0, restored.marks.get(0, 0))
        self.window_changed()

    def permits(self, message: Message, last: bool) -> bool:
        return self._window.permits(message.position, last)

    def holds_back(self, head: Message) -> bool:
        return self._window.waits and head.position > self._window.mark

    def write_exact(self, known: list[ReturnedMessage]) -> None:
        mark: i64 = self._waiting.restored_mark
        undelivered: list[int] = []
        for one in known:
            if one.attempts > 0:
                mark = max(mark, one.message.position)
            else:
                undelivered.append(int(one.message.position))
        self._window.write_exact(mark, undelivered)

    def prepare(self) -> None:
        self._window.prepare()

    def lower_below(self, newest: Message | None) -> None:
        if newest is not None and 0 < newest.position <= self._window.top:
            self._window.lower(newest.position - 1)

    @property
    def covers_later(self) -> bool:
        return self._window.top > self._store.position

    def position_ahead(self, rank: i64, count: i64) -> i64:
        return self._waiting.position_ahead(count)

    def window_changed(self) -> None:
        self.queue.set_delivery_limit(self._window.renew_above)
