"""Matches many topics at once against a fixed set of patterns, with the tables of `shapes`.

    word numbers                       a = 1, b = 2, c = 3; every other word of a topic = 0
    topics a.b.c, a.x.c                rows 1 2 3 and 1 0 3
    pattern a.*.c (shape word * word)  columns 0 and 2 hold 1 3, combined into one integer

Every word of the patterns has a number, so a topic is a row of numbers. Patterns with wildcards at
the same positions have the same shape. Take the topics of one length and the patterns of one shape.
At the positions of literal words, the numbers of each topic are combined into one integer, and so
are the numbers of each pattern. The patterns are sorted by this integer, and a binary search finds
the integer of each topic among them. Different words may give equal integers, so the words of each
candidate are compared as well.

The search takes some twenty numpy calls for each pair of a topic length and a shape, whatever the
number of topics and patterns. Patterns with two or more ``#`` are matched in a trie, topic by
topic. Without numpy, `Shapes` gives the same answers topic by topic.

Use this module for the topics of stored messages, not for messages that arrive one by one; pass
each distinct topic once. Own design, after tuple space search (see `shapes`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from importlib import import_module
from itertools import chain, repeat
from typing import Any, Final, NamedTuple

from matching.grammar import DEFAULT, Grammar
from matching.shapes import Form, Shape, Shapes, form_of
from matching.trie import Trie

try:
    # Imported by name: numpy is not installed where this module is compiled, so its types are
    # unknown.
    numpy: Any = import_module("numpy")
except ImportError:  # pragma: no cover - the tests' environment has numpy
    numpy = None

#: The number of topics processed together, so that their words fit in the processor's cache.
_TOGETHER: Final = 16_384


class Pairs(NamedTuple):
    """The matches of a batch: the topic `topics[n]` is matched by the pattern `patterns[n]`.

    Topics are given by index, patterns by number, both as 64-bit integers. The matches are sorted
    by topic, then by pattern. Both columns can be passed to numpy (`frombuffer`) and Arrow
    (`py_buffer`) without a copy.
    """

    topics: array[int]
    patterns: array[int]


class Batch:
    """A fixed set of patterns, numbered from 0 in the order in which they were passed. A pattern
    may occur several times.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        grammar: Grammar = DEFAULT,
        vectorised: bool = numpy is not None,
    ) -> None:
        """Index the patterns. Raises InvalidPattern if a pattern is invalid.

        `vectorised=True` needs numpy; with False, the topics are matched one by one in `Shapes`.
        """
        self._grammar: Final = grammar
        self._vectorised: Final = vectorised
        #: A matcher with all patterns if `vectorised` is False, otherwise empty.
        self._plain: Shapes[int] = Shapes(grammar)
        self._fallback: Trie[int] = Trie(grammar)
        self._words: dict[str, int] = {}
        self._count = 0
        self._exact: dict[int, list[_ShapeColumns]] = {}
        self._open: list[_ShapeColumns] = []
        if vectorised:
            self._arrange(patterns)
        else:
            for number, pattern in enumerate(patterns):
                self._plain.subscribe(pattern, number)

    def match(self, topics: Sequence[str]) -> Pairs:
        """Return every pair of a topic (its index in `topics`) and a matching pattern (its
        number).
        """
        pairs = Pairs(array("q"), array("q"))
        if self._vectorised:
            for start in range(0, len(topics), _TOGETHER):
                self._search(topics[start : start + _TOGETHER], start, pairs)
        else:
            for at, topic in enumerate(topics):
                numbers = sorted(self._plain.match(topic))
                pairs.topics.extend(repeat(at, len(numbers)))
                pairs.patterns.extend(numbers)
        return pairs

    def _arrange(self, patterns: Iterable[str]) -> None:
        """Give each literal word of the patterns a number, and store the patterns of each shape in
        columns.
        """
        grammar = self._grammar
        known = self._words
        forms: dict[Form, tuple[list[int], list[list[int]]]] = {}
        number = 0
        for number, pattern in enumerate(patterns):
            grammar.check(pattern)
            words = grammar.split(pattern)
            form = form_of(words, grammar)
            if form is None:
                self._fallback.enter(words, number)
                continue
            numbers, rows = forms.setdefault(form, ([], []))
            numbers.append(number)
            rows.append([known.setdefault(words[at], len(known) + 1) for at in form[2:]])
        self._count = number + 1
        for form, (numbers, rows) in forms.items():
            columns = _ShapeColumns(form, numbers, rows)
            if form[1] < 0:
                self._exact.setdefault(columns.least, []).append(columns)
            else:
                self._open.append(columns)

    def _search(self, topics: Sequence[str], start: int, pairs: Pairs) -> None:
        """Append the matches of these topics to `pairs`; the first topic has the index `start`."""
        grammar = self._grammar
        separator = grammar.separator
        nothing = grammar.split("")
        split = [topic.split(separator) if topic else nothing for topic in topics]
        lengths = numpy.fromiter(map(len, split), numpy.int64, len(split))
        ids = numpy.fromiter(
            map(self._words.get, chain.from_iterable(split), repeat(0)),
            numpy.uint64,
            int(lengths.sum()),
        )
        begins = lengths.cumsum() - lengths
        seen = numpy.ones(len(split), bool)
        if grammar.hides:
            seen = ~numpy.fromiter(map(grammar.hidden, topics), bool, len(split))
        parts = []
        for length in numpy.unique(lengths).tolist():
            rows = numpy.nonzero(lengths == length)[0]
            words = [ids[begins[rows] + at] for at in range(length)]
            for columns in self._exact.get(length, []) + self._open:
                if columns.least <= length:
                    parts.append(columns.search(words, rows, seen))
        if len(self._fallback):
            fallback = [
                (at, number)
                for at, topic in enumerate(topics)
                for number in self._fallback.match(topic)
            ]
            parts.append(numpy.array(fallback, numpy.int64).reshape(-1, 2).T)
        if parts:
            joined = numpy.concatenate(parts, axis=1)
            count = self._count
            at, number = numpy.divmod(numpy.sort(joined[0] * count + joined[1]), count)
            pairs.topics.frombytes((at + start).tobytes())
            pairs.patterns.frombytes(number.tobytes())


class _ShapeColumns:
    """The patterns of one shape: of one length, with wildcards at the same positions.

    Every word has a number. The numbers of a pattern's words are mixed into one integer, and the
    patterns are sorted by this integer, so that a binary search finds them.
    """

    def __init__(self, form: Form, numbers: list[int], rows: list[list[int]]) -> None:
        shape: Shape[int] = Shape(form)
        self.least: Final = shape.least
        self._rooted: Final = shape.rooted
        self._marks: Final = list(form[2:])
        words = numpy.array(rows, numpy.uint64).reshape(len(rows), -1).T
        # Odd factors with unrelated bits: Weyl's sequence of the golden ratio, as in splitmix64.
        self._factors: Final = [
            (at + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1 | 1 for at in range(len(self._marks))
        ]
        mixed = self._mix(list(words), len(rows))
        order = mixed.argsort(kind="stable")
        self._mixed: Final = mixed[order]
        self._words: Final = [column[order] for column in words]
        self._numbers: Final = numpy.array(numbers, numpy.int64)[order]

    def _mix(self, words: list[Any], count: int) -> Any:
        mixed = numpy.zeros(count, numpy.uint64)
        for column, factor in zip(words, self._factors, strict=True):
            mixed += column * numpy.uint64(factor)
        return mixed

    def search(self, words: list[Any], rows: Any, seen: Any) -> Any:
        """Return the matches as an array of two rows: the topic numbers, and the numbers of the
        patterns that match these topics.

        `rows` has the topic numbers of the topics to search. `words[n]` has the numbers of their
        words at position n. `seen` has, for each topic number, True if patterns with a leading
        wildcard may match that topic.
        """
        columns = [words[mark] for mark in self._marks]
        may = numpy.ones(len(rows), bool) if self._rooted else seen[rows]
        for column in columns:
            may &= column > 0
        columns = [column[may] for column in columns]
        rows = rows[may]
        mixed = self._mix(columns, len(rows))
        first = numpy.searchsorted(self._mixed, mixed)
        present = self._mixed[numpy.minimum(first, len(self._mixed) - 1)] == mixed
        columns = [column[present] for column in columns]
        rows, mixed, first = rows[present], mixed[present], first[present]
        counts = numpy.searchsorted(self._mixed, mixed, "right") - first
        which = numpy.repeat(numpy.arange(len(rows)), counts)
        # Candidates of a topic have consecutive indexes from `first` on. For each pair of a topic
        # and a candidate, `places` has the candidate's index.
        places = numpy.arange(len(which)) - numpy.repeat(counts.cumsum() - counts - first, counts)
        right = numpy.ones(len(which), bool)
        for column, own in zip(columns, self._words, strict=True):
            right &= column[which] == own[places]
        return numpy.stack((rows[which[right]], self._numbers[places[right]]))


def matches(pattern: str, topics: Iterable[str], grammar: Grammar = DEFAULT) -> list[bool]:
    """Return a boolean for each topic, in order: True if the pattern matches the topic.

    Raises InvalidPattern.
    """
    grammar.check(pattern)
    words = grammar.split(pattern)
    form = form_of(words, grammar)
    if form is None:
        trie: Trie[int] = Trie(grammar)
        trie.enter(words, 0)
        return [trie.matches_any(topic) for topic in topics]
    shape: Shape[int] = Shape(form)
    key = shape.pick(words)
    answers: list[bool] = []
    for topic in topics:
        words = grammar.split(topic)
        fits = len(words) == shape.least if form[1] < 0 else len(words) >= shape.least
        seen = shape.rooted or not grammar.hidden(topic)
        answers.append(fits and seen and shape.pick(words) == key)
    return answers
