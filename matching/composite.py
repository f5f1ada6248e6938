"""Combines a dict for patterns without wildcards with a matcher for the others.

    topic --+-- dict ------------------ patterns without a wildcard: one probe
            +-- matcher --------------- patterns with a wildcard

`Composite` does this for one grammar. `Bilingual` holds one composite for each of the two grammars.
A `Bilingual` is searched with topics of one grammar, called its own:

    a.b --+-- native: composite of its own grammar ---- searched with a.b
          +-- foreign: composite of the other grammar - searched with a/b, if it has subscriptions

A topic in the two notations differs only in the characters `/` and `.`, which `swap` exchanges.
Patterns are never translated; each is matched in its own grammar.

Costs: one dict probe in addition to the matcher's lookup, and none of the matcher's memory for
patterns without wildcards. Source: article 3 (listed in `matching`), whose broker keeps such
subscriptions in a map beside its bitmaps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matching.bucket import Bucket, holds, members, take, with_added, without
from matching.grammar import DEFAULT, Grammar, swap
from matching.matcher import Matcher, S, Search, Snapshot
from matching.registry import create

#: Two answers with at most this many subscribers in total are merged by comparing their entries,
#: longer answers by hashing. (To merge 15 entries with 1 entry, comparing takes 0.3 us less than
#: hashing.)
_FEW: Final = 16


class Composite(Matcher[S]):
    """A matcher with a dict in front for patterns without wildcards."""

    def __init__(self, grammar: Grammar, algorithm: str = "trie") -> None:
        super().__init__(grammar)
        self.algorithm: Final = algorithm
        self._plain: dict[str, Bucket[S]] = {}
        self._plain_pairs = 0
        self._patterns: Matcher[S] = create(algorithm, grammar)
        self._pattern_pairs = 0

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        if self.grammar.is_pattern(pattern):
            added = self._patterns.subscribe(pattern, subscriber)
            self._pattern_pairs += added
            return added
        hash(subscriber)  # raise TypeError for an unhashable subscriber before anything changes
        self.grammar.check(pattern)
        bucket = self._plain.get(pattern)
        if holds(bucket, subscriber):
            return False
        self._plain[pattern] = with_added(bucket, subscriber)
        self._plain_pairs += 1
        return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        if self.grammar.is_pattern(pattern):
            removed = self._patterns.unsubscribe(pattern, subscriber)
            self._pattern_pairs -= removed
            return removed
        bucket = self._plain.get(pattern)
        if not holds(bucket, subscriber):
            return False
        bucket = without(bucket, subscriber)
        if bucket is None:
            del self._plain[pattern]
        else:
            self._plain[pattern] = bucket
        self._plain_pairs -= 1
        return True

    def match(self, topic: str) -> list[S]:
        bucket = self._plain.get(topic)
        if not self._pattern_pairs:
            return members(bucket)
        subscribers = self._patterns.match(topic)
        if bucket is None:
            return subscribers
        if not isinstance(bucket, (list, dict)) and len(subscribers) <= _FEW:
            if bucket not in subscribers:
                subscribers.append(bucket)
            return subscribers
        return _merged(subscribers, members(bucket))

    def searches(self, topic: str, subscribers: list[S]) -> list[Search[S]]:
        take(self._plain.get(topic), subscribers)
        return self._patterns.searches(topic, subscribers)

    def matches_any(self, topic: str) -> bool:
        return topic in self._plain or self._patterns.matches_any(topic)

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        for key, bucket in self._plain.items():
            for subscriber in members(bucket):
                yield key, subscriber
        yield from self._patterns.subscriptions()

    def snapshot(self) -> Matcher[S]:
        copy: Composite[S] = Composite(self.grammar, self.algorithm)
        _copy(self, copy)
        return Snapshot(copy)

    def clear(self) -> None:
        self._plain = {}
        self._plain_pairs = 0
        self._patterns.clear()
        self._pattern_pairs = 0

    def stats(self) -> dict[str, int]:
        """Return sizes by name, for operators.

        `subscriptions` is the number of all (pattern, subscriber) pairs. `plain` is the number of
        the pairs whose pattern has no wildcard. The other sizes describe the data structure that
        finds patterns with wildcards, such as a trie.
        """
        return {**self._patterns.stats(), "subscriptions": len(self), "plain": self._plain_pairs}

    def __len__(self) -> int:
        return self._plain_pairs + self._pattern_pairs

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        return (
            pair in self._patterns
            if self.grammar.is_pattern(pattern)
            else holds(self._plain.get(pattern), subscriber)
        )


class Bilingual(Matcher[S]):
    """A matcher for subscriptions in both grammars, AMQP and MQTT.

    A `Bilingual` is created for one grammar, its own, and is searched with topics in that grammar's
    notation. `match`, `matches_any`, `searches`, `snapshot`, `clear` and `stats` include both
    grammars. All other methods concern the own grammar. Subscriptions in the other grammar are
    changed through the matcher that `side` returns.
    """

    def __init__(self, grammar: Grammar = DEFAULT, algorithm: str = "trie") -> None:
        super().__init__(grammar)
        self.native: Final[Composite[S]] = Composite(grammar, algorithm)
        #: The composite of the other grammar; None until `side` is first called with that grammar.
        self.foreign: Composite[S] | None = None

    def side(self, grammar: Grammar) -> Composite[S]:
        """Return the composite for patterns of this grammar, on which to subscribe and unsubscribe.

        If the grammar is not the matcher's own, create the composite at the first call.
        """
        if grammar is self.grammar:
            return self.native
        if self.foreign is None:
            self.foreign = Composite(grammar, self.native.algorithm)
        assert grammar is self.foreign.grammar, "a composite matcher has at most two grammars"
        return self.foreign

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        return self.native.subscribe(pattern, subscriber)

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        return self.native.unsubscribe(pattern, subscriber)

    def match(self, topic: str) -> list[S]:
        subscribers = self.native.match(topic)
        foreign = self.foreign
        if foreign is None or not len(foreign):
            return subscribers
        return _merged(subscribers, foreign.match(swap(topic)))

    def searches(self, topic: str, subscribers: list[S]) -> list[Search[S]]:
        searches = self.native.searches(topic, subscribers)
        if self.foreign is not None:
            searches += self.foreign.searches(swap(topic), subscribers)
        return searches

    def matches_any(self, topic: str) -> bool:
        return (
            self.native.matches_any(topic)
            or self.foreign is not None
            and self.foreign.matches_any(swap(topic))
        )

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        return self.native.subscriptions()

    def snapshot(self) -> Matcher[S]:
        copy: Bilingual[S] = Bilingual(self.grammar, self.native.algorithm)
        _copy(self.native, copy.native)
        if self.foreign is not None:
            _copy(self.foreign, copy.side(self.foreign.grammar))
        return Snapshot(copy)

    def clear(self) -> None:
        self.native.clear()
        self.foreign = None

    def stats(self) -> dict[str, int]:
        """Return the sizes of the composite of this matcher's own grammar.

        `foreign` is the number of subscriptions in the other grammar.
        """
        return {**self.native.stats(), "foreign": 0 if self.foreign is None else len(self.foreign)}

    def __len__(self) -> int:
        return len(self.native)

    def __contains__(self, pair: tuple[str, S]) -> bool:
        return pair in self.native


def _merged(subscribers: list[S], others: list[S]) -> list[S]:
    """Return the union of both lists without duplicates.

    The result may be one of the two lists; `subscribers` may be extended in place.
    """
    if not subscribers or not others:
        return subscribers or others
    if len(subscribers) + len(others) > _FEW:
        return list(dict.fromkeys(subscribers + others))
    for other in others:
        if other not in subscribers:
            subscribers.append(other)
    return subscribers


def _copy(source: Matcher[S], copy: Matcher[S]) -> None:
    for pattern, subscriber in source.subscriptions():
        copy.subscribe(pattern, subscriber)
