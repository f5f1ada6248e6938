"""Bindings: rules by which an exchange routes messages to a destination."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.queues.destination import Destination
from matching.grammar import DEFAULT, Grammar

Arguments = Mapping[str, object]

_NONE: Arguments = {}
#: An argument of a subscriber's binding: the subscriber gets no copy of a message that its own
#: session publishes (the MQTT 5 subscription option "no local").
NO_LOCAL: Final = "no-local"
#: An argument of a subscriber's binding: the subscriber's user may read only some of the topics
#: that match the key. The planner asks `Subscriber.may_read` about each topic when it resolves
#: a route.
PARTLY: Final = "partly-allowed"
#: The character between the key and the arguments in `Binding.identity`.
ARGUMENTS_MARK: Final = "\0"


class Binding:
    """A rule of one exchange: messages that match `key` and `arguments` go to `destination`.

    `grammar` defines the wildcards that the key may contain: AMQP's or MQTT's. `qos` is the highest
    QoS with which a subscriber gets the messages.
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
        """The key and the arguments as one text.

        An exchange has at most one binding with this identity to each destination.
        """
        if not self.arguments:
            return self.key
        return f"{self.key}{ARGUMENTS_MARK}{sorted(self.arguments.items())!r}"
