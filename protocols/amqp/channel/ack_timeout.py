"""The acknowledgement timeout of a channel: `x-consumer-timeout`, `limits.consumer_timeout`.

A channel is closed if its client leaves a delivery unacknowledged for longer than the timeout.

Deliveries do not store their time, so that the timeout adds no cost to a delivery. Instead, at
regular ticks, a mark stores the time and the next delivery tag. Every delivery with a lower tag was
sent before the mark. So once a mark is as old as the timeout, all deliveries with lower tags are
too old if they are still outstanding:

    tick         mark             effect at tick + timeout
    t0           next tag 5       deliveries with tags 1 to 4 are too old
    t1           next tag 9       deliveries with tags 5 to 8 are too old, too

The time between two ticks is a tenth of the timeout. A channel is closed up to two ticks late.

A channel without a timeout has no AckTimeout. An AckTimeout looks up the timeouts of the channel's
queues again at each tick, because a policy may change them.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import BulkTask
from broker.limits import BrokerLimits
from broker.queues.consumer import MessageSource
from broker.queues.queue import Queue
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.errors import AmqpError
from protocols.window import Window

#: Number of ticks within one timeout, and the shortest time between two ticks in ms.
TICKS: Final[i64] = 10
TICK_MIN: Final[i64] = 100
#: Largest number of queues, marks and outstanding deliveries that one slice examines.
CHECKED_PER_SLICE: Final[i64] = 1_000
#: A range of delivery tags may contain few outstanding deliveries. In the limit of a slice, a
#: search of this number of tags counts as much as the check of one outstanding delivery.
NUMBERS_PER_CHECK: Final[i64] = 16


def timeout_of(queue: MessageSource, limits: BrokerLimits) -> i64:
    """Return the acknowledgement timeout of a queue's deliveries in ms; 0 for none."""
    timeout: i64 = queue.arguments.consumer_timeout
    return timeout if timeout >= 0 else limits.consumer_timeout


class Marks:
    """Finds the deliveries of one channel that are older than one acknowledgement timeout.

    A mark is a time, and the next delivery tag at that time. So all deliveries with lower tags were
    sent before that time.
    """

    def __init__(self, timeout: i64) -> None:
        self.timeout: i64 = timeout
        self._marks: list[tuple[int, int]] = []
        #: All deliveries up to this tag have been compared with the timeout.
        self.checked: i64 = 0
        #: True if an outstanding delivery was found to be older than the timeout.
        self.late = False
        #: True if all outstanding deliveries older than the timeout have been checked.
        self.complete = True

    @property
    def tick(self) -> i64:
        """Shortest time between two marks, in ms: a tenth of the timeout, but at least TICK_MIN."""
        return max(TICK_MIN, self.timeout // TICKS)

    def note(self, now: i64, tag: i64) -> None:
        """Add a mark: `tag` is the next delivery tag at the time `now`, in ms.

        Do nothing if the last mark is less than a tick old.
        """
        if not self._marks or now - self._marks[-1][0] >= self.tick:
            self._marks.append((int(now), int(tag)))

    def too_old(self, now: i64) -> i64:
        """Return the tag below which all outstanding deliveries are older than the timeout; 0 if no
        delivery is so old. `now` is the time in ms.
        """
        marks, latest = self._marks, now - self.timeout
        while len(marks) > 1 and marks[1][0] <= latest:
            marks.pop(0)
        return marks[0][1] if marks and marks[0][0] <= latest else 0


class AckTimeout(BulkTask):
    """The task that closes a channel whose client does not acknowledge a delivery in time.

    The task runs at regular intervals, in slices. First it looks up the timeouts of the channel's
    queues, which a policy may have changed. Then it compares the outstanding deliveries with each
    timeout.
    """

    def __init__(
        self,
        connection: ConnectionInterface,
        number: i64,
        unacked: Window,
        consumers: dict[str, AmqpConsumer],
        limits: BrokerLimits,
    ) -> None:
        super().__init__(connection.agenda)
        self._connection = connection
        self._number: i64 = number
        self._unacked = unacked
        self._limits = limits
        self._consumers = consumers
        #: The watched queues, with their timeouts in ms: the queues of the channel's consumers, and
        #: the queues of outstanding deliveries. Other queues may be in the dict until the channel
        #: has no outstanding delivery.
        self._queues: dict[MessageSource, int] = {}
        self._marks: dict[int, Marks] = {}
        #: The time for which the timer is set, in ms; 0 for none.
        self._due: i64 = 0
        #: True while the task looks up the timeouts of queues and consumers: the first part of a
        #: round. A round is the check that begins at one tick.
        self._visiting = False
        #: The queues and consumers whose timeouts this round has not looked up yet.
        self._unvisited: list[tuple[MessageSource, int]] = []
        self._unvisited_consumers: list[AmqpConsumer] = []
        #: The timeouts that this round has found, in ms, and the timeouts whose marks are not yet
        #: compared with the deliveries.
        self._timeouts: set[int] = set()
        self._unchecked: list[int] = []
        #: True if this round has found a queue with another timeout than before.
        self._changed = False
        #: True once the channel is closed because of a timeout.
        self.expired = False

    def watch(self, queue: MessageSource) -> None:
        """Apply the timeout of `queue` to the deliveries that the channel gets from this queue."""
        timeout = int(timeout_of(queue, self._limits))
        self._queues.setdefault(queue, timeout)
        self._timeouts.add(timeout)
        self._begin_marks(timeout)
        marks = self._marks.get(timeout)
        if marks is not None and not self.has_work():
            self._set_timer(marks.tick)

    def end(self) -> None:
        """Stop watching all queues, because the channel has ended."""
        self._queues.clear()
        self._marks.clear()
        self._visiting = False
        self._unvisited.clear()
        self._unvisited_consumers.clear()
        self._unchecked.clear()
        if self._due > 0:
            self._due = 0
            self._agenda.drop_timer()

    def has_work(self) -> bool:
        return self._visiting or bool(self._unchecked)

    def needs_timer(self, when: i64) -> bool:
        return when == self._due

    def do_slice(self) -> None:
        if self._due <= self._agenda.now:
            self._due = 0
        if not self.has_work():
            self._begin_round()
        left: i64 = CHECKED_PER_SLICE
        while left > 0 and self._visiting:
            left -= 1
            self._visit_next()
        while left > 0 and self._unchecked:
            timeout = self._unchecked[-1]
            marks = self._marks[timeout]
            left -= 1 + self._check(marks, left)
            if marks.late:
                self._close(timeout)
                return
            if marks.complete:
                self._unchecked.pop()
        if not self.has_work() and self._marks:
            self._set_timer(min([marks.tick for marks in self._marks.values()]))

    def _begin_round(self) -> None:
        if self._unacked.count > 0:
            self._unvisited = list(self._queues.items())
        self._unvisited_consumers = list(self._consumers.values())
        self._queues = {}
        self._timeouts = set()
        self._visiting, self._changed = True, False

    def _visit_next(self) -> None:
        """Look up the timeout of one queue. After the last queue, begin to check the deliveries."""
        if self._unvisited:
            known, before = self._unvisited.pop()
            queue = _present(known)
            if not queue.dead:
                self._changed |= self._visit(queue) != before
        elif self._unvisited_consumers:
            consumer = self._unvisited_consumers.pop()
            if not consumer.no_ack and not consumer.queue.dead:
                self._visit(consumer.queue)
        else:
            self._visiting = False
            self._update_marks()

    def _visit(self, queue: MessageSource) -> int:
        """Look up the timeout of a queue, store it, and return it in ms."""
        timeout = int(timeout_of(queue, self._limits))
        self._queues[queue] = timeout
        self._timeouts.add(timeout)
        return timeout

    def _update_marks(self) -> None:
        """Remove the Marks of timeouts that no queue has now; create Marks for new timeouts."""
        for timeout in [one for one in self._marks if one not in self._timeouts]:
            del self._marks[timeout]
        for timeout in self._timeouts:
            self._begin_marks(timeout)
        if self._changed:
            # A delivery that was not too old for its queue may be too old for the new timeout.
            for marks in self._marks.values():
                marks.checked = 0
        self._unchecked = list(self._marks)

    def _begin_marks(self, timeout: int) -> None:
        """Create the Marks for deliveries older than `timeout` ms, if there are none yet.

        Do nothing if `timeout` is 0, which means no timeout.
        """
        if timeout > 0 and timeout not in self._marks:
            marks = self._marks[timeout] = Marks(timeout)
            marks.note(self._agenda.now, self._unacked.next)

    def _check(self, marks: Marks, limit: i64) -> i64:
        """Compare the next outstanding deliveries, at most `limit`, with `marks`.

        Set `marks.late` if one of these deliveries is older than its queue's timeout, and
        `marks.complete` if no delivery remains to be compared. Return the cost of the call in
        compared deliveries.
        """
        now: i64 = self._agenda.now
        if self._unacked.count == 0:
            marks.checked = self._unacked.next - 1
        marks.note(now, self._unacked.next)
        last = marks.too_old(now) - 1
        cost: i64 = max(0, last - max(marks.checked, self._unacked.first)) // NUMBERS_PER_CHECK
        numbers = self._unacked.numbers(marks.checked, last, limit)
        marks.complete = len(numbers) < limit
        for number in numbers:
            delivery = self._unacked.get(number)
            if delivery is not None:
                timeout = timeout_of(_present(delivery.consumer.queue), self._limits)
                if 0 < timeout <= marks.timeout:
                    marks.late = True
                    return cost
            marks.checked = number
        if marks.complete:
            marks.checked = max(marks.checked, last)
        return cost + len(numbers)

    def _close(self, timeout: int) -> None:
        """Close the channel with error 406, because a delivery was not acknowledged within
        `timeout` ms.

        The outstanding deliveries of the channel are requeued.
        """
        self.expired = True
        self._connection.front.tally.acknowledgements_expired += 1
        error = AmqpError(
            406,
            f"delivery acknowledgement on channel {self._number} timed out. "
            f"Timeout value used: {timeout} ms. "
            "This timeout value can be configured, see consumers doc guide to learn more",
        )
        self._connection.close_channel(self._number, error, 0)

    def _set_timer(self, tick: i64) -> None:
        """Let the timer fire in `tick` ms or earlier: do not replace an earlier time by a later."""
        next_tick: i64 = self._agenda.now + tick
        due = self._due
        if due == 0 or next_tick < due:
            self._due = next_tick
            self._agenda.at(next_tick, self)
            if due > 0:
                self._agenda.drop_timer()


def _present(queue: MessageSource) -> MessageSource:
    """Return `queue`, or the latest of the objects by which policies have replaced `queue`."""
    while isinstance(queue, Queue) and queue.replacement is not None:
        queue = queue.replacement
    return queue
