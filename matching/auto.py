"""Chooses between the trie and the tables of shapes, and changes its mind a little at a time.

    up to `compact_above` patterns      the trie: fastest
    more                                the tables: less than half the memory, and hardly slower by then

What the tables do not take (patterns with two or more ``#``, and those of further shapes once a
topic asks `limit` tables) stands in the trie in any case. The measurements are in
docs/decisions/0005-auto-matcher.md.

    trie ----lift----> tables        the trie drains into the tables, and what they do not take into a new trie
    tables --lift----> trie          when fewer than half of so many are left

A pattern is in exactly one place at a time, and until all are in their new one, a lookup asks both.
They go there some with each call, a pattern with all its subscribers at once, so that nobody waits
for more than a few.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from matching.grammar import Grammar
from matching.matcher import S
from matching.shapes import Form, Shapes, form_of
from matching.trie import Trie

#: Above so many patterns memory counts more than the last half microsecond.
COMPACT_ABOVE: Final = 250_000
#: A topic asks at most so many tables.
LIMIT: Final = 32
#: Patterns that a change takes along, and a lookup, and the words after which either has moved
#: enough.
_BY_CHANGE: Final = 32
_BY_LOOKUP: Final = 8
_WORDS: Final = 512


class Auto(Shapes[S]):
    """The default matcher."""

    def __init__(
        self, grammar: Grammar, compact_above: int = COMPACT_ABOVE, limit: int = LIMIT
    ) -> None:
        """The trie holds up to `compact_above` patterns; above it, a topic asks at most `limit`
        tables.
        """
        self._compact_above: Final = compact_above
        super().__init__(grammar, limit)

    def _start(self) -> None:
        super()._start()
        #: Whether new patterns go into the tables.
        self._compact = False
        #: The trie that drains into the tables. Each change takes at least one pattern out of it,
        #: so it is empty before there were changes enough to start another.
        self._leaving: Trie[S] | None = None
        self._moving = False
        self._iterated = False

    def subscribe(self, pattern: str, subscriber: S) -> bool:
        if self._leaving is not None and self._leaving.knows(pattern):
            new = self._leaving.subscribe(pattern, subscriber)
        elif self._forms or self._compact:
            new = super().subscribe(pattern, subscriber)
        else:
            new = self._fallback.subscribe(pattern, subscriber)
        self._turn()
        return new

    def unsubscribe(self, pattern: str, subscriber: S) -> bool:
        gone = self._leaving is not None and self._leaving.unsubscribe(pattern, subscriber)
        if not gone:
            gone = (
                super().unsubscribe(pattern, subscriber)
                if self._forms
                else self._fallback.unsubscribe(pattern, subscriber)
            )
        self._turn()
        return gone

    def match(self, topic: str) -> list[S]:
        if self._moving and not self._iterated:
            self._move(_BY_LOOKUP)
        found = super().match(topic) if self._forms else self._fallback.match(topic)
        if self._leaving is None:
            return found
        found += self._leaving.find(topic, False)
        return self._tally.distinct(found) if self._tally.shared else found

    def matches_any(self, topic: str) -> bool:
        return super().matches_any(topic) or (
            self._leaving is not None and self._leaving.matches_any(topic)
        )

    def subscriptions(self) -> Iterator[tuple[str, S]]:
        # Lookups may come meanwhile and must not move what is being listed; the next change lets
        # them again.
        self._iterated = True
        yield from super().subscriptions()
        if self._leaving is not None:
            yield from self._leaving.subscriptions()

    def stats(self) -> dict[str, int]:
        """As for shapes; `leaving` is the number of subscriptions that still have to move."""
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

    def _turn(self) -> None:
        """After a change: see whether the choice is still right, and move some patterns."""
        self._iterated = False
        patterns = self._patterns + self._fallback.patterns()
        if self._leaving is not None:
            patterns += self._leaving.patterns()
        if self._compact:
            if 2 * patterns <= self._compact_above:
                self._compact = False
                self._moving = True
        elif patterns > self._compact_above:
            assert self._leaving is None
            self._compact = self._moving = True
            self._leaving = self._fallback
            self._fallback = Trie(self.grammar, self._tally)
        if self._moving:
            self._move(_BY_CHANGE)

    def _move(self, patterns: int) -> None:
        """Move so many patterns, or fewer long ones."""
        moved = 0
        while patterns > 0 and moved < _WORDS:
            leaving = self._leaving
            if leaving is not None:
                lifted = leaving.pop()
                if lifted is None:
                    self._leaving = None
                    continue
            else:
                lifted = None if self._compact else self._pop()
                if lifted is None:
                    self._moving = False
                    return
            words, bucket = lifted
            form = form_of(words, self.grammar) if self._compact else None
            if form is not None and self._takes(form):
                self._restore(form, words, bucket)
            else:
                self._fallback.restore(words, bucket)
            patterns -= 1
            moved += len(words)
