"""What a virtual host does in slices, some a turn: objects follow policies, and bindings of what is gone leave."""

from __future__ import annotations

from typing import Final

from broker.agenda import Task
from broker.destination import Destination
from broker.exchange import Exchange
from broker.letters import Publisher
from broker.queue import Queue

#: Bindings that are removed, and queues that follow their policies, in one turn.
SLICE: Final = 500


class Sliced(Publisher):
    """The role a virtual host plays for slices."""

    def follow_alternates(self, exchanges: list[Exchange]) -> None:
        """Exchanges have the alternates that policies say now."""
        raise NotImplementedError

    def follow_policies(self, queue: Queue) -> None:
        """What holds for the queue now, if it is still there."""
        raise NotImplementedError

    def unbind_slice(self, exchange: Exchange, destination: Destination, most: int) -> int:
        """Remove some bindings to a destination that is gone, or from an exchange that is. Returns how many that was, those
        with long keys counted for several; 0 when there are no more."""
        raise NotImplementedError

    def changed(self) -> None:
        """Every plan may be wrong now."""
        raise NotImplementedError


class Following(Task):
    """Queues and exchanges follow the policies of now, some a turn."""

    def __init__(self, host: Sliced, queues: list[Queue], exchanges: list[Exchange]) -> None:
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


class Unbinding(Task):
    """Bindings of what is gone, an exchange or what it led to, leave in slices."""

    def __init__(self, host: Sliced, exchange: Exchange, destinations: list[Destination]) -> None:
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
