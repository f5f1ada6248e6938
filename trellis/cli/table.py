"""Formats rows as a text table: aligned columns, numbers right-aligned, one line per row."""

from collections.abc import Sequence

from trellis.settings.errors import printable

Cell = str | int | float | bool | None
Row = dict[str, Cell]


def columns_of(rows: Sequence[Row]) -> list[str]:
    """Return the keys of all rows, in the order of their first appearance."""
    return list(dict.fromkeys(key for row in rows for key in row))


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """Return a text table: a line with the column names and a line for each row.

    The text has no final line end.
    """
    lines = [list(columns)] + [[_text(row.get(column)) for column in columns] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
    numeric = [all(_is_number(row.get(column)) for row in rows) for column in columns]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, numeric, strict=True)
        ).rstrip()
        for cells in lines
    )


def _is_number(cell: Cell) -> bool:
    return cell is None or (isinstance(cell, int | float) and not isinstance(cell, bool))


def _text(cell: Cell) -> str:
    """Return the text of a cell, with control characters escaped.

    The text may be a name that a client has chosen, with any characters.
    """
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "" if cell is None else printable(str(cell))
