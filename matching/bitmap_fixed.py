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
subscription visits only topics that begin like its pattern. If these are too many (VISITS_MAX), as
for a pattern that begins with ``#``, visiting them would block the event loop: 160 ms for 65,536
topics, not compiled. So the matcher forgets all rows instead, and makes each row again at the next
lookup of its topic.

At most `capacity` topics have a row. Every lookup of another topic searches the trie; no row is
evicted for such a topic. Rows are kept until a subscription makes the matcher forget them, or until
the last pattern is removed. Forgotten rows are freed by later calls, a few in each.

Costs: O(1 + matches) per lookup of a known topic, O(topics) per subscription, up to VISITS_MAX;
memory for one row per known topic and two tries. Choose this matcher for a small set of topics and
patterns that rarely change. Needs the package pyroaring. Source: articles 1 and 4, which `matching`
lists. Article 4 describes the directory search of Svalgaard and Tveden, 1980.
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
#: The most nodes of the topic index that a subscription visits, to change the rows of its topics.
#: 1,000 nodes take about 2 ms, not compiled.
VISITS_MAX: Final = 1_000
#: The number of forgotten rows that a new subscription frees, and the number that a new row frees.
#: Two for a new row: so rows and forgotten rows together never exceed `capacity`.
FREED_BY_SUBSCRIPTION: Final = 64
FREED_BY_ROW: Final = 2


class BitmapFixed(Numbered[S]):
    """A matcher for few topics and patterns that rarely change; needs the package pyroaring."""

    def __init__(self, grammar: Grammar, capacity: int = CAPACITY) -> None:
        super().__init__(grammar)
        self._capacity = capacity
        self._rows: dict[str, BitMap] = {}
        self._topics: TopicIndex[BitMap] = TopicIndex(grammar)
        #: A trie with the numbers of all patterns, for lookups of topics without a row.
        self._unknown: Trie[int] = Trie(grammar)
        #: Forgotten rows, with the index of their topics; to be freed.
        self._forgotten: list[tuple[dict[str, BitMap], TopicIndex[BitMap]]] = []

    def snapshot(self) -> Matcher[S]:
        copy: BitmapFixed[S] = BitmapFixed(self.grammar, self._capacity)
        for pattern, subscriber in self.subscriptions():
            copy.subscribe(pattern, subscriber)
        return Snapshot(copy)

    def can_hold(self, words: list[str]) -> bool:
        return True

    def enter(self, pattern: str, words: list[str], number: int) -> None:
        self._unknown.subscribe(pattern, number)
        for row in self._rows_of(pattern):
            row.add(number)

    def leave(self, pattern: str, words: list[str], number: int) -> None:
        self._unknown.unsubscribe(pattern, number)
        for row in self._rows_of(pattern):
            row.discard(number)

    def reset(self) -> None:
        self._forget()
        self._unknown.clear()

    def _rows_of(self, pattern: str) -> list[BitMap]:
        """Return the rows of the topics that the pattern matches.

        If finding them takes too long, forget all rows and return an empty list. Later
        lookups make new rows from the trie, so the caller must change the trie before this call.
        """
        rows = self._topics.within(pattern, VISITS_MAX)
        if rows is None:
            self._forget()
            return []
        self._free_rows(FREED_BY_SUBSCRIPTION)
        return rows

    def _forget(self) -> None:
        """Forget all rows. The memory of the first rows is freed now, of the others later."""
        self._forgotten.append((self._rows, self._topics))
        self._rows = {}
        self._topics = TopicIndex(self.grammar)
        self._free_rows(FREED_BY_SUBSCRIPTION)

    def _free_rows(self, most: int) -> None:
        """Free up to `most` forgotten rows. Freeing 65,536 rows in one call would take 75 ms."""
        while self._forgotten:
            rows, topics = self._forgotten[-1]
            while rows and most:
                topics.remove(rows.popitem()[0])
                most -= 1
            if rows:
                return
            self._forgotten.pop()

    def accepting(self, topic: str) -> Iterable[int] | None:
        row = self._rows.get(topic)
        if row is None:
            numbers = self._unknown.find(topic, False)
            if len(self._rows) >= self._capacity:
                return numbers or None
            self._free_rows(FREED_BY_ROW)
            row = self._rows[topic] = BitMap(numbers)
            self._topics.put(topic, row)
        return row if row else None

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index.

        `topics` is the number of topics with a row, and `forgotten` the number of rows that are
        still to be freed; together they are at most `capacity`.
        """
        sizes = super().stats()
        sizes["forgotten"] = sum(len(rows) for rows, _ in self._forgotten)
        sizes["topics"] = len(self._rows)
        sizes["capacity"] = self._capacity
        return sizes
