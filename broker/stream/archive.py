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
from broker.store.files import complaint
from broker.stream.arrow import END_OF_STREAM, SCHEMA_OCTETS, schema
from broker.stream.rows import Captured, Encoded, RowCodecs, RowWriter, Sink
from broker.stream.segments import SUFFIXES, Segment, parse_segment, segment_name

#: Octets after which a segment is full, if nobody says otherwise.
SEGMENT_OCTETS: Final = 64 << 20
#: Letters of a name that stands as it is for a directory.
_NAME_MAX: Final = 120


def folder(name: str) -> str:
    """A directory's name for a virtual host or a queue: unique, and harmless."""
    made = quote(name, safe="")
    if made.startswith("."):
        made = "%2E" + made[1:]
    return (
        made
        if len(made) <= _NAME_MAX
        else f"{made[:_NAME_MAX]}~{crc32(name.encode('utf-8', 'surrogateescape')):08x}"
    )


class Placed:
    """A batch was written: where, and what is known of it. Its octets are let go."""

    def __init__(self, segment: Segment, place: i64, encoded: Encoded) -> None:
        self.segment = segment
        self.place: i64 = place
        self.base: i64 = encoded.base
        self.count: i64 = encoded.count
        self.size: i64 = len(encoded.octets)
        self.first_at: i64 = encoded.first_at
        self.last_at: i64 = encoded.last_at

    def extend(self, segment: Segment) -> None:
        """The segment has it from now on."""
        segment.grow(self.base, self.count, self.place, self.size, self.first_at, self.last_at)


class SegmentWriter:
    """Writes the segments of one stream; lives in the writer's thread."""

    def __init__(self, disk: Disk, root: str, vhost: str, name: str, number: int) -> None:
        self.disk = disk
        self.directory = f"{root}/{folder(vhost)}/{folder(name)}"
        self.number = number
        #: Octets after which a segment is full.
        self.segment_octets: i64 = SEGMENT_OCTETS
        self.epoch = 0
        #: The stream is new: what is in its directory is of one that had its name before.
        self.fresh = False
        self.poisoned = ""
        self._root = root
        #: The segment that is written, and what is known of it here.
        self._segment: Segment | None = None
        self._shadow: Segment | None = None
        self._file: File | None = None
        self._unsynced = False

    def append(self, encoded: Encoded) -> Placed:
        """Write a batch to the end.

        Raises WriteFailed, when it may be appended again later; Poisoned.
        """
        self._check()
        segment, shadow, file = self._segment, self._shadow, self._file
        if (
            segment is None
            or shadow is None
            or file is None
            or (
                shadow.end > shadow.base and shadow.size + len(encoded.octets) > self.segment_octets
            )
        ):
            segment, shadow, file = self._roll(encoded.base)
        place: i64 = shadow.size
        self._unsynced = True
        try:
            file.write(place, memoryview(encoded.octets))
        except OSError as error:
            reason = complaint(segment.path, "write", error)
            try:
                file.truncate(place)
            except OSError as failure:
                self._poison(f"{reason}, and cannot cut it back: {failure.strerror or failure}")
            raise WriteFailed(reason, error.errno or 0) from error
        placed = Placed(segment, place, encoded)
        placed.extend(shadow)
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
            self._poison(complaint(segment.path, "sync", error))
        self._unsynced = False

    def finish(self) -> None:
        """End the segment that is written, with its index. Raises StoreError."""
        segment, shadow, file = self._segment, self._shadow, self._file
        self._segment = self._shadow = self._file = None
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
                self._poison(complaint(segment.path, "finish", error))

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
                complaint(self.directory, "make a segment in", error), error.errno or 0
            ) from error
        try:
            file.write(0, schema(self.number, self.epoch, int(base)))
        except OSError as error:
            reason = complaint(path, "write", error)
            try:
                self.disk.remove(path)
            except OSError as failure:
                self._poison(f"{reason}, and cannot remove it: {failure.strerror or failure}")
            raise WriteFailed(reason, error.errno or 0) from error
        try:
            file.sync()
            self.disk.sync_directory(self.directory)
        except OSError as error:
            self._poison(complaint(path, "sync", error))
        self._segment, self._shadow = (
            Segment(self.disk, path, self.epoch, int(base)) for _ in range(2)
        )
        self._file = file
        return self._segment, self._shadow, file

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
        if self.fresh:
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
    file.write(0, segment.index())
    file.sync()
    file.close()
    disk.rename(temporary, path)


class Placing(Sink):
    """Gives batches to the pen as they are made, so that few octets are held at a time. Once one
    could not be written, those behind it wait with it."""

    def __init__(self, pen: SegmentWriter) -> None:
        self.placed: list[Placed] = []
        self.waiting: list[Encoded] = []
        self._pen = pen

    def keep(self, encoded: Encoded) -> None:
        self.waiting.append(encoded)
        if len(self.waiting) == 1:
            try:
                self.go_on()
            except WriteFailed:
                return  # `go_on` is tried once more when all is made, and then it is said.

    def go_on(self) -> None:
        """Write what waits. Raises WriteFailed."""
        while self.waiting:
            self.placed.append(self._pen.append(self.waiting[0]))
            del self.waiting[0]


class Portion(StreamWrite):
    """What one batch of the store has for one stream.

    `write` may be called again after it raised WriteFailed.
    """

    def __init__(self, archive: Archive, captured: Captured, octets: i64) -> None:
        self.archive = archive
        self.octets: i64 = octets
        self.end: i64 = captured.end
        self._captured: Captured | None = captured
        self._placing = Placing(archive.pen)

    def write(self) -> None:
        """In the writer's thread."""
        captured, self._captured = self._captured, None
        if captured is not None:
            self.archive.writer.write(captured, self._placing)
        self._placing.go_on()
        self.archive.pen.sync()

    def settle(self) -> None:
        """It is durable: in the loop's thread."""
        self.archive.extend(self._placing.placed)


class Gone(Exception):
    """The rows asked for are not there any more, or are lost.

    `first` is the next offset that is there.
    """

    def __init__(self, text: str, first: i64) -> None:
        super().__init__(text)
        self.first: i64 = first


class Archive:
    """Segments in the order of their offsets, none before `first`, the last one being written.

    Belongs to the loop's thread.
    """

    def __init__(
        self, disk: Disk, root: str, vhost: str, name: str, number: int, scribes: RowCodecs
    ) -> None:
        self.disk = disk
        self.name = name
        self.vhost = vhost
        self.number = number
        self.segments: list[Segment] = []
        #: The offset after the last durable row.
        self.end: i64 = 0
        self.pen = SegmentWriter(disk, root, vhost, name, number)
        self.writer = RowWriter(vhost, scribes)
        #: Rows that are durable and that nobody removed.
        self.rows: i64 = 0
        self.octets: i64 = 0

    @property
    def first(self) -> i64:
        """The first offset that is there; `end` when none is."""
        return self.segments[0].base if self.segments else self.end

    @property
    def epoch(self) -> int:
        return self.segments[-1].epoch if self.segments else 0

    def restore(self, segments: list[Segment]) -> None:
        """These were there when the broker stopped."""
        self.segments = segments
        self.rows = sum(int(segment.end - segment.base) for segment in segments)
        self.octets = sum(int(segment.size) for segment in segments)

    def extend(self, placed: list[Placed]) -> None:
        """These batches are durable."""
        segments = self.segments
        for one in placed:
            segment = one.segment
            if not segments or segments[-1] is not segment:
                if segments:
                    segments[-1].full = True
                segment.ours = True
                segments.append(segment)
                self.octets += SCHEMA_OCTETS
            one.extend(segment)
            self.rows += one.count
            self.octets += one.size
            self.end = one.base + one.count

    def holding(self, offset: i64) -> Segment | None:
        """The segment with this offset; None when it is not there (yet, any more, or lost)."""
        at = bisect_right(self.segments, offset, key=_base)
        segment = self.segments[at - 1] if at else None
        return segment if segment is not None and offset < segment.end else None

    def missing(self, offset: i64) -> Gone:
        """Why an offset below the end is not there."""
        at = bisect_right(self.segments, offset, key=_base)
        after: i64 = self.segments[at].base if at < len(self.segments) else self.end
        thing = f"offset {offset} of stream '{self.name}' in vhost '{self.vhost}'"
        if at == 0:
            return Gone(
                f"{thing} is gone: retention has removed what came before offset {after}, the first there is",
                after,
            )
        return Gone(
            f"{thing} is lost: what could not be read is in its quarantine; it goes on with offset {after}",
            after,
        )

    def expired(self, before: i64, most: i64) -> list[Segment]:
        """Take out the full segments whose last row is older than that microsecond, and then, from
        the oldest on, those beyond so many octets. (-1: no bound.) Never the last one. Their files
        are the caller's to remove.
        """
        out: list[Segment] = []
        while len(self.segments) > 1:
            oldest = self.segments[0]
            if not (before >= 0 and oldest.last_at < before) and not 0 <= most < self.octets:
                break
            out.append(oldest)
            del self.segments[0]
            self.rows -= oldest.end - oldest.base
            self.octets -= oldest.size
            oldest.close()
        return out


def _base(segment: Segment) -> int:
    return int(segment.base)
