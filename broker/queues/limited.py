"""The queue with arguments: time to live, length limits, overflow, dead letters, expiry.

Each discarded message is counted with its fate. If the queue has a dead letter exchange, the
virtual host publishes the message there, with one of REASONS in messages/x_death.py as the reason.
"""

from __future__ import annotations

import math
from array import array

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.fates import DEAD_LETTERED, EXPIRED, OVER_LIMIT, OVERDELIVERED
from broker.messages.message import Message
from broker.messages.tracing import report
from broker.messages.x_death import REASONS
from broker.queues.arguments import UNLIMITED, QueueArguments
from broker.queues.consumer import SEARCHED_PER_TURN, Consumer, Delivery, ReturnedMessage
from broker.queues.delivery_attempts import store_attempts, with_delivery_count
from broker.queues.measured import MeasuredQueue
from broker.queues.paged_tail import read_stored
from broker.queues.retries import RetryDelay, retry_delay
from broker.queues.slices import DELIVERIES_PER_DRAIN, DISCARDS_PER_DRAIN, MESSAGES_PER_SLICE
from broker.queues.statistics import DEAD_EXPIRED, DEATH_REASONS, HELD_BACK, NOT_TAKEN
from broker.queues.unused_expiry import UnusedExpiry
from broker.store.contract import Store
from broker.store.entries import EXPIRY_EPOCH, EXPIRY_SECONDS_MAX


class DeadLetterHost:
    """The methods of a virtual host that a LimitedQueue calls."""

    def dead_letter(self, queue: LimitedQueue, message: Message, reason: str) -> None:
        """Publish the message, which `queue` discarded, to the dead letter exchange of `queue`."""
        raise NotImplementedError

    def is_behind(self, queue: LimitedQueue) -> bool:
        """True if `queue` must not discard messages now: too many of its dead letters wait."""
        return False

    def publish_delayed(self, queue: LimitedQueue, message: Message) -> None:
        """Publish a message of a delayed exchange, because its delay in `queue` is over."""
        raise NotImplementedError

    def expire_queue(self, queue: LimitedQueue) -> None:
        """Delete a queue that was not used for its `x-expires` period."""
        raise NotImplementedError


class LimitedQueue(MeasuredQueue):
    """A queue whose arguments or policy set limits, such as a time to live or a maximum length."""

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
        super().__init__(vhost, name, agenda, store, durable)
        self.arguments = arguments
        #: True while so many dead letters of this queue wait to be published that the publishers to
        #: this queue must wait.
        self.behind = False
        #: The returned messages that wait before their next delivery; None if there never were any.
        self.retries: RetryDelay | None = None
        self._host: DeadLetterHost | None = host
        self._unused_expiry: UnusedExpiry | None = None

    def latest_expiry(self) -> i64:
        """Return the latest time at which a message that is put now expires, in ms of Agenda.now.

        Return -1 if the queue has no time to live (TTL). The TTL is `arguments.ttl`. `Queue.expire`
        discards expired messages.
        """
        return self.agenda.now + self.arguments.ttl if self.arguments.ttl >= 0 else -1

    @property
    def annotates(self) -> bool:
        return self.arguments.ttl >= 0

    def annotate(self, lowered: bool) -> int:
        """Return the time at which the next message expires, in seconds since EXPIRY_EPOCH (2020).

        Return 0 if the queue has no time to live, or if the time is above EXPIRY_SECONDS_MAX.
        """
        ttl: i64 = self.arguments.ttl
        if ttl < 0:
            return 0
        when = math.ceil(self.agenda.wall + int(ttl) / 1_000) - EXPIRY_EPOCH
        return when if 0 < when <= EXPIRY_SECONDS_MAX else 0

    def update_arguments(self, arguments: QueueArguments) -> None:
        """Replace the queue's arguments, because a policy of the virtual host changed.

        If the queue limits its size in bytes, the bodies of the waiting messages in memory are
        counted again, in slices; messages in the tail (on disk) are not counted. Messages over a
        limit are dropped from the head in slices, unless the queue refuses new messages instead.
        """
        before, self.arguments = self.arguments, arguments
        self._stop_counting()
        if arguments.max_bytes != UNLIMITED:
            self.count_waiting()
        if arguments.expires != before.expires:
            self.touch()
        if not arguments.reject_publish:
            self._trim(0)

    def accepts(self, message: Message) -> bool:
        """True if the queue takes the message, possibly by dropping the oldest message.

        If the result is False, the caller calls `refuse`, and the publisher gets a nack.
        """
        arguments = self.arguments
        return (
            not arguments.reject_publish
            or self._awaits_mark
            or self.depth < arguments.max_length
            and (
                arguments.max_bytes == UNLIMITED
                or self.waiting_bytes + message.encoding.size(message.content)
                <= arguments.max_bytes
            )
        )

    def refuse(self, message: Message) -> None:
        """Count a message that `accepts` refused.

        With `x-overflow: reject-publish-dlx` the message is dead-lettered as well.
        """
        self.note(NOT_TAKEN)
        report(
            message, "refused", self.name, "the queue is full, and x-overflow refuses new messages"
        )
        if self.arguments.dead_letter_refused:
            copy = message.copy(message.qos, message.retained)
            copy.position = 0  # The store does not keep the refused message.
            # Call this class's method: in a subclass, `discard` is for messages that leave the
            # queue, and this message never was in the queue.
            LimitedQueue.discard(self, copy, OVER_LIMIT)
        else:
            self.count(OVER_LIMIT)

    # -- messages that come in, and returned messages

    def put(self, message: Message) -> None:
        ttl: i64 = self.arguments.ttl
        if ttl >= 0:
            message = message.copy(message.qos, message.retained)
            latest = self.latest_expiry()
            if message.expires == 0 or message.expires > latest:
                message.expires = latest
        before: i64 = self.depth
        self.enqueue(message)
        if self.depth > before:
            self.count_bytes(message)
            if self._trim(self._put_drops()) or 0 < message.expires <= self.agenda.now:
                # Do not wait for the timer: with TTL 0 and no ready consumer, the message has
                # expired already. Or messages were dropped, and the new head of the queue has
                # expired.
                self.expire(MESSAGES_PER_SLICE)

    def enqueue(self, message: Message) -> None:
        """Deliver the message at once if a consumer is ready, else let it wait."""
        super().put(message)

    def requeue(self, delivery: Delivery) -> None:
        self._return(delivery, False)

    def requeue_failed(self, delivery: Delivery) -> None:
        self._return(delivery, True)

    def _return(self, delivery: Delivery, failed: bool) -> None:
        """Put a message back, now or after a delay, unless it was returned too often.

        `failed` is True if the return counts as a failed delivery (see `retry_delay`).
        """
        limit: i64 = self.arguments.delivery_limit
        if 0 <= limit <= delivery.attempts and not self.dead:
            self.unacked -= 1
            self.discard(delivery.message, OVERDELIVERED)
            self.schedule_drain()
            return
        attempts: i64 = delivery.attempts + 1
        if attempts > 1 and not self.dead:
            store_attempts(self, delivery.message.position, attempts)
        delay = retry_delay(self.arguments, attempts, failed)
        if delay > 0 and not self.dead:
            if self.retries is None:
                self.retries = RetryDelay(self)
            returned = ReturnedMessage(delivery.message, delivery.sequence, attempts)
            report(delivery.message, "requeued", self.name, f"delayed by {int(delay):,} ms")
            self.retries.add(returned, self.agenda.now + delay)
            self.note(HELD_BACK)
            self.schedule_drain()
            return
        self.reinsert(delivery)
        if not self.dead and not self.arguments.reject_publish:
            self._trim(self._put_drops())

    def end_delay(self, returned: ReturnedMessage) -> None:
        """Put a message back into the queue, because the delay before its next delivery is over."""
        if self.dead:
            self.release(returned.message)
            return
        self.unacked -= 1
        self.note(HELD_BACK, -1)
        self.insert_returned(returned)
        if not self.arguments.reject_publish:
            self._trim(self._put_drops())
        self.schedule_drain()

    def delayed(self) -> list[ReturnedMessage]:
        return super().delayed() if self.retries is None else self.retries.messages()

    def reinsert(self, delivery: Delivery) -> None:
        """Put a returned message back to its old place in the queue."""
        super().requeue(delivery)

    def _trim(self, limit: i64) -> bool:
        """Drop messages from the head while the queue is over its limits.

        At most `limit` messages are dropped now, further messages as bulk work. Return True if a
        message was dropped.
        """
        before: i64 = self.depth
        while self._over_limit():
            if limit == 0:
                self._schedule_upkeep()
                break
            limit -= 1
            self.drop_head(OVER_LIMIT)
        return self.depth < before

    def _put_drops(self) -> i64:
        """Return the largest number of messages to drop at once after a message was put.

        The number is 2 while bulk work drops messages, and otherwise MESSAGES_PER_SLICE. Two drops
        for each new message are enough to let the queue shrink, and keep the turn short.
        """
        return 2 if self._upkeep_waits() else MESSAGES_PER_SLICE

    def keep_up(self) -> None:
        if self.is_counting:
            self.count_slice()
        if self._host is not None and self._host.is_behind(self):
            self._schedule_upkeep()
            return
        if not self.arguments.reject_publish:
            self._trim(MESSAGES_PER_SLICE)
        super().keep_up()

    def expire(self, limit: i64) -> None:
        """Discard expired messages, at most `limit` now; none while too many dead letters wait."""
        host = self._host
        if limit != UNLIMITED and host is not None and not self._upkeep_waits():
            if host.is_behind(self):
                self._schedule_upkeep()
        super().expire(limit)  # Discards nothing while bulk work of the queue waits.

    def _over_limit(self) -> bool:
        """True if more messages, or more bytes, wait than the arguments allow.

        False while the head is on disk and no file descriptor is free to read it, and while the
        messages wait only for a delivery mark, because a consumer is ready.
        """
        arguments = self.arguments
        return (self.depth > self._waiting.paged and not self._awaits_mark) and (
            self.depth > arguments.max_length or self.waiting_bytes > arguments.max_bytes
        )

    def restore(self, positions: array[int], sequence: i64) -> None:
        super().restore(positions, sequence)
        # Read all messages of the queue to count their bytes. The limit in bytes bounds this work.
        if self.arguments.max_bytes != UNLIMITED:
            for message in read_stored(self.store, self.number, positions, False):
                if message is not None:
                    self.count_bytes(message)
        self._trim_restored()

    def _trim_restored(self) -> None:
        """Schedule bulk work that drops messages, if the restored queue is over its limits.

        Messages that consumers had not acknowledged wait again after a restart.
        """
        if self._over_limit() and not self.arguments.reject_publish:
            self._schedule_upkeep()

    # -- deliveries, and messages that leave

    def run(self) -> None:
        """Drain the queue: deliver while messages wait and a consumer is ready."""
        if self._holds > 0:
            return
        self._drain_scheduled = False
        now: i64 = self._expiry_time()
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
            if discards < DISCARDS_PER_DRAIN and self.head_expired:
                if discards == 0 or self._host is not None and self._host.is_behind(self):
                    self._drain_as_bulk_work()
                    return
            returned = self._pop_head()
            if 0 < returned.message.expires <= now:
                self.discard(returned.message, EXPIRED)
                discards -= 1
            elif (
                returned.attempts == 0
                and returned.message.position > self._deliver_up_to
                and not self.permits(returned.message)
            ):
                self.insert_returned(returned)
                return
            elif returned.attempts > 0:
                with_delivery_count(returned, self.arguments)
                consumer.redeliver(returned.delivery_to(consumer))
            else:
                consumer.deliver(returned.message, returned.sequence)
        self._mark_wait = 0

    def take(self, consumer: Consumer) -> Delivery | None:
        self.touch()
        delivery = super().take(consumer)
        if delivery is not None and delivery.attempts > 0:
            returned = ReturnedMessage(delivery.message, delivery.sequence, delivery.attempts)
            with_delivery_count(returned, self.arguments)
            return returned.delivery_to(consumer)
        return delivery

    def discard(self, message: Message, fate: i64) -> None:
        host, reason = self._host, REASONS.get(int(fate))
        if host is None or self.arguments.dead_letter_exchange is None or reason is None:
            super().discard(message, fate)
            return
        self.count(DEAD_LETTERED)
        report(message, "dead_lettered", self.name, reason)
        self.note(DEAD_EXPIRED + DEATH_REASONS.index(reason))
        # The virtual host releases the message in the store, in one group with the dead letter.
        host.dead_letter(self, message, reason)

    # -- expiry of an unused queue

    def touch(self) -> None:
        """Restart the period after which the unused queue is deleted, if it has `x-expires`."""
        if self.arguments.expires > 0:
            if self._unused_expiry is None:
                self._unused_expiry = UnusedExpiry(self, self.expire_unused)
            self._unused_expiry.renew()

    def unsubscribe(self, consumer: Consumer) -> None:
        super().unsubscribe(consumer)
        self.touch()

    def unsubscribe_all(self, leaving: list[Consumer]) -> None:
        super().unsubscribe_all(leaving)
        self.touch()

    def expire_unused(self) -> None:
        """Delete the queue after its `x-expires` period without use, if it has no consumers."""
        if self._host is not None and self.consumer_count == 0 and not self.dead:
            self._host.expire_queue(self)

    def on_deleted(self) -> int:
        if self._unused_expiry is not None:
            self._unused_expiry.end()
        purged = super().on_deleted()
        if self.retries is not None:
            self.retries.schedule()
        return purged

    def memory_bytes(self) -> i64:
        total = super().memory_bytes()
        return total if self.retries is None else total + self.retries.memory_bytes()
