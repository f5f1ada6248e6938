"""Bindings: what an exchange routes by a key goes to a destination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.queues.destination import Destination
from matching.grammar import DEFAULT, Grammar

Arguments = Mapping[str, object]

_NONE: Arguments = {}
#: An argument of a listener's binding: what the listener itself publishes does not follow it.
NO_LOCAL: Final = "no-local"
#: ... its owner may hear some of what it takes: the listener is asked about each topic, when a
#: route is resolved.
PARTLY: Final = "partly-allowed"


class Binding:
    """A rule of one exchange.

    `key` is written in `grammar`; at most `assurance` is promised on this way.
    """

    __slots__ = ("arguments", "destination", "grammar", "key", "qos")

    def __init__(
        self,
        key: str,
        destination: Destination,
        qos: i64 = 0,
        arguments: Arguments | None = None,
        grammar: Grammar = DEFAULT,
    ) -> None:
        self.key = key
        self.destination = destination
        self.qos: i64 = qos
        self.arguments: Arguments = arguments or _NONE
        self.grammar = grammar

    @property
    def identity(self) -> str:
        """Equal for two bindings to one destination that are the same one: key and arguments."""
        return f"{self.key}\0{sorted(self.arguments.items())!r}" if self.arguments else self.key
