"""For each position and word, the set of patterns that name the word there.

    patterns     0: a.*    1: a.b    2: *.b    3: a

    words  position     named                any
      1       0         a {3}
      2       0         a {0 1}              {2}
              1         b {1 2}              {0}

At each position, a lookup unites the patterns that name the topic's word with the patterns that
have a ``*`` there. The lookup intersects the unions of all positions, and starts at the position
with the fewest patterns, because the first set is copied. A pattern only matches topics of its own
length, so every length has separate positions.

Costs: O(words x patterns at the smallest position) per lookup, O(words) per subscription. Kept for
comparison. Source: article 5 (listed in `matching`), approach 2, which the article calls
"particularly unfit", because the sets grow with the number of patterns. The algorithm has no ``#``:
patterns with ``#`` are in a fallback trie. `bitmap` is the same idea with bitmaps, and with ``#``
at the end.
"""

from __future__ import annotations

from collections.abc import Iterable

from matching.grammar import Grammar
from matching.matcher import S
from matching.numbered import Numbered


class _PositionSets:
    """The patterns with one number of words, by their word at one position.

    Patterns with a literal word at this position are stored under the word. Patterns with a ``*``
    at this position are in a set of their own.
    """

    __slots__ = ("any", "named")

    def __init__(self) -> None:
        self.named: dict[str, set[int]] = {}
        self.any: set[int] = set()


class _Length:
    """The patterns that have the same number of words, indexed by the word at each position."""

    __slots__ = ("patterns", "positions")

    def __init__(self, words: int) -> None:
        self.patterns: set[int] = set()
        self.positions = [_PositionSets() for _ in range(words)]


class WordSets(Numbered[S]):
    """A matcher that intersects, for each word of a topic, the sets of patterns with this word.

    The algorithm is kept for comparison.
    """

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._lengths: dict[int, _Length] = {}

    def can_hold(self, words: list[str]) -> bool:
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

    def reset(self) -> None:
        self._lengths = {}

    def accepting(self, topic: str) -> Iterable[int] | None:
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
            some = position.named.get(words[at], _NO_PATTERNS)
            any_word = _NO_PATTERNS if hidden and at == 0 else position.any
            size = len(some) + len(any_word)
            if size == 0:
                return None
            if fewest < 0 or size < fewest:
                fewest = size
                first = at
            named.append(some)
            others.append(any_word)
        if fewest < 0:
            return length.patterns  # An empty key has no words, so no sets to intersect.
        accepted = named[first] | others[first]
        for at in range(len(named)):
            if at != first:
                accepted = (accepted & named[at]) | (accepted & others[at])
                if not accepted:
                    return None
        return accepted

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index; `sets` is the number of sets that are not empty."""
        sizes = super().stats()
        sizes["sets"] = sum(
            len(position.named) + (1 if position.any else 0)
            for length in self._lengths.values()
            for position in length.positions
        )
        return sizes


_NO_PATTERNS: set[int] = set()
