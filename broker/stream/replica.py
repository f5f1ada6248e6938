"""The files of streams on a standby, a node that follows the replicated log.

    StreamReplica.write   writes shipped rows at the places at which the owner has written them
    StreamReplica.check   compares the ends of the streams with their ends in the log

A node may get rows again: after a crash, or if its directory was copied from a running node. So the
files may already have the rows, a part of them, or rows of later batches:

    the file has the rows           they are compared, and not written again
    the file ends before the rows   they are appended, after an incomplete batch was removed
    the file is missing             it was removed by a later batch if the stream has newer files
    anything else                   StreamDiffers
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.store.disk import Disk, StoreError, WriteFailed
from broker.store.files import os_error_text
from broker.store.stream_contract import ShippedRows, StreamWrite
from broker.stream.arrow import END_OF_STREAM, SCHEMA_SIZE, BatchView, read_schema, view_batch
from broker.stream.batch_scan import BatchScan
from broker.stream.captured_rows import BatchPlace, EncodedBatch
from broker.stream.open_files import OpenFiles
from broker.stream.segment_writer import SegmentWriter
from broker.stream.segments import SUFFIXES, Segment, directory_name, parse_segment, segment_name


class StreamDiffers(Exception):
    """Raised if the files of a stream differ from the rows in the replicated log."""


class StreamCopy:
    """The files of one stream on a standby. `number` is the number of the stream."""

    def __init__(
        self, disk: Disk, root: str, vhost: str, name: str, number: int, writing: OpenFiles
    ) -> None:
        self.number = number
        #: True if rows are skipped, because the files with the earlier rows are missing: the stream
        #: was deleted later, and a stream of the same name may have its directory.
        self.missing = False
        self.writer = SegmentWriter(disk, root, vhost, name, number, writing)
        self._disk = disk
        #: The virtual host and the name of the stream.
        self.place = vhost, name
        #: True once an incomplete batch at the end of the active segment was removed.
        self._trimmed = False
        try:
            self._open()
        except OSError as error:
            raise StoreError(os_error_text(self.writer.directory, "read", error)) from error

    def _open(self) -> None:
        """Find the active segment and its batches. Remove files of an older, deleted stream."""
        directory = self.writer.directory
        try:
            names = self._disk.list(directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        newest: tuple[int, int] | None = None
        for name in names:
            parsed = parse_segment(name)
            if parsed is None:
                continue
            file = self._disk.open(f"{directory}/{name}", False)
            head = read_schema(file.read(0, SCHEMA_SIZE))
            number = head[0] if head is not None else -1
            if number > self.number:
                self.missing = True
            elif number != self.number and (number >= 0 or file.size() <= SCHEMA_SIZE):
                self._remove(name)
            elif head is None or head[1:] != parsed:
                raise self._differs(f"the schema of segment '{name}' is damaged")
            elif newest is None or (parsed[1], parsed[0]) > newest:
                newest = parsed[1], parsed[0]
        if newest is not None:
            self._resume(newest[1], newest[0])

    def _remove(self, name: str) -> None:
        for suffix in SUFFIXES:
            try:
                self._disk.remove(f"{self.writer.directory}/{name.removesuffix('.arrow')}{suffix}")
            except FileNotFoundError:
                continue

    def _resume(self, epoch: int, base: int) -> None:
        path = f"{self.writer.directory}/{segment_name(epoch, base)}"
        durable = Segment(self._disk, path, epoch, base)
        written = Segment(self._disk, path, epoch, base)
        file = self._disk.open(path, False)
        scan = BatchScan(file, SCHEMA_SIZE, file.size())
        place = scan.place
        batch = scan.next()
        while batch is not None and batch.base == written.end:
            for segment in (durable, written):
                segment.add_batch(
                    batch.base,
                    batch.rows,
                    place,
                    scan.place - place,
                    batch.published_at(0),
                    batch.published_at(batch.rows - 1),
                )
            place = scan.place
            batch = scan.next()
        self.writer.resume(durable, written)

    def _differs(self, reason: str) -> StreamDiffers:
        vhost, name = self.place
        return StreamDiffers(f"streams/{directory_name(vhost)}/{directory_name(name)}: {reason}")

    # -- rows

    def write(self, rows: ShippedRows) -> None:
        """Write shipped rows to the stream's files, unless the files have the rows already.

        Raises StreamDiffers if the files have other rows, StoreError if the write fails.
        """
        batch = self._view(rows)
        active = self.writer.written
        if self.missing:
            return
        if active is None:
            if rows.segment_base != 0 or rows.place != SCHEMA_SIZE:
                self.missing = True
                return
        elif (rows.segment_base, rows.epoch) < (int(active.base), active.epoch):
            self._compare_older(rows)
            return
        elif (rows.segment_base, rows.epoch) == (int(active.base), active.epoch):
            if rows.place + len(rows.data) <= active.size:
                self._compare(rows, active.path)
                return
            self._check_end(rows, int(active.size), "byte", rows.place)
            if self._trim(active):
                raise self._differs(
                    f"the rows from offset {rows.base} on belong to segment '{active.name}', "
                    "which already has its end marker"
                )
        else:
            self._check_end(rows, int(active.end), "offset", rows.segment_base)
            self._trim(active)
        self._append(rows, batch)

    def _view(self, rows: ShippedRows) -> BatchView:
        """Return `rows`, which came through the replicated log, as one Arrow batch.

        Raises StreamDiffers if the rows are damaged.
        """
        batch = view_batch(bytes(rows.data), 0)
        if (
            batch is None
            or not batch.is_intact()
            or batch.end != len(rows.data)
            or (int(batch.base), int(batch.rows)) != (rows.base, rows.count)
        ):
            raise self._differs(f"the replicated log has damaged rows from offset {rows.base} on")
        return batch

    def _check_end(self, rows: ShippedRows, end: int, unit: str, expected: int) -> None:
        if end != expected:
            raise self._differs(
                f"the rows from offset {rows.base} on belong after {unit} {expected}, and the "
                f"active segment ends at {unit} {end}"
            )

    def _append(self, rows: ShippedRows, batch: BatchView) -> None:
        first_at: i64 = batch.published_at(0)
        last_at: i64 = batch.published_at(batch.rows - 1)
        encoded = EncodedBatch(bytearray(rows.data), batch.base, batch.rows, first_at, last_at)
        encoded.planned = BatchPlace(rows.epoch, rows.segment_base, rows.place)
        placed = self.writer.append(encoded)
        if int(placed.place) != rows.place:
            raise self._differs(
                f"the rows from offset {rows.base} on belong at byte {rows.place} of "
                f"segment '{placed.segment.name}', but are at byte {placed.place}"
            )
        self._trimmed = True

    def _trim(self, active: Segment) -> bool:
        """Remove an incomplete batch, which a crash may have left at the end of the active segment.

        Return True if the segment has its end marker, so that no batch is added to it.
        """
        if self._trimmed:
            return False
        try:
            file = self._disk.open(active.path, True)
            rest = file.read(active.size, len(END_OF_STREAM) + 1)
            if rest == END_OF_STREAM:
                return True
            if rest:
                file.truncate(active.size)
        except OSError as error:
            raise WriteFailed(
                os_error_text(active.path, "truncate", error), error.errno or 0
            ) from error
        self._trimmed = True
        return False

    def _compare_older(self, rows: ShippedRows) -> None:
        """Raise StreamDiffers if an older segment lacks `rows`. Do nothing if the segment was
        removed.
        """
        path = f"{self.writer.directory}/{segment_name(rows.epoch, rows.segment_base)}"
        try:
            self._disk.open(path, False)
        except FileNotFoundError:
            return
        except OSError as error:
            raise WriteFailed(os_error_text(path, "open", error), error.errno or 0) from error
        self._compare(rows, path)

    def _compare(self, rows: ShippedRows, path: str) -> None:
        try:
            stored = self._disk.open(path, False).read(rows.place, len(rows.data))
        except OSError as error:
            raise WriteFailed(os_error_text(path, "read", error), error.errno or 0) from error
        if stored != rows.data:
            raise self._differs(
                f"the file '{path.rpartition('/')[2]}' has other rows from offset {rows.base} on"
            )

    def check(self, end: int) -> None:
        """Raise StreamDiffers unless the last row in the files is the row before offset `end`."""
        active = self.writer.written
        if active is None or self.missing:
            raise self._differs(f"all rows before offset {end} are missing")
        if int(active.end) != end:
            raise self._differs(
                f"the rows in the files end at offset {active.end}, and the rows in the replicated "
                f"log end at offset {end}"
            )
        try:
            file = self._disk.open(active.path, False)
            rest = file.read(active.size, len(END_OF_STREAM) + 1)
        except OSError as error:
            raise StoreError(os_error_text(active.path, "read", error)) from error
        if not END_OF_STREAM.startswith(rest):
            raise self._differs(f"segment '{active.name}' has data after its last row")


class StreamReplica:
    """The files of all streams on a standby. `root` is their directory."""

    def __init__(self, disk: Disk, root: str) -> None:
        self.root = root
        self._disk = disk
        self._writing = OpenFiles()
        self._streams: dict[int, StreamCopy] = {}
        #: (virtual host, name) -> number of the newest stream in `_streams` of that name.
        self._newest: dict[tuple[str, str], int] = {}

    def _copy(self, vhost: str, name: str, number: int) -> StreamCopy:
        stream_copy = self._streams.get(number)
        if stream_copy is None:
            stream_copy = self._open(vhost, name, number)
            self._streams[number] = stream_copy
            self._supersede(vhost, name, number)
        return stream_copy

    def _open(self, vhost: str, name: str, number: int) -> StreamCopy:
        return StreamCopy(self._disk, self.root, vhost, name, number, self._writing)

    def _supersede(self, vhost: str, name: str, number: int) -> None:
        """Mark the older stream of this name as removed, so that its rows are skipped from now on.

        `number` is the number of the newer stream. Rows of the removed stream can come again: one
        batch may have rows of both streams, and is written again after WriteFailed.
        """
        known = self._newest.get((vhost, name), number)
        self._newest[vhost, name] = max(known, number)
        older = self._streams.get(known)
        if known < number and older is not None:
            older.missing = True
            older.writer.release_file()

    def write(self, rows: list[ShippedRows]) -> None:
        """Write shipped rows of several streams, and make them durable.

        Raises StreamDiffers if the files have other rows, WriteFailed if the call may be repeated,
        another StoreError otherwise.
        """
        touched: dict[int, StreamCopy] = {}
        for share in rows:
            copy = self._copy(share.vhost, share.name, share.stream)
            touched[share.stream] = copy
            try:
                copy.write(share)
            except WriteFailed:
                if copy.writer.written is None:
                    # No new segment could be made: the retry reads the files again.
                    self.release(share.stream)
                raise
        for copy in touched.values():
            if not copy.missing:
                copy.writer.sync()

    def release(self, number: int) -> None:
        """Drop the state of a stream in memory: its files are removed, or must be read again."""
        stream_copy = self._streams.pop(number, None)
        if stream_copy is not None:
            stream_copy.writer.release_file()
            if self._newest.get(stream_copy.place) == number:
                del self._newest[stream_copy.place]

    def check(self, vhost: str, name: str, number: int, end: int) -> None:
        """Raise StreamDiffers unless the last row of a stream is the row before offset `end`."""
        self._copy(vhost, name, number).check(end)


class ReplicaWrite(StreamWrite):
    """The stream rows of one batch that a standby has read from the replicated log."""

    def __init__(self, replica: StreamReplica, rows: list[ShippedRows]) -> None:
        self._replica = replica
        self._rows = rows

    def write(self) -> None:
        self._replica.write(self._rows)

    def settle(self) -> None:
        """Do nothing: a standby has no readers of streams."""
