"""The inverted bitmap: for every known topic, the set of patterns that match it.

    patterns     0: forex.*    1: stock.nyse    2: *.*    3: stock.*

    topic            patterns
    forex.usd        {0 2}
    stock.nyse       {1 2 3}
    stock.nasdaq     {2 3}

A lookup reads one row. The work is done before: whoever subscribes is written into the rows of all
topics that the pattern matches. The articles want the topic space known ahead of time; here it is
learned: a topic gets its row when it is first asked for, out of a trie of all patterns (trying each
of them, as the articles' reindexing would, takes
0.4 ms a topic for every thousand patterns of three words). The rows hang in a `TopicIndex`, so that
a subscription visits only those topics that begin as its pattern does; with ``#`` these are all
(180 ms when 46,000 are known).

The space is bounded: once `capacity` topics are known, those that are not are looked up in the
trie, each time, and no row is dropped for them. The topics asked first keep their rows until the
last pattern is gone. O(1) and the matches a lookup, O(topics) a subscription. What it costs in
memory is a row for every topic beside two tries.

From articles 1 and 4 (there, Svalgaard's and Tveden's directory search of 1980).
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

#: Topics known at most.
CAPACITY: Final = 65_536


class BitmapFixed(Numbered[S]):
    """For few topics, asked often, and patterns that stay; needs the package pyroaring."""

    def __init__(self, grammar: Grammar, capacity: int = CAPACITY) -> None:
        super().__init__(grammar)
        self._capacity = capacity
        self._rows: dict[str, BitMap] = {}
        self._topics: TopicIndex[BitMap] = TopicIndex(grammar)
        #: The numbers of all patterns, for topics without a row.
        self._unknown: Trie[int] = Trie(grammar)

    def snapshot(self) -> Matcher[S]:
        copy: BitmapFixed[S] = BitmapFixed(self.grammar, self._capacity)
        for pattern, subscriber in self.subscriptions():
            copy.subscribe(pattern, subscriber)
        return Snapshot(copy)

    def suits(self, words: list[str]) -> bool:
        return True

    def enter(self, pattern: str, words: list[str], number: int) -> None:
        self._unknown.subscribe(pattern, number)
        for row in self._topics.walk(pattern):
            row.add(number)

    def leave(self, pattern: str, words: list[str], number: int) -> None:
        self._unknown.unsubscribe(pattern, number)
        for row in self._topics.walk(pattern):
            row.discard(number)

    def forget(self) -> None:
        self._rows = {}
        self._topics = TopicIndex(self.grammar)
        self._unknown.clear()

    def agreeing(self, topic: str) -> Iterable[int] | None:
        row = self._rows.get(topic)
        if row is None:
            numbers = self._unknown.find(topic, False)
            if len(self._rows) >= self._capacity:
                return numbers or None
            row = self._rows[topic] = BitMap(numbers)
            self._topics.put(topic, row)
        return row if row else None

    def stats(self) -> dict[str, int]:
        """`topics` of at most `capacity` are known and have a row."""
        sizes = super().stats()
        sizes["topics"] = len(self._rows)
        sizes["capacity"] = self._capacity
        return sizes
