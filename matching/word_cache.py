"""For each position and word looked up so far, the set of patterns that accept the word there.

    patterns     0: a.*    1: a.b    2: *.b    3: c.b        looked up so far: a.b, c.d

    words  position     looked up
      2       0         a {0 1 2}      c {2 3}
              1         b {0 1 2 3}    d {0}

A subscription creates no sets. The first lookup of a topic with a new word compares that word with
every pattern of the topic's length, and stores the set of patterns that accept it. Later lookups
intersect one set per position, the smallest first. A subscription updates the stored sets: a ``*``
is added to the set of every word stored for its position.

Memory is bounded: when the number of sets plus the number of their members exceeds `capacity`, all
sets are discarded. Later lookups compute them again. A lookup without stored sets costs O(words x
patterns), as in `naive`.

Costs: one intersection per word and lookup; O(stored words) per subscription. Kept for comparison.
Source: article 5 (listed in `matching`), approach 1, which the AMQP specification suggests. The
article calls approaches 1 and 2 (`word_sets`) "particularly unfit". The algorithm has no ``#``:
patterns with ``#`` are in a fallback trie.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from matching.grammar import Grammar
from matching.matcher import Matcher, S, Snapshot
from matching.numbered import Numbered

#: The default of `capacity`: the most sets and members stored. Each set or member takes some 60
#: bytes.
CAPACITY: Final = 1_000_000


class WordCache(Numbered[S]):
    """A matcher that caches, for each word of a topic, the set of patterns that accept the word.

    The algorithm is kept for comparison. It is fast while topics use few different words and
    patterns do not change.
    """

    def __init__(self, grammar: Grammar, capacity: int = CAPACITY) -> None:
        super().__init__(grammar)
        self._capacity = capacity
        #: Number of words -> number of a pattern with so many words -> the words of the pattern.
        self._patterns: dict[int, dict[int, list[str]]] = {}
        #: Number of words -> list by position in the topic -> word -> the stored set of pattern
        #: numbers.
        self._learned: dict[int, list[dict[str, set[int]]]] = {}
        self._kept = 0

    def snapshot(self) -> Matcher[S]:
        copy: WordCache[S] = WordCache(self.grammar, self._capacity)
        for pattern, subscriber in self.subscriptions():
            copy.subscribe(pattern, subscriber)
        return Snapshot(copy)

    def can_hold(self, words: list[str]) -> bool:
        return self.grammar.many not in words

    def enter(self, pattern: str, words: list[str], number: int) -> None:
        patterns = self._patterns.get(len(words))
        if patterns is None:
            patterns = self._patterns[len(words)] = {}
        patterns[number] = words
        for accepted in self._sets_of(words):
            accepted.add(number)
            self._kept += 1
        if self._kept > self._capacity:
            self._discard_sets()

    def leave(self, pattern: str, words: list[str], number: int) -> None:
        patterns = self._patterns[len(words)]
        del patterns[number]
        for accepted in self._sets_of(words):
            accepted.discard(number)
            self._kept -= 1
        if not patterns:
            del self._patterns[len(words)]
            for column in self._learned.pop(len(words), []):
                self._kept -= len(column)

    def reset(self) -> None:
        self._patterns = {}
        self._discard_sets()

    def accepting(self, topic: str) -> Iterable[int] | None:
        words = self.grammar.split(topic)
        patterns = self._patterns.get(len(words))
        if patterns is None:
            return None
        if not words:
            return patterns  # An empty key has no words, so no sets to intersect.
        sets: list[set[int]] = []
        for at, word in enumerate(words):
            columns = self._learned.get(len(words))
            accepted = None if columns is None else columns[at].get(word)
            if accepted is None:
                accepted = self._learn(patterns, len(words), at, word)
            if not accepted:
                return None
            sets.append(accepted)
        sets.sort(key=len)
        return sets[0].intersection(*sets[1:]) or None

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index.

        `words` is the number of stored sets, one for each word and position that was looked up.
        `kept` is the number of stored sets plus their members; `capacity` is its maximum.
        """
        sizes = super().stats()
        sizes["words"] = sum(
            len(column) for columns in self._learned.values() for column in columns
        )
        sizes["kept"] = self._kept
        sizes["capacity"] = self._capacity
        return sizes

    def _learn(self, patterns: dict[int, list[str]], length: int, at: int, word: str) -> set[int]:
        """Compute, store and return the patterns of this length that accept the word at this
        position.
        """
        grammar = self.grammar
        # The first word of a topic decides whether the topic is hidden from a leading wildcard.
        one = word if at == 0 and grammar.hides and grammar.hidden(word) else grammar.one
        accepted = {number for number, wanted in patterns.items() if wanted[at] in (word, one)}
        columns = self._learned.get(length)
        if columns is None:
            columns = self._learned[length] = [{} for _ in range(length)]
        columns[at][word] = accepted
        self._kept += 1 + len(accepted)
        if self._kept > self._capacity:
            self._discard_sets()
        return accepted

    def _sets_of(self, words: list[str]) -> list[set[int]]:
        """Return all stored sets to which the pattern with these words belongs.

        Each stored set has a position and a word: it contains the patterns that accept the word at
        this position.
        """
        grammar = self.grammar
        sets: list[set[int]] = []
        for at, column in enumerate(self._learned.get(len(words), [])):
            if words[at] != grammar.one:
                accepted = column.get(words[at])
                if accepted is not None:
                    sets.append(accepted)
            elif at == 0 and grammar.hides:
                sets += [accepted for word, accepted in column.items() if not grammar.hidden(word)]
            else:
                sets += column.values()
        return sets

    def _discard_sets(self) -> None:
        self._learned = {}
        self._kept = 0
