"""The default matcher: a trie for few patterns, hash tables for many.

The module `shapes` implements the hash tables: one table for each shape, which is a set of wildcard
positions.

    up to `compact_above` patterns      the trie: the fastest lookups
    more                                the tables: less than half the memory, lookups hardly slower

Some patterns are always in a trie: patterns with two or more ``#``, and patterns whose shape would
make a topic search more than `limit` tables. The measurements are in
docs/decisions/0005-auto-matcher.md.

    trie ----pop, restore----> tables   above `compact_above` patterns; a new trie gets the patterns
                                        that the tables cannot hold
    tables --pop, restore----> trie     when at most half of `compact_above` patterns remain

The move is incremental: each call moves a few patterns with all their subscribers, so no call takes
long. Every pattern is either in a trie or in the tables, and lookups search the tries and the
tables until the move is complete.

Lookups and subscriptions cost as much as in `trie`, or as in `shapes` while the tables are in use.
Own design.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matching.grammar import Grammar
from matching.matcher import S, Search
from matching.shapes import Form, Shapes, form_of
from matching.trie import Trie

#: The default of `compact_above`. Above this many patterns, saving memory is worth a lookup that
#: takes up to half a microsecond longer.
COMPACT_ABOVE: Final = 250_000
#: The default of `limit`: the most tables that the lookup of one topic searches.
LIMIT: Final = 32
#: The most patterns that a change (subscribe or unsubscribe) moves between the trie and the tables.
_BY_CHANGE: Final = 32
#: The most patterns that a lookup moves between the trie and the tables.
_BY_LOOKUP: Final = 8
#: After moving patterns of this many words in total, a change or lookup moves no further pattern.
_WORDS: Final = 512


class Auto(Shapes[S]):
    """The default matcher: a trie for up to `compact_above` patterns, hash tables for more.

    The hash tables are tables of `shapes`, one for each set of wildcard positions.
    """

    def __init__(
        self, grammar: Grammar, compact_above: int = COMPACT_ABOVE, limit: int = LIMIT
    ) -> None:
        """Create an empty matcher.

        Up to `compact_above` patterns are in a trie. If there are more, the matcher uses hash
        tables; the lookup of one topic searches at most `limit` tables.
        """
        self._compact_above: Final = compact_above
        super().__init__(grammar, limit)

    def _start(self) -> None:
        super()._start()
        #: True if new patterns go into the tables, False if they go into the trie.
        self._compact = False
        #: The trie that is being emptied into the tables. This trie is always empty before the next
        #: move starts, because each change moves at least one pattern out of it.
        self._leaving: Trie[S] | None = None
        self._moving = False
        self._iterated = False
        #: The number of times that the patterns began to move from the trie to the tables or back.
        self.turns = 0

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        if self._leaving is not None and self._leaving.has_pattern(pattern):
            new = self._leaving.subscribe(pattern, subscriber)
        elif self._forms or self._compact:
            new = super().subscribe(pattern, subscriber)
        else:
            new = self._fallback.subscribe(pattern, subscriber)
        self._adapt()
        return new

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        gone = self._leaving is not None and self._leaving.unsubscribe(pattern, subscriber)
        if not gone:
            gone = (
                super().unsubscribe(pattern, subscriber)
                if self._forms
                else self._fallback.unsubscribe(pattern, subscriber)
            )
        self._adapt()
        return gone

    def match(self, topic: str) -> list[S]:
        if self._moving and not self._iterated:
            self._move(_BY_LOOKUP)
        subscribers = super().match(topic) if self._forms else self._fallback.match(topic)
        if self._leaving is None:
            return subscribers
        subscribers += self._leaving.find(topic, False)
        return self._tally.distinct(subscribers) if self._tally.shared else subscribers

    def searches(self, topic: str, subscribers: list[S]) -> list[Search[S]]:
        return [AutoSearch(self, topic, subscribers)]

    def parts(self, topic: str, subscribers: list[S]) -> list[Search[S]]:
        """Return the searches of one lookup: one for each trie, and one for the hash tables.

        The caller completes the searches in the order of the list. Each search appends subscribers
        to `subscribers`. Between two searches, the matcher may move patterns from a trie to the
        tables or back. The order of the list ensures that no moved pattern is missed. But if the
        matcher begins to move patterns in the other direction, the lookup may miss patterns.
        `turns` has then increased, and the caller must start the lookup again.
        """
        leaving, tables = self._leaving, TablesSearch(self, topic, subscribers)
        return [
            *([] if leaving is None else leaving.searches(topic, subscribers)),
            tables,
            *self._fallback.searches(topic, subscribers),
        ]

    def matches_any(self, topic: str) -> bool:
        return super().matches_any(topic) or (
            self._leaving is not None and self._leaving.matches_any(topic)
        )

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        # A lookup during the iteration must not move patterns, or a pattern could be listed twice
        # or not at all. The next change permits moves again.
        self._iterated = True
        yield from super().subscriptions()
        if self._leaving is not None:
            yield from self._leaving.subscriptions()

    def stats(self) -> dict[str, int]:
        """Return the sizes of the tables and of the tries.

        `leaving` is the number of subscriptions that still have to move from a trie to the tables
        or back; it is 0 if no move is under way. `fallback` is the number of subscriptions that
        stay in the trie. `shared` is the number of subscribers with several patterns.
        """
        stats = super().stats()
        leaving = self._pairs if self._moving and not self._compact else 0
        if self._leaving is not None:
            going = self._leaving.stats()
            leaving += going["subscriptions"]
            stats["patterns"] += going["patterns"]
            stats["nodes"] += going["nodes"]
        stats["leaving"] = leaving
        return stats

    def __len__(self) -> int:
        return super().__len__() + (0 if self._leaving is None else len(self._leaving))

    def __contains__(self, pair: tuple[str, S]) -> bool:
        return super().__contains__(pair) or (self._leaving is not None and pair in self._leaving)

    def _takes(self, form: Form) -> bool:
        return self._compact and super()._takes(form)

    def _adapt(self) -> None:
        """Begin to move the patterns from the trie to the hash tables, or back, if their number
        requires it.

        The method is called after each change of subscriptions. If a move is under way, the method
        moves up to _BY_CHANGE patterns.
        """
        self._iterated = False
        patterns = self._patterns + self._fallback.patterns()
        if self._leaving is not None:
            patterns += self._leaving.patterns()
        if self._compact:
            if 2 * patterns <= self._compact_above:
                self._compact = False
                self._moving = True
                self.turns += 1
        elif patterns > self._compact_above:
            assert self._leaving is None
            self._compact = self._moving = True
            self.turns += 1
            self._leaving = self._fallback
            self._fallback = Trie(self.grammar, self._tally)
        if self._moving:
            self._move(_BY_CHANGE)

    def _move(self, patterns: int) -> None:
        """Move up to `patterns` patterns from the trie to the hash tables or back.

        Stop earlier if the moved patterns have _WORDS words in total.
        """
        moved = 0
        while patterns > 0 and moved < _WORDS:
            leaving = self._leaving
            if leaving is not None:
                popped = leaving.pop()
                if popped is None:
                    self._leaving = None
                    continue
            else:
                popped = None if self._compact else self._pop()
                if popped is None:
                    self._moving = False
                    return
            words, bucket = popped
            form = form_of(words, self.grammar) if self._compact else None
            if form is not None and self._takes(form):
                self._restore(form, words, bucket)
            else:
                self._fallback.restore(words, bucket)
            patterns -= 1
            moved += len(words)


class TablesSearch(Search[S]):
    """A lookup of one topic in the hash tables of `shapes`.

    The lookup never pauses: the first call of `advance` completes it.
    """

    __slots__ = ("_tables", "_topic")

    def __init__(self, tables: Shapes[S], topic: str, subscribers: list[S]) -> None:
        super().__init__(subscribers)
        self._tables = tables
        self._topic = topic

    def advance(self, steps: int) -> int:
        self._tables.probe_tables(self._topic, self.subscribers)
        self.done = True
        return steps - LIMIT


class AutoSearch(Search[S]):
    """A lookup that can pause, in the tries and hash tables of an `Auto`, one after the other.

    An `Auto` moves its patterns from a trie to the tables or back. If the direction of this move
    changes during the lookup, the lookup starts again. A restart is rare, because the direction
    changes only after very many subscriptions or unsubscriptions.
    """

    __slots__ = ("_matcher", "_parts", "_topic", "_turns")

    def __init__(self, matcher: Auto[S], topic: str, subscribers: list[S]) -> None:
        super().__init__(subscribers)
        self._matcher = matcher
        self._topic = topic
        self._begin()

    def _begin(self) -> None:
        self._turns = self._matcher.turns
        self._parts = self._matcher.parts(self._topic, self.subscribers)
        self._parts.reverse()

    def advance(self, steps: int) -> int:
        while steps > 0:
            if self._turns != self._matcher.turns:
                self._begin()
            if not self._parts:
                self.done = True
                return steps
            part = self._parts[-1]
            steps = part.advance(steps)
            if part.done:
                self._parts.pop()
        return steps
