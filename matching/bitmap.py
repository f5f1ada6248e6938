"""The optimized inverted bitmap: for every word position, which patterns are content with which word.

    patterns     0: stock.*    1: stock.nyse    2: stock.#    3: index

    position        0                    1
    words           stock {0 1 2}        nyse {1}
                    index {3}
    any                                  {0}
    end                                  {3}                and {0 1} at position 2
    rest                                 {2}

A lookup keeps the set of patterns that still agree. At each position those in `rest` (a ``#`` stands here) are
found, whatever follows; the others must name the word or have `any` (a ``*``); when the topic is over, those in
`end` (the articles' null row) are found. It stops as soon as nobody agrees, so also behind the longest pattern.
Because a pattern stands in no row behind its own end, subscribing touches one row a word and no more,
however deep other patterns are.

From articles 1, 3 and 4, which know no ``#`` elsewhere than at the end: such patterns stand in a trie beside.
A pattern's number is given again when the pattern is gone, so that the bitmaps stay dense.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyroaring import BitMap

from matching.bucket import Bucket, Tally, holds, joined, members, parted, take
from matching.grammar import Grammar
from matching.matcher import Matcher, S
from matching.trie import Trie


class _Position:
    """The rows of one position. A row that nobody stands in is None, and no word has an empty one."""

    __slots__ = ("any", "end", "rest", "words")

    def __init__(self) -> None:
        self.words: dict[str, BitMap] = {}
        self.any: BitMap | None = None
        self.end: BitMap | None = None
        self.rest: BitMap | None = None

    def rows(self) -> int:
        """How many rows there are."""
        return len(self.words) + (self.any is not None) + (self.end is not None) + (self.rest is not None)


class Bitmap(Matcher[S]):
    """Good for patterns of few words with much in common; needs the package pyroaring."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._positions: list[_Position] = []
        self._numbers: dict[str, int] = {}
        self._buckets: list[Bucket[S]] = []
        self._free: list[int] = []
        self._aside: Trie[S] = Trie(grammar)
        self._tally: Tally[S] = Tally()
        self._pairs = 0

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # what cannot be hashed is refused before anything changes
        grammar = self.grammar
        grammar.check(pattern)
        words = grammar.split(pattern)
        if grammar.many in words[:-1]:
            if not self._aside.subscribe(pattern, subscriber):
                return False
            self._tally.add(subscriber)
            return True
        number = self._numbers.get(pattern)
        if number is not None and holds(self._buckets[number], subscriber):
            return False
        self._tally.add(subscriber)
        if number is None:
            number = self._number(pattern)
            self._enter(words, number)
        self._buckets[number] = joined(self._buckets[number], subscriber)
        self._pairs += 1
        return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        number = self._numbers.get(pattern)
        if number is None:
            if not self._aside.unsubscribe(pattern, subscriber):
                return False
        elif not holds(self._buckets[number], subscriber):
            return False
        else:
            self._buckets[number] = parted(self._buckets[number], subscriber)
            self._pairs -= 1
            if self._buckets[number] is None:
                del self._numbers[pattern]
                self._free.append(number)
                self._leave(self.grammar.split(pattern), number)
        self._tally.remove(subscriber)
        return True

    def match(self, topic: str) -> list[S]:
        found: list[S] = []
        numbers = self._agreeing(topic)
        if numbers is not None:
            buckets = self._buckets
            for number in numbers:
                take(buckets[number], found)
        if len(self._aside):
            found += self._aside.reach(topic, False)
        return self._tally.distinct(found) if self._tally.shared else found

    def matches_any(self, topic: str) -> bool:
        return self._agreeing(topic) is not None or self._aside.matches_any(topic)

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        for pattern, number in self._numbers.items():
            for subscriber in members(self._buckets[number]):
                yield pattern, subscriber
        yield from self._aside.subscriptions()

    def clear(self) -> None:
        self._positions = []
        self._numbers = {}
        self._buckets = []
        self._free = []
        self._aside.clear()
        self._tally = Tally()
        self._pairs = 0

    def stats(self) -> dict[str, int]:
        """`aside` is the number of subscriptions whose pattern the bitmaps cannot hold, `shared` as for the trie."""
        aside = self._aside.stats()
        return {
            "subscriptions": len(self),
            "patterns": len(self._numbers) + aside["patterns"],
            "positions": len(self._positions),
            "rows": sum(position.rows() for position in self._positions),
            "free": len(self._free),
            "aside": aside["subscriptions"],
            "shared": self._tally.shared,
        }

    def __len__(self) -> int:
        return self._pairs + len(self._aside)

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        number = self._numbers.get(pattern)
        return holds(self._buckets[number], subscriber) if number is not None else pair in self._aside

    def _agreeing(self, topic: str) -> BitMap | None:
        """The numbers of the patterns that match, None if there are none."""
        positions = self._positions
        if not positions:
            return None
        grammar = self.grammar
        words = grammar.split(topic)
        first = positions[0]
        if not words:
            return _either(first.end, first.rest)
        agreed = first.words.get(words[0])
        found: BitMap | None = None
        if not (grammar.hides and grammar.hidden(topic)):
            agreed = _either(agreed, first.any)
            found = first.rest
        at = 1
        while agreed is not None and at < len(positions):
            position = positions[at]
            found = _either(found, _both(agreed, position.rest))
            if at == len(words):
                return _either(found, _both(agreed, position.end))
            agreed = _both(agreed, _either(position.words.get(words[at]), position.any))
            at += 1
        return found

    def _number(self, pattern: str) -> int:
        if self._free:
            number = self._free.pop()
        else:
            number = len(self._buckets)
            self._buckets.append(None)
        self._numbers[pattern] = number
        return number

    def _enter(self, words: list[str], number: int) -> None:
        """Write a pattern into its rows."""
        grammar = self.grammar
        positions = self._positions
        for at in range(len(words) + 1):
            if at == len(positions):
                positions.append(_Position())
            position = positions[at]
            if at == len(words):
                position.end = _with(position.end, number)
            elif words[at] == grammar.many:
                position.rest = _with(position.rest, number)
                return
            elif words[at] == grammar.one:
                position.any = _with(position.any, number)
            else:
                position.words[words[at]] = _with(position.words.get(words[at]), number)

    def _leave(self, words: list[str], number: int) -> None:
        """Strike a pattern out of its rows, and drop the positions behind which nobody is left."""
        grammar = self.grammar
        positions = self._positions
        for at, position in enumerate(positions[: len(words) + 1]):
            if at == len(words):
                position.end = _without(position.end, number)
            elif words[at] == grammar.many:
                position.rest = _without(position.rest, number)
                break
            elif words[at] == grammar.one:
                position.any = _without(position.any, number)
            else:
                row = _without(position.words[words[at]], number)
                if row is None:
                    del position.words[words[at]]
        while positions and positions[-1].rows() == 0:
            positions.pop()


def _both(agreed: BitMap, row: BitMap | None) -> BitMap | None:
    """Those in both, None if nobody is."""
    if row is None:
        return None
    common = agreed & row
    return common if common else None


def _either(some: BitMap | None, others: BitMap | None) -> BitMap | None:
    """Those in either, None if nobody is."""
    if some is None:
        return others
    return some if others is None else some | others


def _with(row: BitMap | None, number: int) -> BitMap:
    """The row with a pattern, changed in place once it is there."""
    if row is None:
        return BitMap([number])
    row.add(number)
    return row


def _without(row: BitMap | None, number: int) -> BitMap | None:
    """The row without a pattern, changed in place, None if nobody is left."""
    if row is None or len(row) == 1:
        return None
    row.discard(number)
    return row
