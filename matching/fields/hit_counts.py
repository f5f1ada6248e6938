"""Counts how many criteria of each binding a message meets (article 4 in `matching`).

    currency = EUR      row 1 (needs 1), row 2 (needs 2)
    market = forex      row 2
    urgent is present   row 3 (any: needs 1)

A row represents all bindings with equal arguments. An ``all`` row needs as many hits as it has
criteria, an ``any`` row needs one hit. A message costs one probe per header and one step per hit:
O(headers + hits). A criterion that all rows share is therefore expensive. Choose this algorithm
while few rows share a criterion.
"""

from __future__ import annotations

from matching.fields.criteria import PRESENT, Fields, token
from matching.fields.matcher import FieldsRow, HeadersMatcher
from matching.fields.names import Column, FieldNames
from matching.matcher import S


class HitCounts(HeadersMatcher[S]):
    """A headers matcher that counts how many criteria of each binding a message meets.

    Choose this matcher if few bindings with different arguments share a criterion.
    """

    def __init__(self) -> None:
        super().__init__()
        self._names: FieldNames[S] = FieldNames()
        self._always: dict[FieldsRow[S], None] = {}

    def enter(self, row: FieldsRow[S]) -> None:
        wanted = row.criteria.wanted
        row.mark = 1 if row.criteria.any else len(wanted)
        if not row.mark:
            self._always[row] = None
        for name, value in wanted.items():
            self._names.enter(name, value, row)

    def leave(self, row: FieldsRow[S]) -> None:
        if not row.mark:
            del self._always[row]
        for name, value in row.criteria.wanted.items():
            self._names.leave(name, value, row)

    def find(self, headers: Fields) -> list[FieldsRow[S]]:
        matched_rows = list(self._always)
        hits: dict[FieldsRow[S], int] = {}
        columns = self._names.columns
        for name, value in headers.items():
            column = columns.get(name)
            if column is not None:
                _hit(column, value, hits, matched_rows)
        return matched_rows


def _hit(
    column: Column[S],
    value: object,
    hits: dict[FieldsRow[S], int],
    matched_rows: list[FieldsRow[S]],
) -> None:
    """Add one hit to each row with a criterion that this header meets, and append to `matched_rows`
    the rows that have enough hits now.

    A row stands for the bindings with equal arguments. `column` has the rows with a criterion for
    the header's name; `value` is the header's value.
    """
    meeting = column.get(PRESENT)
    lists = [] if meeting is None else [meeting]
    if len(column) > len(lists):
        meeting = column.get(token(value))
        if meeting is not None:
            lists.append(meeting)
    for rows in lists:
        for row in rows:
            count = hits.get(row, 0) + 1
            hits[row] = count
            if count == row.mark:
                matched_rows.append(row)
