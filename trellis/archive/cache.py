"""The cache of the archive: the fetched segments of all streams, up to a total size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.stream.archived import ArchivedRows
from broker.stream.segments import Segment

#: Number of segments that are never evicted: the segment that a reader reads, and the next.
LEAST: Final = 2


class SegmentCache:
    """The fetched segments. Above `most` bytes in total, the oldest ones are evicted.

    At least LEAST segments stay in the cache. `remove` is called with the path of each evicted
    segment.
    """

    def __init__(self, most: int, remove: Callable[[str], None]) -> None:
        #: Size of the segments in bytes.
        self.size = 0
        self._most = most
        self._remove = remove
        self._segments: dict[Segment, ArchivedRows] = {}

    def add(self, segment: Segment, rows: ArchivedRows) -> None:
        """Add a segment of the stream `rows`; evict the oldest ones if the cache is too large."""
        self._segments[segment] = rows
        self.size += int(segment.size)
        while self.size > self._most and len(self._segments) > LEAST:
            self.evict(next(iter(self._segments)))

    def evict(self, segment: Segment) -> None:
        """Remove a segment from the cache and from its stream, and call `remove` with its path."""
        rows = self._segments.pop(segment)
        self.size -= int(segment.size)
        rows.drop_restored(segment)
        self._remove(segment.path)

    def clear(self) -> None:
        """Evict all segments."""
        for segment in list(self._segments):
            self.evict(segment)
