"""Settles many deliveries for one method: basic.ack or basic.nack with `multiple`, or
basic.recover.

A client may hold hundreds of thousands of deliveries. They are settled in slices, oldest first, as
bulk work of the agenda. Meanwhile the connection is stalled, so its later methods wait; other
clients are served. If the channel closes meanwhile, the settlement continues, and afterwards the
channel's other deliveries are requeued.

If the deliveries to be requeued are more than one slice, their queues are held until the end of the
settlement. So a queue delivers all requeued messages in order, before the messages after them.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import BulkTask
from broker.queues.consumer import Delivery, MessageSource
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.consumer import reject, requeue, settle
from protocols.amqp.channel.transaction import ACKED, REQUEUED
from protocols.tally import FrontCounters
from protocols.window import Window

#: Number of deliveries that are settled in one slice.
SETTLED_PER_SLICE: Final[i64] = 1_000


def carry_out(delivery: Delivery, how: int, tally: FrontCounters, failed: bool = False) -> None:
    """Acknowledge, reject or requeue a delivery that is already removed from its channel.

    `how` is ACKED, REJECTED or REQUEUED. An acknowledgement is counted in `tally`. `failed` is True
    if a requeued delivery counts as a failure: a queue with delayed retry then delivers the message
    again only after a delay.
    """
    if how == ACKED:
        tally.acknowledged += 1
        settle(delivery)
    elif how == REQUEUED:
        requeue(delivery, failed)
    else:
        reject(delivery)


def carry_out_all(taken: list[Delivery], how: int, tally: FrontCounters) -> None:
    """Acknowledge, reject or requeue deliveries that are already removed from their channel.

    `how` is ACKED, REJECTED or REQUEUED. The caller counts acknowledgements. If the settlement of a
    delivery raises an exception, settle the other deliveries first, then raise the exception again.
    """
    failure: Exception | None = None
    for delivery in taken:
        try:
            if how == ACKED:
                settle(delivery)
            else:
                carry_out(delivery, how, tally)
        except Exception as error:  # noqa: BLE001  the other deliveries must be settled
            failure = error
    if failure is not None:
        raise failure


class HeldQueues:
    """Queues that deliver nothing until all deliveries of a settlement or commit are requeued."""

    def __init__(self) -> None:
        self._queues: dict[MessageSource, None] = {}

    def hold(self, queue: MessageSource) -> None:
        """Hold a queue, which then delivers nothing until `free` is called.

        Do nothing if this object holds the queue already.
        """
        if queue not in self._queues:
            self._queues[queue] = None
            queue.hold()

    def free(self) -> None:
        """Free all held queues, so that they deliver again."""
        queues, self._queues = self._queues, {}
        for queue in queues:
            queue.free()


class Settlement(BulkTask):
    """The settlement of all outstanding deliveries of a channel up to a delivery tag.

    `how` is ACKED, REJECTED or REQUEUED. Deliveries with a tag in `kept` stay outstanding. If the
    settlement of a delivery raises an exception, this delivery stays outstanding too, and is
    requeued when the channel closes. If `failed`, the requeued deliveries count as failures: a
    queue with delayed retry delivers their messages again only after a delay.
    """

    def __init__(
        self,
        connection: ConnectionInterface,
        unacked: Window,
        last: i64,
        how: int,
        kept: dict[int, int] | None = None,
        failed: bool = False,
    ) -> None:
        super().__init__(connection.agenda)
        #: True once all deliveries are settled.
        self.finished = False
        self._connection = connection
        self._unacked = unacked
        self._last: i64 = last
        self._how = how
        self._kept = kept
        self._failed = failed
        #: All deliveries up to this tag are settled, are in `kept`, or could not be settled.
        self._done: i64 = 0
        #: True if the channel's other deliveries are requeued after this settlement.
        self._requeues_rest = False
        self._stalls = False
        #: The queues that are held until the settlement is finished.
        self._held = HeldQueues()

    def start(self) -> None:
        """Settle the first slice at once. If deliveries remain, stall the connection until all are
        settled.
        """
        try:
            self._settle_slice()
        finally:
            if not self.finished:
                self._stalls = True
                self._connection.stall()
                self.schedule()

    def start_at_close(self) -> None:
        """Settle the first slice now and later slices in later turns of the event loop, because the
        channel has closed.

        If all channels of a connection close together, they settle about one slice now in total,
        not one slice each.
        """
        try:
            if self._connection.extra_cost < SETTLED_PER_SLICE:
                self._settle_slice()
        finally:
            self.schedule()

    def requeue_rest(self) -> None:
        """Requeue the deliveries that are outstanding after this settlement, because the channel
        has closed.
        """
        self._requeues_rest = True

    def has_work(self) -> bool:
        return not self.finished

    def do_slice(self) -> None:
        try:
            self._settle_slice()
        finally:
            if self.finished and self._stalls and not self._connection.finished:
                self._connection.resume_input()

    def _settle_slice(self) -> None:
        """Settle the deliveries of one slice, and set `finished` if no deliveries remain.

        After the last slice, and after a failure, all queues deliver messages again.
        """
        failed = True
        try:
            self._settle_next()
            failed = False
        finally:
            if self.finished or failed:
                self._held.free()

    def _settle_next(self) -> None:
        how, kept, tally = self._how, self._kept, self._connection.front.tally
        numbers = self._unacked.numbers(self._done, self._last, SETTLED_PER_SLICE)
        more = len(numbers) >= SETTLED_PER_SLICE
        for number in numbers:
            self._done = number
            if kept is not None and number in kept:
                continue
            delivery = self._unacked.get(number)
            assert delivery is not None
            queue = delivery.consumer.queue
            if more and how == REQUEUED:
                self._held.hold(queue)
            unsettled: i64 = queue.unacked
            try:
                carry_out(delivery, how, tally, self._failed)
            except Exception:
                if queue.unacked < unsettled:
                    # The queue has removed the delivery already, so it must not be requeued later.
                    self._unacked.take(number)
                raise
            self._unacked.take(number)
        self._connection.extra_cost += len(numbers)
        if more:
            return
        if self._requeues_rest:
            self._requeues_rest = False
            self._failed = True
            self._how, self._kept = REQUEUED, None
            self._done, self._last = 0, self._unacked.next - 1
        else:
            self.finished = True
