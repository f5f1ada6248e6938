"""The direct exchange: the routing key equals the binding key (AMQP 0-9-1 section 3.1.3.1)."""

from __future__ import annotations

from typing import ClassVar

from broker.messages.message import Properties
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions
from matching.bucket import Bucket, members, with_added, without


class DirectExchange(Exchange):
    """An exchange that matches a message with one lookup in a dict of binding keys."""

    kind: ClassVar[str] = "direct"
    hash_kind: ClassVar[str] = "DirectExchange"

    def __init__(self, name: str, options: ExchangeOptions) -> None:
        super().__init__(name, options)
        self._keys: dict[str, Bucket[Binding]] = {}

    def added(self, binding: Binding) -> None:
        self._keys[binding.key] = with_added(self._keys.get(binding.key), binding)

    def removed(self, binding: Binding) -> None:
        left = without(self._keys[binding.key], binding)
        if left is None:
            del self._keys[binding.key]
        else:
            self._keys[binding.key] = left

    def first_word(self, binding: Binding) -> str | None:
        return binding.key.partition(".")[0]

    def match(self, key: str, properties: Properties) -> list[Binding]:
        return members(self._keys.get(key))
