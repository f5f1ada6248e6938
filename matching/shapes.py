"""Tuple space search: one hash table for all patterns with wildcards at the same positions.

    stock.nyse.*     shape  word word *      {(stock, nyse): x}
    stock.*.ibm      shape  word * word      {(stock, ibm): y}
    stock.#          shape  word #           {stock: z}
    stock.#.ibm      shape  word # word      {(stock, ibm): u}       the first word and the last one

A shape is the list of positions of literal words. Positions are counted from the left, and after a
``#`` from the right. The key of a pattern is its literal words. A lookup takes the topic's words at
the positions of each shape and probes the shape's table once, whatever the number of patterns in
the table. Shapes without ``#`` apply only to topics of their length. Real sets of patterns have few
shapes (about 40 in a million filters), so a lookup does not slow down with the number of patterns.

A pattern with two or more ``#`` has words without a fixed position. Such patterns are in a fallback
trie. A pattern of a new shape is also in the trie if a table for this shape would make the lookup
of some topic probe more than `limit` tables.

Costs: O(shapes x words) per lookup, O(words) per subscription; memory for a key and a dict entry
per pattern, less than in all other algorithms. Choose this matcher for very many patterns of few
shapes, or for interpreted Python.

Source: own application of tuple space search (Srinivasan, Suri and Varghese, SIGCOMM 1999), which
classifies network packets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final, Generic, TypeAlias

from matching.bucket import Bucket, PairCounts, holds, members, size, with_added, without
from matching.grammar import Grammar
from matching.matcher import Matcher, S, Search
from matching.trie import LONGEST_POOLED, Trie

#: A shape as integers: the number of words, the index of the `#` (or -1), then the positions of the
#: literal words.
Form: TypeAlias = tuple[int, ...]
#: The literal words of a pattern: a single word, or a tuple of several words.
Key: TypeAlias = object
#: A function that makes the key from a topic's words, and a function that returns a key's bucket.
Probe: TypeAlias = tuple[Callable[[list[str]], Key], Callable[[Key], Bucket[S]]]

#: A growing dict moves all its entries at once (42 ms at 700,000 patterns). So a dict of more than
#: 8,192 patterns is divided into 256 dicts, which takes 2 ms.
_LARGE: Final = 8_192
_PARTS: Final = 256
#: The part is chosen by the bits of a hash from this bit on. A dict uses the low bits first: if the
#: low bits chose the part, all keys of a part would have equal low bits, and collide.
_SHIFT: Final = 32
#: The number of topic lengths for which the list of tables to probe is cached.
_PLANS: Final = 256
#: The most integers in a form: 2, plus 128 literal words. A pattern with more literal words goes to
#: the fallback trie, because so long a key would slow down every topic of the pattern's length.
_LITERALS: Final = 2 + 128
#: The most words in the pool. The pool stores one copy of each short word, which all keys with this
#: word share.
_POOLED: Final = 65_536


class Shape(Generic[S]):
    """A hash table of the patterns with one shape: with wildcards at the same positions.

    The key of a pattern is the tuple of its literal words; the value is its subscribers.
    """

    __slots__ = ("form", "least", "parts", "pick", "rooted", "table")

    def __init__(self, form: Form) -> None:
        self.form: Final = form
        marks = form[2:]
        #: The least number of words of a matching topic; without ``#``, the exact number.
        self.least: Final = form[0] - (form[1] >= 0)
        #: True if the patterns begin with a literal word, not with a wildcard.
        self.rooted: Final = bool(marks) and marks[0] == 0
        #: The function that makes the key from the words of a topic, or of a pattern of this shape.
        self.pick: Final[Callable[[list[str]], Key]] = itemgetter(*marks) if marks else _nothing
        self.table: dict[Key, Bucket[S]] = {}
        self.parts: list[dict[Key, Bucket[S]]] | None = None

    def place(self, key: Key) -> dict[Key, Bucket[S]]:
        """Return the dict in which this key is stored, or to which a new key must be added.

        A large table consists of several dicts.
        """
        parts = self.parts
        return self.table if parts is None else parts[hash(key) >> _SHIFT & _PARTS - 1]

    def get(self, key: Key) -> Bucket[S]:
        """Return the key's bucket; None if the key is absent."""
        return self.place(key).get(key)

    def put(self, key: Key, bucket: Bucket[S]) -> bool:
        """Store the subscribers of a new pattern, given by its key.

        A table that becomes too large is divided into several dicts. Return True if this call has
        divided the table: functions that `probe` returned earlier are then invalid.
        """
        self.place(key)[key] = bucket
        if len(self.table) <= _LARGE:
            return False
        self._divide()
        return True

    def probe(self) -> Probe[S]:
        """Return two functions: one makes a key from a topic's words, one looks a key up."""
        return (self.pick, self.table.get if self.parts is None else self.get)

    def tables(self) -> list[dict[Key, Bucket[S]]]:
        """Return all dicts in which the keys of the shape are stored."""
        return [self.table] if self.parts is None else self.parts

    def empty(self) -> bool:
        """True if the shape has no pattern."""
        return not any(self.tables())

    def _divide(self) -> None:
        parts: list[dict[Key, Bucket[S]]] = [{} for _ in range(_PARTS)]
        for key, bucket in self.table.items():
            parts[hash(key) >> _SHIFT & _PARTS - 1][key] = bucket
        self.parts = parts
        self.table = {}


class Shapes(Matcher[S]):
    """The matcher for very many patterns of few shapes.

    This algorithm needs the least memory, and is the fastest in interpreted Python.
    """

    def __init__(self, grammar: Grammar, limit: int = 512) -> None:
        """Create an empty matcher; the lookup of one topic probes at most `limit` tables."""
        super().__init__(grammar)
        self._limit: Final = limit
        self._start()

    def _start(self) -> None:
        self._forms: dict[Form, Shape[S]] = {}
        #: The shapes without ``#``, by the number of words of the topics that they match.
        self._exact: dict[int, list[Shape[S]]] = {}
        #: The shapes with ``#``, which may match topics of several lengths.
        self._open: list[Shape[S]] = []
        #: The probes for each topic length. The bitwise complement of a length is the key for
        #: topics that are hidden from leading wildcards.
        self._plans: dict[int, list[Probe[S]]] = {}
        self._pool: dict[str, str] = {}
        self._pairs = 0
        self._patterns = 0
        self._tally: PairCounts[S] = PairCounts()
        self._fallback: Trie[S] = Trie(self.grammar, self._tally)

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        hash(subscriber)  # raise TypeError for an unhashable subscriber before anything changes
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
        if (len(self._fallback) and self._fallback.has_pattern(pattern)) or not self._takes(form):
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
        subscribers: list[S] = []
        if self._forms:
            self.probe_tables(topic, subscribers)
        if len(self._fallback):
            subscribers += self._fallback.find(topic, False)
        return self._tally.distinct(subscribers) if self._tally.shared else subscribers

    def probe_tables(self, topic: str, subscribers: list[S]) -> None:
        """Append to `subscribers` the subscribers of all patterns in the tables that match the
        topic.

        Patterns in the fallback trie are not searched.
        """
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
                    subscribers.extend(bucket)
                else:
                    subscribers.append(bucket)

    def searches(self, topic: str, subscribers: list[S]) -> list[Search[S]]:
        if self._forms:
            self.probe_tables(topic, subscribers)
        return self._fallback.searches(topic, subscribers)

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
        """Return the sizes of the index.

        `fallback` is the number of subscriptions in the fallback trie. `shared` is the number of
        subscribers with several patterns: above 0, answers are deduplicated.
        """
        fallback = self._fallback.stats()
        return {
            "subscriptions": len(self),
            "patterns": self._patterns + fallback["patterns"],
            "shapes": len(self._forms),
            "fallback": fallback["subscriptions"],
            "nodes": fallback["nodes"],
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
        """Return, for topics of `length` words, the functions that probe each table that may match.

        For hidden topics (`$SYS/...`), `length` is the bitwise complement of the number of words,
        which is negative. Patterns that begin with a wildcard do not match hidden topics.
        """
        plan = self._plans.get(length)
        if plan is None:
            hidden = length < 0
            count = ~length if hidden else length
            probed = [
                shape for shape in self._exact.get(count, []) + self._open if shape.least <= count
            ]
            plan = [shape.probe() for shape in probed if shape.rooted or not hidden]
            if len(self._plans) < _PLANS:
                self._plans[length] = plan
        return plan

    def _takes(self, form: Form) -> bool:
        """True if a new pattern of this shape (`form`) may be stored in the shape's hash table.

        Otherwise the fallback trie stores the pattern.
        """
        return form in self._forms or (len(form) <= _LITERALS and self._room(form))

    def _room(self, form: Form) -> bool:
        """True if the limit of tables per topic permits a new table for this shape (`form`)."""
        if form[1] < 0:
            return len(self._exact.get(form[0], ())) + len(self._open) < self._limit
        return max(map(len, self._exact.values()), default=0) + len(self._open) < self._limit

    def _restore(self, form: Form, words: list[str], bucket: Bucket[S]) -> None:
        """Insert a pattern, with its subscribers, that is not in the tables yet.

        The counts of patterns per subscriber (the tally) include the pattern already.
        """
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
        """Remove an arbitrary pattern and return its words and all its subscribers.

        Return None if the tables are empty.
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
        """Remove a shape without patterns. If no shape remains, clear the pool of shared words."""
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
        """Return the shape of a pattern; None if no pattern of this shape is in the tables."""
        form = form_of(words, self.grammar)
        return None if form is None else self._forms.get(form)

    def _pooled(self, word: str) -> str:
        """Return the pool's copy of a word, so that equal words share memory.

        If the pool has no copy, return `word`, and add it if it is short and the pool is not full.
        """
        known = self._pool.get(word)
        if known is None:
            if len(self._pool) < _POOLED and len(word) <= LONGEST_POOLED:
                self._pool[word] = word
            return word
        return known


def form_of(words: list[str], grammar: Grammar) -> Form | None:
    """Return the form of a pattern (its shape as integers), or None if it has several ``#``."""
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
    """Return the words of the pattern with the form `form` and the literal words in `key`."""
    words = [grammar.one] * form[0]
    if form[1] >= 0:
        words[form[1]] = grammar.many
    literal = key if isinstance(key, tuple) else (key,)
    for at, word in zip(form[2:], literal, strict=True):
        words[at] = word
    return words


def _nothing(words: list[str]) -> Key:
    """Return the empty tuple: the key of every pattern without literal words."""
    return ()
