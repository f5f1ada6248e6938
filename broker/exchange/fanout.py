"""The fanout exchange: everything goes everywhere (AMQP 0-9-1 section 3.1.3.2)."""

from __future__ import annotations

from typing import ClassVar

from broker.binding import Arguments, Binding
from broker.exchange.base import Exchange


class FanoutExchange(Exchange):
    """Its answer is its bindings."""

    kind: ClassVar[str] = "fanout"

    def match(self, key: str, headers: Arguments) -> list[Binding]:
        return list(self)
