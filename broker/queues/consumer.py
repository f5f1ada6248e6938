"""Consumers of a queue, the choice of the consumer that gets the next message, and deliveries.

    MessageSource.pick() --> a ready Consumer --> deliver --> Delivery --> settle, reject or requeue

Consumers of the highest priority take turns (round robin). The other consumers stand by: they get
messages only while no consumer of a higher priority is ready. In a queue with a single active
consumer, only the first consumer is active. The other consumers stand by, and get no messages until
the active consumer leaves.

Backpressure: a consumer is ready while it has credit (its prefetch limit minus its unacknowledged
messages) and its outlet accepts data.
"""

from __future__ import annotations

from abc import abstractmethod
from bisect import insort
from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.agenda import Agenda
from broker.messages.fates import ACKNOWLEDGED, AUTO_ACKNOWLEDGED, NO_FATES
from broker.messages.message import Message
from broker.messages.outlet import Outlet
from broker.queues.arguments import NO_ARGUMENTS
from broker.queues.destination import Destination
from broker.queues.statistics import NO_EVENTS
from broker.store.contract import Store

#: A search that looks at up to MANY_CONSUMERS consumers does not count towards SEARCHED_PER_TURN,
#: because it takes little time.
MANY_CONSUMERS: Final[i64] = 64
#: Number of consumers of one queue at which the searches of one turn end; they take up to 5 ms. The
#: next turn continues. The search that reaches this number is completed first, so that no later
#: turn repeats it.
SEARCHED_PER_TURN: Final[i64] = 100_000


@mypyc_attr(acyclic=True, free_list_len=1)
class Delivery:
    """A message that was delivered to a consumer and is not settled yet.

    `sequence` is the message's sequence number in the queue, `attempts` the number of times that
    the message was returned to the queue.
    """

    __slots__ = ("attempts", "consumer", "message", "sequence")

    def __init__(self, message: Message, consumer: Consumer, sequence: i64) -> None:
        self.message = message
        self.consumer = consumer
        self.sequence: i64 = sequence
        self.attempts: i64 = 0

    def with_message(self, message: Message) -> Delivery:
        """Return a copy of this delivery that has another copy of the message."""
        delivery = Delivery(message, self.consumer, self.sequence)
        delivery.attempts = self.attempts
        return delivery


@mypyc_attr(acyclic=True)
class ReturnedMessage:
    """A message that a consumer returned to its queue.

    The object has no reference to the consumer that returned the message, so that a requeued
    message keeps no closed connection in memory.

    A queue that gets a limit in bytes adds up the sizes of its waiting messages (recount.py). Such
    counts are numbered 1, 2, ... `counted` is the number of the last count that includes this
    message, or 0.
    """

    __slots__ = ("attempts", "counted", "message", "sequence")

    def __init__(self, message: Message, sequence: i64, attempts: i64) -> None:
        self.message = message
        self.sequence: i64 = sequence
        self.attempts: i64 = attempts
        self.counted: i64 = 0

    def delivery_to(self, consumer: Consumer) -> Delivery:
        """Return a delivery of this message to `consumer`."""
        delivery = Delivery(self.message, consumer, self.sequence)
        delivery.attempts = self.attempts
        return delivery


class CreditPool:
    """Credit that several consumers share, as the consumers of an AMQP channel do."""

    def __init__(self, credit: i64) -> None:
        self.credit: i64 = credit
        #: The consumers in the order in which their queues are drained when the pool gets credit.
        self.consumers: dict[Consumer, None] = {}

    def take(self, consumer: Consumer) -> None:
        """Take one credit for a delivery to `consumer`.

        When the pool gets credit again, the queue of the consumer that took the last credit is
        served last. If this queue was served first, it could take all the new credit, and the other
        queues would get none.
        """
        self.credit -= 1
        if self.credit <= 0 and consumer in self.consumers:
            del self.consumers[consumer]
            self.consumers[consumer] = None

    def give_back(self) -> None:
        """Add one credit, because a message was settled.

        If the pool had no credit, schedule a drain of its consumers' queues.
        """
        self.credit += 1
        if self.credit == 1:
            for consumer in self.consumers:
                consumer.queue.schedule_drain()


class Consumer:
    """The receiver of a queue's messages; protocol front ends subclass it.

    `credit` is the number of further unsettled messages that the consumer takes. `pool`, if it is
    not None, limits the unsettled messages of several consumers together. Consumers of a higher
    `priority` get messages first.

    At most three classes may subclass Consumer. In compiled code a list of consumers checks the
    class of each element: with up to three subclasses the check is three comparisons, with more it
    is a call, which costs 45 instructions for each delivery.
    """

    def __init__(
        self,
        queue: MessageSource,
        outlet: Outlet,
        credit: i64,
        pool: CreditPool | None,
        priority: i64 = 0,
    ) -> None:
        self.queue = queue
        self.outlet = outlet
        self.credit: i64 = credit
        self.pool = pool
        self.priority: i64 = priority

    @abstractmethod
    def deliver(self, message: Message, sequence: i64) -> None:
        """Write the message to the outlet. `sequence` is its sequence number in the queue.

        The method must not call the core, except to settle a message that needs no acknowledgement.
        """
        raise NotImplementedError

    @abstractmethod
    def redeliver(self, delivery: Delivery) -> None:
        """Write a message to the outlet again, because it was returned to the queue."""
        raise NotImplementedError

    def cancelled(self) -> None:
        """Tell the client that its consumer is cancelled because the queue was deleted."""


#: The list of consumers of every queue without consumers: one shared object, never changed.
NO_CONSUMERS: Final[list[Consumer]] = []


class MessageSource(Destination):
    """The part of a queue that consumers use: settling methods, list of consumers, and counters."""

    def __init__(self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool) -> None:
        super().__init__(name)
        self.vhost = vhost
        self.agenda = agenda
        self.store = store
        self.durable = durable
        self.unacked: i64 = 0
        #: True while an operator has paused the queue (pausing.py). The pause is one call of
        #: `hold`.
        self.paused = False
        self.acknowledged: i64 = 0
        self.auto_acknowledged: i64 = 0
        #: The consumers that take turns, and the standby consumers: consumers of lower priority, or
        #: consumers that wait to become the single active consumer.
        self.consumers: list[Consumer] = NO_CONSUMERS
        self.standby: list[Consumer] = NO_CONSUMERS
        self.arguments = NO_ARGUMENTS
        self._fates = NO_FATES
        self._events = NO_EVENTS
        self._turn: i64 = 0
        #: Number of consumers that may still be searched in this turn. Each drain resets the
        #: number.
        self._search_left: i64 = SEARCHED_PER_TURN

    # -- called by consumers

    @abstractmethod
    def schedule_drain(self) -> None:
        """Drain the queue at the end of this turn, if messages wait."""
        raise NotImplementedError

    @abstractmethod
    def drain_in_next_turn(self) -> None:
        """Drain the queue in the next turn, after the queues that wait for a drain already."""
        raise NotImplementedError

    def hold(self) -> None:
        """Deliver nothing until `free` has been called as often as `hold`.

        A client that returns very many deliveries returns them in slices. Without a hold, the queue
        would deliver later messages between two slices.
        """

    def free(self) -> None:
        """Undo one call of `hold`; deliver again once every call is undone."""

    @abstractmethod
    def settle(self, message: Message) -> None:
        """Settle a message that its consumer acknowledged. Hot path."""
        raise NotImplementedError

    @abstractmethod
    def auto_acknowledge(self, message: Message) -> None:
        """Settle a message whose consumer need not acknowledge it. Hot path."""
        raise NotImplementedError

    @abstractmethod
    def reject(self, message: Message) -> None:
        """Discard a message that its consumer rejected without a requeue."""
        raise NotImplementedError

    @abstractmethod
    def requeue(self, delivery: Delivery) -> None:
        """Put an unsettled message, which its consumer returns, back at its old place."""
        raise NotImplementedError

    def requeue_failed(self, delivery: Delivery) -> None:
        """Requeue a message whose delivery failed, by a rejection or the end of its channel.

        The effect differs from the effect of `requeue` only in a queue with delayed retry
        (`retries.py`).
        """
        self.requeue(delivery)

    @abstractmethod
    def return_unseen(self, delivery: Delivery) -> None:
        """Put back a message that its consumer could not pass on to the client.

        The message does not count as delivered.
        """
        raise NotImplementedError

    @abstractmethod
    def release(self, message: Message) -> None:
        """Record in the store that this queue no longer needs the message."""
        raise NotImplementedError

    @abstractmethod
    def release_position(self, position: i64) -> None:
        """Record in the store that this queue no longer needs the message at `position`."""
        raise NotImplementedError

    @abstractmethod
    def unrepresentable(self, message: Message) -> None:
        """Discard a message that cannot be sent: the client's protocol cannot represent it."""
        raise NotImplementedError

    # -- how copies end

    def count(self, fate: i64, copies: int = 1) -> None:
        """Count copies that ended with this fate, in this queue or on their way to it."""
        if self._fates is NO_FATES:
            self._fates = list(NO_FATES)
        self._fates[fate] += copies

    def fates(self) -> list[int]:
        """Return how many copies ended with each fate, in the order of COPY_FATES."""
        fates = list(self._fates)
        fates[ACKNOWLEDGED] += int(self.acknowledged)
        fates[AUTO_ACKNOWLEDGED] += int(self.auto_acknowledged)
        return fates

    def note(self, event: i64, times: int = 1) -> None:
        """Count a rare event, such as a redelivery, for the queue's statistics (statistics.py)."""
        if self._events is NO_EVENTS:
            self._events = list(NO_EVENTS)
        self._events[event] += times

    def events(self) -> list[int]:
        """Return the counts of rare events (statistics.py). Callers must not change the list."""
        return self._events

    # -- which consumer is next

    def pick(self) -> Consumer | None:
        """Return the next ready consumer in turn, or None if no consumer is ready.

        Also return None if this turn has searched too many consumers: a drain in the next turn
        continues the search.
        """
        consumers = self.consumers
        count: i64 = len(consumers)
        if self._search_left <= 0:
            self.drain_in_next_turn()
            return None
        turn: i64 = self._turn
        left: i64 = count
        while left > 0:
            left -= 1
            if turn >= count:
                turn = 0
            consumer = consumers[turn]
            turn += 1
            pool = consumer.pool
            if consumer.credit > 0 and (pool is None or pool.credit > 0) and consumer.outlet.open():
                self._turn = turn
                if count - left > MANY_CONSUMERS:
                    self._search_left -= count - left
                return consumer
        if count > MANY_CONSUMERS:
            self._search_left -= count
        return self._pick_standby() if self.standby else None

    def _pick_standby(self) -> Consumer | None:
        """Return the first ready standby consumer; None if no standby consumer is ready.

        Called when no consumer of the highest priority is ready.
        """
        if not self.arguments.single_active_consumer:
            for at, consumer in enumerate(self.standby):
                pool = consumer.pool
                if (
                    consumer.credit > 0
                    and (pool is None or pool.credit > 0)
                    and consumer.outlet.open()
                ):
                    # Consumers of equal priority take turns: this consumer becomes the last.
                    last = at
                    self._search_left -= at
                    while (
                        last + 1 < len(self.standby)
                        and self.standby[last + 1].priority == consumer.priority
                    ):
                        last += 1
                    self.standby.insert(last, self.standby.pop(at))
                    return consumer
            self._search_left -= len(self.standby)
        return None

    # -- adding and removing consumers

    @property
    def consumer_count(self) -> int:
        """Number of consumers, active or standing by."""
        return len(self.consumers) + len(self.standby)

    def subscribe(self, consumer: Consumer) -> None:
        """Add a consumer to the consumers that take turns, or to the consumers that stand by.

        If the new consumer has a higher priority than all present consumers, the present consumers
        stand by from now on, except in a queue with a single active consumer.
        """
        first = self.consumers[0] if self.consumers else None
        if (
            first is None
            or not self.arguments.single_active_consumer
            and consumer.priority == first.priority
        ):
            if self.consumers is NO_CONSUMERS:
                self.consumers = []
            self.consumers.append(consumer)
        elif self.arguments.single_active_consumer or consumer.priority < first.priority:
            if self.standby is NO_CONSUMERS:
                self.standby = []
            insort(self.standby, consumer, key=_highest_first)
        else:
            self.standby = self.consumers + self.standby
            self.consumers = [consumer]
        self.schedule_drain()

    def unsubscribe(self, consumer: Consumer) -> None:
        """Remove a consumer; if no active consumer remains, activate the next standby consumers."""
        if consumer in self.standby:
            self.standby.remove(consumer)
        elif consumer in self.consumers:
            self.consumers.remove(consumer)
            self._activate_standby()

    def unsubscribe_all(self, leaving: list[Consumer]) -> None:
        """Remove several consumers, in one pass over all consumers of the queue."""
        if len(leaving) == 1:
            self.unsubscribe(leaving[0])
            return
        gone = dict.fromkeys(leaving)
        active = len(self.consumers)
        if self.standby:
            self.standby = [consumer for consumer in self.standby if consumer not in gone]
        self.consumers = [consumer for consumer in self.consumers if consumer not in gone]
        if len(self.consumers) < active:
            self._activate_standby()

    def _activate_standby(self) -> None:
        """If no active consumer remains, activate the next standby consumers."""
        if not self.consumers and self.standby:
            count = (
                1
                if self.arguments.single_active_consumer
                else sum(other.priority == self.standby[0].priority for other in self.standby)
            )
            self.consumers, self.standby = self.standby[:count], self.standby[count:]
            self.schedule_drain()
        elif not self.consumers:
            self.consumers = NO_CONSUMERS


def _highest_first(consumer: Consumer) -> int:
    return -int(consumer.priority)
