"""The delayed-message exchange: what has a header `x-delay` (ms) is routed only then (the plugin
`x-delayed-message`).

publish --> x-delay > 0? --> waiting (ranked by time, kept in the store) --> its time --> routed as
the type of
                 no -------------------------------------------------------------------> `x-delayed-type` does
"""

from __future__ import annotations

from typing import ClassVar, Final

from broker.messages.message import Properties
from broker.queues.delay import DelayQueue
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions

HEADER: Final = "x-delay"
#: The longest delay, in ms.
DELAY_MAX: Final = 1 << 50


class DelayedExchange(Exchange):
    """Routes as `inner` does, which it shares its bindings with.

    `waiting` has the number of the exchange.
    """

    kind: ClassVar[str] = "x-delayed-message"
    hash_kind: ClassVar[str] = "DelayedExchange"
    by_headers: ClassVar[bool] = True

    def __init__(
        self, name: str, options: ExchangeOptions, inner: Exchange, waiting: DelayQueue
    ) -> None:
        super().__init__(name, options)
        self.inner = inner
        inner.bindings = self.bindings
        self.waiting = waiting

    def check(self, binding: Binding) -> None:
        self.inner.check(binding)

    def added(self, binding: Binding) -> None:
        self.inner.added(binding)

    def removed(self, binding: Binding) -> None:
        self.inner.removed(binding)

    def match(self, key: str, properties: Properties) -> list[Binding]:
        if delay_of(properties) > 0:
            return [Binding(key, self.waiting)]
        return self.inner.match(key, properties)


def delay_of(properties: Properties) -> int:
    """The delay in ms that a message asks for; 0 for none.

    (When it is over, the header is negative.)
    """
    headers = properties.get("headers")
    delay = headers.get(HEADER) if isinstance(headers, dict) else None
    if isinstance(delay, float):
        delay = int(delay) if 0.0 < delay < DELAY_MAX else 0
    if not isinstance(delay, int) or isinstance(delay, bool):
        return 0
    return min(delay, DELAY_MAX) if delay > 0 else 0
