"""The topic exchange: binding keys with wildcards match routing keys made of words.

Queues are bound with AMQP patterns, sessions with MQTT filters. A pattern is never translated into
the other grammar: `matching.composite` keeps a matcher for each of the two grammars, and merges
their results (docs/architecture.md).
"""

from __future__ import annotations

from typing import ClassVar, Final

from mypy_extensions import i64

from broker.errors import LimitExceeded, PreconditionFailed
from broker.messages.message import Properties
from broker.queues.destination import Destination
from broker.routing.binding import Binding
from broker.routing.exchanges.base import Exchange, ExchangeOptions
from matching.composite import Bilingual
from matching.grammar import AMQP, DEFAULT, MQTT, swap
from matching.matcher import Search
from matching.visits import VisitBound

#: A lookup that visits at most this many index nodes is done in one turn. Compiled, 4,094 nodes
#: take some 70 us, or 150 us in a search that can pause.
DIRECT_NODES: Final = 4_096
#: This number of nodes in the upper bound of a lookup counts as one step, because most lookups
#: visit far fewer nodes than the bound.
NODES_PER_STEP: Final = 8
#: If a destination has fewer bindings than this number, a new pattern is not checked against the
#: limit of index nodes.
UNCHECKED_PATTERNS: Final = 32


class TopicExchange(Exchange):
    """An exchange that matches binding keys with wildcards (AMQP 0-9-1 section 3.1.3.3)."""

    kind: ClassVar[str] = "topic"
    hash_kind: ClassVar[str] = "TopicExchange"

    def __init__(self, name: str, options: ExchangeOptions, algorithm: str = "auto") -> None:
        super().__init__(name, options)
        self.algorithm = algorithm
        self._matcher: Bilingual[Binding] = Bilingual(DEFAULT, algorithm)
        #: For each grammar, an upper bound of the number of nodes that a lookup visits.
        self._bounds: list[VisitBound] = [VisitBound(AMQP), VisitBound(MQTT)]
        #: For each destination whose patterns are checked against the limit, an upper bound of the
        #: number of nodes that a lookup visits because of these patterns.
        self._bounds_by_destination: dict[Destination, VisitBound] = {}

    @property
    def needs_search(self) -> bool:
        return self._bounds[0].nodes + self._bounds[1].nodes > DIRECT_NODES

    @property
    def lookup_steps(self) -> i64:
        nodes = self._bounds[0].nodes + self._bounds[1].nodes
        return 0 if nodes > DIRECT_NODES else nodes // NODES_PER_STEP

    def check_limit(self, binding: Binding, most: int) -> None:
        target = binding.destination
        count = self.bindings.count(target)
        if (
            count < UNCHECKED_PATTERNS
            or self.bindings.get(target, binding.identity) is not None
            or not binding.grammar.is_pattern(binding.key)
        ):
            return
        bound = self._bounds_by_destination.get(target)
        if bound is None:
            bound = self._bounds_by_destination[target] = VisitBound(binding.grammar)
            for known in self.bindings.to(target):
                if known.grammar.is_pattern(known.key):
                    bound.add(known.key)
        nodes = bound.with_pattern(binding.key)
        if nodes > most and nodes > bound.nodes:
            raise LimitExceeded(
                # An AMQP client gets only 255 bytes of the text: reason and remedy come first.
                f"too many different combinations of wildcards in the {count + 1} bindings of "
                f"'{target.name[:40]}' (limits.pattern_nodes is {most}): use fewer, or raise the "
                f"limit; refused: binding '{binding.key[:200]}' to exchange "
                f"'{self.name}', with which a lookup could visit {nodes} index nodes"
            )

    def first_word(self, binding: Binding) -> str | None:
        grammar = binding.grammar
        word = binding.key.partition(grammar.separator)[0]
        if word in (grammar.one, grammar.many):
            return None
        return word if grammar is DEFAULT else swap(word)

    def use(self, algorithm: str) -> None:
        """Replace the matcher by a matcher with this algorithm.

        All bindings are added to the new matcher, which takes 2 to 5 microseconds for each binding.
        """
        self.algorithm = algorithm
        self._matcher = Bilingual(DEFAULT, algorithm)
        self.version += 1
        for binding in self:
            self._matcher.side(binding.grammar).subscribe(binding.key, binding)

    def added(self, binding: Binding) -> None:
        self._matcher.side(binding.grammar).subscribe(binding.key, binding)
        if binding.grammar.is_pattern(binding.key):
            self._bounds[binding.grammar is MQTT].add(binding.key)
            bound = self._bounds_by_destination.get(binding.destination)
            if bound is not None:
                bound.add(binding.key)

    def removed(self, binding: Binding) -> None:
        self._matcher.side(binding.grammar).unsubscribe(binding.key, binding)
        if binding.grammar.is_pattern(binding.key):
            self._bounds[binding.grammar is MQTT].remove(binding.key)
            bound = self._bounds_by_destination.get(binding.destination)
            if bound is not None:
                bound.remove(binding.key)
                if not bound.nodes:
                    del self._bounds_by_destination[binding.destination]

    def redirect(self, old: Destination, new: Destination) -> None:
        super().redirect(old, new)
        bound = self._bounds_by_destination.pop(old, None)
        if bound is not None:
            self._bounds_by_destination[new] = bound

    def match(self, key: str, properties: Properties) -> list[Binding]:
        return self._matcher.match(key)

    def searches(
        self, key: str, properties: Properties, bindings: list[Binding]
    ) -> list[Search[Binding]]:
        return self._matcher.searches(key, bindings)


def topic_exchange(
    name: str, options: ExchangeOptions, default: str, allowed: list[str]
) -> TopicExchange:
    """Return a topic exchange with the matcher that its argument `x-matcher` names.

    Without this argument, the exchange has the matcher `default`. Raises PreconditionFailed if the
    matcher is not in `allowed`.
    """
    wanted = options.arguments.get("x-matcher", default)
    if not isinstance(wanted, str) or wanted not in allowed:
        raise PreconditionFailed(
            f"invalid arg 'x-matcher' for exchange '{name}': must be one of "
            f"{', '.join(allowed)}, not {wanted!r}"
        )
    return TopicExchange(name, options, wanted)
