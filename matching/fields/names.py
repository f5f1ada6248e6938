"""An index of rows by the name and value of their criteria.

    name -> value -> rows           rows that require only presence have the value PRESENT

A row stands for all bindings with equal arguments. A header is looked up by name first. Most names
of headers occur in no criterion, and the values of such headers are not converted for comparison
(see `criteria.token`).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeAlias

from matching.fields.matcher import FieldsRow
from matching.matcher import S

#: The rows with a criterion for one name, by the value that they require. The inner dict is an
#: ordered set of rows.
Column: TypeAlias = dict[Hashable, dict[FieldsRow[S], None]]


class FieldNames(Generic[S]):
    """An index of header bindings by the name and value of their criteria.

    An entry is a row: all bindings with equal arguments.
    """

    __slots__ = ("columns",)

    def __init__(self) -> None:
        self.columns: dict[str, Column[S]] = {}

    def enter(self, name: str, value: Hashable, row: FieldsRow[S]) -> None:
        """Add the row under the criterion of this name and value (or PRESENT)."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = {}
        rows = column.get(value)
        if rows is None:
            column[value] = {row: None}
        else:
            rows[row] = None

    def leave(self, name: str, value: Hashable, row: FieldsRow[S]) -> None:
        """Remove the row from the criterion of this name and value."""
        column = self.columns[name]
        rows = column[value]
        del rows[row]
        if not rows:
            del column[value]
            if not column:
                del self.columns[name]
