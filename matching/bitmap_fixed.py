"""The inverted bitmap: for every known topic, the set of patterns that match it.

    patterns     0: forex.*    1: stock.nyse    2: *.*    3: stock.*

    topic            patterns
    forex.usd        {0 2}
    stock.nyse       {1 2 3}
    stock.nasdaq     {2 3}

A lookup reads one row; the work is done at subscription, which adds the pattern to the rows of all
topics that it matches. The published algorithm knows all topics in advance. Here, a topic gets its
row at its first lookup, from a trie of all patterns. (The articles try each pattern, which takes
0.4 ms per topic for every thousand patterns of three words.) The rows are in a `TopicIndex`, so a
subscription visits only topics that begin like its pattern. A subscription to a pattern that begins
with ``#`` visits all topics (180 ms for 46,000 topics).

At most `capacity` topics have a row. Every lookup of another topic searches the trie; no row is
evicted for such a topic. Rows are kept until the last pattern is removed.

Costs: O(1 + matches) per lookup of a known topic, O(topics) per subscription; memory for one row
per known topic and two tries. Choose this matcher for a small set of topics and patterns that
rarely change. Needs the package pyroaring. Source: articles 1 and 4, which `matching` lists.
Article 4 describes the directory search of Svalgaard and Tveden, 1980.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from pyroaring import BitMap

from matching.grammar import Grammar
from matching.matcher import Matcher, S, Snapshot
from matching.numbered import Numbered
from matching.topics import TopicIndex
from matching.trie import Trie

#: The default of `capacity`: the most topics that have a row.
CAPACITY: Final = 65_536


class BitmapFixed(Numbered[S]):
    """A matcher for few topics and patterns that rarely change; needs the package pyroaring."""

    def __init__(self, grammar: Grammar, capacity: int = CAPACITY) -> None:
        super().__init__(grammar)
        self._capacity = capacity
        self._rows: dict[str, BitMap] = {}
        self._topics: TopicIndex[BitMap] = TopicIndex(grammar)
        #: A trie with the numbers of all patterns, for lookups of topics without a row.
        self._unknown: Trie[int] = Trie(grammar)

    def snapshot(self) -> Matcher[S]:
        copy: BitmapFixed[S] = BitmapFixed(self.grammar, self._capacity)
        for pattern, subscriber in self.subscriptions():
            copy.subscribe(pattern, subscriber)
        return Snapshot(copy)

    def can_hold(self, words: list[str]) -> bool:
        return True

    def enter(self, pattern: str, words: list[str], number: int) -> None:
        self._unknown.subscribe(pattern, number)
        for row in self._topics.walk(pattern):
            row.add(number)

    def leave(self, pattern: str, words: list[str], number: int) -> None:
        self._unknown.unsubscribe(pattern, number)
        for row in self._topics.walk(pattern):
            row.discard(number)

    def reset(self) -> None:
        self._rows = {}
        self._topics = TopicIndex(self.grammar)
        self._unknown.clear()

    def accepting(self, topic: str) -> Iterable[int] | None:
        row = self._rows.get(topic)
        if row is None:
            numbers = self._unknown.find(topic, False)
            if len(self._rows) >= self._capacity:
                return numbers or None
            row = self._rows[topic] = BitMap(numbers)
            self._topics.put(topic, row)
        return row if row else None

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index; `topics` is the number of topics with a row, at most
        `capacity`.
        """
        sizes = super().stats()
        sizes["topics"] = len(self._rows)
        sizes["capacity"] = self._capacity
        return sizes
