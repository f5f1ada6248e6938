"""The optimized inverted bitmap: for each word position and each word, the set of patterns that
accept the word there.

    patterns     0: stock.*    1: stock.nyse    2: stock.#    3: index

    position        0                    1
    words           stock {0 1 2}        nyse {1}
                    index {3}
    any                                  {0}
    end                                  {3}                and {0 1} at position 2
    rest                                 {2}

A lookup keeps the set of patterns that accept all words so far. At each position, the patterns in
`rest` (which have a ``#`` here) match, whatever words follow. The other patterns stay in the set if
they name the topic's word, or are in `any` because they have a ``*`` here. At the end of the topic,
the patterns in `end` match. The lookup stops when the set is empty. Article 3 calls the rows `topic
and children` (rest), `immediate children` (any) and `null` (end). A topic longer than the longest
pattern is rejected at once, unless some pattern has a ``#``.

Costs: O(words x patterns / 64) per lookup, O(words) per subscription; one bitmap per row. Choose
this matcher for patterns of few words that share many words. Needs the package pyroaring.

A pattern is in no row after its own end. Article 3 writes ``#`` into every later row and ``*`` into
the row of every word. These entries save one operation per position in lookups, but the cost of a
subscription then grows with the number of words and positions. For example, if 100,000 patterns
with ``#`` are present, one more pattern of 30,000 levels would take 375 MB.

A pattern with ``#`` before its last word is kept in a trie. The number of a removed pattern is
reused, so that the bitmaps stay dense. Source: articles 1, 3 and 4 (listed in `matching`), which
allow ``#`` only at the end of a pattern.
"""

from __future__ import annotations

from collections.abc import Iterable

from pyroaring import BitMap

from matching.grammar import Grammar
from matching.matcher import S
from matching.numbered import Numbered


class _BitmapRows:
    """The bitmaps for one word position of the patterns; each bitmap is a set of pattern numbers.

    `words` has the patterns with each literal word here, `any` the patterns with a ``*``, and
    `rest` the patterns with a ``#``. `end` has the patterns that end before this position. A bitmap
    without patterns is None, or missing from `words`.
    """

    __slots__ = ("any", "end", "rest", "words")

    def __init__(self) -> None:
        self.words: dict[str, BitMap] = {}
        self.any: BitMap | None = None
        self.end: BitMap | None = None
        self.rest: BitMap | None = None

    def rows(self) -> int:
        """Return the number of bitmaps that have at least one pattern."""
        return (
            len(self.words)
            + (self.any is not None)
            + (self.end is not None)
            + (self.rest is not None)
        )


class Bitmap(Numbered[S]):
    """A matcher that intersects bitmaps, for short patterns that share many words; needs the
    package pyroaring.
    """

    def __init__(self, grammar: Grammar) -> None:
        super().__init__(grammar)
        self._positions: list[_BitmapRows] = []
        #: The number of patterns in the `rest` rows of all positions.
        self._open = 0

    def can_hold(self, words: list[str]) -> bool:
        return self.grammar.many not in words[:-1]

    def enter(self, pattern: str, words: list[str], number: int) -> None:
        grammar = self.grammar
        positions = self._positions
        for at in range(len(words) + 1):
            if at == len(positions):
                positions.append(_BitmapRows())
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
        """Remove the pattern from its bitmaps; drop the last positions that have no bitmap left."""
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

    def reset(self) -> None:
        self._positions = []
        self._open = 0

    def matches_any(self, topic: str) -> bool:
        if self._numbers and self._find(topic, True) is not None:
            return True
        return self._fallback.matches_any(topic)

    def accepting(self, topic: str) -> Iterable[int] | None:
        return self._find(topic, False)

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index.

        `rows` is the number of bitmaps; `positions` is the number of words of the longest pattern,
        plus one.
        """
        sizes = super().stats()
        sizes["positions"] = len(self._positions)
        sizes["rows"] = sum(position.rows() for position in self._positions)
        return sizes

    def _find(self, topic: str, stop_at_first: bool) -> BitMap | None:
        """Return the numbers of all matching patterns, or None if no pattern matches.

        With `stop_at_first`, return at least one of the numbers.
        """
        positions = self._positions
        grammar = self.grammar
        words = grammar.split(topic)
        if len(words) >= len(positions) and not self._open:
            return None
        first = positions[0]
        if not words:
            return _either(first.end, first.rest)
        accepted = first.words.get(words[0])
        numbers: BitMap | None = None
        if not (grammar.hides and grammar.hidden(topic)):
            accepted = _either(accepted, first.any)
            numbers = first.rest
        at = 1
        while accepted is not None and at < len(positions):
            if stop_at_first and numbers is not None:
                return numbers
            position = positions[at]
            numbers = _either(numbers, _both(accepted, position.rest))
            if at == len(words):
                return _either(numbers, _both(accepted, position.end))
            accepted = _both(accepted, _either(position.words.get(words[at]), position.any))
            at += 1
        return numbers


def _both(accepted: BitMap, row: BitMap | None) -> BitMap | None:
    """Return the intersection of both sets, or None if it is empty."""
    if row is None:
        return None
    common = accepted & row
    return common if common else None


def _either(some: BitMap | None, others: BitMap | None) -> BitMap | None:
    """Return the union of both sets, or None if it is empty."""
    if some is None:
        return others
    return some if others is None else some | others


def _with(row: BitMap | None, number: int) -> BitMap:
    """Return the row with the pattern added; an existing row is changed in place."""
    if row is None:
        return BitMap([number])
    row.add(number)
    return row


def _without(row: BitMap | None, number: int) -> BitMap | None:
    """Remove the pattern from the row in place, and return the row; None if it is then empty."""
    if row is None or len(row) == 1:
        return None
    row.discard(number)
    return row
