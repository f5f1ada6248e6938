"""Conditions about the rows of a list: `--filter`, `--sort` and `--limit`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

from trellis.cli.parsing import CommandError
from trellis.cli.table import Cell, Row
from trellis.settings.errors import nearest

Condition = Callable[[Row], bool]

_CONDITION: Final = re.compile(r"([a-z_]+)(!=|=|>|<)(.*)", re.DOTALL)


def condition_of(text: str, columns: Sequence[str]) -> Condition:
    """Return the condition that `text` describes. Raises CommandError.

    The text is COLUMN=PATTERN or COLUMN!=PATTERN with the wildcards * and ?, COLUMN>NUMBER,
    COLUMN<NUMBER, or a word that a cell of the row contains. `columns` are the known columns.
    """
    match = _CONDITION.fullmatch(text)
    if match is None:
        return lambda row: any(text in cell_text(cell) for cell in row.values())
    column, sign, value = match.groups()
    if column not in columns:
        problem = f"the rows have no column {column}; the nearest is {nearest(column, columns)}"
        raise CommandError(f"--filter: {problem}", 2)
    if sign in ("=", "!="):
        equal = sign == "="
        return lambda row: fnmatchcase(cell_text(row.get(column)), value) == equal
    try:
        limit = float(value)
    except ValueError:
        problem = f"'{value}' in '{text}' is not a number; give a number after {sign}"
        raise CommandError(f"--filter: {problem}", 2) from None
    if sign == ">":
        return lambda row: _number(row.get(column)) > limit
    return lambda row: _number(row.get(column), float("inf")) < limit


def cell_text(cell: Cell) -> str:
    """Return the text of a cell, with which patterns are compared."""
    return (
        "" if cell is None else ("yes" if cell else "no") if isinstance(cell, bool) else str(cell)
    )


def _number(cell: Cell, missing: float = float("-inf")) -> float:
    return missing if cell is None or isinstance(cell, str) else float(cell)


def sorted_rows(rows: list[Row], column: str, reverse: bool) -> list[Row]:
    """Return the rows sorted by a column: empty cells first, then numbers, then texts.

    If `reverse` is True, the order is reversed.
    """
    return sorted(rows, key=lambda row: _order(row.get(column)), reverse=reverse)


def _order(cell: Cell) -> tuple[int, float, str]:
    if cell is None or cell == "":
        return 0, 0.0, ""
    return (2, 0.0, cell) if isinstance(cell, str) else (1, float(cell), "")
