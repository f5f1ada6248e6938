"""The plain queue: order of delivery, requeue, settlement, purge.

        put --> [ returned | waiting ] --> pick a ready consumer --> deliver --> settle
                     ^                                                  |
                     +------------------- requeue ----------------------+

A queue is first in, first out (FIFO). Each message has a sequence number in its queue. A message
that a consumer returns (a requeue) goes back to its old place. The waiting messages may be on disk
(waiting.py): while no file descriptor is free to read them, the queue has messages but no head, and
`depth == _waiting.paged`.

Backpressure: a consumer is ready while it has credit (prefetch) and its outlet accepts data. If no
consumer is ready, messages wait in the queue. One invariant saves a drain per message: while
messages wait and no drain is scheduled, no consumer is ready. So everything that makes a consumer
ready (credit, room in its outlet, a new consumer) must call `schedule_drain`.

A durable queue delivers only the messages that its gate permits (delivery_gate.py).

Mass work is bulk work of the agenda. A purge removes all waiting messages at once, and releases
them in the store in slices. Expired messages, and messages over a lowered limit, leave the queue in
slices (QueueUpkeep). A drain that meets DISCARDS_PER_DRAIN expired messages continues as bulk work.
A drain that delivers DELIVERIES_PER_DRAIN messages continues in the next turn.

Every copy of a message that is put into a queue ends with exactly one fate:
`copies == sum of fates + depth + unacked`.
"""

from __future__ import annotations

from array import array

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.messages.fates import (
    ACKNOWLEDGED,
    EXPIRED,
    PURGED,
    REJECTED,
    UNREADABLE,
    UNREPRESENTABLE,
)
from broker.messages.message import Message
from broker.messages.tracing import report_fate, report_requeue
from broker.queues.arguments import UNLIMITED
from broker.queues.consumer import (
    NO_CONSUMERS,
    SEARCHED_PER_TURN,
    Consumer,
    Delivery,
    MessageSource,
    ReturnedMessage,
)
from broker.queues.delivery_gate import NO_LIMIT, DeliveryGate, FifoGate
from broker.queues.delivery_window import RestoredDeliveries
from broker.queues.emptying import ConsumerCancellation, PurgeTask
from broker.queues.slices import DELIVERIES_PER_DRAIN, DISCARDS_PER_DRAIN, MESSAGES_PER_SLICE
from broker.queues.statistics import RESTORED, RESTORED_UNACKED, RETURNED, statistics_of
from broker.queues.upkeep import TAIL_RETRY_MS, QueueUpkeep, TailRetry
from broker.queues.waiting import WaitingMessages
from broker.store.contract import Store


class Queue(MessageSource):
    """A queue without limits of its own: messages wait in order until a consumer takes them.

    `LimitedQueue` adds the limits of the queue arguments. So a plain queue spends no time on them.
    Only `max_length` is here, because session inboxes need it.
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
        #: True if the queue is a session's inbox (private.py).
        self.private = False
        self.depth: i64 = 0
        #: The largest number of waiting messages, if the queue is a ShortQueue.
        self.max_length: i64 = UNLIMITED
        #: The LimitedQueue that replaced this queue because of a policy; None if there is none.
        self.replacement: Queue | None = None
        self._waiting = WaitingMessages()
        #: Messages up to this position may be delivered without asking the gate. If the store
        #: does not record deliveries, the value is above all positions.
        self._deliver_up_to: i64 = 0 if durable and store.keeps_deliveries else NO_LIMIT
        #: The gate of a durable queue; None until the first delivery.
        self._gate: DeliveryGate | None = None
        #: Time in ms since which messages have waited only for a delivery mark, while a consumer is
        #: ready; 0 if none wait for a mark (see `_awaits_mark`).
        self._mark_wait: i64 = 0
        #: `put` calls `_overflow` above this depth.
        self._overflow_depth: i64 = store.window if durable else UNLIMITED
        #: True if a drain is scheduled. Also True while the queue is held, to prevent drains.
        self._drain_scheduled = False
        #: Number of calls of `hold` that no call of `free` has undone.
        self._holds: i64 = 0
        self._upkeep: QueueUpkeep | None = None

    # -- messages that come in, and returned messages

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
                waiting = self._waiting
                waiting.sequence += 1
                consumer.deliver(message, waiting.sequence)
                return
        self._waiting.push(message)
        self.depth += 1
        if self.depth == 1 or self.agenda.now >= self._waiting.next_mark:
            self._waiting.mark_newest(self.agenda.now)
        if message.expires > 0:
            self._schedule_expiry(message.expires)
        if self.depth > self._overflow_depth:
            self._overflow()

    def _overflow(self) -> None:
        """Make room after a message was added to a long queue.

        - Lower the delivery mark (delivery_window.py) if too many messages wait below it.
        - Page the new message out to the tail, if there is a tail or the queue exceeds the window.
        """
        waiting = self._waiting
        if self._gate is not None and self.depth > self.store.waiting_marked:
            self._gate.lower_below(waiting.memory.peek_last())
        if self.durable and self.depth > self.store.window or waiting.paged > 0:
            waiting.page_newest(self.store, self.number)
        self._set_overflow_depth()

    def _set_overflow_depth(self) -> None:
        unpaged: i64 = self.store.window if self.durable else UNLIMITED
        self._overflow_depth = -1 if self._waiting.paged > 0 else unpaged
        if self._gate is not None and self._gate.covers_later:
            self._overflow_depth = min(self._overflow_depth, self.store.waiting_marked)

    @property
    def annotates(self) -> bool:
        """True if the store keeps an annotation with each message of this queue."""
        return False

    def annotate(self, lowered: bool) -> int:
        """Return the annotation that the store keeps with the next message; 0 for none.

        `lowered` is True if an MQTT session gets the message with a lower QoS than the message was
        published with.
        """
        return 0

    def requeue(self, delivery: Delivery) -> None:
        """Put an unsettled message, which its consumer returns, back at its old place."""
        if self.dead:
            if self.replacement is not None:
                self.replacement.requeue(delivery)
            else:
                self.release(delivery.message)
            return
        self.unacked -= 1
        if delivery.message.address.traced:
            report_requeue(delivery.message, delivery.attempts + 1, self.name)
        self.insert_returned(
            ReturnedMessage(delivery.message, delivery.sequence, delivery.attempts + 1)
        )
        self.schedule_drain()

    def requeue_failed(self, delivery: Delivery) -> None:
        if self.dead and self.replacement is not None:
            self.replacement.requeue_failed(delivery)
        else:
            self.requeue(delivery)

    # -- which messages may be delivered

    def permits(self, message: Message) -> bool:
        """True if the message may be delivered now.

        If the result is False, the gate calls `on_mark_durable` when the message may be delivered.
        The caller must have removed the message from the waiting messages before the call.
        """
        permitted = self._open_gate().permits(message, self.depth == 0)
        if not permitted and self._mark_wait == 0:
            self._mark_wait = self.agenda.now
        return permitted

    def on_mark_durable(self) -> None:
        """Drain the queue, because the delivery mark for which its messages waited is durable."""
        if self.depth == 0:
            self._mark_wait = 0
        self.schedule_drain()

    def _end_mark_wait(self) -> None:
        """End the wait for a delivery mark: apply the limits and the time to live again."""
        self._mark_wait = 0
        self._schedule_upkeep()

    @property
    def _awaits_mark(self) -> bool:
        """True while messages wait only for a delivery mark, because a consumer is ready for them.

        Meanwhile no limit and no time to live applies. This lasts at most twice
        `Store.mark_patience`, so that a queue whose consumers are too slow stays bounded.
        """
        began = self._mark_wait
        return began > 0 and self.agenda.now <= began + 2 * self.store.mark_patience

    def _expiry_time(self) -> i64:
        """Return the present time (ms) for comparisons with expiry times.

        While messages wait only for a delivery mark, return the time just before this wait, so that
        no message expires because of the wait.
        """
        return self._mark_wait - 1 if self._awaits_mark else self.agenda.now

    def _open_gate(self) -> DeliveryGate:
        """Return the gate of the durable queue; create the gate for the first delivery."""
        if self._gate is None:
            self._gate = FifoGate(self, self.store, self._waiting)
        return self._gate

    def set_delivery_limit(self, position: i64) -> None:
        """Set the position in the store up to which the queue delivers without asking the gate."""
        self._deliver_up_to = position
        self._set_overflow_depth()

    def wait_for_mark(self, task: Task) -> None:
        """Run `task` once the first message may be delivered: once its delivery mark is durable."""
        self._open_gate().wait(task)

    @property
    def waits_for_mark(self) -> bool:
        """True while the first message must wait, because it is above the durable delivery mark."""
        if self._gate is None or self.depth == self._waiting.paged:
            return False
        return self._gate.holds_back(self._head())

    def subscribe(self, consumer: Consumer) -> None:
        super().subscribe(consumer)
        # With a higher mark now, the first message need not wait for the disk.
        if self.depth == 0 and self._deliver_up_to <= self.store.position:
            self._open_gate().prepare()

    def write_deliveries(self) -> None:
        """Store exactly which messages were delivered. Called at a clean stop of the broker.

        Do nothing if a consumer has not settled a message: the delivery mark in the log must cover
        this message.
        """
        delayed = self.delayed()
        if self._gate is not None and not self.dead and self.unacked <= len(delayed):
            self._gate.write_exact(self.in_memory() + delayed)

    def in_memory(self) -> list[ReturnedMessage]:
        """Return messages that wait in memory, at least all messages that consumers returned."""
        return self._waiting.returned.in_order()

    def delayed(self) -> list[ReturnedMessage]:
        """Return the messages that wait for a delayed retry. `unacked` counts them."""
        return []

    # -- after a restart

    def restore_deliveries(self, restored: RestoredDeliveries) -> None:
        """Set which messages were delivered before the restart. Called before `restore`."""
        if restored.top > 0:
            self._waiting.restore_deliveries(restored)
            self._open_gate().restore(restored)

    def restore(self, positions: array[int], sequence: i64) -> None:
        """Restore the messages that waited when the broker stopped.

        `positions` are their positions in the store, `sequence` is the sequence number of the first
        message.
        """
        latest = self.latest_expiry()
        self._waiting.restore(self.store, self.number, positions, sequence, latest)
        self.depth += len(positions)
        if positions:
            self.note(RESTORED, len(positions))
            self._waiting.mark_first(0, self.agenda.now)
        self._set_overflow_depth()
        self._read_tail()

    def restore_returned(self, message: Message, sequence: i64) -> None:
        """Restore a message that a consumer may have received before the broker stopped."""
        self._waiting.insert(ReturnedMessage(message, sequence, 1))
        self._waiting.sequence = max(self._waiting.sequence, sequence)
        self.depth += 1
        if self.depth == 1:
            self._waiting.mark_first(sequence, self.agenda.now)
        self.note(RESTORED)

    def restore_unacked(self, sequence: i64) -> None:
        """Restore an unacknowledged message, which its consumer may still settle."""
        self._waiting.sequence = max(self._waiting.sequence, sequence)
        self.unacked += 1
        self.note(RESTORED)
        self.note(RESTORED_UNACKED)

    def latest_expiry(self) -> i64:
        """Return the latest time at which a message that is put now expires, in ms of Agenda.now.

        Return -1 if the queue has no time to live.
        """
        return -1

    # -- deliveries

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
        """True if `hold` stops the deliveries and no operator has paused the queue."""
        return self._holds > 0 and not self.paused

    def hold(self) -> None:
        if self.replacement is not None:
            self.replacement.hold()
            return
        self._holds += 1
        self._drain_scheduled = True
        if self._mark_wait > 0:
            self._end_mark_wait()

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

        The agenda calls this method, so its name must be `run`. A separate method `drain` would
        cost one more call per drain.
        """
        if self._holds > 0:
            return
        self._drain_scheduled = False
        now: i64 = self.agenda.now if self._mark_wait == 0 else self._expiry_time()
        deliveries: i64 = DELIVERIES_PER_DRAIN
        discards: i64 = DISCARDS_PER_DRAIN
        self._search_left = SEARCHED_PER_TURN
        waiting = self._waiting
        while self.depth > waiting.paged:
            consumer = self.pick()
            if consumer is None:
                if self._mark_wait > 0:
                    self._end_mark_wait()
                self._schedule_expiry(self._head().expires)
                return
            if deliveries == 0:
                self.drain_in_next_turn()
                return
            deliveries -= 1
            self.depth -= 1
            if waiting.returned.count > 0:
                returned = waiting.returned.pop()
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
                message = waiting.memory.pop()
                waiting.sequence += 1
                if not 0 < message.expires <= now:
                    if message.position > self._deliver_up_to and not self.permits(message):
                        self.insert_returned(ReturnedMessage(message, waiting.sequence, 0))
                        return
                    consumer.deliver(message, waiting.sequence)
                    continue
            self.discard(message, EXPIRED)
            discards -= 1
            if discards == 0:
                self._drain_as_bulk_work()
                return
        self._mark_wait = 0
        if waiting.paged > 0:
            self._read_tail()
            if self.depth > waiting.paged:
                self.drain_in_next_turn()

    def _drain_as_bulk_work(self) -> None:
        """Continue a drain as bulk work, because it discards too many messages for one turn."""
        self._drain_scheduled = True
        self.agenda.add_bulk(self)

    def _read_tail(self) -> None:
        """Read the next messages of the tail, unless undelivered messages are in memory.

        If no file descriptor is free, the messages stay in the tail until a retry succeeds.
        """
        waiting = self._waiting
        if waiting.lacks_descriptors:
            return
        unreadable = waiting.read_tail()
        if unreadable > 0:
            self.depth -= unreadable
            self.count(UNREADABLE, int(unreadable))
        if waiting.lacks_descriptors:
            self.agenda.at(self.agenda.now + TAIL_RETRY_MS, TailRetry(self))
        if waiting.paged == 0:
            self._set_overflow_depth()
        if self.depth > waiting.paged:
            self._schedule_expiry(self._head().expires)

    def retry_tail(self) -> None:
        """Read the tail, and deliver again, after a shortage of file descriptors."""
        if self.replacement is not None:
            self.replacement.retry_tail()
        else:
            self._waiting.retry()
            self._read_tail()
            self.schedule_drain()
            self._schedule_upkeep()

    def take(self, consumer: Consumer) -> Delivery | None:
        """Remove and return the next message for a client that polls (basic.get).

        Return None if no message waits, if the queue is held or paused, or if the first message
        cannot be delivered now: the message has expired (`head_expired`), is above the durable
        delivery mark (`waits_for_mark`), or cannot be read, because no file descriptor is free.
        """
        self.expire(MESSAGES_PER_SLICE)
        if self.depth == self._waiting.paged or self.head_expired or self._holds > 0:
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
        if self.depth > self._waiting.paged:
            # The new head may have expired while it waited behind the message that is taken.
            self._schedule_expiry(self._head().expires)
        return delivery

    def put_back(self, delivery: Delivery) -> None:
        """Put back a message that `take` gave to a client which cannot receive it.

        The message does not count as delivered. Several messages must be put back in reverse order,
        the last message first.
        """
        self.insert_returned(
            ReturnedMessage(delivery.message, delivery.sequence, delivery.attempts)
        )

    def insert_returned(self, returned: ReturnedMessage) -> None:
        """Insert a message at its old place in the queue; it waits again from now on."""
        self._waiting.insert(returned)
        self.depth += 1
        if self.depth == 1:
            self._waiting.mark_first(returned.sequence, self.agenda.now)
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
        return self.depth > self._waiting.paged and 0 < self._head().expires <= self._expiry_time()

    def _pop_head(self) -> ReturnedMessage:
        """Remove the head of the queue and return it."""
        self.depth -= 1
        returned = self._waiting.pop()
        if 0 < self._waiting.paged == self.depth:
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
        if message.address.traced:
            report_fate(message, ACKNOWLEDGED, self.name)
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

        If the queue is deleted, the store needs no record: the deletion includes all messages. If
        another Queue object has replaced this object, the replacement records the release.
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
        if message.address.traced:
            report_fate(message, fate, self.name)
        self.release(message)

    def touch(self) -> None:
        """Restart the period after which an unused queue is deleted (`x-expires`).

        Called when the queue is declared or polled, or loses a consumer. A queue without
        `x-expires` does nothing.
        """

    def expire(self, limit: i64) -> None:
        """Discard expired messages from the head: at most `limit` now, more as bulk work.

        If bulk work of this queue waits already and `limit` is not UNLIMITED, discard none now. An
        expired message behind a message that has not expired stays until it is at the head.
        """
        if limit != UNLIMITED and self._upkeep_waits():
            return
        while self.depth > self._waiting.paged:
            expires: i64 = self._head().expires
            if expires == 0 or expires > self._expiry_time():
                if not self._awaits_mark:
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
        self.expire(MESSAGES_PER_SLICE)

    def _open_upkeep(self) -> QueueUpkeep:
        if self._upkeep is None:
            self._upkeep = QueueUpkeep(self)
        return self._upkeep

    def _schedule_upkeep(self) -> None:
        """Schedule the discarding of messages (`keep_up`) as bulk work, after the deliveries."""
        self._open_upkeep().request()

    def _upkeep_waits(self) -> bool:
        """True if a call of `keep_up` is scheduled, to discard more messages."""
        return self._upkeep is not None and self._upkeep.waits

    def _schedule_expiry(self, expires: i64) -> None:
        """Schedule a call of `expire` for the time `expires` (ms), unless an earlier call is
        scheduled. If `expires` is 0, do nothing.
        """
        if expires > 0:
            self._open_upkeep().expire_at(expires)

    def drop_head(self, fate: i64) -> None:
        """Discard the first message of the queue, and count it with this fate."""
        self.discard(self._pop_head().message, fate)

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
        """Number of times that the first message was requeued; 0 if the queue is empty."""
        returned = self._waiting.returned
        return int(returned.peek().attempts) if returned.count > 0 else 0

    @property
    def head_age(self) -> int | None:
        """Time since the first message came, in ms (arrivals.py); None if no message waits."""
        return self._waiting.head_age(self.agenda.now) if self.depth > 0 else None

    @property
    def paged(self) -> int:
        """Number of waiting messages that are only on disk, in the tail."""
        return int(self._waiting.paged)

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the waiting messages in bytes."""
        return self._waiting.memory_bytes()

    def purge(self) -> int:
        """Purge the queue: discard all waiting messages, and return their number.

        The messages leave the queue at once; they are released in the store in slices.
        """
        purged = int(self.depth)
        if purged:
            self.count(PURGED, purged)
            self.depth = 0
            emptying = PurgeTask(self, self._waiting.clear())
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
            self._upkeep.end()
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
        return self._waiting.head()
