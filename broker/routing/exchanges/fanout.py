"""The fanout exchange: each message matches each binding (AMQP 0-9-1 section 3.1.3.2)."""

from __future__ import annotations

from typing import ClassVar

from broker.messages.message import Properties
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange


class FanoutExchange(Exchange):
    """An exchange that routes each message to all of its bindings."""

    kind: ClassVar[str] = "fanout"
    hash_kind: ClassVar[str] = "FanoutExchange"

    @property
    def uses_keys(self) -> bool:
        return False

    def match(self, key: str, properties: Properties) -> list[Binding]:
        return self.all_bindings()
