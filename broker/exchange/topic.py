"""The topic exchange: plain keys in a dict, patterns in a matcher per grammar, the answers merged.

    key --+-- DirectKeys ------------------------- bindings without a wildcard, of every grammar
          +-- matcher of the native grammar ------ asked with the key
          +-- matcher of another grammar --------- asked with the key's words written in that grammar;
                                                   made when its first pattern comes

Two spellings of one topic differ in the characters `/` and `.` only, which are exchanged (architecture:
one truth about topics). Patterns are never translated: each is asked in its own grammar.
"""

from __future__ import annotations

from typing import ClassVar

from broker.binding import Arguments, Binding
from broker.errors import PreconditionFailed
from broker.exchange.base import Exchange, Options
from broker.exchange.direct import DirectKeys
from matching import create
from matching.grammar import DEFAULT, Grammar, swap
from matching.matcher import Matcher


class TopicExchange(Exchange):
    """Routing keys are words; binding keys may hold wildcards (AMQP 0-9-1 section 3.1.3.3)."""

    kind: ClassVar[str] = "topic"

    def __init__(self, name: str, options: Options, algorithm: str = "trie") -> None:
        super().__init__(name, options)
        self.algorithm = algorithm
        self._direct = DirectKeys()
        self._patterns: dict[Grammar, Matcher[Binding]] = {DEFAULT: create(algorithm, DEFAULT)}

    def added(self, binding: Binding) -> None:
        grammar = binding.grammar
        if not grammar.is_pattern(binding.key):
            self._direct.add(_native(binding.key, grammar), binding)
            return
        matcher = self._patterns.get(grammar)
        if matcher is None:
            matcher = self._patterns[grammar] = create(self.algorithm, grammar)
        matcher.subscribe(binding.key, binding)

    def removed(self, binding: Binding) -> None:
        grammar = binding.grammar
        if grammar.is_pattern(binding.key):
            self._patterns[grammar].unsubscribe(binding.key, binding)
        else:
            self._direct.remove(_native(binding.key, grammar), binding)

    def match(self, key: str, headers: Arguments) -> list[Binding]:
        found = self._direct.match(key)
        for grammar, matcher in self._patterns.items():
            found += matcher.match(key if grammar is DEFAULT else swap(key))
        return found

    def patterns(self) -> dict[str, int]:
        """How many patterns stand in the matcher of each grammar."""
        return {grammar.name: len(matcher) for grammar, matcher in self._patterns.items()}


def topic_exchange(name: str, options: Options, default: str, allowed: list[str]) -> TopicExchange:
    """A topic exchange with the matcher that its argument `x-matcher` names. Raises PreconditionFailed."""
    wanted = options.arguments.get("x-matcher", default)
    if not isinstance(wanted, str) or wanted not in allowed:
        raise PreconditionFailed(f"invalid arg 'x-matcher' for exchange '{name}': {wanted!r} is none of {', '.join(allowed)}")
    return TopicExchange(name, options, wanted)


def _native(key: str, grammar: Grammar) -> str:
    return key if grammar is DEFAULT else swap(key)
