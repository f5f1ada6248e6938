"""Rows by the criteria under which they are indexed.

    name -> value -> rows           and rows that ask for presence under the value PRESENT

A message's header is looked up by name first: most names are nobody's, and their values then need
no token.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeAlias

from matching.fields.matcher import FieldsRow
from matching.matcher import S

#: The rows by the value they want of one name. A dict is a set that keeps its order.
Column: TypeAlias = dict[Hashable, dict[FieldsRow[S], None]]


class FieldNames(Generic[S]):
    """No name and no value stays when its last row has left."""

    __slots__ = ("columns",)

    def __init__(self) -> None:
        self.columns: dict[str, Column[S]] = {}

    def enter(self, name: str, value: Hashable, row: FieldsRow[S]) -> None:
        """Index the row under a criterion."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = {}
        rows = column.get(value)
        if rows is None:
            column[value] = {row: None}
        else:
            rows[row] = None

    def leave(self, name: str, value: Hashable, row: FieldsRow[S]) -> None:
        """Remove the row from under a criterion."""
        column = self.columns[name]
        rows = column[value]
        del rows[row]
        if not rows:
            del column[value]
            if not column:
                del self.columns[name]
