"""The log files of the programs of a demonstration."""

from __future__ import annotations

from pathlib import Path


def last_line(log: Path) -> str:
    """Return ": " and the last line of a log file, to append to an error; "" if it is empty."""
    lines = log.read_text(errors="replace").split("\n")
    found = [line for line in lines if line.strip()]
    return f": {found[-1]}" if found else ""
