"""Counting what a virtual host holds, in steps: hundreds of thousands of queues are not counted in
one turn.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.fates import UNREPRESENTABLE
from broker.queues.queue import Queue
from broker.routing.publish_context import sum_into
from broker.routing.route import Subscriber


class VirtualHostTotals:
    """Totals never fall from one census to the next, though objects come and go between the steps:
    one that is deleted later is counted by itself here and by its parent next time."""

    def __init__(
        self,
        queues: list[Queue],
        hidden: list[Queue],
        listeners: list[Subscriber],
        past: list[int],
        relayed: int,
        unrepresentable: int,
    ) -> None:
        #: How many copies ended how, in the order of COPY_FATES.
        self.fates = list(past)
        self.fates[UNREPRESENTABLE] += unrepresentable
        #: Copies relayed to listeners, which nobody acknowledges.
        self.relayed = relayed
        self.queues = len(queues)
        self.subscribers = len(listeners)
        self.consumers: i64 = 0
        #: Messages in queues, and in sessions' inboxes.
        self.ready: i64 = 0
        self.unacked: i64 = 0
        self.inbox_ready: i64 = 0
        self.inbox_unacked: i64 = 0
        self._hidden = hidden
        self._queues = queues
        self._listeners = listeners

    def step(self, most: int) -> bool:
        """Count so many objects; whether there are more."""
        while most > 0 and self._hidden:
            most -= 1
            queue = self._hidden.pop()
            self.ready += queue.depth
            self.unacked += queue.unacked
            sum_into(self.fates, queue.fates())
        while most > 0 and self._queues:
            most -= 1
            queue = self._queues.pop()
            self.consumers += queue.consumer_count
            self.ready += queue.depth
            self.unacked += queue.unacked
            sum_into(self.fates, queue.fates())
        while most > 0 and self._listeners:
            most -= 1
            listener = self._listeners.pop()
            self.inbox_ready += listener.inbox.depth
            self.inbox_unacked += listener.inbox.unacked
            self.relayed += int(listener.relayed)
            sum_into(self.fates, listener.fates())
        return bool(self._hidden or self._queues or self._listeners)

    def whole(self) -> VirtualHostTotals:
        """All at once."""
        while self.step(1_000):
            pass
        return self
