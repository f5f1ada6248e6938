"""Writes the batches of one stream to segments on the disk.

The log records the durable end of each stream (StreamExtended in the store's contract). Rows after
the durable end were never confirmed to a publisher.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.store.disk import NO_DESCRIPTORS, TRANSIENT, Disk, File, WriteFailed
from broker.store.files import os_error_text
from broker.store.poison import PoisonableWriter
from broker.stream.arrow import END_OF_STREAM, SCHEMA_SIZE, encode_schema
from broker.stream.captured_rows import BatchPlace, EncodedBatch
from broker.stream.open_files import FileUser, OpenFiles
from broker.stream.segments import (
    INDEX,
    SUFFIXES,
    Segment,
    directory_name,
    parse_segment,
    remove_derived,
    segment_name,
)

#: Default size at which a segment is full, in bytes.
SEGMENT_SIZE: Final = 64 << 20


class WrittenBatch:
    """A batch in the file of a segment, without its data.

    `place` is its position in the file in bytes, `base` the offset of its first row, `count` the
    number of its rows.
    """

    def __init__(self, segment: Segment, place: i64, encoded: EncodedBatch) -> None:
        self.segment = segment
        self.place: i64 = place
        self.base: i64 = encoded.base
        self.count: i64 = encoded.count
        self.size: i64 = len(encoded.data)
        self.first_at: i64 = encoded.first_at
        self.last_at: i64 = encoded.last_at

    def add_to(self, segment: Segment) -> None:
        """Add the batch to the size, the end, the times and the index of a segment."""
        segment.add_batch(self.base, self.count, self.place, self.size, self.first_at, self.last_at)


class ActiveFile(FileUser):
    """The file of a stream's active segment, which may be closed between two writes."""

    def __init__(self) -> None:
        self.file: File | None = None
        #: True while data that was written to the file is not synced.
        self.unsynced = False

    def close_idle(self) -> bool:
        if self.unsynced:
            return False  # Only a sync of this open file reports a failed write of the kernel.
        self.file = None
        return True


class SegmentWriter(PoisonableWriter):
    """The appender of one stream: writes batches to the active segment, and begins new segments.

    Used by the store's writer thread only.
    """

    def __init__(
        self, disk: Disk, root: str, vhost: str, name: str, number: int, writing: OpenFiles
    ) -> None:
        super().__init__(disk)
        self.directory = f"{root}/{directory_name(vhost)}/{directory_name(name)}"
        self.number = number
        #: Size at which a segment is full, in bytes.
        self.segment_size: i64 = SEGMENT_SIZE
        self.epoch = 0
        #: True if the stream is new: files in its directory belong to a deleted stream with
        #: its name.
        self.is_new = False
        self._root = root
        #: `_segment` is the active segment with its durable batches, which LocalSegments adds.
        #: `_written` is the same segment with all batches that were written.
        self._segment: Segment | None = None
        self._written: Segment | None = None
        self._active = ActiveFile()
        self._writing = writing

    def _open_file(self) -> File | None:
        """Return the active segment's file, opened again if it was closed; None without a segment.

        Raises WriteFailed if the file cannot be opened.
        """
        segment = self._segment
        if segment is not None and self._active.file is None:
            try:
                self._active.file = self.disk.open(segment.path, True)
            except OSError as error:
                raise WriteFailed(
                    os_error_text(segment.path, "open", error), error.errno or 0
                ) from error
        return self._active.file

    def append(self, encoded: EncodedBatch) -> WrittenBatch:
        """Write a batch to the end of the stream, and return its place.

        Raises WriteFailed if the batch can be appended again later, Poisoned if it cannot.
        """
        self.check_poisoned()
        segment, written, file = self._segment, self._written, self._open_file()
        if (
            segment is None
            or written is None
            or file is None
            or self._begins_segment(segment, written, encoded)
        ):
            segment, written, file = self._roll(encoded)
        self._writing.use(self._active)
        place: i64 = written.size
        self._active.unsynced = True
        try:
            file.write(place, memoryview(encoded.data))
        except OSError as error:
            reason = os_error_text(segment.path, "write", error)
            try:
                file.truncate(place)
            except OSError as failure:
                self.poison(
                    f"{reason}, and cannot truncate the file: {failure.strerror or failure}"
                )
            raise WriteFailed(reason, error.errno or 0) from error
        placed = WrittenBatch(segment, place, encoded)
        placed.add_to(written)
        return placed

    def _begins_segment(self, segment: Segment, written: Segment, encoded: EncodedBatch) -> bool:
        """True if `encoded` begins a new segment after `segment`.

        If `encoded` has a planned place, the place decides. Otherwise a new segment begins if the
        batch would make `written`, unless it is empty, larger than `segment_size`.
        """
        planned = encoded.planned
        if planned is not None:
            return segment.epoch != planned.epoch or int(segment.base) != planned.segment_base
        return written.end > written.base and (written.size + len(encoded.data) > self.segment_size)

    def plan(self, batches: list[EncodedBatch]) -> None:
        """Choose the places of batches that are appended later, in this order.

        A node of a cluster ships the batches with their places before it appends them.
        Raises WriteFailed if the call can be repeated later.
        """
        self.check_poisoned()
        written = self._written
        epoch, base, size = self.epoch or self._next_epoch(), -1, int(SCHEMA_SIZE)
        if written is not None:
            base, size = int(written.base), int(written.size)
        for encoded in batches:
            if base < 0 or (size > SCHEMA_SIZE and size + len(encoded.data) > self.segment_size):
                base, size = int(encoded.base), int(SCHEMA_SIZE)
            encoded.planned = BatchPlace(epoch, base, size)
            size += len(encoded.data)

    def _next_epoch(self) -> int:
        """Return an epoch above the epochs of all segments in the stream's directory."""
        try:
            names = self.disk.list(self.directory)
        except FileNotFoundError:
            return 1
        except OSError as error:
            raise WriteFailed(
                os_error_text(self.directory, "read", error), error.errno or 0
            ) from error
        return _epoch_above(names)

    def sync(self) -> None:
        """Make all appended batches durable. Raises Poisoned if a sync fails or has failed."""
        self.check_poisoned()
        file, segment = self._active.file, self._segment
        if not self._active.unsynced or file is None or segment is None:
            return
        try:
            file.sync()
        except OSError as error:
            self.poison(os_error_text(segment.path, "sync", error))
        self._active.unsynced = False

    def resume(self, durable: Segment, written: Segment) -> None:
        """Continue to append to an existing segment.

        `durable` and `written` are two equal copies of the segment's description.
        """
        self._segment, self._written, self._active.file = durable, written, None
        self.epoch = durable.epoch

    @property
    def written(self) -> Segment | None:
        """The active segment with all batches that were written; None without an active segment."""
        return self._written

    def release_file(self) -> None:
        """Remove the file of this deleted stream from the list of open files."""
        self._writing.remove(self._active)

    def finish(self) -> None:
        """Make the rows of the active segment durable, then write its end marker and its index.

        If the disk is full, the end marker and the index are left out: the next start adds them.
        Raises WriteFailed if the segment can be finished later, Poisoned if it cannot.
        """
        self.sync()
        segment, written, file = self._segment, self._written, self._open_file()
        self._segment = self._written = self._active.file = None
        if segment is None or written is None or file is None:
            return
        try:
            file.write(written.size, END_OF_STREAM)
        except OSError as error:
            if error.errno not in TRANSIENT:
                self.poison(os_error_text(segment.path, "finish", error))
            return
        try:
            file.sync()
        except OSError as error:
            self.poison(os_error_text(segment.path, "sync", error))
        try:
            write_index(self.disk, written)
        except OSError as error:
            if error.errno not in TRANSIENT:
                self.poison(os_error_text(segment.path, "write the index of", error))

    def _roll(self, first: EncodedBatch) -> tuple[Segment, Segment, File]:
        """Create the next segment, and make it durable. Return its durable part, its written part,
        and its open file.

        Raises WriteFailed if the segment can be created later, Poisoned if it cannot.
        """
        self.finish()
        base, planned = first.base, first.planned
        try:
            if planned is not None and planned.epoch != self.epoch:
                self._begin_epoch(planned.epoch)
            elif self.epoch == 0:
                self._begin_epoch(0)
            path = f"{self.directory}/{segment_name(self.epoch, int(base))}"
            self._remove_derived(path)
            file = self.disk.create(path)
        except OSError as error:
            raise WriteFailed(
                os_error_text(self.directory, "create a segment in", error), error.errno or 0
            ) from error
        try:
            file.write(0, encode_schema(self.number, self.epoch, int(base)))
        except OSError as error:
            self.discard(path, os_error_text(path, "write", error), error)
        try:
            file.sync()
            self.disk.sync_directory(self.directory)
        except OSError as error:
            reason = os_error_text(path, "sync", error)
            if error.errno in NO_DESCRIPTORS:  # The directory could not be opened to sync it.
                self.discard(path, reason, error)
            self.poison(reason)
        self._segment, self._written = (
            Segment(self.disk, path, self.epoch, int(base)) for _ in range(2)
        )
        self._active.file = file
        return self._segment, self._written, file

    def _remove_derived(self, path: str) -> None:
        """Remove the files of a segment at `path` that a deleted stream of the same name has left.

        The removal is durable when this method returns.
        """
        if remove_derived(self.disk, path):
            self.disk.sync_directory(self.directory)

    def _begin_epoch(self, planned: int) -> None:
        """Make the directory, and set the epoch: the number with which names of segments begin.

        If `planned` is 0, the epoch is a number above all epochs in the directory, else it is
        `planned`. If the stream is new, remove all segments: they belong to a deleted stream with
        the same name. The removal becomes durable when the directory is synced with the first
        segment.
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
        self.epoch = planned or _epoch_above(names)


def _epoch_above(names: list[str]) -> int:
    """Return a number above the epochs of all segments in a list of file names."""
    epochs = [parsed[0] for parsed in map(parse_segment, names) if parsed is not None]
    return max(epochs, default=0) + 1


def write_index(disk: Disk, segment: Segment) -> None:
    """Write the index of a full segment beside the segment. Raises OSError if that fails."""
    write_derived(disk, f"{segment.path}{INDEX}", segment.encode_index())


def write_derived(disk: Disk, path: str, data: bytes) -> None:
    """Write a file that is derived from a segment: it exists whole, or not at all.

    Raises OSError if that fails.
    """
    directory = path.rpartition("/")[0]
    temporary = f"{path}.tmp"
    if temporary.rpartition("/")[2] in disk.list(directory):
        disk.remove(temporary)
    file = disk.create(temporary)
    file.write(0, data)
    file.sync()
    file.close()
    disk.rename(temporary, path)
