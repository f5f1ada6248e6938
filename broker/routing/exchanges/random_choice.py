"""The exchanges that route each message to one binding at random.

`x-random` ignores the routing key and the binding keys: each binding is chosen with the same
probability, so a queue with two bindings gets twice as many messages as a queue with one binding.

`x-local-random` chooses among the queues on the node to which the publisher is connected. This
broker is one node, so every queue is local. As in RabbitMQ, bindings of an `x-local-random`
exchange have an empty key and lead to queues only.

The choice is a hash of a counter and of the name of the exchange. So a simulation with the same
messages makes the same choices, and the core needs no source of random numbers.
"""

from __future__ import annotations

import zlib
from typing import ClassVar

from mypy_extensions import i64

from broker.errors import PreconditionFailed
from broker.messages.message import Properties
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions
from broker.routing.exchanges.consistent_hash import mixed


class RandomExchange(Exchange):
    """An exchange that routes each message to one of its bindings, chosen at random."""

    kind: ClassVar[str] = "x-random"
    hash_kind: ClassVar[str] = "RandomExchange"
    #: The choice depends on the message, so it must not be cached.
    by_headers: ClassVar[bool] = True

    def __init__(self, name: str, options: ExchangeOptions) -> None:
        super().__init__(name, options)
        self._choices: list[Binding] = []
        #: The index of each binding in `_choices`.
        self._places: dict[Binding, int] = {}
        self._seed: i64 = zlib.crc32(name.encode("utf-8", "surrogateescape"))
        #: The number of choices so far.
        self._choice_count: i64 = 0

    @property
    def uses_keys(self) -> bool:
        return False

    def added(self, binding: Binding) -> None:
        self._places[binding] = len(self._choices)
        self._choices.append(binding)

    def removed(self, binding: Binding) -> None:
        place = self._places.pop(binding, None)
        if place is None:
            return  # `match` has removed the binding: its destination was deleted.
        last = self._choices.pop()
        if last is not binding:
            self._choices[place] = last
            self._places[last] = place

    def match(self, key: str, properties: Properties) -> list[Binding]:
        while self._choices:
            self._choice_count += 1
            count: i64 = len(self._choices)
            # The product fits into 63 bits, because the hash is below 2**32.
            choice_hash: i64 = mixed(self._choice_count & 0xFFFF_FFFF, self._seed)
            choice = self._choices[choice_hash * count >> 32]
            if not choice.destination.dead:
                return [choice]
            self.removed(choice)
        return []


class LocalRandomExchange(RandomExchange):
    """An exchange that routes each message to one of its local queues, chosen at random."""

    kind: ClassVar[str] = "x-local-random"
    hash_kind: ClassVar[str] = "LocalRandomExchange"

    def check(self, binding: Binding) -> None:
        if not isinstance(binding.destination, Queue):
            raise PreconditionFailed(
                f"cannot bind '{binding.destination.name}' to exchange '{self.name}': an exchange "
                f"of type '{self.kind}' routes to queues only"
            )
        if binding.key:
            raise PreconditionFailed(
                f"cannot bind queue '{binding.destination.name}' to exchange '{self.name}': an "
                f"exchange of type '{self.kind}' accepts no binding key, and the key is "
                f"'{binding.key}'"
            )
