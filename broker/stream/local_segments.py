"""The durable segments of one stream on the disk.

Two threads share the work (rows_write.py). The writer's thread builds batches (RowWriter) and
writes files (SegmentWriter). The event loop's thread changes the list of segments (LocalSegments).
"""

from __future__ import annotations

from bisect import bisect_right

from mypy_extensions import i64

from broker.store.disk import Disk
from broker.stream.archived import ArchivedRows, RowsUnavailable
from broker.stream.arrow import SCHEMA_SIZE
from broker.stream.full_segments import FullSegments
from broker.stream.open_files import OpenFiles
from broker.stream.row_codecs import RowCodecs
from broker.stream.rows import RowWriter
from broker.stream.segment_writer import SegmentWriter, WrittenBatch
from broker.stream.segments import Segment


class LocalSegments:
    """The durable segments of a stream, ordered by offset; the last segment may be active.

    Used by the event loop's thread only.
    """

    def __init__(
        self,
        disk: Disk,
        root: str,
        vhost: str,
        name: str,
        number: int,
        codecs: RowCodecs,
        writing: OpenFiles | None = None,
        reading: OpenFiles | None = None,
    ) -> None:
        self.disk = disk
        self.name = name
        self.vhost = vhost
        self.number = number
        self.segments: list[Segment] = []
        #: The durable end: the offset of the last durable row + 1.
        self.end: i64 = 0
        #: The files that are open for reading, of this stream and of all streams that share the
        #: object.
        self.reading = OpenFiles() if reading is None else reading
        self.segment_writer = SegmentWriter(
            disk, root, vhost, name, number, OpenFiles() if writing is None else writing
        )
        self.row_writer = RowWriter(vhost, codecs)
        #: The rows that are in the archive (setting `stream.archive`); None without an archive.
        self.archived: ArchivedRows | None = None
        #: The receiver of notices of full segments; None if there is none.
        self.full_segments: FullSegments | None = None
        #: Number of rows, and size of the segments in bytes.
        self.rows: i64 = 0
        self.size: i64 = 0

    @property
    def first_offset(self) -> i64:
        """The first offset with a row; `end` if there is no row."""
        return self.segments[0].base if self.segments else self.end

    @property
    def epoch(self) -> int:
        """The epoch of the last segment; 0 if there is no segment."""
        return self.segments[-1].epoch if self.segments else 0

    def restore(self, segments: list[Segment]) -> None:
        """Set the segments, which were found at the start of the broker."""
        self.segments = segments
        self.rows = sum(int(segment.end - segment.base) for segment in segments)
        self.size = sum(int(segment.size) for segment in segments)

    def extend(self, placed: list[WrittenBatch]) -> None:
        """Add batches, which are durable now, to the segments."""
        segments = self.segments
        for batch in placed:
            segment = batch.segment
            if not segments or segments[-1] is not segment:
                if segments:
                    segments[-1].full = True
                    if self.full_segments is not None:
                        self.full_segments.add(self.segment_writer.directory)
                segment.written_here = True
                segments.append(segment)
                self.size += SCHEMA_SIZE
            batch.add_to(segment)
            self.rows += batch.count
            self.size += batch.size
            self.end = batch.base + batch.count

    def segment_with(self, offset: i64) -> Segment | None:
        """Return the segment that has the row at an offset; None if there is no such row."""
        at = bisect_right(self.segments, offset, key=_base)
        segment = self.segments[at - 1] if at else None
        return segment if segment is not None and offset < segment.end else None

    def unavailable_error(self, offset: i64) -> RowsUnavailable:
        """Return the error for an offset below the end that has no row, with the reason."""
        at = bisect_right(self.segments, offset, key=_base)
        after: i64 = self.segments[at].base if at < len(self.segments) else self.end
        subject = f"offset {offset} of stream '{self.name}' in vhost '{self.vhost}'"
        if at == 0 and self.archived is not None:
            return self.archived.unavailable_error(subject, offset, after)
        if at == 0:
            return RowsUnavailable(
                f"{subject} is gone: retention removed it; the first available offset is {after}",
                after,
            )
        return RowsUnavailable(
            f"{subject} is lost: its segment was damaged, and is in the quarantine; the next"
            f" available offset is {after}",
            after,
        )

    def take_expired(self, before: i64, most: i64) -> list[Segment]:
        """Remove from the list the segments that retention drops; return them, oldest first.

        Retention drops segments whose last row is older than `before` (Unix time in microseconds),
        and the oldest segments while the stream is larger than `most` bytes. Retention never drops
        the last segment, nor a segment that waits for its upload. A limit of -1 means no limit. The
        caller removes the files.
        """
        out: list[Segment] = []
        while len(self.segments) > 1:
            oldest = self.segments[0]
            if not (before >= 0 and oldest.last_at < before) and not 0 <= most < self.size:
                break
            if self.archived is not None and not self.archived.take_expired(oldest):
                break
            out.append(oldest)
            del self.segments[0]
            self.rows -= oldest.end - oldest.base
            self.size -= oldest.size
            oldest.close()
        return out


def _base(segment: Segment) -> int:
    return int(segment.base)
