"""Patterns indexed by word: for each position and word the set of patterns that name it there.

    patterns     0: a.*    1: a.b    2: *.b    3: a

    words  position     named                any
      1       0         a {3}
      2       0         a {0 1}              {2}
              1         b {1 2}              {0}

A lookup intersects, over the positions, those that name the topic's word with those that take any.
It begins where they are fewest, so a set that grew is never larger than the smallest position's:
without that, a first word that all patterns name would be copied whole at each lookup. Patterns
only ever meet topics of as many words as they have, so every length has positions of its own.
O(words x patterns at the smallest position) a lookup, O(words) a subscription.

From article 5, approach 2, found there "particularly unfit": it knows no ``#``, and what is
intersected grows with the number of patterns. Patterns with ``#`` stand in a trie beside. `bitmap`
is this with bitmaps, and ``#`` at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from matching.grammar import Grammar
from matching.matcher import S
from matching.numbered import Numbered


class _Position:
    """Who names which word at one position, and who takes any. No word has an empty set."""

    __slots__ = ("any", "named")

    def __init__(self) -> None:
        self.named: dict[str, set[int]] = {}
        self.any: set[int] = set()


class _Length:
    """The patterns of one number of words."""

    __slots__ = ("patterns", "positions")

    def __init__(self, words: int) -> None:
        self.patterns: set[int] = set()
        self.positions = [_Position() for _ in range(words)]


class WordSets(Numbered[S]):
    """Only for comparison: sets of integers, intersected at every lookup."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._lengths: dict[int, _Length] = {}

    def suits(self, words: list[str]) -> bool:
        return self.grammar.many not in words

    def enter(self, pattern: str, words: list[str], number: int) -> None:
        length = self._lengths.get(len(words))
        if length is None:
            length = self._lengths[len(words)] = _Length(len(words))
        length.patterns.add(number)
        for position, word in zip(length.positions, words, strict=True):
            if word == self.grammar.one:
                position.any.add(number)
            else:
                named = position.named.get(word)
                if named is None:
                    position.named[word] = {number}
                else:
                    named.add(number)

    def leave(self, pattern: str, words: list[str], number: int) -> None:
        length = self._lengths[len(words)]
        length.patterns.discard(number)
        if not length.patterns:
            del self._lengths[len(words)]
            return
        for position, word in zip(length.positions, words, strict=True):
            if word == self.grammar.one:
                position.any.discard(number)
            else:
                named = position.named[word]
                named.discard(number)
                if not named:
                    del position.named[word]

    def forget(self) -> None:
        self._lengths = {}

    def agreeing(self, topic: str) -> Iterable[int] | None:
        words = self.grammar.split(topic)
        length = self._lengths.get(len(words))
        if length is None:
            return None
        hidden = self.grammar.hides and self.grammar.hidden(topic)
        named: list[set[int]] = []
        others: list[set[int]] = []
        fewest = -1
        first = 0
        for at, position in enumerate(length.positions):
            some = position.named.get(words[at], _NOBODY)
            any_word = _NOBODY if hidden and at == 0 else position.any
            size = len(some) + len(any_word)
            if size == 0:
                return None
            if fewest < 0 or size < fewest:
                fewest = size
                first = at
            named.append(some)
            others.append(any_word)
        if fewest < 0:
            return length.patterns  # the empty key has no position to ask
        agreed = named[first] | others[first]
        for at in range(len(named)):
            if at != first:
                agreed = (agreed & named[at]) | (agreed & others[at])
                if not agreed:
                    return None
        return agreed

    def stats(self) -> dict[str, int]:
        """`sets` is the number of sets that are not empty."""
        sizes = super().stats()
        sizes["sets"] = sum(
            len(position.named) + (1 if position.any else 0)
            for length in self._lengths.values()
            for position in length.positions
        )
        return sizes


_NOBODY: set[int] = set()
