"""The plain queue: order of delivery, requeue, settlement, purge.

        put --> [ returned | waiting ] --> pick a ready consumer --> deliver --> settle
                     ^                                                  |
                     +------------------- requeue ----------------------+

A queue is first in, first out (FIFO). Each message has a sequence number in its queue. A message
that a consumer returns (a requeue) goes back to its old place: `returned` is sorted by sequence
number. All sequence numbers in `returned` are lower than the numbers in `waiting`, so `returned`
goes first.

Backpressure: a consumer is ready while it has credit (prefetch) and its outlet accepts data. If no
consumer is ready, messages wait in the queue. One invariant saves a drain per message: while
messages wait and no drain is scheduled, no consumer is ready. So everything that makes a consumer
ready (credit, room in its outlet, a new consumer) must call `schedule_drain`.

A durable queue with more than `store.window` messages drops its newest messages from memory, and
reads them from the store when their turn comes: `put --> waiting --> tail --> (store) --> waiting`.
While the queue has a tail, every new message goes there.

If no file descriptor is left for such a read, the messages stay in the tail, and the queue tries
again every TAIL_RETRY_MS. Meanwhile it has messages but no head: `depth > 0`, `depth == _paged`.

A durable queue delivers only messages up to its mark, so that they come back as redelivered after a
crash (delivery_window.py). Messages above the mark wait until a higher mark is durable.

Mass work is bulk work of the agenda: a purge discards all waiting messages at once, and releases
them in the store in slices; expired messages, and messages above a limit that was lowered, leave
the queue in slices (QueueUpkeep). A drain that meets DISCARDS_PER_DRAIN expired messages continues
as bulk work. A drain that delivers DELIVERIES_PER_DRAIN messages continues in the next turn.

Every copy of a message that is put into a queue ends with exactly one fate:
`copies == sum of fates + depth + unacked`.
"""

from __future__ import annotations

from array import array
from bisect import insort
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.messages.fates import EXPIRED, OVER_LIMIT, PURGED, REJECTED, UNREADABLE, UNREPRESENTABLE
from broker.messages.memory import SAMPLES, estimate
from broker.messages.message import Message
from broker.queues.arguments import UNLIMITED
from broker.queues.consumer import (
    NO_CONSUMERS,
    SEARCHED_PER_TURN,
    Consumer,
    Delivery,
    MessageSource,
    ReturnedMessage,
    memory_of,
    newest_first,
    oldest_first,
)
from broker.queues.delivery_window import DeliveryWindow, RestoredDeliveries
from broker.queues.emptying import ConsumerCancellation, PurgeTask
from broker.queues.fifo import Fifo
from broker.queues.paged_tail import PagedTail
from broker.queues.slices import DELIVERIES_PER_DRAIN, DISCARDS_PER_DRAIN, MESSAGES_PER_SLICE
from broker.queues.statistics import RESTORED, RESTORED_UNACKED, RETURNED, statistics_of
from broker.queues.upkeep import TAIL_RETRY_MS, QueueUpkeep, TailRetry
from broker.store.contract import Store
from broker.store.disk import OutOfDescriptors

#: A position above the positions of all messages.
_NO_LIMIT: Final[i64] = (1 << 62) - 1

_NOTHING: Final[Fifo[Message]] = Fifo()
_NO_RETURNED: Final[list[ReturnedMessage]] = []
_NO_TASKS: Final[list[Task]] = []


class Queue(MessageSource):
    """A queue without limits of its own: messages wait in order until a consumer takes them.

    `LimitedQueue` adds the limits of the queue arguments, so that a plain queue does not pay for
    them. Only `max_length` is here, because session inboxes need it.
    """

    def __init__(self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool) -> None:
        super().__init__(vhost, name, agenda, store, durable)
        #: The `durable` flag of the declaration. An exclusive queue is never stored, even if it was
        #: declared durable, because it is deleted with its connection.
        self.declared_durable = durable
        #: The connection that declared the queue as exclusive. No other connection may use the
        #: queue. None if the queue is not exclusive.
        self.exclusive_to: object = None
        self.auto_delete = False
        #: True if the queue is a session's inbox: clients can neither declare nor consume it.
        self.private = False
        self.depth: i64 = 0
        #: The LimitedQueue that replaced this queue because of a policy; None if there is none.
        self.replacement: Queue | None = None
        self._waiting = _NOTHING
        self._returned = _NO_RETURNED
        #: Returned messages with higher sequence numbers than all in `_returned`, the lowest first.
        #: None while `_returned` is empty.
        self._returned_later = _NO_RETURNED
        self._tail: PagedTail | None = None
        #: Number of messages in the tail.
        self._paged: i64 = 0
        #: Messages up to this position may be delivered without asking the window. If the store
        #: does not record deliveries, the value is above all positions.
        self._deliver_up_to: i64 = 0 if durable and store.keeps_deliveries else _NO_LIMIT
        self._window: DeliveryWindow | None = None
        #: The basic.get tasks that wait until a higher delivery mark is durable.
        self._mark_waiters = _NO_TASKS
        #: The deliveries recorded before the broker started. None once the tail holds no message
        #: from before the start.
        self._restored: RestoredDeliveries | None = None
        self._max_length: i64 = UNLIMITED
        #: `put` calls `_overflow` above this depth.
        self._overflow_depth: i64 = store.window if durable else UNLIMITED
        self._sequence: i64 = 0
        #: True if a drain is scheduled. Also True while the queue is held, to prevent drains.
        self._drain_scheduled = False
        #: Number of calls of `hold` that no call of `free` has undone.
        self._holds: i64 = 0
        self._expiry_due: i64 = 0
        self._upkeep: QueueUpkeep | None = None

    @property
    def max_length(self) -> int:
        """Number of waiting messages above which the queue drops its oldest message."""
        return int(self._max_length)

    @max_length.setter
    def max_length(self, limit: int) -> None:
        self._max_length = limit
        self._set_overflow_depth()

    # -- in

    def put(self, message: Message) -> None:
        """Deliver the message at once if no message waits and a consumer is ready, else enqueue it.

        A held queue enqueues the message even if no message waits, because messages that are still
        to be returned to the queue come first. Hot path.
        """
        if self.depth == 0 and self._holds == 0:
            consumer = self.pick()
            if consumer is not None and (
                message.position <= self._deliver_up_to or self.permits(message)
            ):
                self._sequence += 1
                consumer.deliver(message, self._sequence)
                return
        if self._waiting is _NOTHING:
            self._waiting = Fifo()
        self._waiting.push(message)
        self.depth += 1
        if message.expires > 0:
            self._schedule_expiry(message.expires)
        if self.depth > self._overflow_depth:
            self._overflow()

    def _overflow(self) -> None:
        """Apply the limits after a message was added.

        Lower the mark if too many messages wait below it.

        Move the newest message to the tail if the queue has a tail or exceeds the store's window.
        Drop the oldest message if the queue exceeds `max_length`.
        """
        window = self._window
        if window is not None and self.depth > self.store.waiting_marked:
            newest = self._waiting.peek_last()
            if newest is not None and 0 < newest.position <= window.top:
                window.lower(newest.position - 1)
        if self.durable and self.depth > self.store.window or self._paged > 0:
            if self._tail is None:
                self._tail = PagedTail(self.store, self.number)
            self._tail.push(self._waiting.pop_last())
            self._paged += 1
        if self.depth > self._max_length and self.depth > self._paged:
            self.drop_head(OVER_LIMIT)
            if self.depth > self._max_length and self.depth > self._paged:
                self.drop_head(OVER_LIMIT)  # Messages came while the head could not be read.
        self._set_overflow_depth()

    def _set_overflow_depth(self) -> None:
        window = self._window
        self._overflow_depth = (
            -1
            if self._paged > 0
            else min(self._max_length, self.store.window if self.durable else UNLIMITED)
        )
        if window is not None and window.top > self.store.position:
            self._overflow_depth = min(self._overflow_depth, self.store.waiting_marked)

    def reserve(self) -> i64:
        """Take and return the next sequence number, for a message that is not put into the queue.

        A session calls this for messages of shared subscriptions, only while no message waits.
        """
        self._sequence += 1
        return self._sequence

    def skip(self, count: int) -> None:
        """Leave out the next sequence numbers. Only while no message waits that was never sent."""
        self._sequence += count

    def next_sequence(self) -> i64:
        """Return the sequence number of the next message that is put into the queue."""
        return self._sequence + self._waiting.size + self._paged + 1

    @property
    def annotates(self) -> bool:
        """True if the store keeps an annotation with each message of this queue."""
        return self.private

    def annotate(self, lowered: bool) -> int:
        """Return the annotation that the store keeps with the next message; 0 for none.

        In a session's inbox the annotation is the message's sequence number, negative if `lowered`.
        `lowered` is True if the session gets the message with a lower QoS than the message was
        published with. In a queue with a time to live the annotation is the time at which the
        message expires, in seconds since EXPIRY_EPOCH (2020).
        """
        if not self.private:
            return 0
        return -int(self.next_sequence()) if lowered else int(self.next_sequence())

    def requeue(self, delivery: Delivery) -> None:
        """Put an unsettled message, which its consumer returns, back at its old place."""
        if self.dead:
            if self.replacement is not None:
                self.replacement.requeue(delivery)
            else:
                self.release(delivery.message)
            return
        self.unacked -= 1
        self._insert_returned(
            ReturnedMessage(delivery.message, delivery.sequence, delivery.attempts + 1)
        )
        self.depth += 1
        expires: i64 = delivery.message.expires
        if expires > 0:
            self._schedule_expiry(expires)
        self.schedule_drain()

    def requeue_failed(self, delivery: Delivery) -> None:
        if self.dead and self.replacement is not None:
            self.replacement.requeue_failed(delivery)
        else:
            self.requeue(delivery)

    def _insert_returned(self, returned: ReturnedMessage) -> None:
        """Insert a message by its sequence number, fast in ascending and in descending order.

        A channel that closes may return hundreds of thousands of messages.
        """
        known, later = self._returned, self._returned_later
        if not known:
            self._returned = [returned]
        elif returned.sequence < known[0].sequence:
            insort(known, returned, key=newest_first)
        else:
            if later is _NO_RETURNED:
                later = self._returned_later = []
            insort(later, returned, key=oldest_first)

    def _pop_returned(self) -> ReturnedMessage:
        """Remove and return the returned message with the lowest sequence number."""
        returned = self._returned.pop()
        if not self._returned and self._returned_later:
            self._returned, self._returned_later = self._returned_later, _NO_RETURNED
            self._returned.reverse()
        return returned

    # -- which messages may be delivered

    def permits(self, message: Message) -> bool:
        """True if the message may be delivered now; else a drain is scheduled once it may.

        The caller must first remove a waiting message from the queue.
        """
        if self.private:
            self._deliver_up_to = _NO_LIMIT  # MQTT sessions keep this state.
            return True
        return self._open_window().permits(message.position, self.depth == 0)

    def _open_window(self) -> DeliveryWindow:
        """Return the queue's delivery window. The first delivery opens it."""
        if self._window is None:
            self._window = DeliveryWindow(self, self.store, 0, 0)
        return self._window

    def position_ahead(self, rank: i64, count: i64) -> i64:
        """Return the position of the waiting message about `count` places behind the head; 0 if
        fewer messages wait.
        """
        waiting = self._waiting.size
        if count >= waiting + self._paged:
            return 0
        if count >= waiting and self._tail is not None:
            return self._tail.position_ahead(count - waiting)
        found: i64 = 0
        for message in self._waiting.part(0, count + 1):
            found = max(found, message.position)
        return found

    def window_changed(self) -> None:
        """Deliver up to the new mark of the window."""
        if self._window is not None:
            self._deliver_up_to = self._window.renew_above
        self._set_overflow_depth()

    def mark_durable(self) -> None:
        """Deliver the messages that waited until a higher delivery mark was durable."""
        waiters, self._mark_waiters = self._mark_waiters, _NO_TASKS
        for task in waiters:
            self.agenda.add_bulk(task)
        self.schedule_drain()

    def wait_for_mark(self, task: Task) -> None:
        """Run `task` once the higher mark for which the first message waits is durable."""
        if self._mark_waiters is _NO_TASKS:
            self._mark_waiters = []
        self._mark_waiters.append(task)

    @property
    def waits_for_mark(self) -> bool:
        """True while the first message must wait until a higher mark is durable."""
        return (
            self._window is not None
            and self._window.waits
            and self.depth > self._paged
            and self._head().position > self._window.mark
        )

    def subscribe(self, consumer: Consumer) -> None:
        super().subscribe(consumer)
        # A higher mark now lets the first message pass without a wait.
        if self.depth == 0 and self._deliver_up_to <= self.store.position:
            self.prepare_window()

    def prepare_window(self) -> None:
        """Append a mark for the first messages of a new consumer, if the queue needs one."""
        if not self.private:
            self._open_window().prepare()

    def write_deliveries(self) -> None:
        """Write the exact set of delivered messages, because the broker stops cleanly.

        While a client holds a message, the present mark stays: the client may settle the message.
        """
        window = self._window
        delayed = self.delayed()
        if window is None or self.dead or self.unacked > len(delayed):
            return
        mark: i64 = 0
        if self._restored is not None and self._paged:
            mark = self._restored.top
        undelivered: list[int] = []
        for one in self._returned + self._returned_later + delayed:
            if one.attempts > 0:
                mark = max(mark, one.message.position)
            else:
                undelivered.append(int(one.message.position))
        window.write_exact(mark, undelivered)

    def delayed(self) -> list[ReturnedMessage]:
        """Return the messages that wait for a delayed retry. `unacked` counts them."""
        return _NO_RETURNED

    # -- after a restart

    def restore_deliveries(self, restored: RestoredDeliveries) -> None:
        """Set the deliveries that the log recorded. Called before `restore`."""
        if restored.top > 0:
            self._restored = restored
            self._window = DeliveryWindow(self, self.store, 0, restored.marks.get(0, 0))
            self._deliver_up_to = self._window.renew_above

    def restore(self, positions: array[int], sequence: i64) -> None:
        """Restore the messages that waited when the broker stopped.

        `positions` are their positions in the store, `sequence` is the sequence number of the first
        message.
        """
        if self._restored is not None:
            self._restored.end_at(positions[-1] if positions else 0)
        tail = self._tail = PagedTail(self.store, self.number)
        tail.restore(positions, self.latest_expiry())
        self._sequence = sequence - 1
        self._paged = len(positions)
        self.depth += self._paged
        if positions:
            self.note(RESTORED, len(positions))
        self._set_overflow_depth()
        self._read_tail()

    def restore_returned(self, message: Message, sequence: i64) -> None:
        """Restore a message that a consumer may have received before the broker stopped."""
        self._insert_returned(ReturnedMessage(message, sequence, 1))
        self._sequence = max(self._sequence, sequence)
        self.depth += 1
        self.note(RESTORED)

    def restore_unacked(self, sequence: i64) -> None:
        """Restore an unacknowledged message, which its consumer may still settle."""
        self._sequence = max(self._sequence, sequence)
        self.unacked += 1
        self.note(RESTORED)
        self.note(RESTORED_UNACKED)

    def latest_expiry(self) -> i64:
        """Return the latest time at which a message put now expires, in ms of the agenda's clock.

        Return -1 if the queue has no time to live.
        """
        return -1

    # -- out

    def schedule_drain(self) -> None:
        """Drain the queue at the end of this turn, if messages wait."""
        if self.depth > 0 and not self._drain_scheduled:
            self._drain_scheduled = True
            self.agenda.add(self)

    def drain_in_next_turn(self) -> None:
        if not self._drain_scheduled:
            self._drain_scheduled = True
            self.agenda.later(self)

    @property
    def held(self) -> bool:
        """True while the queue delivers nothing, because messages are being returned to it."""
        return self._holds > 0 and not self.paused

    def hold(self) -> None:
        if self.replacement is not None:
            self.replacement.hold()
            return
        self._holds += 1
        self._drain_scheduled = True

    def free(self) -> None:
        if self.replacement is not None:
            self.replacement.free()
            return
        self._holds -= 1
        if self._holds == 0:
            self._drain_scheduled = False
            self.schedule_drain()

    def run(self) -> None:
        """Drain the queue: deliver while messages wait and a consumer is ready. Hot path.

        The agenda calls this method. It is named `run`, as the agenda requires; a separate method
        `drain` would cost one more call per drain.
        """
        if self._holds > 0:
            return
        self._drain_scheduled = False
        now: i64 = self.agenda.now
        deliveries: i64 = DELIVERIES_PER_DRAIN
        discards: i64 = DISCARDS_PER_DRAIN
        self._search_left = SEARCHED_PER_TURN
        while self.depth > self._paged:
            consumer = self.pick()
            if consumer is None:
                self._schedule_expiry(self._head().expires)
                return
            if deliveries == 0:
                self.drain_in_next_turn()
                return
            deliveries -= 1
            self.depth -= 1
            if self._returned:
                returned = self._pop_returned()
                if not 0 < returned.message.expires <= now:
                    if returned.attempts > 0:
                        consumer.redeliver(returned.delivery_to(consumer))
                    elif returned.message.position > self._deliver_up_to and not self.permits(
                        returned.message
                    ):
                        self.insert_returned(returned)
                        return
                    else:
                        consumer.deliver(returned.message, returned.sequence)
                    continue
                message = returned.message
            else:
                message = self._waiting.pop()
                self._sequence += 1
                if not 0 < message.expires <= now:
                    if message.position > self._deliver_up_to and not self.permits(message):
                        self.insert_returned(ReturnedMessage(message, self._sequence, 0))
                        return
                    consumer.deliver(message, self._sequence)
                    continue
            self.discard(message, EXPIRED)
            discards -= 1
            if discards == 0:
                self._drain_as_bulk_work()
                return
        if self._paged > 0:
            self._read_tail()
            if self.depth > self._paged:
                self.drain_in_next_turn()

    def _drain_as_bulk_work(self) -> None:
        """Continue a drain as bulk work, because it discards too many messages for one turn."""
        self._drain_scheduled = True
        self.agenda.add_bulk(self)

    def _read_tail(self) -> None:
        """Read the next messages of the tail, unless undelivered messages are in memory.

        If no file descriptor is left, the messages stay in the tail until a retry succeeds.
        """
        tail = self._tail
        assert tail is not None
        if tail.waits:
            return
        restored = self._restored
        while self._paged > 0 and self._waiting.size == 0:
            if restored is not None and self._returned:
                break
            try:
                messages = tail.pop()
            except OutOfDescriptors:
                tail.waits = True
                self.agenda.at(self.agenda.now + TAIL_RETRY_MS, TailRetry(self))
                return
            for message in messages:
                self._paged -= 1
                if message is None:
                    self._sequence += 1
                    self.depth -= 1
                    self.count(UNREADABLE)
                elif restored is not None and message.position <= restored.top:
                    self._sequence += 1
                    self._insert_returned(
                        ReturnedMessage(
                            message, self._sequence, restored.attempts(message.position, 0)
                        )
                    )
                else:
                    restored = self._restored = None
                    if self._waiting is _NOTHING:
                        self._waiting = Fifo()
                    self._waiting.push(message)
        if self._paged == 0:
            self._tail = self._restored = None
            self._set_overflow_depth()
        if self.depth > self._paged:
            self._schedule_expiry(self._head().expires)

    def retry_tail(self) -> None:
        """Read the tail after a shortage of file descriptors, and continue the queue's work."""
        if self.replacement is not None:
            self.replacement.retry_tail()
        elif self._tail is not None:
            self._tail.waits = False
            self._read_tail()
            self.schedule_drain()
            self._schedule_upkeep()

    def take(self, consumer: Consumer) -> Delivery | None:
        """Remove and return the next message for a client that polls (basic.get).

        Return None if no message waits, if the first message has expired and waits to be discarded
        as bulk work (`head_expired`), if the queue is `held`, if the first message must wait for a
        higher mark (`waits_for_mark`), or if no file descriptor is left to read it.
        """
        self.expire(MESSAGES_PER_SLICE)
        if self.depth == self._paged or self.head_expired or self._holds > 0:
            return None
        head = self._pop_head()
        if (
            head.attempts == 0
            and head.message.position > self._deliver_up_to
            and not self.permits(head.message)
        ):
            self.insert_returned(head)
            return None
        delivery = head.delivery_to(consumer)
        if self.depth > self._paged:
            # The new head may have expired while it waited behind the message that is taken.
            self._schedule_expiry(self._head().expires)
        return delivery

    def put_back(self, delivery: Delivery) -> None:
        """Put back a message that `take` gave to a client which cannot receive it.

        The message does not count as delivered. Several messages must be put back in reverse order,
        the last one first.
        """
        self.insert_returned(
            ReturnedMessage(delivery.message, delivery.sequence, delivery.attempts)
        )

    def insert_returned(self, returned: ReturnedMessage) -> None:
        """Insert a message at its old place in the queue; it waits again from now on."""
        self._insert_returned(returned)
        self.depth += 1
        expires: i64 = returned.message.expires
        if expires > 0:
            self._schedule_expiry(expires)

    def return_unseen(self, delivery: Delivery) -> None:
        if self.dead:
            if self.replacement is not None:
                self.replacement.return_unseen(delivery)
            else:
                self.release(delivery.message)
            return
        self.unacked -= 1
        self.put_back(delivery)
        self.schedule_drain()

    @property
    def head_expired(self) -> bool:
        """True if the first message has expired, and waits to be discarded."""
        return self.depth > self._paged and 0 < self._head().expires <= self.agenda.now

    def _pop_head(self) -> ReturnedMessage:
        """Remove the head of the queue and return it."""
        self.depth -= 1
        if self._returned:
            returned = self._pop_returned()
        else:
            self._sequence += 1
            returned = ReturnedMessage(self._waiting.pop(), self._sequence, 0)
        if 0 < self._paged == self.depth:
            self._read_tail()
        return returned

    # -- settled

    def settle(self, message: Message) -> None:
        """Settle a message that its consumer acknowledged. Hot path."""
        if self.dead:
            if self.replacement is not None:
                self.replacement.settle(message)
            else:
                self.release(message)
            return
        self.unacked -= 1
        self.acknowledged += 1
        if message.position > 0:
            self.release(message)
        if self.depth > 0 and not self._drain_scheduled:
            self.schedule_drain()

    def auto_acknowledge(self, message: Message) -> None:
        """Settle a message whose consumer need not acknowledge it. Hot path."""
        self.auto_acknowledged += 1
        if message.position > 0:
            self.release(message)

    def release(self, message: Message) -> None:
        """Record in the store that this queue no longer needs the message."""
        if self.durable and message.position > 0:
            self.release_position(message.position)

    def release_position(self, position: i64) -> None:
        """Record in the store that this queue no longer needs the message at `position`.

        The deletion of a queue is recorded for all its messages at once, so a deleted queue writes
        no further record. A replaced queue has the number of its replacement, which may still
        exist.
        """
        if self.dead:
            if self.replacement is not None:
                self.replacement.release_position(position)
            else:
                self.store.release(self.number, position)
        else:
            self.store.append_settled(self.number, position)

    def reject(self, message: Message) -> None:
        """Discard a message that its consumer rejected without a requeue."""
        if self.dead:
            if self.replacement is not None:
                self.replacement.reject(message)
            else:
                self.release(message)
            return
        self.unacked -= 1
        self.discard(message, REJECTED)
        self.schedule_drain()

    def unrepresentable(self, message: Message) -> None:
        """Discard a message that the protocol of its consumer cannot represent."""
        self.unacked -= 1
        self.discard(message, UNREPRESENTABLE)

    def discard(self, message: Message, fate: i64) -> None:
        """Discard a message that no consumer has settled, and count its fate."""
        self.count(fate)
        self.release(message)

    def touch(self) -> None:
        """Restart the period after which an unused queue is deleted (`x-expires`).

        Called when the queue is declared or polled, or loses a consumer. A queue without
        `x-expires` does nothing.
        """

    def expire(self, limit: i64) -> None:
        """Discard expired messages from the head: at most `limit` now, the others as bulk work.

        If bulk work of this queue waits already and `limit` is not UNLIMITED, discard none now. An
        expired message behind a message that has not expired stays until it is at the head.
        """
        if limit != UNLIMITED and self._upkeep_waits():
            return
        while self.depth > self._paged:
            expires: i64 = self._head().expires
            if expires == 0 or expires > self.agenda.now:
                self._schedule_expiry(expires)
                return
            if limit == 0:
                self._schedule_upkeep()
                return
            limit -= 1
            self.drop_head(EXPIRED)

    def keep_up(self) -> None:
        """Do one slice of the queue's bulk work: discard expired messages.

        QueueUpkeep calls this method as bulk work, and also when a timer of `_schedule_expiry` runs
        out.
        """
        if self._expiry_due <= self.agenda.now:
            self._expiry_due = 0
        self.expire(MESSAGES_PER_SLICE)

    def _schedule_upkeep(self) -> None:
        """Schedule a call of `keep_up` as bulk work, after the deliveries of a turn."""
        if self._upkeep is None:
            self._upkeep = QueueUpkeep(self)
        self._upkeep.request()

    def _upkeep_waits(self) -> bool:
        """True if a call of `keep_up` is scheduled, to discard more messages."""
        return self._upkeep is not None and self._upkeep.waits

    def _schedule_expiry(self, expires: i64) -> None:
        """Schedule a call of `expire` for the time `expires` (ms), unless an earlier call is
        scheduled. If `expires` is 0, do nothing.
        """
        due: i64 = self._expiry_due
        if expires > 0 and (due == 0 or expires < due):
            self._expiry_due = expires
            if self._upkeep is None:
                self._upkeep = QueueUpkeep(self)
            self.agenda.at(expires, self._upkeep)
            if due > 0:
                self.agenda.drop_timer()

    def needs_expiry(self, when: i64) -> bool:
        """True if `keep_up` must be called at the time `when` (ms)."""
        return not self.dead and when == self._expiry_due

    def drop_head(self, fate: i64) -> None:
        """Discard the first message of the queue, with this fate."""
        self.discard(self._pop_head().message, fate)

    def take_over(self, old: Queue) -> None:
        """Replace a queue of the same name, and take over its messages, counters and consumers."""
        self.number, self.declared_durable, self.exclusive_to = (
            old.number,
            old.declared_durable,
            old.exclusive_to,
        )
        self.auto_delete, self.depth, self.unacked = old.auto_delete, old.depth, old.unacked
        self.acknowledged, self.auto_acknowledged = old.acknowledged, old.auto_acknowledged
        self.consumers, self.standby = old.consumers, old.standby
        self._fates, self._waiting, self._returned = old._fates, old._waiting, old._returned
        self._events = old._events
        self._returned_later = old._returned_later
        self._window, self._restored = old._window, old._restored
        self._deliver_up_to = old._deliver_up_to
        self._mark_waiters, old._mark_waiters = old._mark_waiters, _NO_TASKS
        if self._window is not None:
            self._window.queue = self
        self._tail, self._paged, self._sequence = old._tail, old._paged, old._sequence
        self._set_overflow_depth()
        self._holds, self.paused, old._holds = old._holds, old.paused, 0
        self._drain_scheduled = self._holds > 0
        for consumer in self.consumers + self.standby:
            consumer.queue = self
        old.dead = True
        old.replacement = self
        old.consumers, old.standby, old.depth, old._paged = NO_CONSUMERS, NO_CONSUMERS, 0, 0
        old._waiting, old._returned, old._tail = _NOTHING, _NO_RETURNED, None
        old._returned_later = _NO_RETURNED
        if old._expiry_due > 0:
            self.agenda.drop_timer()
        if self.depth > self._paged:
            self._schedule_expiry(self._head().expires)
        self.schedule_drain()

    def note(self, event: i64, times: int = 1) -> None:
        if self.replacement is not None:
            self.replacement.note(event, times)
        else:
            super().note(event, times)

    def statistics(self) -> list[int]:
        """Return the counts of publications and deliveries, in the order of STATISTICS."""
        return statistics_of(self.fates(), self.events(), self.depth, self.unacked)

    @property
    def head_attempts(self) -> int:
        """Number of times that the first message was returned to the queue; 0 without messages."""
        return int(self._returned[-1].attempts) if self._returned else 0

    @property
    def paged(self) -> int:
        """Number of waiting messages in the tail, which is on disk."""
        return int(self._paged)

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the waiting messages in bytes.

        A message of the tail that is only on disk counts with the memory of its position.
        """
        total = estimate(self._waiting.sample(SAMPLES), self._waiting.size)
        if self._tail is not None:
            total += self._tail.memory_bytes()
        return total + memory_of(self._returned) + memory_of(self._returned_later)

    def purge(self) -> int:
        """Purge the queue: discard all waiting messages, and return their number.

        The messages leave the queue at once; they are released in the store in slices.
        """
        purged = int(self.depth)
        if purged:
            self.count(PURGED, purged)
            # The sequence numbers of later messages follow the numbers of the purged messages.
            self._sequence += self._waiting.size + self._paged
            self.depth = self._paged = 0
            emptying = PurgeTask(
                self, self._waiting, [self._returned, self._returned_later], self._tail
            )
            self._waiting = _NOTHING
            self._returned = self._returned_later = _NO_RETURNED
            self._tail = None
            self._set_overflow_depth()
            emptying.run_first_slice()
        return purged

    def on_deleted(self) -> int:
        """Discard all messages and cancel all consumers in slices: the queue is deleted.

        Return how many messages were waiting. Unacknowledged messages are not counted.
        """
        self.dead = True
        purged = self.purge()
        if self._upkeep is not None:
            self._upkeep.queue = None
            if self._expiry_due > 0:
                self.agenda.drop_timer()
        if self.unacked:
            self.count(PURGED, int(self.unacked))
            self.note(RETURNED, int(self.unacked))
        self.unacked = 0
        if self.consumers or self.standby:
            cancelling = ConsumerCancellation(self.agenda, self.standby, self.consumers)
            self.consumers, self.standby = NO_CONSUMERS, NO_CONSUMERS
            # The consumers are cancelled later: a client that deletes the queue gets the reply
            # first.
            cancelling.schedule()
        return purged

    def _head(self) -> Message:
        message = self._returned[-1].message if self._returned else self._waiting.peek()
        assert message is not None
        return message
