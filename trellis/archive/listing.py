"""Finds the files of a stream in the archive by offset and by time, from their names.

The directory of a day is listed when a search needs it, and the listing is cached. A search for an
offset lists about log2(days) directories. Used by the worker only.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator
from itertools import islice, takewhile
from typing import Final

from broker.eviction import evict_oldest
from trellis.archive.names import ArchivedFile, day_of
from trellis.archive.storage import ArchiveStorage

#: Largest number of files of a stream that are remembered, in addition to the files of one day.
REMEMBERED_MAX: Final = 20_000


class StreamListing:
    """The files of one stream. The worker is the only program that adds files.

    The day of a file is the day of the file before it, or a later day. The methods raise
    ArchiveAway if the archive cannot be listed. Several threads may call them.
    """

    def __init__(self, storage: ArchiveStorage, stream: str) -> None:
        self.stream = stream
        self._storage = storage
        self._days: list[str] | None = None
        self._files: dict[str, list[ArchivedFile]] = {}
        self._lock = threading.RLock()

    def clear(self) -> None:
        """Drop all cached listings, because files were removed, or may have been added."""
        with self._lock:
            self._days = None
            self._files = {}

    def add(self, file: ArchivedFile) -> None:
        """Add a file that was uploaded."""
        with self._lock:
            days = self._all_days()
            if file.day not in days:
                days.append(file.day)
                days.sort()
                self._files[file.day] = []
            known = self._files.get(file.day)
            if known is not None and file not in known:
                known.append(file)
                known.sort()

    def first_offset(self) -> int:
        """Return the first offset in the archive; -1 if there is none."""
        return next((file.first for file in self.page(0, 1)), -1)

    def covering(self, offset: int) -> ArchivedFile | None:
        """Return the file that has the row at an offset; None if there is none."""
        return next((file for file in self.page(offset, 1) if file.first <= offset), None)

    def page(self, offset: int, count: int) -> list[ArchivedFile]:
        """Return at most `count` files in the order of offsets, from the file with `offset` on.

        If no file has the row at `offset`, begin with the next file after it.
        """
        with self._lock:
            return list(islice(self._since(offset), count))

    def overlapping(self, base: int, end: int) -> list[ArchivedFile]:
        """Return the files that have rows from offset `base` up to, not including, `end`."""
        with self._lock:
            return list(takewhile(lambda file: file.first < end, self._since(base)))

    def day_before(self, offset: int) -> str:
        """Return the day of the last file with rows before an offset; "" if there is none."""
        with self._lock:
            days = (day for day in reversed(self._all_days()) if -1 < self._first_of(day) < offset)
            return next(days, "")

    def since_time(self, moment: int) -> int:
        """Return the first offset of the first file with a row published at `moment` or later.

        `moment` is in microseconds. Return -1 if there is no such file.
        """
        with self._lock:
            days = self._all_days()
            at = max(0, bisect_right(days, day_of(moment)) - 1)
            files = (file for day in days[at:] for file in self._of(day))
            return next((file.first for file in files if file.to_us >= moment), -1)

    def _since(self, offset: int) -> Iterator[ArchivedFile]:
        days = self._all_days()
        at = max(0, bisect_right(days, offset, key=self._first_of) - 1)
        return (file for day in days[at:] for file in self._of(day) if file.end > offset)

    def _all_days(self) -> list[str]:
        if self._days is None:
            self._days = self._storage.days(self.stream)
        return self._days

    def _first_of(self, day: str) -> int:
        """Return the first offset of a day; -1 if its files were removed."""
        files = self._of(day)
        return files[0].first if files else -1

    def _of(self, day: str) -> list[ArchivedFile]:
        known = self._files.pop(day, None)
        if known is None:
            known = self._storage.files(self.stream, day)
            while sum(map(len, self._files.values())) > REMEMBERED_MAX:
                evict_oldest(self._files)
        self._files[day] = known
        return known
