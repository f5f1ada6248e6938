"""Totals of a virtual host, computed in slices.

A virtual host may have 100,000 queues and sessions: to count them all in one turn would stall the
event loop.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.fates import COPY_FATES, UNREPRESENTABLE
from broker.queues.queue import Queue
from broker.queues.statistics import NO_EVENTS, statistics_of
from broker.routing.publish_context import sum_into
from broker.routing.subscriber import Subscriber


class DeletedCounts:
    """The counts of deleted queues and subscribers of a virtual host.

    These counts are part of the totals, so that a metric never falls when a queue is deleted.
    """

    def __init__(self) -> None:
        #: Copies by fate, in the order of COPY_FATES.
        self.fates = [0] * len(COPY_FATES)
        #: Number of copies with QoS 0 that were written to clients.
        self.relayed = 0
        #: Rare events of queues (broker/queues/statistics.py).
        self.events = list(NO_EVENTS)

    def add_queue(self, queue: Queue) -> None:
        """Add the counts of a queue that is deleted now."""
        sum_into(self.fates, queue.fates())
        sum_into(self.events, queue.events())

    def add_subscriber(self, subscriber: Subscriber) -> None:
        """Add the counts of a subscriber that is deleted now, and of its inbox."""
        sum_into(self.fates, subscriber.fates())
        sum_into(self.events, subscriber.inbox.events())
        self.relayed += int(subscriber.relayed)

    def merge(self, other: DeletedCounts) -> None:
        """Add the counts of a virtual host that is deleted now."""
        sum_into(self.fates, other.fates)
        sum_into(self.events, other.events)
        self.relayed += other.relayed


class VirtualHostTotals:
    """A count of the queues, consumers, messages and copies of a virtual host, done in slices.

    The lists of objects are copied when the count begins. An object that is deleted before this
    count reaches it is still counted, and is among the deleted objects in the next count. So totals
    never fall.
    """

    def __init__(
        self,
        queues: list[Queue],
        internal: list[Queue],
        subscribers: list[Subscriber],
        deleted: DeletedCounts,
        unrepresentable: int,
    ) -> None:
        #: Copies by fate, in the order of COPY_FATES.
        self.fates = list(deleted.fates)
        self.fates[UNREPRESENTABLE] += unrepresentable
        #: Number of copies with QoS 0 that were written to clients, which do not acknowledge them.
        self.relayed = deleted.relayed
        #: Rare events of queues (broker/queues/statistics.py).
        self.events = list(deleted.events)
        self.queues = len(queues)
        self.subscribers = len(subscribers)
        self.consumers: i64 = 0
        #: Number of queues that an operator has paused.
        self.paused = 0
        #: Number of messages in queues: ready for delivery, and delivered but not acknowledged.
        self.ready: i64 = 0
        self.unacked: i64 = 0
        #: Number of messages in the inboxes of subscribers: ready, and delivered but not
        #: acknowledged.
        self.inbox_ready: i64 = 0
        self.inbox_unacked: i64 = 0
        #: Queues that clients cannot declare: direct replies, delayed messages, histories of
        #: exchanges.
        self._internal = internal
        self._queues = queues
        self._subscribers = subscribers

    def step(self, most: int) -> bool:
        """Count up to `most` objects. Return True if more objects must be counted."""
        while most > 0 and self._internal:
            most -= 1
            queue = self._internal.pop()
            self.ready += queue.depth
            self.unacked += queue.unacked
            sum_into(self.fates, queue.fates())
        while most > 0 and self._queues:
            most -= 1
            queue = self._queues.pop()
            self.consumers += queue.consumer_count
            self.paused += queue.paused
            self.ready += queue.depth
            self.unacked += queue.unacked
            sum_into(self.fates, queue.fates())
            self._add_events(queue)
        while most > 0 and self._subscribers:
            most -= 1
            subscriber = self._subscribers.pop()
            self.inbox_ready += subscriber.inbox.depth
            self.inbox_unacked += subscriber.inbox.unacked
            self.relayed += int(subscriber.relayed)
            sum_into(self.fates, subscriber.fates())
            self._add_events(subscriber.inbox)
        return bool(self._internal or self._queues or self._subscribers)

    def _add_events(self, queue: Queue) -> None:
        events = queue.events()
        if events is not NO_EVENTS:
            sum_into(self.events, events)

    @property
    def statistics(self) -> list[int]:
        """The numbers of publications to queues and of deliveries, in the order of STATISTICS."""
        return statistics_of(
            self.fates,
            self.events,
            self.ready + self.inbox_ready,
            self.unacked + self.inbox_unacked,
        )

    def whole(self) -> VirtualHostTotals:
        """Count all objects in one turn, and return these totals."""
        while self.step(1_000):
            pass
        return self
