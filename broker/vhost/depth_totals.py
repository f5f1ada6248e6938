"""Totals of messages and consumers over many queues, and the queues in which messages are.

The web page counts all queues of the broker every few seconds. VirtualHostTotals also sums the
fates of the messages, which takes several times as long.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.queues.queue import Queue
from broker.routing.subscriber import Subscriber


class DepthTotals:
    """Numbers of messages and consumers, summed over the queues that were added."""

    def __init__(self) -> None:
        #: Number of messages that are ready for delivery.
        self.ready: i64 = 0
        #: Number of messages that are delivered and not acknowledged.
        self.unacked: i64 = 0
        self.consumers: i64 = 0
        #: Number of messages of QoS 0 that were sent to subscribers.
        self.relayed: i64 = 0

    def add_queues(self, queues: list[Queue]) -> list[Queue]:
        """Add queues to the totals. Return the queues that hold messages."""
        used: list[Queue] = []
        for queue in queues:
            self.consumers += queue.consumer_count
            depth, unacked = queue.depth, queue.unacked
            if depth > 0 or unacked > 0:
                self.ready += depth
                self.unacked += unacked
                used.append(queue)
        return used

    def add_subscribers(self, subscribers: list[Subscriber]) -> None:
        """Add subscribers to the totals, without their inboxes."""
        for subscriber in subscribers:
            self.relayed += subscriber.relayed
