"""The contract that every matching algorithm fulfils, and what follows from it alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from matching.grammar import Grammar

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr

S = TypeVar("S")


@mypyc_attr(allow_interpreted_subclasses=True)
class Matcher(Generic[S]):
    """A set of (pattern, subscriber) pairs, asked with topics.

    Subscribers are hashable. A pattern is known by its text: ``#.*`` and ``*.#`` match the same
    topics and are still two. An algorithm is made from a grammar alone and defines the first four
    methods; the others have a plain definition here.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        """Add the pair; False when it was there already. Raises InvalidPattern."""
        raise NotImplementedError

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        """Remove the pair; False when it was not there."""
        raise NotImplementedError

    def match(self, topic: str) -> list[S]:
        """The subscribers of all patterns that match, each once, in no order. The list is the
        caller's.

        Topics are not checked here: wildcard characters in one are ordinary words.
        """
        raise NotImplementedError

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        """All pairs, in no order. The matcher must not be changed meanwhile."""
        raise NotImplementedError

    def matches_any(self, topic: str) -> bool:
        """Whether anyone's pattern matches. May stop at the first."""
        return len(self.match(topic)) > 0

    def snapshot(self) -> Matcher[S]:
        """The pairs as they are now, for reading only, whatever happens to this matcher later."""
        copy = type(self)(self.grammar)
        for pattern, subscriber in self.subscriptions():
            copy.subscribe(pattern, subscriber)
        return Snapshot(copy)

    def clear(self) -> None:
        """Remove every pair."""
        for pattern, subscriber in list(self.subscriptions()):
            self.unsubscribe(pattern, subscriber)

    def stats(self) -> dict[str, int]:
        """Sizes by name, for operators: at least the number of subscriptions."""
        return {"subscriptions": len(self)}

    def __len__(self) -> int:
        return sum(1 for _ in self.subscriptions())

    def __contains__(self, pair: tuple[str, S]) -> bool:
        return any(pair == known for known in self.subscriptions())


class Snapshot(Matcher[S]):
    """A matcher of its own that nobody can change."""

    def __init__(self, kept: Matcher[S]) -> None:
        super().__init__(kept.grammar)
        self._kept = kept

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        raise TypeError("a snapshot cannot be changed")

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        raise TypeError("a snapshot cannot be changed")

    def clear(self) -> None:
        raise TypeError("a snapshot cannot be changed")

    def match(self, topic: str) -> list[S]:
        return self._kept.match(topic)

    def matches_any(self, topic: str) -> bool:
        return self._kept.matches_any(topic)

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        return self._kept.subscriptions()

    def snapshot(self) -> Matcher[S]:
        return self

    def stats(self) -> dict[str, int]:
        return self._kept.stats()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, pair: tuple[str, S]) -> bool:
        return pair in self._kept
