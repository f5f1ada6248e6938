"""The archive of a stream: rows in files of an object store, or of another directory.

    a segment is full --> ArchivedRows.waiting --> upload --> on_uploaded --> retention removes it
    a reader needs a row that retention removed --> RowsPending --> fetch --> on_fetched --> retry

The archive is slow and may be unreachable, so no method here waits for it. ArchiveBackend, which
`trellis.archive` implements, lets another process upload and fetch files. A fetched file is a
segment again, in a cache of the data directory, and is read like any other segment.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.agenda import Task
from broker.eviction import evict_oldest
from broker.stream.open_files import OpenFiles
from broker.stream.segments import Segment

#: Largest number of publishing times whose offsets a stream remembers, and of failures that wait
#: for readers.
_REMEMBERED_MAX: Final = 64


class RowsUnavailable(Exception):
    """Raised if retention removed the requested rows, or if they are lost.

    `next_offset` is the offset of the next row that can be read.
    """

    def __init__(self, text: str, first: i64) -> None:
        super().__init__(text)
        self.next_offset: i64 = first


class RowsPending(Exception):
    """Raised if the requested rows must first be fetched from the archive.

    The caller reads the stream again after the fetch.
    """


@mypyc_attr(allow_interpreted_subclasses=True)
class ArchiveBackend:
    """The archive of all streams of a broker. Its methods return at once."""

    def progress(self, number: int) -> tuple[int, int]:
        """Return (first, until) of the stream with this number, as an earlier start recorded them.

        The archive has rows from offset `first` on (-1: unknown), and every segment of the stream
        that ends at `until` or before was uploaded.
        """
        raise NotImplementedError

    def add_waiting(self, rows: ArchivedRows, segment: Segment) -> None:
        """Record that a segment waits for its upload."""
        raise NotImplementedError

    def drop_waiting(self, rows: ArchivedRows, segment: Segment, deleted: bool) -> None:
        """Record that a segment which waits for its upload was removed from the disk.

        `deleted` is True if the stream was deleted, and False if retention removed the segment
        because the backlog was too large.
        """
        raise NotImplementedError

    def backlog_full(self) -> bool:
        """True if the segments that wait for their upload exceed the largest backlog."""
        raise NotImplementedError

    def fetch(self, rows: ArchivedRows, offset: i64) -> None:
        """Fetch the file that has the row at an offset, unless this fetch is already running.

        `ArchivedRows.on_fetched` gets the segment later.
        """
        raise NotImplementedError

    def find_time(self, rows: ArchivedRows, moment: i64) -> None:
        """Find the first file whose last row was published at `moment` (us) or later.

        `ArchivedRows.keep_start` gets the result later.
        """
        raise NotImplementedError

    def find_first(self, rows: ArchivedRows) -> None:
        """Find the first offset of a stream in the archive, and set `ArchivedRows.first` later."""
        raise NotImplementedError

    def remove_stream(self, rows: ArchivedRows) -> None:
        """Forget a deleted stream. Its files in the archive stay."""
        raise NotImplementedError


class ArchivedRows:
    """The state of the archive for one stream. Used by the event loop's thread only."""

    def __init__(self, backend: ArchiveBackend, vhost: str, name: str, reading: OpenFiles) -> None:
        self.backend = backend
        self.vhost = vhost
        self.name = name
        self.number = 0
        #: The first offset in the archive; -1 while it is unknown, or if the archive has no row.
        self.first: i64 = -1
        #: True if `first` is known.
        self.first_known = False
        #: The first offset on the disk.
        self.local_first: i64 = 0
        #: The full segments that wait for their upload, oldest first.
        self.waiting: list[Segment] = []
        #: The fetched segments; the segment that was used last comes first.
        self.restored: list[Segment] = []
        #: The reason why the stream is not uploaded any more; "" if it is uploaded.
        self.refused = ""
        #: A task that applies retention and serves the readers. None once the stream is deleted.
        self.changed: Task | None = None
        self._until: i64 = 0
        #: Time in us -> the offset from which to search for the first row published at this time or
        #: later; -1 if the archive has no such row.
        self._starts: dict[int, int] = {}
        #: Offset -> the reason why the row at this offset cannot be fetched. A reader that needs
        #: the row fails.
        self._failures: dict[int, str] = {}
        self._reading = reading

    def begin(self, number: int) -> None:
        """Set the number of the stream, and load the progress of its uploads."""
        self.number = number
        first, until = self.backend.progress(number)
        self._until = until
        if first >= 0:
            self.first, self.first_known = first, True

    # -- uploads

    def add_full(self, segments: list[Segment]) -> None:
        """Queue for upload the full segments that were neither uploaded nor queued yet.

        `segments` are the segments of the stream on the disk, the oldest first.
        """
        if segments:
            self.local_first = segments[0].base
        unqueued: list[Segment] = []
        for segment in reversed(segments):
            if not segment.full:
                continue
            if segment.archived or segment.waits or segment.end <= self._until:
                break
            unqueued.append(segment)
        for segment in reversed(unqueued):
            segment.waits = True
            self.waiting.append(segment)
            self.backend.add_waiting(self, segment)

    def take_expired(self, segment: Segment) -> bool:
        """Return True if retention may remove a segment: it was uploaded, or the backlog is full.

        If the result is True, the segment no longer waits for its upload.
        """
        if segment.archived or segment.end <= self._until:
            return True
        if not self.backend.backlog_full():
            return False
        self._drop_waiting(segment, False)
        return True

    def _drop_waiting(self, segment: Segment, deleted: bool) -> None:
        if segment.waits:
            segment.waits = False
            self.waiting.remove(segment)
            self.backend.drop_waiting(self, segment, deleted)

    def on_uploaded(self, segment: Segment, first: int) -> None:
        """Record that a segment is in the archive.

        `first` is the offset of the first row of this stream that the archive now has.
        """
        segment.waits = False
        segment.archived = True
        if segment in self.waiting:
            self.waiting.remove(segment)
        self._until = max(self._until, segment.end)
        self.first, self.first_known = first, True

    # -- reads

    def segment_with(self, offset: i64) -> Segment | None:
        """Return the fetched segment that has the row at an offset.

        Return None if the archive does not have the row. Raises RowsPending if the row must be
        fetched first, RowsUnavailable if it cannot be fetched.
        """
        restored = self.restored
        for number, segment in enumerate(restored):
            if segment.base <= offset < segment.end:
                if number:
                    restored.insert(0, restored.pop(number))
                if 2 * offset > segment.base + segment.end and not segment.waits:
                    # A reader comes near the end, so fetch the next file before it is needed.
                    segment.waits = True
                    if segment.end < self.local_first:
                        self.backend.fetch(self, segment.end)
                return segment
        reason = self._failures.pop(int(offset), "")
        if reason:
            raise RowsUnavailable(reason, offset)
        if self.lacks(offset):
            return None
        self.backend.fetch(self, offset)
        raise RowsPending

    def lacks(self, offset: i64) -> bool:
        """True if the archive is known to have no row at this offset or before it."""
        return self.first_known and (self.first < 0 or offset < self.first)

    def first_offset(self) -> i64:
        """Return the first offset in the archive; -1 if the archive has no row of the stream.

        Raises RowsPending if the offset is not known yet.
        """
        if not self.first_known:
            self.backend.find_first(self)
            raise RowsPending
        return self.first

    def offset_since(self, moment: i64) -> i64:
        """Return an offset from which to search for the first row published at `moment` (us).

        Return -1 if the archive has no row of this time or later. Raises RowsPending if the offset
        is not known yet.
        """
        offset = self._starts.get(int(moment), -2)
        if offset == -2:
            self.backend.find_time(self, moment)
            raise RowsPending
        if offset == -1:
            del self._starts[int(moment)]  # The next upload may bring such a row.
        return offset

    def unavailable_error(self, subject: str, offset: i64, local: i64) -> RowsUnavailable:
        """Return the error for an offset that neither the disk nor the archive has.

        `subject` names the offset and the stream; `local` is the first offset on the disk.
        """
        after = local if self.first < 0 or self.first > local else self.first
        if offset < after:
            return RowsUnavailable(
                f"{subject} is gone: retention removed it, and the archive does not have it "
                f"either; the first available offset is {after}",
                after,
            )
        return RowsUnavailable(
            f"{subject} is gone: retention removed it before its upload to the archive; the next "
            f"available offset is {local}",
            local,
        )

    def keep_start(self, moment: int, offset: int) -> None:
        """Keep `offset` as the result of `offset_since` for the time `moment` (us)."""
        if len(self._starts) >= _REMEMBERED_MAX:
            evict_oldest(self._starts)
        self._starts[moment] = offset

    def keep_failure(self, offset: int, reason: str) -> None:
        """Store the reason for which the next reader of the row at `offset` fails."""
        if len(self._failures) >= _REMEMBERED_MAX:
            evict_oldest(self._failures)
        self._failures[offset] = reason

    def on_fetched(self, segment: Segment) -> None:
        """Add a fetched segment to `restored`, where readers look for rows."""
        self.restored.insert(0, segment)

    def drop_restored(self, segment: Segment) -> None:
        """Remove a fetched segment whose file is evicted from the cache."""
        if segment in self.restored:
            self.restored.remove(segment)
        segment.close()
        self._reading.remove(segment)

    def close_files(self) -> None:
        """Close the files of the fetched segments: the stream has no reader any more."""
        for segment in self.restored:
            segment.close()
            self._reading.remove(segment)

    def on_deleted(self) -> None:
        """Drop the waiting uploads and close the fetched files: the stream is deleted."""
        for segment in list(self.waiting):
            self._drop_waiting(segment, True)
        self.changed = None
        self.close_files()
        self.backend.remove_stream(self)
