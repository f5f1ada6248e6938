"""A lookup that can pause, and continues in a later turn of the event loop.

`Rarest.find` is faster, but answers in a single call. A `FieldsSearch` is for a matcher with so
many criteria that a single call might take too long. The search goes through the matcher's rows. A
row stands for all bindings with equal arguments:

    rows that accept every message     match without a comparison
    ``all`` rows                       match if every criterion is met
    ``any`` rows                       match at the first criterion that is met

The rows may change during a pause: the search finds every subscriber that was bound during the
whole search, and may also find subscribers that were added meanwhile.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeAlias

from matching.bucket import size, take
from matching.fields.criteria import PRESENT
from matching.fields.matcher import FieldsRow
from matching.matcher import S, Search

#: The name and the comparable value of a criterion; the value may be PRESENT.
Criterion: TypeAlias = tuple[str, Hashable]
#: The number of listed rows, of compared criteria or of taken subscribers that cost one step.
_PER_STEP = 8


class RowGroup(Generic[S]):
    """A group of rows that a search takes together; a row is all bindings with equal arguments.

    There are two kinds of groups. If `candidates` is None, the rows are in `plain`, and all of them
    match the message. Otherwise the rows are the keys of `candidates`. Each of these rows matches
    if the message also meets the criteria in its list, which the search still has to compare.
    """

    __slots__ = ("candidates", "plain")

    def __init__(
        self,
        plain: dict[FieldsRow[S], None],
        candidates: dict[FieldsRow[S], list[Criterion]] | None = None,
    ) -> None:
        self.plain = plain
        self.candidates = candidates


class FieldsSearch(Search[S]):
    """A lookup in the index of `Rarest` that can pause; it examines one row per step."""

    __slots__ = ("_at", "_candidates", "_groups", "_rows", "_seen", "_tokens")

    def __init__(
        self, groups: list[RowGroup[S]], tokens: dict[str, Hashable], subscribers: list[S]
    ) -> None:
        """Create a search in these groups of rows; it appends subscribers to `subscribers`.

        `tokens` maps the names of the message's headers to their comparable values.
        """
        super().__init__(subscribers)
        self._groups = groups
        self._tokens = tokens
        #: The listed rows of the present group, and the index of the next row to examine.
        self._rows: list[FieldsRow[S]] = []
        self._at = 0
        self._candidates: dict[FieldsRow[S], list[Criterion]] | None = None
        #: The plain rows whose subscribers were taken; an ``any`` row may be in several groups.
        self._seen: dict[FieldsRow[S], None] = {}

    def advance(self, steps: int) -> int:
        while steps > 0 and not self.done:
            if self._at < len(self._rows):
                row = self._rows[self._at]
                self._at += 1
                steps -= 1 + self._examine(row) // _PER_STEP
            elif self._groups:
                group = self._groups.pop()
                self._candidates = group.candidates
                self._rows = (
                    list(group.plain) if group.candidates is None else list(group.candidates)
                )
                self._at = 0
                steps -= 1 + len(self._rows) // (4 * _PER_STEP)
            else:
                self.done = True
        return steps

    def _examine(self, row: FieldsRow[S]) -> int:
        """If the row matches, append its subscribers to `subscribers`.

        Return the cost: the number of compared criteria plus the number of subscribers.
        """
        work = 0
        candidates = self._candidates
        if candidates is None:
            if row in self._seen:
                return 0
            self._seen[row] = None
        else:
            others = candidates.get(row)
            if others is None:
                return 0  # The row was removed during a pause.
            for name, wanted in others:
                work += 1
                if name not in self._tokens:
                    return work
                if wanted is not PRESENT and self._tokens[name] != wanted:
                    return work
        if row.bucket is not None:
            work += size(row.bucket)
            take(row.bucket, self.subscribers)
        return work
