"""Names in the archive. A reader finds the file of an offset or of a time by the names alone.

    PREFIX/VHOST/stream=NAME/number=17/day=2026-11-25/FIRST-END-FROM-TO.parquet

VHOST and NAME are encoded as in the data directory. `number` is the number of the stream, so that a
stream that is deleted and declared again does not continue the files of the deleted one. A file has
the rows from offset FIRST up to, but not including, END; they were published between the times FROM
and TO, in microseconds since 1970.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final, NamedTuple

from broker.stream.segments import directory_name

#: Number of microseconds in a day.
DAY_US: Final = 86_400_000_000
_NAME: Final = re.compile(r"(\d{20})-(\d{20})-(\d{16})-(\d{16})\.parquet")
_DAY: Final = re.compile(r"day=(\d{4}-\d\d-\d\d)")


class ArchivedFile(NamedTuple):
    """A file in the archive: its rows, their times in microseconds, its size in bytes, its day."""

    first: int
    end: int
    from_us: int
    to_us: int
    size: int
    day: str

    @property
    def path(self) -> str:
        """The path of the file below the directory of its stream."""
        return (
            f"day={self.day}/{self.first:020d}-{self.end:020d}"
            f"-{self.from_us:016d}-{self.to_us:016d}.parquet"
        )


def stream_path(vhost: str, name: str, number: int) -> str:
    """Return the path of a stream below the prefix of the archive.

    `number` is the number of the stream, which no deleted stream with this name had.
    """
    return f"{directory_name(vhost)}/stream={directory_name(name)}/number={number}"


def day_of(micros: int) -> str:
    """Return the day of a time in microseconds, in UTC, such as 2026-11-25."""
    return datetime.fromtimestamp(max(0, micros) // 1_000_000, UTC).strftime("%Y-%m-%d")


def parse_day(name: str) -> str | None:
    """Return the day of a directory `day=...`; None if the name has another form."""
    match = _DAY.fullmatch(name)
    return None if match is None else match[1]


def parse_file(day: str, name: str, size: int) -> ArchivedFile | None:
    """Return the file with this name and size in a day; None for a file of another kind, such as
    an incomplete one.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    first, end, from_us, to_us = (int(part) for part in match.groups())
    return ArchivedFile(first, end, from_us, to_us, size, day) if first < end else None
