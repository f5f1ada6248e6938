"""Sizes, times and counts as text for a person: `2.0 KiB`, `3 min`, `1,204 messages`."""

from __future__ import annotations

from typing import Final

_SIZES: Final = ("KiB", "MiB", "GiB", "TiB")
#: Units of time with their length in seconds, the largest first.
_TIMES: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def size_text(size: float) -> str:
    """Return a number of bytes in its most readable unit: `512 B`, `2.0 KiB`."""
    if abs(size) < 1024:
        return f"{size:g} B"
    for unit in _SIZES:
        size /= 1024
        if abs(size) < 1024 or unit == _SIZES[-1]:
            break
    return f"{size:.1f} {unit}"


def time_text(seconds: float) -> str:
    """Return a length of time in its most readable unit: `40 ms`, `12 s`, `3 min`, `5 d`."""
    for length, unit in _TIMES:
        if abs(seconds) >= 2 * length or length == 1 and abs(seconds) >= 1:
            return f"{seconds // length:.0f} {unit}"
    return f"{seconds * 1000:.0f} ms"


def count_text(count: int, noun: str) -> str:
    """Return a count with its noun, in the plural unless the count is 1: `1,204 messages`."""
    if count == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {plural}"


def rate_text(rate: float, noun: str) -> str:
    """Return a rate per second with its noun: `14 messages/s`, `0.4 messages/s`."""
    return f"{rate:,.0f} {noun}s/s" if rate >= 10 or rate == 0 else f"{rate:.1f} {noun}s/s"
