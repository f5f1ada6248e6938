"""The modulus hash exchange (RabbitMQ's `x-modulus-hash`): shards messages over queues.

    destinations, sorted by name:   [q-1, q-2, q-3]
    index of a message's queue:     mixed CRC-32 of the routing key, modulo the number of queues

Messages with equal routing keys go to the same queue as long as the destinations are the same, also
after a restart. A destination that is added or removed moves most routing keys; a consistent-hash
exchange moves few. Binding keys are ignored, and a destination counts once, however many bindings
lead to it.
"""

from __future__ import annotations

import zlib
from bisect import bisect_left
from typing import ClassVar

from broker.messages.message import Properties
from broker.queues.destination import Destination
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions
from broker.routing.exchanges.consistent_hash import mixed


class ModulusHashExchange(Exchange):
    """An exchange that routes each message to one destination, by a hash of the routing key."""

    kind: ClassVar[str] = "x-modulus-hash"
    hash_kind: ClassVar[str] = "ModulusHashExchange"

    def __init__(self, name: str, options: ExchangeOptions) -> None:
        super().__init__(name, options)
        #: The bound destinations and their sort keys: two lists in the same order.
        self._order: list[str] = []
        self._destinations: list[Destination] = []

    def added(self, binding: Binding) -> None:
        if self.bindings.count(binding.destination) == 1:
            # The list has the destination already if the binding replaces its only binding.
            self._forget(binding.destination)
            place = bisect_left(self._order, _sort_key(binding.destination))
            self._order.insert(place, _sort_key(binding.destination))
            self._destinations.insert(place, binding.destination)

    def removed(self, binding: Binding) -> None:
        if binding.destination not in self.bindings:
            self._forget(binding.destination)

    def redirect(self, old: Destination, new: Destination) -> None:
        super().redirect(old, new)
        place = self._place(old)
        if place >= 0:
            self._destinations[place] = new

    def _forget(self, destination: Destination) -> None:
        """Remove a destination from the sorted list, if the list has it."""
        place = self._place(destination)
        if place >= 0:
            del self._order[place], self._destinations[place]

    def _place(self, destination: Destination) -> int:
        """Return the position of a destination in `_destinations`; -1 if it is not in the list."""
        key = _sort_key(destination)
        place = bisect_left(self._order, key)
        while place < len(self._order) and self._order[place] == key:
            if self._destinations[place] is destination:
                return place
            place += 1
        return -1

    def match(self, key: str, properties: Properties) -> list[Binding]:
        # Mix the bits, because the low bits of the CRC-32 of similar keys are too similar.
        hashed = mixed(zlib.crc32(key.encode("utf-8", "surrogateescape")), 0)
        while self._destinations:
            chosen = self._destinations[hashed % len(self._destinations)]
            if not chosen.dead:
                return self.bindings.some_to(chosen, 1)
            # A deleted destination may still be in the list, because its bindings are removed in
            # slices.
            self._forget(chosen)
        return []


def _sort_key(destination: Destination) -> str:
    """Return the sort key: the name, then the kind, as an exchange and a queue may share a name."""
    return f"{destination.name}\0{destination.hash_kind}"
