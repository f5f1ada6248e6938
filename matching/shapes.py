"""Tuple space search: patterns of one shape stand in one table, and a lookup asks each table once.

    stock.nyse.*     shape  word word *      {(stock, nyse): x}
    stock.*.ibm      shape  word * word      {(stock, ibm): y}
    stock.#          shape  word #           {stock: z}
    stock.#.ibm      shape  word # word      {(stock, ibm): u}       the first word and the last one

A shape says which positions hold a literal word, counted from the left, behind a ``#`` from the
right. The literal words are the key. A topic of n words picks its own words from these positions,
for all shapes of exactly n words and for those with a ``#`` and at most n others: one probe a
shape, however many patterns there are. People write few shapes (about 40 in a million filters), so
a lookup costs what it costs with a hundred patterns, and a pattern costs a key and a place in a
dict.

A pattern with two or more ``#`` has words that float between them and no place to count from; such
patterns stand in a trie beside, and so do those of further shapes when a topic would have to ask
more than `limit` tables.

Our own application of tuple space search (Srinivasan, Suri and Varghese, SIGCOMM 1999), which
classifies packets. A lookup is O(shapes x words), a subscription O(words).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final, Generic, TypeAlias

from matching.bucket import Bucket, PairCounts, holds, members, size, with_added, without
from matching.grammar import Grammar
from matching.matcher import Matcher, S
from matching.trie import LONGEST_POOLED, Trie

#: A shape in the smallest words: how many there are, where the `#` is (or -1), then the positions
#: of literal ones.
Form: TypeAlias = tuple[int, ...]
#: The literal words: one bare, several in a tuple.
Key: TypeAlias = object
#: What makes the key of a topic from its words, and what gives the bucket of a key.
Probe: TypeAlias = tuple[Callable[[list[str]], Key], Callable[[Key], Bucket[S]]]

#: A dict that grows moves all it holds at once, for 42 ms at 700,000 patterns. So one of 8,192 is
#: divided into 256, which takes 2 ms.
_LARGE: Final = 8_192
_PARTS: Final = 256
#: A dict looks at the low bits of a hash first. Keys that share these would meet in every part, so
#: others choose it.
_SHIFT: Final = 32
#: Of so many lengths of topics it is remembered which tables they ask.
_PLANS: Final = 256
#: A form of more words is none of ours: a key that long costs every topic of that length its own
#: length again.
_LITERALS: Final = 2 + 128
#: How many different words, if they are short, are held only once, whatever number of patterns they
#: stand in.
_POOLED: Final = 65_536


class Shape(Generic[S]):
    """The patterns of one shape. No key is there without subscribers."""

    __slots__ = ("form", "least", "parts", "pick", "rooted", "table")

    def __init__(self, form: Form) -> None:
        self.form: Final = form
        marks = form[2:]
        #: As many words a topic has at least, or exactly when there is no ``#``.
        self.least: Final = form[0] - (form[1] >= 0)
        #: Whether the first word is literal.
        self.rooted: Final = bool(marks) and marks[0] == 0
        #: The key of a topic, or of a pattern of this shape, from its words.
        self.pick: Final[Callable[[list[str]], Key]] = itemgetter(*marks) if marks else _nothing
        self.table: dict[Key, Bucket[S]] = {}
        self.parts: list[dict[Key, Bucket[S]]] | None = None

    def place(self, key: Key) -> dict[Key, Bucket[S]]:
        """The dict in which the key is, if it is anywhere."""
        parts = self.parts
        return self.table if parts is None else parts[hash(key) >> _SHIFT & _PARTS - 1]

    def get(self, key: Key) -> Bucket[S]:
        """The key's bucket."""
        return self.place(key).get(key)

    def put(self, key: Key, bucket: Bucket[S]) -> bool:
        """Store a new key; whether the table was divided then, so that a `probe` from before is
        wrong now.
        """
        self.place(key)[key] = bucket
        if len(self.table) <= _LARGE:
            return False
        self._divide()
        return True

    def probe(self) -> Probe[S]:
        """How to ask the shape, at the least cost."""
        return (self.pick, self.table.get if self.parts is None else self.get)

    def tables(self) -> list[dict[Key, Bucket[S]]]:
        """All dicts of the shape."""
        return [self.table] if self.parts is None else self.parts

    def empty(self) -> bool:
        """Whether no pattern is left."""
        return not any(self.tables())

    def _divide(self) -> None:
        parts: list[dict[Key, Bucket[S]]] = [{} for _ in range(_PARTS)]
        for key, bucket in self.table.items():
            parts[hash(key) >> _SHIFT & _PARTS - 1][key] = bucket
        self.parts = parts
        self.table = {}


class Shapes(Matcher[S]):
    """Good where patterns are many and of few shapes: the smallest of all, and the fastest that is
    not compiled.
    """

    def __init__(self, grammar: Grammar, limit: int = 512) -> None:
        """No topic asks more than `limit` tables."""
        super().__init__(grammar)
        self._limit: Final = limit
        self._start()

    def _start(self) -> None:
        self._forms: dict[Form, Shape[S]] = {}
        #: Without ``#`` by the number of words, and with ``#``.
        self._exact: dict[int, list[Shape[S]]] = {}
        self._open: list[Shape[S]] = []
        #: What topics of a length ask; by the length's complement what hidden ones do.
        self._plans: dict[int, list[Probe[S]]] = {}
        self._pool: dict[str, str] = {}
        self._pairs = 0
        self._patterns = 0
        self._tally: PairCounts[S] = PairCounts()
        self._fallback: Trie[S] = Trie(self.grammar, self._tally)

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # what cannot be hashed is refused before anything changes
        grammar = self.grammar
        grammar.check(pattern)
        words = grammar.split(pattern)
        form = form_of(words, grammar)
        if form is None:
            return self._fallback.enter(words, subscriber)
        shape = self._forms.get(form)
        if shape is not None:
            key = shape.pick(words)
            table = shape.place(key)
            bucket = table.get(key)
            if bucket is not None:
                if holds(bucket, subscriber):
                    return False
                self._tally.add(subscriber)
                table[key] = with_added(bucket, subscriber)
                self._pairs += 1
                return True
        if (len(self._fallback) and self._fallback.knows(pattern)) or not self._takes(form):
            return self._fallback.enter(words, subscriber)
        self._tally.add(subscriber)
        self._restore(form, words, with_added(None, subscriber))
        return True

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        words = self.grammar.split(pattern)
        shape = self._shape_of(words)
        if shape is not None:
            key = shape.pick(words)
            table = shape.place(key)
            bucket = table.get(key)
            if bucket is not None:
                if not holds(bucket, subscriber):
                    return False
                self._tally.remove(subscriber)
                self._pairs -= 1
                bucket = without(bucket, subscriber)
                if bucket is not None:
                    table[key] = bucket
                else:
                    del table[key]
                    self._patterns -= 1
                    if not table and shape.empty():
                        self._forget(shape)
                return True
        return self._fallback.unsubscribe(pattern, subscriber)

    def match(self, topic: str) -> list[S]:
        if not self._forms:
            found = self._fallback.find(topic, False)
            return self._tally.distinct(found) if self._tally.shared else found
        found = []
        grammar = self.grammar
        words = topic.split(grammar.separator) if topic else grammar.split(topic)
        length = len(words)
        if grammar.hides and grammar.hidden(topic):
            length = ~length
        plan = self._plans.get(length)
        if plan is None:
            plan = self._plan(length)
        for pick, get in plan:
            bucket = get(pick(words))
            if bucket is not None:
                if isinstance(bucket, (list, dict)):
                    found.extend(bucket)
                else:
                    found.append(bucket)
        if len(self._fallback):
            found += self._fallback.find(topic, False)
        return self._tally.distinct(found) if self._tally.shared else found

    def matches_any(self, topic: str) -> bool:
        grammar = self.grammar
        words = grammar.split(topic)
        for pick, get in self._plan(~len(words) if grammar.hidden(topic) else len(words)):
            if get(pick(words)) is not None:
                return True
        return self._fallback.matches_any(topic)

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        for shape in self._forms.values():
            for table in shape.tables():
                for key, bucket in table.items():
                    pattern = self.grammar.separator.join(_words(shape.form, key, self.grammar))
                    for subscriber in members(bucket):
                        yield pattern, subscriber
        yield from self._fallback.subscriptions()

    def clear(self) -> None:
        self._start()

    def stats(self) -> dict[str, int]:
        """`aside` is the number of subscriptions in the trie beside, `shared` as for the trie."""
        aside = self._fallback.stats()
        return {
            "subscriptions": len(self),
            "patterns": self._patterns + aside["patterns"],
            "shapes": len(self._forms),
            "aside": aside["subscriptions"],
            "nodes": aside["nodes"],
            "shared": self._tally.shared,
        }

    def __len__(self) -> int:
        return self._pairs + len(self._fallback)

    def __contains__(self, pair: tuple[str, S]) -> bool:
        pattern, subscriber = pair
        words = self.grammar.split(pattern)
        shape = self._shape_of(words)
        if shape is not None:
            key = shape.pick(words)
            bucket = shape.place(key).get(key)
            if bucket is not None:
                return holds(bucket, subscriber)
        return pair in self._fallback

    def _plan(self, length: int) -> list[Probe[S]]:
        """What topics of this length ask; given its complement, what hidden ones do."""
        plan = self._plans.get(length)
        if plan is None:
            hidden = length < 0
            count = ~length if hidden else length
            asked = [
                shape for shape in self._exact.get(count, []) + self._open if shape.least <= count
            ]
            plan = [shape.probe() for shape in asked if shape.rooted or not hidden]
            if len(self._plans) < _PLANS:
                self._plans[length] = plan
        return plan

    def _takes(self, form: Form) -> bool:
        """Whether a new pattern of this form may go into a table."""
        return form in self._forms or (len(form) <= _LITERALS and self._room(form))

    def _room(self, form: Form) -> bool:
        """Whether there may be a table more, of this form."""
        if form[1] < 0:
            return len(self._exact.get(form[0], ())) + len(self._open) < self._limit
        return max(map(len, self._exact.values()), default=0) + len(self._open) < self._limit

    def _restore(self, form: Form, words: list[str], bucket: Bucket[S]) -> None:
        """Put in a new pattern with its subscribers, whom the tally knows."""
        shape = self._forms.get(form)
        if shape is None:
            shape = self._forms[form] = Shape(form)
            if form[1] < 0:
                self._exact.setdefault(shape.least, []).append(shape)
            else:
                self._open.append(shape)
            self._plans = {}
        if shape.put(shape.pick([self._pooled(word) for word in words]), bucket):
            self._plans = {}
        self._patterns += 1
        self._pairs += size(bucket)

    def _pop(self) -> tuple[list[str], Bucket[S]] | None:
        """Take out one pattern, whichever is near, as its words and all its subscribers; None if no
        table has one.
        """
        if not self._forms:
            return None
        shape = next(reversed(self._forms.values()))
        table = next(table for table in shape.tables() if table)
        key, bucket = table.popitem()
        self._patterns -= 1
        self._pairs -= size(bucket)
        if not table and shape.empty():
            self._forget(shape)
        return _words(shape.form, key, self.grammar), bucket

    def _forget(self, shape: Shape[S]) -> None:
        """Drop a shape that has no pattern left, and with the last shape the pooled words."""
        self._plans = {}
        del self._forms[shape.form]
        if shape.form[1] >= 0:
            self._open.remove(shape)
        else:
            same = self._exact[shape.least]
            same.remove(shape)
            if not same:
                del self._exact[shape.least]
        if not self._forms:
            self._pool = {}

    def _shape_of(self, words: list[str]) -> Shape[S] | None:
        """The shape of a pattern, if another pattern has it already."""
        form = form_of(words, self.grammar)
        return None if form is None else self._forms.get(form)

    def _pooled(self, word: str) -> str:
        """An equal word that is there already, while there are not too many."""
        known = self._pool.get(word)
        if known is None:
            if len(self._pool) < _POOLED and len(word) <= LONGEST_POOLED:
                self._pool[word] = word
            return word
        return known


def form_of(words: list[str], grammar: Grammar) -> Form | None:
    """The form of a pattern, None if it has several ``#``."""
    one = grammar.one
    many = grammar.many
    length = len(words)
    place = -1
    form = [length, -1]
    for at, word in enumerate(words):
        if word == one:
            continue
        if word == many:
            if place >= 0:
                return None
            place = form[1] = at
        else:
            form.append(at if place < 0 else at - length)
    return tuple(form)


def _words(form: Form, key: Key, grammar: Grammar) -> list[str]:
    """The words of the pattern with this form and these literal words."""
    words = [grammar.one] * form[0]
    if form[1] >= 0:
        words[form[1]] = grammar.many
    literal = key if isinstance(key, tuple) else (key,)
    for at, word in zip(form[2:], literal, strict=True):
        words[at] = word
    return words


def _nothing(words: list[str]) -> Key:
    """The key of a pattern without literal words."""
    return ()
