"""Queues: order, readiness, settlement.

        put --> [ returned | waiting ] --> pick a ready consumer --> deliver --> settle
                     ^                                                  |
                     +------------------- requeue ----------------------+

Everything in `returned` left the queue before anything in `waiting`, so it goes first. The
invariant that saves a drain per publication: while something waits and no drain is due, no consumer
is ready. Hence whatever makes a consumer ready (credit, room, a new consumer) must call `stir`.

A durable queue that grows longer than the store's window forgets its newest messages, and reads
them again when it comes to them: `put --> waiting --> tail --> (the store) --> waiting`. While
there is a tail, everything new goes there.

Every copy that is put has exactly one fate in the end: `copies == sum of fates + depth + unacked`.
"""

from __future__ import annotations

from array import array
from bisect import insort
from typing import ClassVar, Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.messages.fates import EXPIRED, OVER_LIMIT, PURGED, REJECTED, UNREADABLE, UNREPRESENTABLE
from broker.messages.message import Message
from broker.queues.arguments import UNLIMITED
from broker.queues.consumer import (
    NO_CONSUMERS,
    Consumer,
    Delivery,
    MessageSource,
    ReturnedMessage,
    newest_first,
)
from broker.queues.fifo import Fifo
from broker.queues.paged_tail import PagedTail
from broker.store.contract import MessageSettled, Store

#: Messages of a purged or expired queue that are let go in one turn.
MESSAGES_PER_SLICE: Final[i64] = 2_000

_NOTHING: Final[Fifo[Message]] = Fifo()
_NO_RETURNED: Final[list[ReturnedMessage]] = []


class Queue(MessageSource):
    """A queue without arguments. `LimitedQueue` has them, so that this one pays nothing for them.

    Beyond `max_length` waiting messages the oldest are dropped.
    """

    hash_kind: ClassVar[str] = "Queue"

    def __init__(self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool) -> None:
        super().__init__(vhost, name, agenda, store, durable)
        #: As its owner said; an exclusive queue keeps nothing all the same, for it goes with its
        #: connection.
        self.declared_durable = durable
        #: The connection that alone may use it.
        self.exclusive_to: object = None
        self.auto_delete = False
        #: Belongs to a session, not to those who declare queues.
        self.private = False
        self.depth: i64 = 0
        #: The queue that this one became, when a policy asked for one that can do more.
        self.replacement: Queue | None = None
        self._waiting = _NOTHING
        self._returned = _NO_RETURNED
        self._tail: PagedTail | None = None
        #: Messages in the tail.
        self._paged: i64 = 0
        self._max_length: i64 = UNLIMITED
        #: The depth from which on `put` has more to do.
        self._overflow_depth: i64 = store.window if durable else UNLIMITED
        self._sequence: i64 = 0
        self._drain_scheduled = False
        self._expiry_due: i64 = 0
        self._expiry_task: MessageExpiry | None = None

    @property
    def max_length(self) -> int:
        """Waiting messages beyond which the oldest are dropped."""
        return int(self._max_length)

    @max_length.setter
    def max_length(self, most: int) -> None:
        self._max_length = most
        self._set_overflow_depth()

    # -- in

    def put(self, message: Message) -> None:
        """Hand over at once when nobody is ahead and a consumer is ready, else keep. Hot path."""
        if self.depth == 0:
            consumer = self.pick()
            if consumer is not None:
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
        """A message came, and the queue is too long, or too long for the memory."""
        if self.durable and self.depth > self.store.window or self._paged > 0:
            if self._tail is None:
                self._tail = PagedTail(self.store, self.number)
            self._tail.push(self._waiting.pop_last())
            self._paged += 1
        if self.depth > self._max_length:
            self.drop_head(OVER_LIMIT)
        self._set_overflow_depth()

    def _set_overflow_depth(self) -> None:
        self._overflow_depth = (
            -1
            if self._paged > 0
            else min(self._max_length, self.store.window if self.durable else UNLIMITED)
        )

    def reserve(self) -> i64:
        """Use up the next place for what comes from elsewhere. Nothing may wait."""
        self._sequence += 1
        return self._sequence

    def next_sequence(self) -> i64:
        """The `order` that the next message to come in will have."""
        return self._sequence + self._waiting.size + self._paged + 1

    @property
    def annotates(self) -> bool:
        """Whether the store notes something of each message for this queue."""
        return self.private

    def annotate(self, lowered: bool) -> int:
        """What it notes of the message that comes next: for a session how manieth it is (below 0:
        of those that it takes with less assurance), otherwise when its time to live is over."""
        if not self.private:
            return 0
        return -int(self.next_sequence()) if lowered else int(self.next_sequence())

    def requeue(self, delivery: Delivery) -> None:
        """Take back what a consumer did not settle, to its old place."""
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

    def _insert_returned(self, returned: ReturnedMessage) -> None:
        if self._returned is _NO_RETURNED:
            self._returned = []
        insort(self._returned, returned, key=newest_first)

    # -- after a restart

    def restore(self, positions: array[int], sequence: i64) -> None:
        """It held these messages when the broker stopped, the first of them as its `order`th."""
        tail = self._tail = PagedTail(self.store, self.number)
        tail.restore(positions, self.latest_expiry())
        self._sequence = sequence - 1
        self._paged = len(positions)
        self.depth += self._paged
        self._set_overflow_depth()
        self._read_tail()

    def restore_returned(self, message: Message, sequence: i64) -> None:
        """... and before those this one, which a consumer may have had."""
        self._insert_returned(ReturnedMessage(message, sequence, 1))
        self._sequence = max(self._sequence, sequence)
        self.depth += 1

    def restore_unacked(self, sequence: i64) -> None:
        """... and this one was in a consumer's hands, and still is."""
        self._sequence = max(self._sequence, sequence)
        self.unacked += 1

    def count_unreadable(self) -> None:
        """... and one that cannot be read."""
        self.count(UNREADABLE)

    def latest_expiry(self) -> i64:
        """When messages of now expire at the latest, in ms; -1: never."""
        return -1

    # -- out

    def schedule_drain(self) -> None:
        """Something may be deliverable: drain at the end of this turn."""
        if self.depth > 0 and not self._drain_scheduled:
            self._drain_scheduled = True
            self.agenda.add(self)

    def run(self) -> None:
        """Drain: deliver while something waits and a consumer is ready. Hot path."""
        self._drain_scheduled = False
        now: i64 = self.agenda.now
        while self.depth > self._paged:
            consumer = self.pick()
            if consumer is None:
                self._schedule_expiry(self._head().expires)
                return
            self.depth -= 1
            if self._returned:
                returned = self._returned.pop()
                if 0 < returned.message.expires <= now:
                    self.discard(returned.message, EXPIRED)
                else:
                    consumer.redeliver(returned.delivery_to(consumer))
                continue
            message = self._waiting.pop()
            self._sequence += 1
            if 0 < message.expires <= now:
                self.discard(message, EXPIRED)
            else:
                consumer.deliver(message, self._sequence)
        if self._paged > 0:
            self._read_tail()
            self._drain_scheduled = True
            self.agenda.later(self)

    def _read_tail(self) -> None:
        """Nothing is in memory any more: read what comes next."""
        tail = self._tail
        assert tail is not None
        while self._paged > 0 and self._waiting.size == 0:
            for message in tail.pop():
                self._paged -= 1
                if message is None:
                    self._sequence += 1
                    self.depth -= 1
                    self.count(UNREADABLE)
                else:
                    if self._waiting is _NOTHING:
                        self._waiting = Fifo()
                    self._waiting.push(message)
        if self._paged == 0:
            self._tail = None
            self._set_overflow_depth()
        if self._waiting.size:
            self._schedule_expiry(self._head().expires)

    def take(self, consumer: Consumer) -> Delivery | None:
        """The next message for one who asks instead of consuming."""
        self.expire(UNLIMITED)
        if self.depth == 0:
            return None
        delivery = self._pop_head().delivery_to(consumer)
        if self.depth > 0:
            self._schedule_expiry(
                self._head().expires
            )  # It may have expired while it stood behind this one.
        return delivery

    def _pop_head(self) -> ReturnedMessage:
        """What is at the head, out of the queue."""
        self.depth -= 1
        if self._returned:
            returned = self._returned.pop()
        else:
            self._sequence += 1
            returned = ReturnedMessage(self._waiting.pop(), self._sequence, 0)
        if 0 < self._paged == self.depth:
            self._read_tail()
        return returned

    # -- settled

    def settle(self, message: Message) -> None:
        """A consumer is done with the message. Hot path."""
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
        """The message went to somebody who need not answer. Hot path."""
        self.auto_acknowledged += 1
        if message.position > 0:
            self.release(message)

    def release(self, message: Message) -> None:
        """Tell the store that this queue needs the message no more."""
        if self.durable and message.position > 0:
            self.release_position(message.position)

    def release_position(self, position: i64) -> None:
        """The same, of a message at this position. A queue that is gone has said all with that."""
        if self.dead:
            self.store.release(self.number, position)
        else:
            self.store.append(MessageSettled(self.number, position), None)

    def reject(self, message: Message) -> None:
        """A consumer refused the message for good."""
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
        """The consumer cannot be told the message that it holds."""
        self.unacked -= 1
        self.discard(message, UNREPRESENTABLE)

    def discard(self, message: Message, fate: i64) -> None:
        """The message leaves without having been consumed."""
        self.count(fate)
        self.release(message)

    def touch(self) -> None:
        """Somebody declared the queue, asked for a message or consumed: one that expires is needed
        from now on.
        """

    def expire(self, limit: i64) -> None:
        """Discard from the head what has expired, up to so many now and the rest in later turns.
        (Deeper down a message waits for its turn.)"""
        while self.depth > 0:
            expires: i64 = self._head().expires
            if expires == 0 or expires > self.agenda.now:
                self._schedule_expiry(expires)
                return
            if limit == 0:
                if self._expiry_task is not None:
                    self.agenda.later(self._expiry_task)
                return
            limit -= 1
            self.drop_head(EXPIRED)

    def on_expiry_timer(self) -> None:
        """The time that `_watch` noted has come."""
        self._expiry_due = 0
        self.expire(MESSAGES_PER_SLICE)

    def _schedule_expiry(self, expires: i64) -> None:
        """See to it that `expire` is called at this time (0: no need), or before."""
        if expires > 0 and (self._expiry_due == 0 or expires < self._expiry_due):
            self._expiry_due = expires
            if self._expiry_task is None:
                self._expiry_task = MessageExpiry(self)
            self.agenda.at(expires, self._expiry_task)

    def drop_head(self, fate: i64) -> None:
        self.discard(self._pop_head().message, fate)

    def take_over(self, old: Queue) -> None:
        """Take the place of a queue of this name, with all that it holds and all who consume it."""
        self.number, self.declared_durable, self.exclusive_to = (
            old.number,
            old.declared_durable,
            old.exclusive_to,
        )
        self.auto_delete, self.depth, self.unacked = old.auto_delete, old.depth, old.unacked
        self.acknowledged, self.auto_acknowledged = old.acknowledged, old.auto_acknowledged
        self.consumers, self.standby = old.consumers, old.standby
        self._fates, self._waiting, self._returned = old._fates, old._waiting, old._returned
        self._tail, self._paged, self._sequence = old._tail, old._paged, old._sequence
        self._set_overflow_depth()
        for consumer in self.consumers + self.standby:
            consumer.queue = self
        old.dead = True
        old.replacement = self
        old.consumers, old.standby, old.depth, old._paged = NO_CONSUMERS, NO_CONSUMERS, 0, 0
        old._waiting, old._returned, old._tail = _NOTHING, _NO_RETURNED, None
        if self.depth > 0:
            self._schedule_expiry(self._head().expires)
            self.schedule_drain()

    def purge(self) -> int:
        """Discard what waits; returns how many.

        They are gone at once, their memory goes in slices.
        """
        purged = int(self.depth)
        if purged:
            self.count(PURGED, purged)
            # The places of those who come later are behind all of these.
            self._sequence += self._waiting.size + self._paged
            self.depth = self._paged = 0
            emptying = PurgeTask(self, self._waiting, self._returned, self._tail)
            self._waiting = _NOTHING
            self._returned = _NO_RETURNED
            self._tail = None
            self._set_overflow_depth()
            emptying.run()
        return purged

    def on_deleted(self) -> int:
        """The queue is deleted: nothing comes in or back any more.

        Returns how many messages waited.
        """
        self.dead = True
        purged = self.purge()
        if self._expiry_task is not None:
            self._expiry_task.queue = None
        if self.unacked:
            self.count(PURGED, int(self.unacked))
        self.unacked = 0
        consumers = self.consumers + self.standby
        self.consumers, self.standby = NO_CONSUMERS, NO_CONSUMERS
        for consumer in consumers:
            consumer.cancelled()
        return purged

    def _head(self) -> Message:
        message = self._returned[-1].message if self._returned else self._waiting.peek()
        assert message is not None
        return message


class PurgeTask(Task):
    """Lets go of purged messages, some a turn."""

    def __init__(
        self,
        queue: Queue,
        waiting: Fifo[Message],
        returned: list[ReturnedMessage],
        tail: PagedTail | None,
    ) -> None:
        self._queue = queue
        self._waiting = waiting
        self._returned = returned
        self._tail = tail

    def run(self) -> None:
        left: i64 = MESSAGES_PER_SLICE
        while left > 0 and self._returned:
            self._queue.release(self._returned.pop().message)
            left -= 1
        while left > 0 and self._waiting.size > 0:
            self._queue.release(self._waiting.pop())
            left -= 1
        tail = self._tail
        while left > 0 and tail is not None and not tail.empty:
            for position in tail.pop_positions():
                left -= 1
                if position > 0:
                    self._queue.release_position(position)
        if left <= 0:
            self._queue.agenda.later(self)


class MessageExpiry(Task):
    """A message at the head of this queue may have expired.

    A queue that is gone is not kept by its alarms.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue: Queue | None = queue

    def run(self) -> None:
        if self.queue is not None:
            self.queue.on_expiry_timer()
