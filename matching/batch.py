"""Many topics at once against many patterns: the tables of `shapes`, asked a column at a time.

    topics  a.b.c  a.x.c      words  a=1 b=2 c=3, all others 0      rows  1 2 3
                                                                          1 0 3
    patterns of the shape  word * word:   a.*.c  ->  1 3  ->  mixed into one integer, all of them sorted

For topics of one length and patterns of one shape, the columns that are literal are mixed into one
integer a topic and looked up among those of the patterns by binary search; then the words
themselves are compared, so that a meeting of two integers is never a match. That is some twenty
calls of numpy for each pair of length and shape, however many topics and patterns there are.
Patterns with two or more ``#`` are asked for in a trie, topic by topic.

Without numpy the same answers come from `Shapes`, topic by topic.

Whoever has counted messages needs every topic only once: ask with the distinct ones.
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
    # By name: what compiles this has no numpy to read the types of.
    numpy: Any = import_module("numpy")
except ImportError:  # pragma: no cover - the tests' environment has it
    numpy = None

#: So many topics are worked on together; their words fit in the processor's cache.
_TOGETHER: Final = 16_384


class Pairs(NamedTuple):
    """Which topic matched which pattern: two columns of 64-bit integers, by ascending topic, then
    pattern.

    Both can be handed to numpy (`frombuffer`) and Arrow (`py_buffer`) as they are.
    """

    topics: array[int]
    patterns: array[int]


class Batch:
    """Patterns that are known by their number, from 0 on in the order given; the same one may come
    again.
    """

    def __init__(
        self,
        patterns: Iterable[str],
        grammar: Grammar = DEFAULT,
        vectorised: bool = numpy is not None,
    ) -> None:
        """Raises InvalidPattern. `vectorised` needs numpy."""
        self._grammar: Final = grammar
        self._vectorised: Final = vectorised
        #: All patterns, or with numpy those that have no shape.
        self._plain: Shapes[int] = Shapes(grammar)
        self._fallback: Trie[int] = Trie(grammar)
        self._words: dict[str, int] = {}
        self._count = 0
        self._exact: dict[int, list[_Columns]] = {}
        self._open: list[_Columns] = []
        if vectorised:
            self._arrange(patterns)
        else:
            for number, pattern in enumerate(patterns):
                self._plain.subscribe(pattern, number)

    def match(self, topics: Sequence[str]) -> Pairs:
        """Every pair of a topic, by its index here, and a pattern that matches it."""
        found = Pairs(array("q"), array("q"))
        if self._vectorised:
            for start in range(0, len(topics), _TOGETHER):
                self._search(topics[start : start + _TOGETHER], start, found)
        else:
            for at, topic in enumerate(topics):
                numbers = sorted(self._plain.match(topic))
                found.topics.extend(repeat(at, len(numbers)))
                found.patterns.extend(numbers)
        return found

    def _arrange(self, patterns: Iterable[str]) -> None:
        """Number the words, and put the patterns of each shape in columns."""
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
            columns = _Columns(form, numbers, rows)
            if form[1] < 0:
                self._exact.setdefault(columns.least, []).append(columns)
            else:
                self._open.append(columns)

    def _search(self, topics: Sequence[str], start: int, found: Pairs) -> None:
        """Append the pairs of these topics, the first of which has the index `start`."""
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
            aside = [
                (at, number)
                for at, topic in enumerate(topics)
                for number in self._fallback.match(topic)
            ]
            parts.append(numpy.array(aside, numpy.int64).reshape(-1, 2).T)
        if parts:
            pairs = numpy.concatenate(parts, axis=1)
            count = self._count
            at, number = numpy.divmod(numpy.sort(pairs[0] * count + pairs[1]), count)
            found.topics.frombytes((at + start).tobytes())
            found.patterns.frombytes(number.tobytes())


class _Columns:
    """The patterns of one shape: by ascending mixture of their words' numbers."""

    def __init__(self, form: Form, numbers: list[int], rows: list[list[int]]) -> None:
        shape: Shape[int] = Shape(form)
        self.least: Final = shape.least
        self._rooted: Final = shape.rooted
        self._marks: Final = list(form[2:])
        words = numpy.array(rows, numpy.uint64).reshape(len(rows), -1).T
        # Odd numbers that have no bits in common: Weyl's sequence of the golden ratio, as in
        # splitmix64.
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
        """Two rows, of topics and of the patterns that match them.

        `words` has for each position the words' numbers of the topics `rows`; `seen` says of every
        topic whether wildcards see it.
        """
        columns = [words[mark] for mark in self._marks]
        may = numpy.ones(len(rows), bool) if self._rooted else seen[rows]
        for column in columns:
            may &= column > 0
        columns = [column[may] for column in columns]
        rows = rows[may]
        mixed = self._mix(columns, len(rows))
        first = numpy.searchsorted(self._mixed, mixed)
        found = self._mixed[numpy.minimum(first, len(self._mixed) - 1)] == mixed
        columns = [column[found] for column in columns]
        rows, mixed, first = rows[found], mixed[found], first[found]
        counts = numpy.searchsorted(self._mixed, mixed, "right") - first
        which = numpy.repeat(numpy.arange(len(rows)), counts)
        # For every topic the places from its first on, one after the other.
        places = numpy.arange(len(which)) - numpy.repeat(counts.cumsum() - counts - first, counts)
        right = numpy.ones(len(which), bool)
        for column, own in zip(columns, self._words, strict=True):
            right &= column[which] == own[places]
        return numpy.stack((rows[which[right]], self._numbers[places[right]]))


def matches(pattern: str, topics: Iterable[str], grammar: Grammar = DEFAULT) -> list[bool]:
    """For each topic whether the pattern matches it. Raises InvalidPattern."""
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
