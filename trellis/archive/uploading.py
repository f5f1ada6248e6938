"""Uploads a full segment: its rows become Parquet files in the archive. Used by the worker only.

An upload may be repeated, for example after a crash: rows that the archive has already are compared
with the rows of the segment, and the missing rows are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import parquet

from broker.store.disk import RealDisk
from broker.stream.arrow import SCHEMA_SIZE, BatchView, read_schema
from broker.stream.batch_scan import BatchScan
from trellis.archive.contract import Upload
from trellis.archive.listing import StreamListing
from trellis.archive.names import ArchivedFile, day_of
from trellis.archive.storage import ArchiveStorage, FileMissing
from trellis.table_files import TableFile

#: A file is complete when its rows have this number of bytes in the segment. A reader always
#: fetches a whole file.
FILE_BYTES: Final = 64 << 20
#: The columns that must be equal in the archive and in the segment.
_COMPARED: Final = ("offset", "published_at", "topic", "size")


class UnfitRows(Exception):
    """Raised if a segment is damaged, or the archive has other rows at the segment's offsets."""


class Written(NamedTuple):
    """The number and the size in bytes of the files that an upload wrote."""

    files: int
    size: int


class Uploader:
    """The writer of segments to the archive; `directory` is for files that are not complete yet."""

    def __init__(
        self, storage: ArchiveStorage, directory: Path, file_bytes: int = FILE_BYTES
    ) -> None:
        self._storage = storage
        self._file_bytes = file_bytes
        self._partial = directory / "upload.parquet"

    def upload(self, wanted: Upload, listing: StreamListing) -> Written:
        """Write the rows of the segment that are missing in the archive; compare the other rows.

        Raises ArchiveAway if a later attempt may succeed, UnfitRows if every later attempt would
        fail too, and FileNotFoundError if the segment was removed.
        """
        source = SegmentRows(wanted)
        low, files, size = wanted.base, 0, 0
        for known in [*listing.overlapping(wanted.base, wanted.end), None]:
            high = wanted.end if known is None else known.first
            if low < high:
                for file in self._write(source, low, high, listing):
                    files, size = files + 1, size + file.size
            if known is not None:
                low = min(known.end, wanted.end)
                span = known.first, known.end, known.from_us, known.to_us
                if span != (wanted.base, wanted.end, wanted.from_us, wanted.to_us):
                    self._compare(source, known, listing.stream)
        return Written(files, size)

    def _write(
        self, source: SegmentRows, low: int, high: int, listing: StreamListing
    ) -> Iterator[ArchivedFile]:
        """Write the rows from offset `low` up to, not including, `high`, as one or more files."""
        day = listing.day_before(low)
        while low < high:
            part = _Part(source, low, high, day, self._file_bytes)
            with self._partial.open("wb") as out:
                table = TableFile(out, "parquet", source.schema)
                try:
                    for batch in part.batches():
                        table.write(batch)
                    table.close()
                except BaseException:
                    table.cancel()
                    raise
            day = part.day
            file = ArchivedFile(
                low, part.end, part.from_us, part.to_us, self._partial.stat().st_size, day
            )
            self._storage.put(self._partial, f"{listing.stream}/{file.path}")
            listing.add(file)
            yield file
            low = part.end

    def _compare(self, source: SegmentRows, known: ArchivedFile, stream: str) -> None:
        """Raise UnfitRows if the archived file `known` has other rows than the segment.

        Only the offsets that the segment and the file have in common are compared.
        """
        low, high = max(source.base, known.first), min(source.end, known.end)
        try:
            with self._storage.open(f"{stream}/{known.path}") as file:
                theirs = parquet.read_table(file, columns=list(_COMPARED), use_threads=False)
        except (FileMissing, pa.ArrowException) as error:
            raise UnfitRows(
                f"the archived file {stream}/{known.path} cannot be compared with the stream: "
                f"{error}"
            ) from None
        theirs = theirs.slice(low - known.first, high - low).replace_schema_metadata(None)
        ours = pa.Table.from_batches(
            batch.select(list(_COMPARED)) for batch, _ in source.batches(low, high)
        )
        if not ours.equals(theirs):
            raise UnfitRows(
                f"the archive has other rows at the offsets {low} to {high - 1}, in "
                f"{stream}/{known.path}: another broker, or an earlier state of this data "
                "directory, wrote them; set stream.archive to another prefix"
            )


class SegmentRows:
    """The rows of a segment on the disk. Reading a batch checks its checksum."""

    def __init__(self, wanted: Upload) -> None:
        """Open the segment. Raises FileNotFoundError, UnfitRows."""
        self.base, self.end = wanted.base, wanted.end
        self._path = wanted.path
        self._size = wanted.size
        self._file = RealDisk().open(wanted.path, False)
        head = self._file.read(0, SCHEMA_SIZE)
        identity = read_schema(head)
        if identity is None or identity[0] != wanted.stream_number or identity[2] != wanted.base:
            # Another stream got the name of the deleted stream, and this file name.
            raise FileNotFoundError(wanted.path)
        self.schema = pa.ipc.read_schema(pa.py_buffer(head)).remove_metadata()

    def views(self, low: int) -> Iterator[BatchView]:
        """Iterate over the batches, from the batch with the offset `low` on. Raises UnfitRows."""
        scan = BatchScan(self._file, SCHEMA_SIZE, self._size)
        at = self.base
        while at < self.end:
            view = scan.next()
            if view is None or int(view.base) != at:
                raise UnfitRows(
                    f"'{self._path}' is damaged at byte {int(scan.place)}: stop the broker and run "
                    "`trellis store repair`"
                )
            at += int(view.rows)
            if at > low:
                yield view

    def batches(self, low: int, high: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Iterate over the rows from offset `low` up to, not including, `high`, in batches.

        Each batch comes with its size in the segment in bytes. Raises UnfitRows.
        """
        for view in self.views(low):
            base, rows = int(view.base), int(view.rows)
            if base >= high:
                return
            data = pa.py_buffer(memoryview(view.data)[int(view.at) : int(view.end)])
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(data), self.schema)
            first, after = max(low - base, 0), min(high - base, rows)
            yield batch.slice(first, after - first), int(view.end - view.at)


class _Part:
    """The rows of one file, from offset `low` on: rows of one day, up to `most` bytes."""

    def __init__(self, source: SegmentRows, low: int, high: int, day: str, most: int) -> None:
        """Begin a file of the rows from offset `low` on; the last possible offset is `high` - 1.

        `day` is the day of the file before this one: the new file gets this day or a later one.
        """
        self.end = low
        self.from_us = self.to_us = 0
        self.day = day
        self._source, self._low, self._high, self._most = source, low, high, most

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows of the file in batches.

        After the last batch, `end`, `day`, `from_us` and `to_us` describe the rows of the file.
        """
        size = 0
        for batch, stored in self._source.batches(self._low, self._high):
            if self.end > self._low and size + stored > self._most:
                return
            times: Any = batch.column("published_at").cast(pa.int64())
            if self.end == self._low:
                self.from_us = self.to_us = times[0].as_py()
                self.day = max(self.day, day_of(self.from_us))
            last = pc.max(times).as_py()
            if day_of(last) > self.day:
                count = next(
                    row for row, time in enumerate(times) if day_of(time.as_py()) > self.day
                )
                if count:
                    self._add(batch.slice(0, count), times.slice(0, count))
                    yield batch.slice(0, count)
                return
            self._add(batch, times)
            size += stored
            yield batch

    def _add(self, batch: pa.RecordBatch, times: Any) -> None:
        self.end += batch.num_rows
        extremes = pc.min_max(times).as_py()
        self.from_us = min(self.from_us, extremes["min"])
        self.to_us = max(self.to_us, extremes["max"])
