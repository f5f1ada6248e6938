"""The common part of matchers that represent sets of patterns as sets of pattern numbers.

    numbers     "a.*" -> 0    "a.b" -> 2         pattern to number
    buckets     [x]   None   [y z]               number to subscribers
    free        1                                numbers to reuse
    fallback    a trie                           patterns that the algorithm's sets cannot hold

A subclass has the sets. The subclass decides which patterns the sets can hold, adds and removes
patterns, and finds the numbers of the patterns that match a topic. When the last pattern is
removed, the subclass clears its sets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from matching.bucket import Bucket, PairCounts, holds, members, take, with_added, without
from matching.grammar import Grammar
from matching.matcher import Matcher, S
from matching.trie import Trie


class Numbered(Matcher[S]):
    """The base class of matchers that number their patterns.

    A subclass implements `can_hold`, `enter`, `leave`, `reset` and `accepting`.
    """

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._numbers: dict[str, int] = {}
        self._buckets: list[Bucket[S]] = []
        self._free: list[int] = []
        self._fallback: Trie[S] = Trie(grammar)
        self._tally: PairCounts[S] = PairCounts()
        self._pairs = 0

    def can_hold(self, words: list[str]) -> bool:
        """True if the algorithm's sets can hold a pattern of these words."""
        raise NotImplementedError

    def enter(self, pattern: str, words: list[str], number: int) -> None:
        """Add the number of a pattern to the algorithm's sets."""
        raise NotImplementedError

    def leave(self, pattern: str, words: list[str], number: int) -> None:
        """Remove the number of a pattern from the algorithm's sets.

        The method is called while the sets hold other patterns as well; see `reset`.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Clear the algorithm's sets. The method is called when the last pattern is removed."""
        raise NotImplementedError

    def accepting(self, topic: str) -> Iterable[int] | None:
        """Return the numbers of the matching patterns, or None if there are none.

        The method is called only while the algorithm's sets hold at least one pattern.
        """
        raise NotImplementedError

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # raise TypeError for an unhashable subscriber before anything changes
        grammar = self.grammar
        grammar.check(pattern)
        words = grammar.split(pattern)
        if not self.can_hold(words):
            if not self._fallback.subscribe(pattern, subscriber):
                return False
            self._tally.add(subscriber)
            return True
        number = self._numbers.get(pattern)
        if number is not None and holds(self._buckets[number], subscriber):
            return False
        self._tally.add(subscriber)
        if number is None:
            number = self._number(pattern)
            self.enter(pattern, words, number)
        self._buckets[number] = with_added(self._buckets[number], subscriber)
        self._pairs += 1
        return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        number = self._numbers.get(pattern)
        if number is None:
            if not self._fallback.unsubscribe(pattern, subscriber):
                return False
        elif not holds(self._buckets[number], subscriber):
            return False
        else:
            self._buckets[number] = without(self._buckets[number], subscriber)
            self._pairs -= 1
            if self._buckets[number] is None:
                self._drop(pattern, number)
        self._tally.remove(subscriber)
        return True

    def match(self, topic: str) -> list[S]:
        subscribers: list[S] = []
        if self._numbers:
            numbers = self.accepting(topic)
            if numbers is not None:
                buckets = self._buckets
                for number in numbers:
                    take(buckets[number], subscribers)
        if len(self._fallback):
            subscribers += self._fallback.find(topic, False)
        return self._tally.distinct(subscribers) if self._tally.shared else subscribers

    def matches_any(self, topic: str) -> bool:
        if self._numbers and self.accepting(topic) is not None:
            return True
        return self._fallback.matches_any(topic)

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        for pattern, number in self._numbers.items():
            for subscriber in members(self._buckets[number]):
                yield pattern, subscriber
        yield from self._fallback.subscriptions()

    def clear(self) -> None:
        self._numbers = {}
        self._buckets = []
        self._free = []
        self._fallback.clear()
        self._tally = PairCounts()
        self._pairs = 0
        self.reset()

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index.

        `fallback` is the number of subscriptions in the fallback trie. `shared` is the number of
        subscribers with several patterns: above 0, answers are deduplicated.
        """
        fallback = self._fallback.stats()
        return {
            "subscriptions": len(self),
            "patterns": len(self._numbers) + fallback["patterns"],
            "free": len(self._free),
            "fallback": fallback["subscriptions"],
            "shared": self._tally.shared,
        }

    def __len__(self) -> int:
        return self._pairs + len(self._fallback)

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        number = self._numbers.get(pattern)
        return (
            holds(self._buckets[number], subscriber)
            if number is not None
            else pair in self._fallback
        )

    def _number(self, pattern: str) -> int:
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._buckets)
            self._buckets.append(None)
        self._numbers[pattern] = number
        return number

    def _drop(self, pattern: str, number: int) -> None:
        del self._numbers[pattern]
        if self._numbers:
            self._free.append(number)
            self.leave(pattern, self.grammar.split(pattern), number)
        else:
            self._buckets = []
            self._free = []
            self.reset()
