"""The reference algorithm: tries every pattern with `Grammar.matches`.

Costs O(patterns x words) per lookup and a dict entry per pattern. Use this matcher for a dozen
patterns, or as the definition that the other algorithms are tested against. Source: the starting
point of articles 1 and 3 (listed in `matching`).
"""

from __future__ import annotations

from collections.abc import Iterator

from matching.grammar import Grammar
from matching.matcher import Matcher, S


class Naive(Matcher[S]):
    """The reference matcher: each lookup tries every pattern with `Grammar.matches`."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._patterns: dict[str, dict[S, None]] = {}

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # raise TypeError for an unhashable subscriber before anything changes
        self.grammar.check(pattern)
        subscribers = self._patterns.setdefault(pattern, {})
        known = subscriber in subscribers
        subscribers[subscriber] = None
        return not known

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        subscribers = self._patterns.get(pattern)
        if subscribers is None or subscriber not in subscribers:
            return False
        del subscribers[subscriber]
        if not subscribers:
            del self._patterns[pattern]
        return True

    def match(self, topic: str) -> list[S]:
        union: dict[S, None] = {}
        for pattern, subscribers in self._patterns.items():
            if self.grammar.matches(pattern, topic):
                union.update(subscribers)
        return list(union)

    def matches_any(self, topic: str) -> bool:
        return any(self.grammar.matches(pattern, topic) for pattern in self._patterns)

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        for pattern, subscribers in self._patterns.items():
            for subscriber in subscribers:
                yield pattern, subscriber

    def clear(self) -> None:
        self._patterns = {}

    def stats(self) -> dict[str, int]:
        return {"subscriptions": len(self), "patterns": len(self._patterns)}

    def __len__(self) -> int:
        return sum(len(subscribers) for subscribers in self._patterns.values())

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        return subscriber in self._patterns.get(pattern, {})
