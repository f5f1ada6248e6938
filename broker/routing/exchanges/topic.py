"""The topic exchange: binding keys with wildcards match routing keys made of words.

Queues are bound with AMQP patterns, sessions with MQTT filters. A pattern is never translated into
the other grammar: `matching.composite` keeps a matcher for each of the two grammars, and merges
their results (docs/architecture.md).
"""

from __future__ import annotations

from typing import ClassVar

from broker.errors import PreconditionFailed
from broker.messages.message import Properties
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions
from matching.composite import Bilingual
from matching.grammar import DEFAULT


class TopicExchange(Exchange):
    """An exchange that matches binding keys with wildcards (AMQP 0-9-1 section 3.1.3.3)."""

    kind: ClassVar[str] = "topic"
    hash_kind: ClassVar[str] = "TopicExchange"

    def __init__(self, name: str, options: ExchangeOptions, algorithm: str = "auto") -> None:
        super().__init__(name, options)
        self.algorithm = algorithm
        self._matcher: Bilingual[Binding] = Bilingual(DEFAULT, algorithm)

    def use(self, algorithm: str) -> None:
        """Replace the matcher by one with this algorithm.

        All bindings are added to the new matcher, which takes 2 to 5 us for each binding.
        """
        self.algorithm = algorithm
        self._matcher = Bilingual(DEFAULT, algorithm)
        for binding in self:
            self.added(binding)

    def added(self, binding: Binding) -> None:
        self._matcher.side(binding.grammar).subscribe(binding.key, binding)

    def removed(self, binding: Binding) -> None:
        self._matcher.side(binding.grammar).unsubscribe(binding.key, binding)

    def match(self, key: str, properties: Properties) -> list[Binding]:
        return self._matcher.match(key)


def topic_exchange(
    name: str, options: ExchangeOptions, default: str, allowed: list[str]
) -> TopicExchange:
    """Return a topic exchange with the matcher that its argument `x-matcher` names.

    Without this argument it has the matcher `default`. Raise PreconditionFailed if the matcher is
    not one of the `allowed`.
    """
    wanted = options.arguments.get("x-matcher", default)
    if not isinstance(wanted, str) or wanted not in allowed:
        raise PreconditionFailed(
            f"invalid arg 'x-matcher' for exchange '{name}': {wanted!r} is none of "
            f"{', '.join(allowed)}"
        )
    return TopicExchange(name, options, wanted)
