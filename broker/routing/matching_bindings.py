"""Finds the bindings of one exchange that match a message, in steps of bounded work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.messages.message import Properties
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange, FanoutExchange
from broker.routing.plan_search import SearchScope

#: Largest number of steps of a search, and of bindings, that one step of work handles.
STEPS: Final = 256


def matching_bindings(
    scope: SearchScope,
    exchange: Exchange,
    key: str,
    properties: Properties,
    bindings: list[Binding],
) -> Iterator[None]:
    """Append to `bindings` the bindings of an exchange that match a routing key and the properties.

    Each `next` on the iterator does one bounded step of the search. For the default exchange, also
    append a binding to the queue that the key names.
    """
    if isinstance(exchange, FanoutExchange):
        ahead = STEPS
        for destination in exchange.bindings.destinations():
            bindings += exchange.bindings.to(destination)
            if len(bindings) >= ahead:
                ahead = len(bindings) + STEPS
                yield None
        yield None
    elif exchange.needs_search:
        for lookup in exchange.searches(key, properties, bindings):
            while not lookup.done:
                lookup.advance(STEPS)
                yield None
    else:
        bindings += exchange.match(key, properties)
    if exchange.name == "":
        queue = scope.default_target(key)
        if queue is not None:
            bindings.append(Binding(key, queue))
