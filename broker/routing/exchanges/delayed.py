"""The delayed-message exchange (RabbitMQ's plugin `x-delayed-message`).

The exchange keeps a message for the number of milliseconds in the message's header `x-delay`, and
then routes the message.

    publish --> x-delay > 0? --yes--> waiting: a DelayQueue, --> the time has come --+
                     |                ordered by time, stored                        v
                     +-----------------no------------------------> the inner exchange routes it

The argument `x-delayed-type` names the type of the inner exchange.
"""

from __future__ import annotations

from typing import ClassVar, Final

from mypy_extensions import i64

from broker.messages.message import Properties
from broker.queues.delay import DelayQueue
from broker.queues.destination import Destination
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions
from matching.matcher import Search

HEADER: Final = "x-delay"
#: The longest delay, in milliseconds. A longer delay is shortened to DELAY_MAX.
DELAY_MAX: Final = 1 << 50


class DelayedExchange(Exchange):
    """An exchange that delays messages, then routes them as its `inner` exchange does.

    The two exchanges share their bindings. `waiting` is the queue of the delayed messages; it has
    the same number in the store as the exchange.
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
        #: True if the last message that `match` or `searches` looked up is delayed.
        self._delays = False

    def check(self, binding: Binding) -> None:
        self.inner.check(binding)

    def added(self, binding: Binding) -> None:
        self.inner.added(binding)

    def removed(self, binding: Binding) -> None:
        self.inner.removed(binding)

    def redirect(self, old: Destination, new: Destination) -> None:
        super().redirect(old, new)
        # `bindings`, which both exchanges share, is redirected already. Only the index of the inner
        # exchange must still be redirected.
        self.inner.redirect(old, new)

    def check_limit(self, binding: Binding, most: int) -> None:
        self.inner.check_limit(binding, most)

    @property
    def needs_search(self) -> bool:
        return self.inner.needs_search

    @property
    def uses_keys(self) -> bool:
        return self.inner.uses_keys

    @property
    def lookup_steps(self) -> i64:
        return 0 if self._delays else self.inner.lookup_steps

    def searches(
        self, key: str, properties: Properties, bindings: list[Binding]
    ) -> list[Search[Binding]]:
        self._delays = delay_of(properties) > 0
        if self._delays:
            bindings.append(Binding(key, self.waiting))
            return []
        return self.inner.searches(key, properties, bindings)

    def match(self, key: str, properties: Properties) -> list[Binding]:
        self._delays = delay_of(properties) > 0
        if self._delays:
            return [Binding(key, self.waiting)]
        return self.inner.match(key, properties)


def delay_of(properties: Properties) -> int:
    """Return the delay in milliseconds that the header `x-delay` asks for; 0 for no delay.

    A message whose delay is over has a negative `x-delay`, so that it is not delayed again.
    """
    headers = properties.get("headers")
    delay = headers.get(HEADER) if isinstance(headers, dict) else None
    if isinstance(delay, float):
        delay = int(delay) if 0.0 < delay < DELAY_MAX else 0
    if not isinstance(delay, int) or isinstance(delay, bool):
        return 0
    return min(delay, DELAY_MAX) if delay > 0 else 0
