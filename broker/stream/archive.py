"""The segments of one stream: what was written and is durable, and the pen that writes on.

    Portion.write (writer's thread)   rows --> batches --> the pen: append, sync; a full segment is finished, the next begun
    Portion.settle (loop's thread)    segments grow, the durable offset moves

The pen touches files only; the list of segments belongs to the loop's thread. A stream is durable
up to the offset that the log says (store contract, Extended): what stands behind it in a segment
was promised to nobody.
"""

from __future__ import annotations

import errno
from bisect import bisect_right
from typing import Final
from urllib.parse import quote
from zlib import crc32

from mypy_extensions import i64

from broker.store.contract import StreamWrite
from broker.store.disk import Disk, File, Poisoned, WriteFailed
from broker.store.files import os_error_text
from broker.stream.arrow import END_OF_STREAM, SCHEMA_SIZE, encode_schema
from broker.stream.rows import BatchSink, CapturedRows, EncodedBatch, RowCodecs, RowWriter
from broker.stream.segments import SUFFIXES, Segment, parse_segment, segment_name

#: Octets after which a segment is full, if nobody says otherwise.
SEGMENT_SIZE: Final = 64 << 20
#: Letters of a name that stands as it is for a directory.
_NAME_MAX: Final = 120


def directory_name(name: str) -> str:
    """A directory's name for a virtual host or a queue: unique, and harmless."""
    made = quote(name, safe="")
    if made.startswith("."):
        made = "%2E" + made[1:]
    return (
        made
        if len(made) <= _NAME_MAX
        else f"{made[:_NAME_MAX]}~{crc32(name.encode('utf-8', 'surrogateescape')):08x}"
    )


class WrittenBatch:
    """A batch was written: where, and what is known of it. Its octets are let go."""

    def __init__(self, segment: Segment, place: i64, encoded: EncodedBatch) -> None:
        self.segment = segment
        self.place: i64 = place
        self.base: i64 = encoded.base
        self.count: i64 = encoded.count
        self.size: i64 = len(encoded.data)
        self.first_at: i64 = encoded.first_at
        self.last_at: i64 = encoded.last_at

    def add_to(self, segment: Segment) -> None:
        """The segment has it from now on."""
        segment.add_batch(self.base, self.count, self.place, self.size, self.first_at, self.last_at)


class SegmentWriter:
    """Writes the segments of one stream; lives in the writer's thread."""

    def __init__(self, disk: Disk, root: str, vhost: str, name: str, number: int) -> None:
        self.disk = disk
        self.directory = f"{root}/{directory_name(vhost)}/{directory_name(name)}"
        self.number = number
        #: Octets after which a segment is full.
        self.segment_size: i64 = SEGMENT_SIZE
        self.epoch = 0
        #: The stream is new: what is in its directory is of one that had its name before.
        self.is_new = False
        self.poisoned = ""
        self._root = root
        #: The segment that is written, and what is known of it here.
        self._segment: Segment | None = None
        self._written: Segment | None = None
        self._file: File | None = None
        self._unsynced = False

    def append(self, encoded: EncodedBatch) -> WrittenBatch:
        """Write a batch to the end.

        Raises WriteFailed, when it may be appended again later; Poisoned.
        """
        self._check()
        segment, shadow, file = self._segment, self._written, self._file
        if (
            segment is None
            or shadow is None
            or file is None
            or (shadow.end > shadow.base and shadow.size + len(encoded.data) > self.segment_size)
        ):
            segment, shadow, file = self._roll(encoded.base)
        place: i64 = shadow.size
        self._unsynced = True
        try:
            file.write(place, memoryview(encoded.data))
        except OSError as error:
            reason = os_error_text(segment.path, "write", error)
            try:
                file.truncate(place)
            except OSError as failure:
                self._poison(f"{reason}, and cannot cut it back: {failure.strerror or failure}")
            raise WriteFailed(reason, error.errno or 0) from error
        placed = WrittenBatch(segment, place, encoded)
        placed.add_to(shadow)
        return placed

    def sync(self) -> None:
        """Returns when everything appended is durable. Raises Poisoned."""
        self._check()
        file, segment = self._file, self._segment
        if not self._unsynced or file is None or segment is None:
            return
        try:
            file.sync()
        except OSError as error:
            self._poison(os_error_text(segment.path, "sync", error))
        self._unsynced = False

    def finish(self) -> None:
        """End the segment that is written, with its index. Raises StoreError."""
        segment, shadow, file = self._segment, self._written, self._file
        self._segment = self._written = self._file = None
        if segment is None or shadow is None or file is None or self.poisoned:
            return
        try:
            file.write(shadow.size, END_OF_STREAM)
            file.sync()
            self._unsynced = False
            write_index(self.disk, shadow)
        except OSError as error:
            # All its rows are as they were; a start finds out what the index would say, and that it
            # ends there.
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                self._poison(os_error_text(segment.path, "finish", error))

    def _poison(self, reason: str) -> None:
        self.poisoned = reason
        self._check()

    def _check(self) -> None:
        if self.poisoned:
            raise Poisoned(
                f"{self.poisoned}. The store writes nothing any more: see to the disk, then start the broker again"
            )

    def _roll(self, base: i64) -> tuple[Segment, Segment, File]:
        """Begin a segment: durable, with its name, before anything is written in it."""
        self.finish()
        try:
            if self.epoch == 0:
                self._begin_epoch()
            path = f"{self.directory}/{segment_name(self.epoch, int(base))}"
            file = self.disk.create(path)
        except OSError as error:
            raise WriteFailed(
                os_error_text(self.directory, "make a segment in", error), error.errno or 0
            ) from error
        try:
            file.write(0, encode_schema(self.number, self.epoch, int(base)))
        except OSError as error:
            reason = os_error_text(path, "write", error)
            try:
                self.disk.remove(path)
            except OSError as failure:
                self._poison(f"{reason}, and cannot remove it: {failure.strerror or failure}")
            raise WriteFailed(reason, error.errno or 0) from error
        try:
            file.sync()
            self.disk.sync_directory(self.directory)
        except OSError as error:
            self._poison(os_error_text(path, "sync", error))
        self._segment, self._written = (
            Segment(self.disk, path, self.epoch, int(base)) for _ in range(2)
        )
        self._file = file
        return self._segment, self._written, file

    def _begin_epoch(self) -> None:
        """The directory is there, and the epoch is later than all in it: those of a queue that had
        this name, too. What that one left goes, for good when the first segment comes: it may have
        had the same number, if nobody was promised that.
        """
        parts = self.directory[len(self._root) + 1 :].split("/")
        path = self._root
        for part in ["", *parts]:
            parent = path
            path = f"{path}/{part}" if part else path
            self.disk.make_directory(path)
            self.disk.sync_directory(parent if part else path.rpartition("/")[0] or ".")
        names = self.disk.list(self.directory)
        if self.is_new:
            for name in names:
                if name.endswith(SUFFIXES):
                    self.disk.remove(f"{self.directory}/{name}")
        found = [parsed[0] for parsed in map(parse_segment, names) if parsed is not None]
        self.epoch = max(found, default=0) + 1


def write_index(disk: Disk, segment: Segment) -> None:
    """Keep the index of a full segment beside it. Raises OSError."""
    path = f"{segment.path}.index"
    directory = path.rpartition("/")[0]
    temporary = f"{path}.tmp"
    if temporary.rpartition("/")[2] in disk.list(directory):
        disk.remove(temporary)
    file = disk.create(temporary)
    file.write(0, segment.encode_index())
    file.sync()
    file.close()
    disk.rename(temporary, path)


class BatchAppender(BatchSink):
    """Gives batches to the pen as they are made, so that few octets are held at a time. Once one
    could not be written, those behind it wait with it."""

    def __init__(self, pen: SegmentWriter) -> None:
        self.written: list[WrittenBatch] = []
        self.unwritten: list[EncodedBatch] = []
        self._segment_writer = pen

    def add(self, encoded: EncodedBatch) -> None:
        self.unwritten.append(encoded)
        if len(self.unwritten) == 1:
            try:
                self.flush()
            except WriteFailed:
                return  # `go_on` is tried once more when all is made, and then it is said.

    def flush(self) -> None:
        """Write what waits. Raises WriteFailed."""
        while self.unwritten:
            self.written.append(self._segment_writer.append(self.unwritten[0]))
            del self.unwritten[0]


class ArchiveWrite(StreamWrite):
    """What one batch of the store has for one stream.

    `write` may be called again after it raised WriteFailed.
    """

    def __init__(self, archive: Archive, captured: CapturedRows, size: i64) -> None:
        self.archive = archive
        self.size: i64 = size
        self.end: i64 = captured.end
        self._captured: CapturedRows | None = captured
        self._appender = BatchAppender(archive.segment_writer)

    def write(self) -> None:
        """In the writer's thread."""
        captured, self._captured = self._captured, None
        if captured is not None:
            self.archive.row_writer.write(captured, self._appender)
        self._appender.flush()
        self.archive.segment_writer.sync()

    def settle(self) -> None:
        """It is durable: in the loop's thread."""
        self.archive.extend(self._appender.written)


class RowsUnavailable(Exception):
    """The rows asked for are not there any more, or are lost.

    `first` is the next offset that is there.
    """

    def __init__(self, text: str, first: i64) -> None:
        super().__init__(text)
        self.next_offset: i64 = first


class Archive:
    """Segments in the order of their offsets, none before `first`, the last one being written.

    Belongs to the loop's thread.
    """

    def __init__(
        self, disk: Disk, root: str, vhost: str, name: str, number: int, codecs: RowCodecs
    ) -> None:
        self.disk = disk
        self.name = name
        self.vhost = vhost
        self.number = number
        self.segments: list[Segment] = []
        #: The offset after the last durable row.
        self.end: i64 = 0
        self.segment_writer = SegmentWriter(disk, root, vhost, name, number)
        self.row_writer = RowWriter(vhost, codecs)
        #: Rows that are durable and that nobody removed.
        self.rows: i64 = 0
        self.size: i64 = 0

    @property
    def first_offset(self) -> i64:
        """The first offset that is there; `end` when none is."""
        return self.segments[0].base if self.segments else self.end

    @property
    def epoch(self) -> int:
        return self.segments[-1].epoch if self.segments else 0

    def restore(self, segments: list[Segment]) -> None:
        """These were there when the broker stopped."""
        self.segments = segments
        self.rows = sum(int(segment.end - segment.base) for segment in segments)
        self.size = sum(int(segment.size) for segment in segments)

    def extend(self, placed: list[WrittenBatch]) -> None:
        """These batches are durable."""
        segments = self.segments
        for one in placed:
            segment = one.segment
            if not segments or segments[-1] is not segment:
                if segments:
                    segments[-1].full = True
                segment.written_here = True
                segments.append(segment)
                self.size += SCHEMA_SIZE
            one.add_to(segment)
            self.rows += one.count
            self.size += one.size
            self.end = one.base + one.count

    def segment_with(self, offset: i64) -> Segment | None:
        """The segment with this offset; None when it is not there (yet, any more, or lost)."""
        at = bisect_right(self.segments, offset, key=_base)
        segment = self.segments[at - 1] if at else None
        return segment if segment is not None and offset < segment.end else None

    def unavailable_error(self, offset: i64) -> RowsUnavailable:
        """Why an offset below the end is not there."""
        at = bisect_right(self.segments, offset, key=_base)
        after: i64 = self.segments[at].base if at < len(self.segments) else self.end
        thing = f"offset {offset} of stream '{self.name}' in vhost '{self.vhost}'"
        if at == 0:
            return RowsUnavailable(
                f"{thing} is gone: retention has removed what came before offset {after}, the first there is",
                after,
            )
        return RowsUnavailable(
            f"{thing} is lost: what could not be read is in its quarantine; it goes on with offset {after}",
            after,
        )

    def take_expired(self, before: i64, most: i64) -> list[Segment]:
        """Take out the full segments whose last row is older than that microsecond, and then, from
        the oldest on, those beyond so many octets. (-1: no bound.) Never the last one. Their files
        are the caller's to remove.
        """
        out: list[Segment] = []
        while len(self.segments) > 1:
            oldest = self.segments[0]
            if not (before >= 0 and oldest.last_at < before) and not 0 <= most < self.size:
                break
            out.append(oldest)
            del self.segments[0]
            self.rows -= oldest.end - oldest.base
            self.size -= oldest.size
            oldest.close()
        return out


def _base(segment: Segment) -> int:
    return int(segment.base)
