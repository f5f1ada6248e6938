"""Pages: pieces of segments, each read once for all readers that are near each other.

A stream caches the few pages that its readers used last. A reader that is far behind the other
readers reads its pages from the file.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.store.disk import DamagedStore, StoreError
from broker.store.files import os_error_text
from broker.stream.arrow import BatchView, batch_size, view_batch
from broker.stream.local_segments import LocalSegments
from broker.stream.segments import Segment

#: Number of bytes read at once, and largest number of pages that a stream caches.
PAGE_SIZE: Final[i64] = 256 << 10
PAGES_MAX: Final = 4


class StreamPage:
    """Some consecutive batches of a segment. The rows have the offsets from `base` to `end` - 1.

    `place` is the position in the segment's file, in bytes, at which these batches end.
    """

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.views: list[BatchView] = []
        self.base: i64 = 0
        self.end: i64 = 0
        self.place: i64 = 0


class StreamPages:
    """The page cache of one stream. The page used last comes first."""

    def __init__(self, local: LocalSegments) -> None:
        self.reads = 0
        self._local = local
        self._pages: list[StreamPage] = []

    def clear(self) -> None:
        """Drop all pages and close the files. Called when the stream has no reader any more."""
        self._pages = []
        for segment in self._local.segments:
            self._close(segment)
        if self._local.archived is not None:
            self._local.archived.close_files()

    def drop(self, segments: list[Segment]) -> None:
        """Drop the pages of removed segments."""
        self._pages = [page for page in self._pages if page.segment not in segments]

    def page_with(self, offset: i64) -> StreamPage:
        """Return a page that has the row at `offset`, which must be below the stream's end.

        Raises RowsUnavailable if the row no longer exists, RowsPending if it must be fetched from
        the archive first, StoreError if it cannot be read.
        """
        pages = self._pages
        for number, page in enumerate(pages):
            if page.base <= offset < page.end:
                if number:
                    pages.insert(0, pages.pop(number))
                return page
        segment = self._local.segment_with(offset)
        if segment is None and self._local.archived is not None:
            segment = self._local.archived.segment_with(offset)
        if segment is None:
            raise self._local.unavailable_error(offset)
        place: i64 = segment.place_of(offset)
        for page in pages:
            if page.segment is segment and page.end == offset:
                # The row is the first row after this page: no search is needed.
                place = page.place
        page = self._read(segment, place, offset)
        pages.insert(0, page)
        if len(pages) > PAGES_MAX:
            self._close(pages.pop().segment)
        return page

    def _close(self, segment: Segment) -> None:
        segment.close()
        self._local.reading.remove(segment)

    def _read(self, segment: Segment, place: i64, offset: i64) -> StreamPage:
        """Read and return a page: the batches of a segment from the row at `offset` on.

        The search for the row begins at the byte `place` of the segment's file, where a batch
        begins. Raises StoreError if the page cannot be read or is damaged.
        """
        page = StreamPage(segment)
        size: i64 = PAGE_SIZE
        self._local.reading.use(segment)
        while True:
            self.reads += 1
            length: i64 = min(size, segment.size - place)
            try:
                data = segment.file().read(place, length)
            except OSError as error:
                raise StoreError(os_error_text(segment.path, "read", error)) from error
            at: i64 = 0
            while True:
                view = view_batch(data, at)
                if view is None:
                    break
                if not segment.written_here and not view.is_intact():
                    raise _damage_error(segment, place + at)
                at = view.end
                if view.base + view.rows > offset:
                    page.views.append(view)
            if page.views:
                page.base = page.views[0].base
                page.end = page.views[-1].base + page.views[-1].rows
                page.place = place + at
                return page
            place += at
            needed: i64 = batch_size(data, at)
            size = max(needed, PAGE_SIZE)
            # Either no batch begins here, or the batch ends after the end of the segment, or it is
            # complete but invalid, or the file is shorter than before.
            if (
                needed == 0
                or place + needed > segment.size
                or len(data) - at >= needed
                or len(data) < length
            ):
                raise _damage_error(segment, place)


def _damage_error(segment: Segment, place: i64) -> DamagedStore:
    return DamagedStore(
        f"'{segment.path}' is damaged at byte {place}: stop the broker, run `trellis store repair`,"
        " which quarantines the damage, and check the disk"
    )
