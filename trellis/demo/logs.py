"""The log files of the programs of a demonstration."""

from __future__ import annotations

from pathlib import Path


def last_line(log: Path) -> str:
    """Return ": " and the last line of a log file, to append to an error; "" for an empty file."""
    lines = log.read_text(errors="replace").split("\n")
    nonempty_lines = [line for line in lines if line.strip()]
    return f": {nonempty_lines[-1]}" if nonempty_lines else ""
