"""Background work of a virtual host: tasks that change many objects, in slices.

- PolicyUpdate: queues and exchanges get the arguments of the policies that changed.
- BindingRemoval: bindings of a deleted queue, subscriber or exchange are removed.
- ExchangeRemoval: auto-delete exchanges without bindings are deleted.
- TopologySnapshot: all exchanges, queues and bindings are written to the stream `$topology`.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from broker.agenda import Agenda, BulkTask
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.routing.subscriber import Subscriber
from broker.routing.topology_stream import TopologyStream
from broker.stream.queue import StreamQueue

#: Largest number of queues and exchanges that get the arguments of their policies in one turn.
QUEUES_PER_SLICE: Final = 500
#: Largest number of bindings that are removed in one turn.
BINDINGS_PER_SLICE: Final = 500
#: Largest number of exchanges that are deleted in one slice because they are auto-delete and lost
#: all bindings.
EXCHANGES_PER_SLICE: Final = 100
#: Largest number of objects that a snapshot writes in one turn.
SNAPSHOT_ROWS_PER_SLICE: Final = 500


class PolicyTarget(Protocol):
    """The part of the class AppliedPolicies that a PolicyUpdate calls."""

    def apply_alternate(self, exchange: Exchange) -> None:
        """Give an exchange the alternate exchange of its policy."""

    def apply_policies(self, queue: Queue) -> None:
        """Give a queue the arguments of its policy, if the queue still exists."""

    def retire_plans(self) -> None:
        """Make all plans stale, so that each route gets a new plan with its next message."""


class BindingRemover(Protocol):
    """The part of the class Bindings that a BindingRemoval calls."""

    def remove_slice(self, exchange: Exchange, destination: Destination, most: int) -> int:
        """Remove up to `most` bindings of a deleted exchange, or to a deleted destination.

        Return the cost as a number of bindings: a binding with a long key counts several times, and
        the deletion of an auto-delete exchange adds to the cost. Return 0 if no binding was left to
        remove.
        """

    def delete_unused(self, exchange: Exchange) -> None:
        """Delete an auto-delete exchange, unless it has bindings again or is deleted already."""


class PolicyUpdate(BulkTask):
    """A task that applies the present policies to exchanges, then to queues, in slices."""

    def __init__(
        self,
        policies: PolicyTarget,
        agenda: Agenda,
        queues: list[Queue],
        exchanges: list[Exchange],
    ) -> None:
        super().__init__(agenda)
        self._policies = policies
        self._queues = queues
        self._exchanges = exchanges

    def again(self, queues: list[Queue], exchanges: list[Exchange]) -> bool:
        """Begin again with these queues and exchanges, because the policies changed again.

        So one task applies several changes in a row. Return False, and change nothing, if the task
        has ended already.
        """
        if not self._queues and not self._exchanges:
            return False
        self._queues, self._exchanges = queues, exchanges
        return True

    def has_work(self) -> bool:
        return bool(self._queues or self._exchanges)

    def do_slice(self) -> None:
        policies = self._policies
        left = QUEUES_PER_SLICE
        try:
            while self._exchanges and left:
                left -= 1
                policies.apply_alternate(self._exchanges.pop())
            while self._queues and left:
                left -= 1
                policies.apply_policies(self._queues.pop())
        finally:
            policies.retire_plans()


class BindingRemoval(BulkTask):
    """A task that removes the bindings between exchanges and destinations, in slices.

    All bindings lead from one deleted exchange, or to one deleted destination.
    """

    def __init__(
        self,
        bindings: BindingRemover,
        agenda: Agenda,
        exchanges: list[Exchange],
        destinations: list[Destination],
    ) -> None:
        super().__init__(agenda)
        self._bindings = bindings
        self._exchanges = exchanges
        self._destinations = destinations
        #: Number of bindings that remained between the present exchange and destination when a
        #: slice last failed; 0 if no slice has failed.
        self._left_at_failure = 0

    def has_work(self) -> bool:
        return bool(self._exchanges and self._destinations)

    def do_slice(self) -> None:
        left = BINDINGS_PER_SLICE
        while left > 0 and self._exchanges and self._destinations:
            exchange, destination = self._exchanges[-1], self._destinations[-1]
            removed = self._bindings.remove_slice(exchange, destination, left)
            if not removed:
                self._end_pair()
            left -= max(1, removed)

    def on_failure(self) -> None:
        """Skip the present exchange and destination after a second failure without progress.

        Progress means that a binding between them was removed since the first failure.
        """
        exchange, destination = self._exchanges[-1], self._destinations[-1]
        left = exchange.bindings.count(destination)
        if left == 0 or left == self._left_at_failure:
            self._end_pair()
        else:
            self._left_at_failure = left

    def _end_pair(self) -> None:
        """Proceed to the next pair of exchange and destination: the present pair is done."""
        self._left_at_failure = 0
        if len(self._exchanges) > 1:
            self._exchanges.pop()
        else:
            self._destinations.pop()


class ExchangeRemoval(BulkTask):
    """A task that deletes auto-delete exchanges which lost their last bindings, in slices.

    The deletion of one exchange may remove the last binding of another exchange. A client may bind
    thousands of exchanges in such a chain. If the deletion of an exchange fails, the task tries
    this deletion once more after the other exchanges, because no later event would delete the
    exchange.
    """

    def __init__(self, bindings: BindingRemover, agenda: Agenda) -> None:
        super().__init__(agenda)
        self._bindings = bindings
        self._exchanges: deque[Exchange] = deque()
        self._present: Exchange | None = None
        #: The exchanges whose deletion failed once, and that are tried again.
        self._failed: set[Exchange] = set()

    def add(self, exchange: Exchange) -> None:
        """Delete an exchange in a later slice, after the exchanges that are already waiting."""
        self._exchanges.append(exchange)
        self.schedule()

    def has_work(self) -> bool:
        return bool(self._exchanges)

    def do_slice(self) -> None:
        left = EXCHANGES_PER_SLICE
        while left and self._exchanges:
            left -= 1
            self._present = self._exchanges.popleft()
            self._bindings.delete_unused(self._present)
            self._failed.discard(self._present)
        self._present = None

    def on_failure(self) -> None:
        exchange, self._present = self._present, None
        if exchange in self._failed:
            self._failed.discard(exchange)
        elif exchange is not None:
            self._failed.add(exchange)
            self._exchanges.append(exchange)


class TopologySnapshot(BulkTask):
    """A task that writes a snapshot to `$topology`: exchanges, then queues, then bindings.

    Changes during the snapshot are written as they happen. So a binding that is removed before the
    snapshot reaches it is skipped, and a binding that is added meanwhile may be written twice.
    """

    def __init__(
        self,
        agenda: Agenda,
        topology: TopologyStream,
        exchanges: dict[str, Exchange],
        queues: dict[str, Queue],
        restarted: bool,
    ) -> None:
        super().__init__(agenda)
        self._topology = topology
        self._queues = queues
        self._queue_names = list(queues)
        self._exchanges: list[Exchange] = list(exchanges.values())
        self._sources: list[Exchange] = list(self._exchanges)
        self._source: Exchange | None = None
        self._bindings: list[Binding] = []
        #: True once the end of the snapshot is written.
        self._completed = False
        topology.snapshot(restarted)

    def has_work(self) -> bool:
        return not self._completed and not self._topology.queue.dead

    def do_slice(self) -> None:
        topology = self._topology
        if topology.queue.dead:
            return
        left = SNAPSHOT_ROWS_PER_SLICE
        while left > 0 and self._exchanges:
            left -= 1
            exchange = self._exchanges.pop()
            if not exchange.dead:
                topology.declared_exchange(exchange.name, exchange.kind, exchange.alternate)
        while left > 0 and self._queue_names:
            left -= 1
            queue = self._queues.get(self._queue_names.pop())
            if queue is not None:
                topology.declared(kind_of(queue), queue.name)
        while left > 0 and (self._bindings or self._sources):
            left -= 1
            if not self._bindings:
                self._source = self._sources.pop()
                self._bindings = list(self._source)
                continue
            binding = self._bindings.pop()
            source = self._source
            if (
                source is not None
                and source.bindings.get(binding.destination, binding.identity) is binding
            ):
                topology.bound(source.name, binding, isinstance(binding.destination, Subscriber))
        if not (self._exchanges or self._queue_names or self._bindings or self._sources):
            self._completed = True
            topology.complete()


def kind_of(queue: Queue) -> str:
    """Return "stream" or "queue": the kind of this queue in `$topology` and in listings."""
    return "stream" if isinstance(queue, StreamQueue) else "queue"
