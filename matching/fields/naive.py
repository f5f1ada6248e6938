"""The reference algorithm: tests every row (the bindings with equal arguments) with
`Criteria.accept`.

A message costs O(rows x criteria). Source: the starting point of articles 3 and 4, listed in
`matching`.
"""

from __future__ import annotations

from matching.fields.criteria import Fields
from matching.fields.matcher import FieldsRow, HeadersMatcher
from matching.matcher import S


class NaiveFields(HeadersMatcher[S]):
    """A matcher without an index; good for a dozen bindings."""

    def enter(self, row: FieldsRow[S]) -> None:
        """Do nothing: there is no index."""

    def leave(self, row: FieldsRow[S]) -> None:
        """Do nothing: there is no index."""

    def find(self, headers: Fields) -> list[FieldsRow[S]]:
        return [row for row in self.rows() if row.criteria.accept(headers)]
