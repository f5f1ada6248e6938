"""The optimized inverted bitmap: for every word position, which patterns are content with which
word.

    patterns     0: stock.*    1: stock.nyse    2: stock.#    3: index

    position        0                    1
    words           stock {0 1 2}        nyse {1}
                    index {3}
    any                                  {0}
    end                                  {3}                and {0 1} at position 2
    rest                                 {2}

A lookup keeps the set of patterns that still agree. At each position those in `rest` (a ``#``
stands here: article 3's `topic and children`) are found, whatever follows; the others must name the
word or have `any` (a ``*``: its `immediate children`, the others' `other` row); when the topic is
over, those in `end` (the `null` row) are found. It stops as soon as nobody agrees. A topic longer
than the longest pattern is dropped before, unless some pattern has a ``#``. O(words x patterns /
64) a lookup, O(words) a subscription.

A pattern stands in no row behind its own end, which is why a lookup may stop at the first null.
Article 3 writes ``#`` into every later row as well, and ``*`` into the row of every word. That
saves a lookup one operation a position, but subscribing would cost as much as there are words and
as others are deep: among 100,000 patterns with ``#``, a single one of 30,000 levels would take 375
MB.

From articles 1, 3 and 4, which know no ``#`` elsewhere than at the end: such patterns stand in a
trie beside. A pattern's number is given again when the pattern is gone, so that the bitmaps stay
dense.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap

from matching.grammar import Grammar
from matching.matcher import S
from matching.numbered import Numbered


class _Position:
    """The rows of one position.

    A row that nobody stands in is None, and no word has an empty one.
    """

    __slots__ = ("any", "end", "rest", "words")

    def __init__(self) -> None:
        self.words: dict[str, BitMap] = {}
        self.any: BitMap | None = None
        self.end: BitMap | None = None
        self.rest: BitMap | None = None

    def rows(self) -> int:
        """How many rows there are."""
        return (
            len(self.words)
            + (self.any is not None)
            + (self.end is not None)
            + (self.rest is not None)
        )


class Bitmap(Numbered[S]):
    """Good for patterns of few words with much in common; needs the package pyroaring."""

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._positions: list[_Position] = []
        #: How many patterns stand in a `rest` row.
        self._open = 0

    def suits(self, words: list[str]) -> bool:
        return self.grammar.many not in words[:-1]

    def enter(self, pattern: str, words: list[str], number: int) -> None:
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
                self._open += 1
                return
            elif words[at] == grammar.one:
                position.any = _with(position.any, number)
            else:
                position.words[words[at]] = _with(position.words.get(words[at]), number)

    def leave(self, pattern: str, words: list[str], number: int) -> None:
        """Strike the pattern out of its rows, and drop the positions behind which nobody is left."""
        grammar = self.grammar
        positions = self._positions
        for at, position in enumerate(positions[: len(words) + 1]):
            if at == len(words):
                position.end = _without(position.end, number)
            elif words[at] == grammar.many:
                position.rest = _without(position.rest, number)
                self._open -= 1
                break
            elif words[at] == grammar.one:
                position.any = _without(position.any, number)
            else:
                row = _without(position.words[words[at]], number)
                if row is None:
                    del position.words[words[at]]
        while positions[-1].rows() == 0:
            positions.pop()

    def forget(self) -> None:
        self._positions = []
        self._open = 0

    def matches_any(self, topic: str) -> bool:
        if self._numbers and self._find(topic, True) is not None:
            return True
        return self._fallback.matches_any(topic)

    def agreeing(self, topic: str) -> Iterable[int] | None:
        return self._find(topic, False)

    def stats(self) -> dict[str, int]:
        """`rows` is the number of bitmaps, `positions` of the longest pattern's words and its end."""
        sizes = super().stats()
        sizes["positions"] = len(self._positions)
        sizes["rows"] = sum(position.rows() for position in self._positions)
        return sizes

    def _find(self, topic: str, enough: bool) -> BitMap | None:
        """The numbers of the patterns that match, None if there are none; some of them only, if
        that is enough.
        """
        positions = self._positions
        grammar = self.grammar
        words = grammar.split(topic)
        if len(words) >= len(positions) and not self._open:
            return None
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
            if enough and found is not None:
                return found
            position = positions[at]
            found = _either(found, _both(agreed, position.rest))
            if at == len(words):
                return _either(found, _both(agreed, position.end))
            agreed = _both(agreed, _either(position.words.get(words[at]), position.any))
            at += 1
        return found


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
