"""Defines `Matcher`, the interface of every matching algorithm, and `Snapshot`, a read-only view of
a matcher.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

from matching.grammar import Grammar

try:
    from mypy_extensions import mypyc_attr
except ImportError:  # pragma: no cover - the tests' environment can compile
    from matching.uncompiled import mypyc_attr

S = TypeVar("S")


class Search(Generic[S]):
    """A lookup that can pause, so that a long lookup can be spread over several turns of an event
    loop.

    The search appends to `subscribers`; a subscriber of several patterns may be appended several
    times. `done` is True once all subscribers are found.
    """

    __slots__ = ("done", "subscribers")

    def __init__(self, subscribers: list[S]) -> None:
        self.subscribers = subscribers
        self.done = False

    def advance(self, steps: int) -> int:
        """Continue the lookup for about `steps` steps, and return how many of these steps were not
        used.

        A visited node is one step. The returned number may be negative, because one visit can cost
        several steps.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Matcher(Generic[S]):
    """A set of (pattern, subscriber) pairs. `match` returns the subscribers whose patterns match a
    topic.

    Subscribers are hashable. Two patterns are the same only if their texts are equal: ``#.*`` and
    ``*.#`` match the same topics and are two patterns. The constructor of an algorithm takes only
    the grammar. An algorithm implements `subscribe`, `unsubscribe`, `match` and `subscriptions`;
    all other methods have a default implementation here.
    """

    def __init__(self, grammar: Grammar) -> None:
        self.grammar = grammar

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        """Add the (pattern, subscriber) pair. Return False if the pair was already present.

        Raises InvalidPattern.
        """
        raise NotImplementedError

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        """Remove the (pattern, subscriber) pair. Return False if the pair was not present."""
        raise NotImplementedError

    def match(self, topic: str) -> list[S]:
        """Return the subscribers of all matching patterns, each once, in no particular order.

        The caller owns the returned list. The topic is not validated: a wildcard character in it is
        an ordinary character.
        """
        raise NotImplementedError

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        """Iterate over all pairs, in no particular order.

        The matcher must not be changed during the iteration.
        """
        raise NotImplementedError

    def matches_any(self, topic: str) -> bool:
        """True if at least one pattern matches the topic. May stop at the first match."""
        return len(self.match(topic)) > 0

    def searches(self, topic: str, subscribers: list[S]) -> list[Search[S]]:
        """Begin a lookup that can pause.

        Append the subscribers that can be found quickly to `subscribers`, and return a list of
        searches for the remaining subscribers. The caller completes the searches in the order of
        the list. By default, all subscribers are found at once, and the list is empty.
        """
        subscribers += self.match(topic)
        return []

    def snapshot(self) -> Matcher[S]:
        """Return a read-only copy of the present pairs. Later changes of the matcher do not affect
        it.
        """
        copy = type(self)(self.grammar)
        for pattern, subscriber in self.subscriptions():
            copy.subscribe(pattern, subscriber)
        return Snapshot(copy)

    def clear(self) -> None:
        """Remove all (pattern, subscriber) pairs."""
        for pattern, subscriber in list(self.subscriptions()):
            self.unsubscribe(pattern, subscriber)

    def stats(self) -> dict[str, int]:
        """Return sizes by name, for operators. `subscriptions`, the number of pairs, is always
        present.
        """
        return {"subscriptions": len(self)}

    def __len__(self) -> int:
        return sum(1 for _ in self.subscriptions())

    def __contains__(self, pair: tuple[str, S]) -> bool:
        return any(pair == known for known in self.subscriptions())


class Snapshot(Matcher[S]):
    """A read-only view of the matcher `frozen`, which the caller no longer changes."""

    def __init__(self, frozen: Matcher[S]) -> None:
        super().__init__(frozen.grammar)
        self._frozen = frozen

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        raise TypeError("a snapshot cannot be changed: change the matcher, and take a new one")

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        raise TypeError("a snapshot cannot be changed: change the matcher, and take a new one")

    def clear(self) -> None:
        raise TypeError("a snapshot cannot be changed: change the matcher, and take a new one")

    def match(self, topic: str) -> list[S]:
        return self._frozen.match(topic)

    def matches_any(self, topic: str) -> bool:
        return self._frozen.matches_any(topic)

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        return self._frozen.subscriptions()

    def snapshot(self) -> Matcher[S]:
        return self

    def stats(self) -> dict[str, int]:
        return self._frozen.stats()

    def __len__(self) -> int:
        return len(self._frozen)

    def __contains__(self, pair: tuple[str, S]) -> bool:
        return pair in self._frozen
