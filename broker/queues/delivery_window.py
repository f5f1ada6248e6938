"""The delivery window: the messages of a durable queue that may be delivered now.

A message that was delivered, and not settled before the broker crashed, must come back as
redelivered. A record for each delivery would be too expensive. Instead, the log has a delivery mark
for each queue: messages at positions up to the mark may have been delivered. The queue delivers no
message above its durable mark, and moves the mark ahead before its deliveries reach it:

    positions      ... delivered ... | may be delivered ............ | not delivered
                                            ^ renew_above             ^ mark
    deliveries above `renew_above`   append a higher mark
    deliveries above `mark`          wait until a higher mark is durable

While messages wait, the next mark is the position of the message WAITING_MARKED messages after the
head. If deliveries reach a mark before the next mark is durable, this distance is doubled, up to
FASTEST * WAITING_MARKED. While no message waits, the next mark is MARK_SPAN positions ahead. So a
queue whose consumers keep up appends one mark for about 65,000 messages. If its consumers then
stop, and more than WAITING_MARKED messages wait below the mark, the queue lowers the mark.

So after a crash, at most WAITING_MARKED messages of a queue are marked as redelivered although they
were never delivered. While consumers take messages faster than the disk syncs marks, the limit is
FASTEST * WAITING_MARKED.

A slow or full disk must not hold back deliveries. If messages have waited MARK_PATIENCE ms for a
mark, the queue delivers them without the mark, and counts them (`Store.unmarked_deliveries`). If
the broker crashes before the disk has caught up, these messages come back as not redelivered.

A mark that is not durable yet is valid for messages that are stored after it: a crash that keeps
the message in the log keeps the mark, too.
"""

from __future__ import annotations

from typing import Final, Protocol

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.store.contract import Store, Ticket, Waiter
from broker.store.entries import DeliveryCounted, DeliveryMark

#: Largest number of messages that wait below a delivery mark, as a multiple of
#: `Store.waiting_marked`.
FASTEST: Final[i64] = 8


class WindowOwner(Protocol):
    """The parts of a queue's gate (delivery_gate.py) that a delivery window uses."""

    @property
    def number(self) -> i64:
        """The number of the queue in the store."""

    @property
    def agenda(self) -> Agenda:
        """The agenda of the queue."""

    def position_ahead(self, rank: i64, count: i64) -> i64:
        """Return the position of a waiting message about `count` messages after the head.

        Return 0 if fewer messages wait. In a priority queue, only messages of the priority `rank`
        count.
        """

    def window_changed(self) -> None:
        """Set how far the queue delivers without asking the gate, after a window got a new mark."""

    def mark_durable(self) -> None:
        """Deliver the messages that were waiting for the mark to become durable."""


class Patience(Task):
    """A timer that ends the wait for a delivery mark.

    If the mark is not durable when the timer runs out, the queue delivers messages without the
    mark.
    """

    def __init__(self, window: DeliveryWindow, ticket: Ticket) -> None:
        self._window = window
        self._ticket = ticket

    def run(self) -> None:
        self._window.end_wait(self._ticket)


class DeliveryWindow(Waiter):
    """The delivery mark of a queue: the position in the log up to which the queue may deliver.

    The window appends a higher mark to the log before deliveries reach the present mark. A priority
    queue has a window for each priority (`rank`).
    """

    def __init__(self, owner: WindowOwner, store: Store, rank: i64, mark: i64) -> None:
        self._owner = owner
        self._store = store
        self._rank: i64 = rank
        #: Messages up to this position may be delivered.
        self.mark: i64 = mark
        #: A delivery above this position appends a higher mark.
        self.renew_above: i64 = mark
        #: `_next` is the mark that is not durable yet, and `_next_renew` will be its `renew_above`.
        #: `_ticket` is settled when this mark is durable; None if no mark waits.
        self._next: i64 = 0
        self._next_renew: i64 = 0
        self._ticket: Ticket | None = None
        #: Number of waiting messages that the next mark covers. `_early` is True if the next mark
        #: was appended before deliveries reached the present mark. `_reached` is True if deliveries
        #: have reached the present mark since then.
        self._ahead: i64 = store.waiting_marked
        self._early = False
        self._reached = False
        #: True if messages are delivered without waiting for the next mark. `_unmarked` is the
        #: highest position delivered without waiting.
        self._overdue = False
        self._unmarked: i64 = 0

    @property
    def top(self) -> i64:
        """The last delivery mark that was appended to the log."""
        return self.mark if self._ticket is None else max(self.mark, self._next)

    @property
    def waits(self) -> bool:
        """True while messages above the delivery mark wait until a higher mark is durable."""
        return self._ticket is not None and not self._overdue

    def permits(self, position: i64, last: bool) -> bool:
        """True if the message at a position may be delivered now.

        Append a higher delivery mark to the log if the deliveries come near the present mark.
        `last` is True if no other message waits.
        """
        if position > self.renew_above and self._ticket is None:
            self._raise(position, last)
        if position <= self.mark:
            return True
        if self._overdue:
            self._unmarked = max(self._unmarked, position)
            self._store.unmarked_deliveries += 1
            return True
        ticket = self._ticket
        if ticket is not None and not self._reached:
            agenda = self._owner.agenda
            agenda.at(agenda.now + self._store.mark_patience, Patience(self, ticket))
        self._reached = True
        return False

    def end_wait(self, ticket: Ticket) -> None:
        """If the next delivery mark is still not durable, let the queue deliver without it.

        `ticket` is the ticket of this mark.
        """
        if ticket is self._ticket:
            self._overdue = True
            self._owner.mark_durable()

    def prepare(self) -> None:
        """Append a higher delivery mark, because a consumer has subscribed and no message waits.

        Deliveries need not wait until the mark is durable: all messages that the consumer gets will
        be stored after the mark.
        """
        if self._ticket is None and self.renew_above <= self._store.position:
            self._raise(0, True, True)

    def _raise(self, position: i64, last: bool, new_consumer: bool = False) -> None:
        store = self._store
        waiting: i64 = self._ahead
        ahead: i64 = 0 if last else self._owner.position_ahead(self._rank, waiting - 1)
        mark: i64
        renew: i64
        if ahead > 0:
            mark = max(self.mark, position, ahead)
            middle: i64 = self._owner.position_ahead(self._rank, waiting // 2)
            renew = min(max(position, middle), mark)
        else:
            mark = max(self.mark, position, store.position) + store.mark_span
            renew = mark - store.mark_span // 2
        entry = DeliveryMark(self._owner.number, self._rank, mark)
        if new_consumer or store.position <= self.mark:
            # All messages above the old mark will be stored after the new mark.
            store.append(entry, None)
            self.mark, self.renew_above = mark, renew
            self._owner.window_changed()
        else:
            self._next, self._next_renew = mark, renew
            self._early, self._reached = position <= self.mark, False
            self._ticket = Ticket(self)
            store.append(entry, self._ticket)

    def settled(self) -> None:
        ticket = self._ticket
        if ticket is not None and ticket.outstanding == 0:
            self._ticket = None
            self.mark, self.renew_above = self._next, self._next_renew
            self._owner.window_changed()
            self._overdue = False
            if self._early and self._reached:
                self._ahead = min(2 * self._ahead, FASTEST * self._store.waiting_marked)
            else:
                self._ahead = max(self._ahead // 2, self._store.waiting_marked)
            if self._unmarked > self.mark:
                self._raise(self._unmarked, False)
        self._owner.mark_durable()

    def lower(self, mark: i64) -> None:
        """Append `mark`, a lower delivery mark than the present one.

        Called when too many undelivered messages wait below the present mark.
        """
        if mark < self.top:
            self._ticket = None
            self._overdue = False
            self.mark = min(self.mark, mark)
            self.renew_above = min(self.renew_above, self.mark)
            self._store.append(DeliveryMark(self._owner.number, self._rank, mark), None)
        self._owner.window_changed()

    def write_exact(self, mark: i64, undelivered: list[int]) -> None:
        """Store exactly which messages of this window were delivered, for a clean stop.

        `mark` becomes the delivery mark: the highest position of a delivered message. `undelivered`
        are positions of waiting messages that were not delivered. For each of these messages below
        the mark, a delivery count of 0 is stored, which overrides the mark.
        """
        number = self._owner.number
        if mark != self.top:
            self._store.append(DeliveryMark(number, self._rank, mark), None)
        for position in undelivered:
            if 0 < position <= mark:
                self._store.append(DeliveryCounted(number, position, 0), None)


class RestoredDeliveries:
    """The deliveries of one queue before the broker started, as the log recorded them.

    `marks` has the delivery marks by rank (the priority, or 0), `counts` has the delivery counts by
    position.
    """

    def __init__(self, marks: dict[int, int], counts: dict[int, int]) -> None:
        self.marks = marks
        self._counts = counts
        #: Position above which no message was delivered.
        self.top: i64 = max([*marks.values(), *counts], default=0)

    def end_at(self, position: i64) -> None:
        """Limit `top` to `position`, the position of the last restored message."""
        self.top = min(self.top, position)

    def attempts(self, position: i64, rank: i64) -> i64:
        """Return how many times a message was requeued, and remove the stored count.

        `position` is its position in the store, `rank` its priority (0 in other queues). Without a
        stored count, a message up to the delivery mark counts as requeued once.
        """
        attempts = self.peek_attempts(position, rank)
        self._counts.pop(int(position), None)
        return attempts

    def peek_attempts(self, position: i64, rank: i64) -> i64:
        """Return how many times a message was requeued; do not remove the stored count.

        `position` and `rank` are as in `attempts`. Without a stored count, a message up to the
        delivery mark counts as requeued once.
        """
        count = self._counts.get(int(position), -1)
        if count >= 0:
            return count
        return 1 if position <= self.marks.get(int(rank), 0) else 0
