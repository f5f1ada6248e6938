"""What a virtual host does in slices, some a turn: objects follow policies, bindings of what is
gone leave, and what is there is written down."""

from __future__ import annotations

from typing import Final

from broker.agenda import Agenda, Task
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.routing.route import Subscriber
from broker.routing.topology_stream import TopologyStream
from broker.stream.queue import StreamQueue
from broker.vhost.dead_letters import MessagePublisher

#: Bindings that are removed or written down, and queues that follow their policies, in one turn.
SLICE: Final = 500


class BackgroundHost(MessagePublisher):
    """The role a virtual host plays for slices."""

    def follow_alternates(self, exchanges: list[Exchange]) -> None:
        """Exchanges have the alternates that policies say now."""
        raise NotImplementedError

    def follow_policies(self, queue: Queue) -> None:
        """What holds for the queue now, if it is still there."""
        raise NotImplementedError

    def unbind_slice(self, exchange: Exchange, destination: Destination, most: int) -> int:
        """Remove some bindings to a destination that is gone, or from an exchange that is. Returns
        how many that was, those with long keys counted for several; 0 when there are no more."""
        raise NotImplementedError

    def changed(self) -> None:
        """Every plan may be wrong now."""
        raise NotImplementedError


class PolicyUpdate(Task):
    """Queues and exchanges follow the policies of now, some a turn."""

    def __init__(
        self, host: BackgroundHost, queues: list[Queue], exchanges: list[Exchange]
    ) -> None:
        self._host = host
        self._queues = queues
        self._exchanges = exchanges

    def run(self) -> None:
        host = self._host
        host.follow_alternates(self._exchanges)
        self._exchanges = []
        left = SLICE
        while self._queues and left:
            left -= 1
            host.follow_policies(self._queues.pop())
        host.changed()
        if self._queues:
            host.agenda.later(self)


class BindingRemoval(Task):
    """Bindings of what is gone, an exchange or what it led to, leave in slices."""

    def __init__(
        self, host: BackgroundHost, exchange: Exchange, destinations: list[Destination]
    ) -> None:
        self._host = host
        self._exchange = exchange
        self._destinations = destinations

    def run(self) -> None:
        left = SLICE
        while left > 0 and self._destinations:
            removed = self._host.unbind_slice(self._exchange, self._destinations[-1], left)
            if not removed:
                self._destinations.pop()
            left -= max(1, removed)
        if self._destinations:
            self._host.agenda.later(self)


class TopologySnapshot(Task):
    """A snapshot for `$topology`: names first, then bindings. What changes meanwhile is written as
    it changes, so a binding that is gone when its turn comes is passed over, and one that came is
    written twice.
    """

    def __init__(
        self,
        agenda: Agenda,
        topology: TopologyStream,
        exchanges: dict[str, Exchange],
        queues: dict[str, Queue],
        restarted: bool,
    ) -> None:
        self._agenda = agenda
        self._topology = topology
        self._queues = queues
        self._named = list(queues)
        self._declared: list[Exchange] = list(exchanges.values())
        self._left: list[Exchange] = list(self._declared)
        self._source: Exchange | None = None
        self._bindings: list[Binding] = []
        topology.snapshot(restarted)

    def run(self) -> None:
        topology = self._topology
        if topology.queue.dead:
            return
        left = SLICE
        while left > 0 and self._declared:
            left -= 1
            exchange = self._declared.pop()
            if not exchange.dead:
                topology.declared_exchange(exchange.name, exchange.kind, exchange.alternate)
        while left > 0 and self._named:
            left -= 1
            queue = self._queues.get(self._named.pop())
            if queue is not None:
                topology.declared(kind_of(queue), queue.name)
        while left > 0 and (self._bindings or self._left):
            left -= 1
            if not self._bindings:
                self._source = self._left.pop()
                self._bindings = list(self._source)
                continue
            binding = self._bindings.pop()
            source = self._source
            if (
                source is not None
                and source.bindings.get(binding.destination, {}).get(binding.identity) is binding
            ):
                topology.bound(source.name, binding, isinstance(binding.destination, Subscriber))
        if self._declared or self._named or self._bindings or self._left:
            self._agenda.later(self)
        else:
            topology.complete()


def kind_of(queue: Queue) -> str:
    """As `$topology` and listings say it."""
    return "stream" if isinstance(queue, StreamQueue) else "queue"
