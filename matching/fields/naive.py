"""Asks every row by the definition: O(rows x criteria) a message.

The oracle of the tests, and articles 3 and 4's start.
"""

from __future__ import annotations

from matching.fields.criteria import Fields
from matching.fields.matcher import FieldsRow, HeadersMatcher
from matching.matcher import S


class NaiveFields(HeadersMatcher[S]):
    """Good for a dozen bindings."""

    def enter(self, row: FieldsRow[S]) -> None:
        """Nothing is indexed."""

    def leave(self, row: FieldsRow[S]) -> None:
        """Nothing is indexed."""

    def find(self, headers: Fields) -> list[FieldsRow[S]]:
        return [row for row in self.rows() if row.criteria.accept(headers)]
