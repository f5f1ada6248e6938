"""Topics cached by word: for each position and word that was asked for, the set of patterns that
agree with it.

    patterns     0: a.*    1: a.b    2: *.b    3: c.b        asked so far: a.b, c.d

    words  position     asked for
      2       0         a {0 1 2}      c {2 3}
              1         b {0 1 2 3}    d {0}

Nothing is prepared when somebody subscribes. The first topic with a new word has every pattern of
its length tried at that position, and the answer is kept; from then on a lookup is the intersection
of one set a position, the smallest first. Keeping the sets right is what a subscription costs: its
``*`` joins every word known at its position.

What is kept is bounded: when the sets and their members together are more than `capacity`, all are
forgotten and learned again. So memory is bounded however many words publishers make up, and a
lookup that finds nothing cached costs O(words x patterns), as `naive` does.

From article 5, approach 1 (what AMQP's specification suggests), found there "particularly unfit",
together with its approach 2, `word_sets`, which indexes the patterns beforehand instead. It knows
no ``#``: such patterns stand in a trie beside.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from matching.grammar import Grammar
from matching.matcher import Matcher, S, Snapshot
from matching.numbered import Numbered

#: Sets and their members kept at most, some 60 octets each.
CAPACITY: Final = 1_000_000


class WordCache(Numbered[S]):
    """Only for comparison: fast while topics use few words and patterns stay."""

    def __init__(self, grammar: Grammar, capacity: int = CAPACITY) -> None:
        super().__init__(grammar)
        self._capacity = capacity
        #: By number of words, the words of each pattern by its number.
        self._patterns: dict[int, dict[int, list[str]]] = {}
        #: By number of words, for each position the set of each word asked for.
        self._asked: dict[int, list[dict[str, set[int]]]] = {}
        self._kept = 0

    def snapshot(self) -> Matcher[S]:
        copy: WordCache[S] = WordCache(self.grammar, self._capacity)
        for pattern, subscriber in self.subscriptions():
            copy.subscribe(pattern, subscriber)
        return Snapshot(copy)

    def suits(self, words: list[str]) -> bool:
        return self.grammar.many not in words

    def enter(self, pattern: str, words: list[str], number: int) -> None:
        patterns = self._patterns.get(len(words))
        if patterns is None:
            patterns = self._patterns[len(words)] = {}
        patterns[number] = words
        for agreed in self._concerned(words):
            agreed.add(number)
            self._kept += 1
        if self._kept > self._capacity:
            self._unlearn()

    def leave(self, pattern: str, words: list[str], number: int) -> None:
        patterns = self._patterns[len(words)]
        del patterns[number]
        for agreed in self._concerned(words):
            agreed.discard(number)
            self._kept -= 1
        if not patterns:
            del self._patterns[len(words)]
            for column in self._asked.pop(len(words), []):
                self._kept -= len(column)

    def forget(self) -> None:
        self._patterns = {}
        self._unlearn()

    def agreeing(self, topic: str) -> Iterable[int] | None:
        words = self.grammar.split(topic)
        patterns = self._patterns.get(len(words))
        if patterns is None:
            return None
        if not words:
            return patterns  # the empty key has no position to ask
        sets: list[set[int]] = []
        for at, word in enumerate(words):
            columns = self._asked.get(len(words))
            agreed = None if columns is None else columns[at].get(word)
            if agreed is None:
                agreed = self._learn(patterns, len(words), at, word)
            if not agreed:
                return None
            sets.append(agreed)
        sets.sort(key=len)
        return sets[0].intersection(*sets[1:]) or None

    def stats(self) -> dict[str, int]:
        """`words` is the number of sets cached; they and their members, `kept`, are at most
        `capacity`.
        """
        sizes = super().stats()
        sizes["words"] = sum(len(column) for columns in self._asked.values() for column in columns)
        sizes["kept"] = self._kept
        sizes["capacity"] = self._capacity
        return sizes

    def _learn(self, patterns: dict[int, list[str]], length: int, at: int, word: str) -> set[int]:
        """The patterns of this length that agree with the word at this position, now cached."""
        grammar = self.grammar
        # The first word of a topic tells whether the topic is hidden from a leading wildcard.
        one = word if at == 0 and grammar.hides and grammar.hidden(word) else grammar.one
        agreed = {number for number, wanted in patterns.items() if wanted[at] in (word, one)}
        columns = self._asked.get(length)
        if columns is None:
            columns = self._asked[length] = [{} for _ in range(length)]
        columns[at][word] = agreed
        self._kept += 1 + len(agreed)
        if self._kept > self._capacity:
            self._unlearn()
        return agreed

    def _concerned(self, words: list[str]) -> list[set[int]]:
        """The cached sets in which a pattern stands, or is to."""
        grammar = self.grammar
        sets: list[set[int]] = []
        for at, column in enumerate(self._asked.get(len(words), [])):
            if words[at] != grammar.one:
                agreed = column.get(words[at])
                if agreed is not None:
                    sets.append(agreed)
            elif at == 0 and grammar.hides:
                sets += [agreed for word, agreed in column.items() if not grammar.hidden(word)]
            else:
                sets += column.values()
        return sets

    def _unlearn(self) -> None:
        self._asked = {}
        self._kept = 0
