"""Consumers, and how they take turns at a queue.

Source.pick() --> a ready Consumer --> deliver --> Delivery, in its hands --> settle, reject,
requeue --> Source
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
from broker.store.contract import Store


@mypyc_attr(acyclic=True, free_list_len=1)
class Delivery:
    """A message in a consumer's hands.

    `order` is its place in the queue, `attempts` how often it came back.
    """

    __slots__ = ("attempts", "consumer", "message", "sequence")

    def __init__(self, message: Message, consumer: Consumer, sequence: i64) -> None:
        self.message = message
        self.consumer = consumer
        self.sequence: i64 = sequence
        self.attempts: i64 = 0

    def with_message(self, message: Message) -> Delivery:
        """The same step of a copy of the message."""
        delivery = Delivery(message, self.consumer, self.sequence)
        delivery.attempts = self.attempts
        return delivery


@mypyc_attr(acyclic=True)
class ReturnedMessage:
    """A message that came back: it keeps nothing of the consumer that had it."""

    __slots__ = ("attempts", "message", "sequence")

    def __init__(self, message: Message, sequence: i64, attempts: i64) -> None:
        self.message = message
        self.sequence: i64 = sequence
        self.attempts: i64 = attempts

    def delivery_to(self, consumer: Consumer) -> Delivery:
        """In another consumer's hands."""
        delivery = Delivery(self.message, consumer, self.sequence)
        delivery.attempts = self.attempts
        return delivery


class CreditPool:
    """Credit that several consumers share."""

    def __init__(self, credit: i64) -> None:
        self.credit: i64 = credit
        self.consumers: list[Consumer] = []

    def give_back(self) -> None:
        """One of them is done with a message: now others may be ready."""
        self.credit += 1
        if self.credit == 1:
            for consumer in self.consumers:
                consumer.queue.schedule_drain()


class Consumer:
    """Where a queue delivers to; the front ends subclass it. `credit` is how many more it takes
    unsettled, alone; `pool`, where there is one, together with others. Those with a higher
    `priority` go first.

    Compiled, a look at an element of a list of consumers is three comparisons while there are three
    classes of them at most (the abstract base does not count), and a call beyond that: 45
    instructions a delivery.
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
        """Write the message out. Must not call the core, but to settle what needs no answer."""
        raise NotImplementedError

    @abstractmethod
    def redeliver(self, delivery: Delivery) -> None:
        """Write out a message that was in some consumer's hands before."""
        raise NotImplementedError

    def cancelled(self) -> None:
        """The queue is gone."""


#: What a queue without consumers has, one for all: nobody ever adds to it.
NO_CONSUMERS: Final[list[Consumer]] = []


class MessageSource(Destination):
    """What consumers know of a queue."""

    def __init__(self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool) -> None:
        super().__init__(name)
        self.vhost = vhost
        self.agenda = agenda
        self.store = store
        self.durable = durable
        self.unacked: i64 = 0
        self.acknowledged: i64 = 0
        self.auto_acknowledged: i64 = 0
        #: Those who take turns, and those behind them: with lower priorities, or waiting to be the
        #: single active one.
        self.consumers: list[Consumer] = NO_CONSUMERS
        self.standby: list[Consumer] = NO_CONSUMERS
        self.arguments = NO_ARGUMENTS
        self._fates = NO_FATES
        self._turn: i64 = 0

    # -- what they say

    @abstractmethod
    def schedule_drain(self) -> None:
        """Something may be deliverable: drain at the end of this turn."""
        raise NotImplementedError

    @abstractmethod
    def settle(self, message: Message) -> None:
        """A consumer is done with the message. Hot path."""
        raise NotImplementedError

    @abstractmethod
    def auto_acknowledge(self, message: Message) -> None:
        """The message went to somebody who need not answer. Hot path."""
        raise NotImplementedError

    @abstractmethod
    def reject(self, message: Message) -> None:
        """A consumer refused the message for good."""
        raise NotImplementedError

    @abstractmethod
    def requeue(self, delivery: Delivery) -> None:
        """Take back what a consumer did not settle, to its old place."""
        raise NotImplementedError

    @abstractmethod
    def release(self, message: Message) -> None:
        """Tell the store that this queue needs the message no more."""
        raise NotImplementedError

    @abstractmethod
    def unrepresentable(self, message: Message) -> None:
        """The consumer cannot be told the message that it holds."""
        raise NotImplementedError

    # -- how copies end

    def count(self, fate: i64, copies: int = 1) -> None:
        """So many copies that were in this queue, or meant for it, ended like this."""
        if self._fates is NO_FATES:
            self._fates = list(NO_FATES)
        self._fates[fate] += copies

    def fates(self) -> list[int]:
        """How many copies ended how, in the order of COPY_FATES."""
        fates = list(self._fates)
        fates[ACKNOWLEDGED] += int(self.acknowledged)
        fates[AUTO_ACKNOWLEDGED] += int(self.auto_acknowledged)
        return fates

    # -- who is next

    def pick(self) -> Consumer | None:
        """The next ready consumer, taking turns."""
        consumers = self.consumers
        count: i64 = len(consumers)
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
                return consumer
        return self._pick_standby() if self.standby else None

    def _pick_standby(self) -> Consumer | None:
        """None of the highest priority is ready: the first of the others who is."""
        if not self.arguments.single_active_consumer:
            for at, consumer in enumerate(self.standby):
                pool = consumer.pool
                if (
                    consumer.credit > 0
                    and (pool is None or pool.credit > 0)
                    and consumer.outlet.open()
                ):
                    # Behind its equals: they take turns.
                    last = at
                    while (
                        last + 1 < len(self.standby)
                        and self.standby[last + 1].priority == consumer.priority
                    ):
                        last += 1
                    self.standby.insert(last, self.standby.pop(at))
                    return consumer
        return None

    # -- who comes, who goes

    @property
    def consumer_count(self) -> int:
        return len(self.consumers) + len(self.standby)

    def subscribe(self, consumer: Consumer) -> None:
        """The consumer takes its place: beside its equals, or behind those with a higher priority,
        or behind the single active one.
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
        """... and leaves it. Where nobody is left, those behind come forward."""
        if consumer in self.standby:
            self.standby.remove(consumer)
        elif consumer in self.consumers:
            self.consumers.remove(consumer)
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


def newest_first(returned: ReturnedMessage) -> int:
    return -int(returned.sequence)
