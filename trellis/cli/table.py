"""Rows for people: aligned columns, numbers to the right, one line a row."""

from collections.abc import Sequence

from trellis.settings.errors import printable

Cell = str | int | float | bool | None
Row = dict[str, Cell]


def columns_of(rows: Sequence[Row]) -> list[str]:
    """The keys of all rows, in the order in which they first appear."""
    return list(dict.fromkeys(key for row in rows for key in row))


def table(rows: Sequence[Row], columns: Sequence[str]) -> str:
    """A heading and a line for every row, without a line end behind the last."""
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
    """A cell; names that clients chose are never trusted to be fit for a terminal."""
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return "" if cell is None else printable(str(cell))
