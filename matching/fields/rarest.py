"""Each ``all`` row stands under one criterion only, its rarest; those whom a message meets there
are verified.

    {currency: EUR, trader: 17}     trader = 17: [row, of which currency = EUR is still to be seen]

A message costs a probe for each of its headers, and a comparison for each row whose rarest
criterion it meets. A criterion's rarity is how many rows name it at the time of binding, and
presence is commoner than any value: who comes early may stand under what is common later, so the
cost of a message is at worst that of asking everybody (10,000 rows with one trader each: the first
alone stands under the common currency). ``any`` rows stand under all their criteria. Our own;
article 4 counts hits.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TypeAlias

from matching.fields.criteria import PRESENT, Fields, token
from matching.fields.matcher import FieldsRow, HeadersMatcher
from matching.fields.names import FieldNames
from matching.matcher import S

_Criterion: TypeAlias = tuple[str, Hashable]


class Rarest(HeadersMatcher[S]):
    """The default: good at every size."""

    def __init__(self) -> None:
        super().__init__()
        self._any: FieldNames[S] = FieldNames()
        #: Rows of ``all`` by the criterion under which they stand, and the others of each.
        self._all: dict[_Criterion, dict[FieldsRow[S], list[_Criterion]]] = {}
        self._always: dict[FieldsRow[S], None] = {}
        #: How many ``all`` rows name a criterion, and how many rows a name.
        self._rarity: dict[_Criterion, int] = {}
        self._names: dict[str, int] = {}

    def enter(self, row: FieldsRow[S]) -> None:
        wanted = row.criteria.wanted
        for name in wanted:
            _count(self._names, name, 1)
        if row.criteria.any:
            for name, value in wanted.items():
                self._any.enter(name, value, row)
            return
        if not wanted:
            self._always[row] = None
            return
        others = list(wanted.items())
        row.mark = self._rarest(others)
        self._all.setdefault(others.pop(row.mark), {})[row] = others
        for criterion in wanted.items():
            self._rarity[criterion] = self._rarity.get(criterion, 0) + 1

    def leave(self, row: FieldsRow[S]) -> None:
        wanted = row.criteria.wanted
        for name in wanted:
            _count(self._names, name, -1)
        if row.criteria.any:
            for name, value in wanted.items():
                self._any.leave(name, value, row)
            return
        if not wanted:
            del self._always[row]
            return
        criteria = list(wanted.items())
        standing = self._all[criteria[row.mark]]
        del standing[row]
        if not standing:
            del self._all[criteria[row.mark]]
        for criterion in criteria:
            self._rarity[criterion] -= 1
            if not self._rarity[criterion]:
                del self._rarity[criterion]

    def find(self, headers: Fields) -> list[FieldsRow[S]]:
        names = self._names
        tokens = {name: token(value) for name, value in headers.items() if name in names}
        found = list(self._always)
        for name, value in tokens.items():
            standing = self._all.get((name, value))
            if standing is not None:
                _verify(standing, tokens, found)
            standing = self._all.get((name, PRESENT))
            if standing is not None:
                _verify(standing, tokens, found)
        columns = self._any.columns
        several: dict[FieldsRow[S], None] = {}
        if columns:
            for name, value in tokens.items():
                column = columns.get(name)
                if column is not None:
                    several.update(column.get(value, {}))
                    several.update(column.get(PRESENT, {}))
            found += several
        return found

    def stats(self) -> dict[str, int]:
        """`criteria` are those under which an ``all`` row stands; `crowd` is how many share the
        most popular one.
        """
        return {
            **super().stats(),
            "criteria": len(self._all),
            "crowd": max((len(rows) for rows in self._all.values()), default=0),
        }

    def _rarest(self, criteria: list[_Criterion]) -> int:
        """The place of the criterion that fewest rows name."""
        counts = [
            self._rarity.get(criterion, 0) + (len(self._rows) if criterion[1] is PRESENT else 0)
            for criterion in criteria
        ]
        return counts.index(min(counts))


def _verify(
    standing: dict[FieldsRow[S], list[_Criterion]],
    tokens: dict[str, Hashable],
    found: list[FieldsRow[S]],
) -> None:
    """Take the rows whose other criteria are met too."""
    for row, others in standing.items():
        for name, wanted in others:
            if wanted is PRESENT:
                if name not in tokens:
                    break
            elif tokens.get(name) != wanted:
                break
        else:
            found.append(row)


def _count(counts: dict[str, int], name: str, more: int) -> None:
    counts[name] = counts.get(name, 0) + more
    if not counts[name]:
        del counts[name]
