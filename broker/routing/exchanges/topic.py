"""The topic exchange: plain keys in a dict, patterns in a matcher, for each grammar in use; the
answers merged.

All of that is `matching.composite`; what is here is which binding goes where. Patterns are never
translated: each is asked in its own grammar (architecture: one truth about topics).
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
    """Routing keys are words; binding keys may hold wildcards (AMQP 0-9-1 section 3.1.3.3)."""

    kind: ClassVar[str] = "topic"
    hash_kind: ClassVar[str] = "TopicExchange"

    def __init__(self, name: str, options: ExchangeOptions, algorithm: str = "auto") -> None:
        super().__init__(name, options)
        self.algorithm = algorithm
        self._matcher: Bilingual[Binding] = Bilingual(DEFAULT, algorithm)

    def use(self, algorithm: str) -> None:
        """Match with another algorithm from now on: all bindings are put into a new matcher, at 2
        to 5 us each.
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
    """A topic exchange with the matcher that its argument `x-matcher` names.

    Raises PreconditionFailed.
    """
    wanted = options.arguments.get("x-matcher", default)
    if not isinstance(wanted, str) or wanted not in allowed:
        raise PreconditionFailed(
            f"invalid arg 'x-matcher' for exchange '{name}': {wanted!r} is none of {', '.join(allowed)}"
        )
    return TopicExchange(name, options, wanted)
