"""The direct exchange: the routing key is the binding key (AMQP 0-9-1 section 3.1.3.1)."""

from __future__ import annotations

from typing import ClassVar

from broker.binding import Arguments, Binding
from broker.exchange.base import Exchange, Options


class DirectExchange(Exchange):
    """One probe of a dict."""

    kind: ClassVar[str] = "direct"

    def __init__(self, name: str, options: Options) -> None:
        super().__init__(name, options)
        self._keys = DirectKeys()

    def added(self, binding: Binding) -> None:
        self._keys.add(binding.key, binding)

    def removed(self, binding: Binding) -> None:
        self._keys.remove(binding.key, binding)

    def match(self, key: str, headers: Arguments) -> list[Binding]:
        return self._keys.match(key)


class DirectKeys:
    """Bindings by key: a single one bare, several in a dict, so that one of 20,000 leaves in one step."""

    def __init__(self) -> None:
        self._bindings: dict[str, Binding | dict[Binding, None]] = {}

    def add(self, key: str, binding: Binding) -> None:
        known = self._bindings.get(key)
        if known is None:
            self._bindings[key] = binding
        elif isinstance(known, Binding):
            self._bindings[key] = {known: None, binding: None}
        else:
            known[binding] = None

    def remove(self, key: str, binding: Binding) -> None:
        known = self._bindings[key]
        if isinstance(known, Binding):
            del self._bindings[key]
            return
        del known[binding]
        if len(known) == 1:
            self._bindings[key] = next(iter(known))

    def match(self, key: str) -> list[Binding]:
        known = self._bindings.get(key)
        if known is None:
            return []
        return [known] if isinstance(known, Binding) else list(known)
