"""The default: indexes each ``all`` row under its rarest criterion only, then verifies the others.

    {currency: EUR, trader: 17}     trader = 17: [row, still to verify: currency = EUR]

A row stands for all bindings with equal arguments; an ``all`` row requires that all its criteria
are met. A message costs one probe per header and one comparison per row whose rarest criterion it
meets. The rarest criterion is the one that the fewest ``all`` rows have at the time of binding. A
criterion that requires only presence counts as more common than any value. ``any`` rows are indexed
under all their criteria.

In the worst case, a message is compared with every row, because the criterion under which an early
row is indexed may become common later. This is rare. If 10,000 rows require the same currency and
each a different trader, only the first row can be indexed under the currency: for later rows, the
trader is rarer. Choose this algorithm for any number of rows. Own design.
"""

from __future__ import annotations

from collections.abc import Hashable

from matching.fields.criteria import PRESENT, Fields, token
from matching.fields.matcher import FieldsRow, HeadersMatcher
from matching.fields.names import FieldNames
from matching.fields.search import Criterion, FieldsSearch, RowGroup
from matching.matcher import S, Search


class Rarest(HeadersMatcher[S]):
    """The default matcher of headers, good at every size."""

    def __init__(self) -> None:
        super().__init__()
        self._any: FieldNames[S] = FieldNames()
        #: The ``all`` rows by the criterion that indexes them, each with its other criteria.
        self._all: dict[Criterion, dict[FieldsRow[S], list[Criterion]]] = {}
        self._always: dict[FieldsRow[S], None] = {}
        #: For each criterion, the number of ``all`` rows that have it.
        self._rarity: dict[Criterion, int] = {}
        #: For each name, the number of rows that have a criterion with this name.
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
        candidates = self._all[criteria[row.mark]]
        del candidates[row]
        if not candidates:
            del self._all[criteria[row.mark]]
        for criterion in criteria:
            self._rarity[criterion] -= 1
            if not self._rarity[criterion]:
                del self._rarity[criterion]

    def find(self, headers: Fields) -> list[FieldsRow[S]]:
        tokens = self._tokens(headers)
        matched_rows = list(self._always)
        examined = len(matched_rows) + len(tokens)
        for name, value in tokens.items():
            candidates = self._all.get((name, value))
            if candidates is not None:
                examined += len(candidates)
                _verify(candidates, tokens, matched_rows)
            candidates = self._all.get((name, PRESENT))
            if candidates is not None:
                examined += len(candidates)
                _verify(candidates, tokens, matched_rows)
        columns = self._any.columns
        several: dict[FieldsRow[S], None] = {}
        if columns:
            for name, value in tokens.items():
                column = columns.get(name)
                if column is not None:
                    several.update(column.get(value, {}))
                    several.update(column.get(PRESENT, {}))
            matched_rows += several
        self.examined = examined + len(several)
        return matched_rows

    def _tokens(self, headers: Fields) -> dict[str, Hashable]:
        """Return the comparable values of the headers whose names occur in criteria, by name."""
        names = self._names
        return {name: token(value) for name, value in headers.items() if name in names}

    def searches(self, headers: Fields, subscribers: list[S]) -> list[Search[S]]:
        tokens = self._tokens(headers)
        groups: list[RowGroup[S]] = [RowGroup(self._always)]
        for name, value in tokens.items():
            for candidates in (self._all.get((name, value)), self._all.get((name, PRESENT))):
                if candidates is not None:
                    groups.append(RowGroup(self._always, candidates))
            column = self._any.columns.get(name)
            if column is not None:
                for rows in (column.get(value), column.get(PRESENT)):
                    if rows is not None:
                        groups.append(RowGroup(rows))
        return [FieldsSearch(groups, tokens, subscribers)]

    def stats(self) -> dict[str, int]:
        """Return the sizes of the index.

        Bindings that require all their criteria are indexed under one criterion, the rarest.
        `criteria` is the number of criteria in this index. `largest` is the largest number of
        different bindings under one criterion.
        """
        return {
            **super().stats(),
            "criteria": len(self._all),
            "largest": max((len(rows) for rows in self._all.values()), default=0),
        }

    def _rarest(self, criteria: list[Criterion]) -> int:
        """Return the index in `criteria` of the criterion that the fewest bindings have.

        Only bindings that require all their criteria are counted. A criterion that requires only
        the presence of a header counts as more common than any other.
        """
        counts = [
            self._rarity.get(criterion, 0) + (len(self._rows) if criterion[1] is PRESENT else 0)
            for criterion in criteria
        ]
        return counts.index(min(counts))


def _verify(
    candidates: dict[FieldsRow[S], list[Criterion]],
    tokens: dict[str, Hashable],
    matched_rows: list[FieldsRow[S]],
) -> None:
    """Append to `matched_rows` the candidates that a message matches.

    The message meets one criterion of each candidate already; `candidates` has the other criteria,
    which are compared now. `tokens` has the comparable values of the message's headers, by name.
    """
    for row, others in candidates.items():
        for name, wanted in others:
            if wanted is PRESENT:
                if name not in tokens:
                    break
            elif tokens.get(name) != wanted:
                break
        else:
            matched_rows.append(row)


def _count(counts: dict[str, int], name: str, more: int) -> None:
    counts[name] = counts.get(name, 0) + more
    if not counts[name]:
        del counts[name]
