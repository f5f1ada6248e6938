"""The acknowledgement timeout of a channel: `x-consumer-timeout`, `limits.consumer_timeout`.

    tick     t0          t1          t2          t3 = t0 + timeout
    mark     next tag 1  next tag 5  next tag 9  deliveries with tags below 1 are too old
    ...                                          at t1 + timeout: those with tags below 5

Deliveries carry no time, so that they cost nothing more. Instead, at regular ticks the next
delivery tag is noted with the time, in a mark. Once a mark is as old as the timeout, each
outstanding delivery with a lower tag is older. So a channel is closed up to two ticks late: a fifth
of the timeout.

A channel without a timeout has no such object. The object looks at the timeouts of its queues again
at each tick, because a policy may change them.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import BulkTask
from broker.limits import BrokerLimits
from broker.queues.consumer import MessageSource
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.errors import AmqpError
from protocols.window import Window

#: Ticks within one timeout, and the shortest time between two ticks in ms.
TICKS: Final[i64] = 10
TICK_MIN: Final[i64] = 100
#: Outstanding deliveries that one slice looks at.
CHECKED_PER_SLICE: Final[i64] = 1_000


def timeout_of(queue: MessageSource, limits: BrokerLimits) -> i64:
    """Return the acknowledgement timeout of a queue's deliveries in ms; 0 for none."""
    timeout: i64 = queue.arguments.consumer_timeout
    return timeout if timeout >= 0 else limits.consumer_timeout


class Marks:
    """The marks for one timeout: the next delivery tag at several times."""

    def __init__(self, timeout: i64) -> None:
        self.timeout: i64 = timeout
        self._marks: list[tuple[int, int]] = []
        #: All deliveries up to this tag have been looked at.
        self.checked: i64 = 0

    @property
    def tick(self) -> i64:
        """The time between two marks in ms."""
        return max(TICK_MIN, self.timeout // TICKS)

    def note(self, now: i64, tag: i64) -> None:
        """Add a mark, unless the last one is newer than a tick."""
        if not self._marks or now - self._marks[-1][0] >= self.tick:
            self._marks.append((int(now), int(tag)))

    def too_old(self, now: i64) -> i64:
        """Return the tag below which all outstanding deliveries are older than the timeout."""
        marks, latest = self._marks, now - self.timeout
        while len(marks) > 1 and marks[1][0] <= latest:
            marks.pop(0)
        return marks[0][1] if marks and marks[0][0] <= latest else 0


class AckTimeout(BulkTask):
    """The task that closes a channel whose client does not acknowledge a delivery in time."""

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
        #: The queues of the channel's consumers, and all queues from which the channel has got
        #: messages since it last had no outstanding delivery.
        self._queues: dict[MessageSource, None] = {}
        self._marks: dict[int, Marks] = {}
        #: The time for which the timer is set, in ms; 0 for none.
        self._due: i64 = 0
        #: True while deliveries are to be looked at in another slice.
        self._unchecked = False
        #: True once the channel is closed because of a timeout.
        self.expired = False

    def watch(self, queue: MessageSource) -> None:
        """Watch the deliveries of a queue, from which this channel gets messages from now on."""
        self._queues[queue] = None
        self._begin_marks(int(timeout_of(queue, self._limits)))
        self._set_timer()

    def end(self) -> None:
        """Stop: the channel has ended."""
        self._queues.clear()
        self._marks.clear()
        self._unchecked = False
        if self._due > 0:
            self._due = 0
            self._agenda.drop_timer()

    def has_work(self) -> bool:
        return self._unchecked

    def needs_timer(self, when: i64) -> bool:
        return when == self._due

    def do_slice(self) -> None:
        now: i64 = self._agenda.now
        if self._due <= now:
            self._due = 0
        self._unchecked = False
        if self._unacked.count == 0:
            self._queues.clear()
        for consumer in self._consumers.values():
            if not consumer.no_ack:
                self._queues[consumer.queue] = None
        self._update_marks()
        for timeout, marks in list(self._marks.items()):
            if self._unacked.count == 0:
                marks.checked = self._unacked.next - 1
            marks.note(now, self._unacked.next)
            if self._check(marks):
                self._close(timeout)
                return
        self._set_timer()

    def _update_marks(self) -> None:
        """Note marks for the timeouts that the queues have now, and for no others."""
        timeouts = {int(timeout_of(queue, self._limits)) for queue in self._queues}
        for timeout in [one for one in self._marks if one not in timeouts]:
            del self._marks[timeout]
        for timeout in timeouts:
            self._begin_marks(timeout)

    def _begin_marks(self, timeout: int) -> None:
        """Begin to note marks for a timeout in ms, unless it is 0 or has marks already."""
        if timeout > 0 and timeout not in self._marks:
            marks = self._marks[timeout] = Marks(timeout)
            marks.note(self._agenda.now, self._unacked.next)

    def _check(self, marks: Marks) -> bool:
        """True if an outstanding delivery is older than the timeout, which its queue has."""
        last = marks.too_old(self._agenda.now) - 1
        numbers = self._unacked.numbers(marks.checked, last, CHECKED_PER_SLICE)
        for number in numbers:
            delivery = self._unacked.get(number)
            if delivery is not None:
                timeout = timeout_of(delivery.consumer.queue, self._limits)
                if 0 < timeout <= marks.timeout:
                    return True
            marks.checked = number
        if len(numbers) == CHECKED_PER_SLICE:
            self._unchecked = True
        return False

    def _close(self, timeout: int) -> None:
        """Close the channel; its outstanding deliveries are requeued."""
        self.expired = True
        self._connection.front.tally.acknowledgements_expired += 1
        error = AmqpError(
            406,
            f"delivery acknowledgement on channel {self._number} timed out. "
            f"Timeout value used: {timeout} ms. "
            "This timeout value can be configured, see consumers doc guide to learn more",
        )
        self._connection.close_channel(self._number, error, 0)

    def _set_timer(self) -> None:
        """Set the timer to the next tick, unless it is set to this time or earlier."""
        if not self._marks:
            return
        tick: i64 = min([marks.tick for marks in self._marks.values()])
        next_tick: i64 = self._agenda.now + tick
        due = self._due
        if due == 0 or next_tick < due:
            self._due = next_tick
            self._agenda.at(next_tick, self)
            if due > 0:
                self._agenda.drop_timer()
