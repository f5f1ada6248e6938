"""Recovery of a stream when the broker starts.

For each segment: check the schema; load the index, or read all batches with their checksums; cut
the rows after the durable end, which were never confirmed.

A damaged segment is copied to `quarantine/`. The intact batches after the damage are copied to new
segments before the damage is removed. Empty files in the quarantine are notes for later starts:

    lost-STREAM-FROM-TO    the loss of the offsets from FROM to TO - 1 was reported
    written-STREAM-END     the stream ends at END, although the damaged log has a lower end
"""

from __future__ import annotations

import errno
from contextlib import suppress
from itertools import pairwise
from typing import Final

from mypy_extensions import i64

from broker.store.disk import Disk, File, StoreError
from broker.store.files import os_error_text
from broker.store.findings import CUT, MISSING, QUARANTINED, WRONG, Finding, Quarantine
from broker.stream.arrow import END_OF_STREAM, SCHEMA_SIZE, BatchView, encode_schema, read_schema
from broker.stream.batch_scan import BatchScan
from broker.stream.segment_writer import write_index
from broker.stream.segments import (
    INDEX,
    TOPICS,
    Segment,
    derived_from,
    parse_segment,
    remove_derived,
    segment_name,
)

#: Number of directory levels from `streams` down to the directory of one stream.
_DEPTH: Final = 3
#: Prefixes of the names of notes, which are empty files in the quarantine.
LOST: Final = "lost-"
WRITTEN: Final = "written-"
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
#: A number above all offsets.
_NO_END: Final[i64] = (1 << 63) - 1


class StreamRecovery:
    """The result of recovering one stream: its segments, findings, and its end.

    `end` is the offset of the next row.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        stream: int,
        end: int,
        ends_exact: bool = True,
        thorough: bool = False,
    ) -> None:
        """Recover the stream with the number `stream`, whose files are in `directory`.

        `end` is the durable end in the log. If `ends_exact` is False, the log was damaged, and all
        intact rows are kept. If `thorough` is True, all segments are read. If False, a segment is
        read only if it has no intact index, or has rows that were never confirmed. Raises
        StoreError if a file cannot be read or written.
        """
        self.segments: list[Segment] = []
        self.findings: list[Finding] = []
        self.end: i64 = end
        #: True if a segment has no summary of its topics.
        self.lacks_summary = False
        self._disk = disk
        self._directory = directory
        #: The last part of the path, for findings: streams, virtual host, queue.
        self._place = "/".join(directory.split("/")[-3:])
        self._quarantine = Quarantine(disk, directory)
        self._stream = stream
        self._cut_offset: i64 = _NO_END
        self._ends_exact = ends_exact
        self._thorough = thorough
        self._epoch = 0
        #: The first offset of the first file.
        self._first_offset: i64 = _NO_END
        #: (base, epoch) -> file name of a segment.
        self._segment_names: dict[tuple[int, int], str] = {}
        #: First offsets of gaps that are reported already.
        self._reported_gaps: set[int] = set()
        try:
            for name in self._quarantine.names():
                if name.startswith(f"{WRITTEN}{stream}-"):
                    self.end = max(self.end, int(name.rpartition("-")[2]))
            if ends_exact:
                self._cut_offset = self.end
            self._recover()
        except OSError as error:
            raise StoreError(os_error_text(directory, "read", error)) from error

    def _recover(self) -> None:
        try:
            names = self._disk.list(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        known = set(names)
        for name in names:
            parsed = parse_segment(name)
            if parsed is not None:
                self._segment_names[parsed[1], parsed[0]] = name
            elif name.endswith(".tmp") or derived_from(name) and derived_from(name) not in known:
                # A process that the killed broker started may rename or remove the file meanwhile.
                with suppress(FileNotFoundError):
                    self._disk.remove(f"{self._directory}/{name}")
        self._epoch = max((epoch for _, epoch in self._segment_names), default=0)
        for base, epoch in sorted(self._segment_names):
            name = self._segment_names.get((base, epoch), "")
            if name:
                self._recover_segment(epoch, base, name, known)
        self.segments.sort(key=_base)
        self.lacks_summary = any(f"{one.name}{TOPICS}" not in known for one in self.segments)
        last: i64 = self.segments[-1].end if self.segments else 0
        if last > self.end:
            self.end = last
            self._mark(f"{WRITTEN}{self._stream}-{int(last):020d}")
        self._report_gaps(last)

    def _report_gaps(self, last: i64) -> None:
        """Report each gap of offsets without rows, unless an earlier start has reported it.

        `last` is the offset after the last row.
        """
        gaps = [
            (int(one.end), int(other.base), one.name)
            for one, other in pairwise(self.segments)
            if one.end < other.base
        ]
        if self.segments and self._first_offset < self.segments[0].base:
            gaps.append(
                (int(self._first_offset), int(self.segments[0].base), self.segments[0].name)
            )
        if last < self.end:
            gaps.append((int(last), int(self.end), self.segments[-1].name if self.segments else ""))
        for start, end, name in gaps:
            if self._mark(f"{LOST}{self._stream}-{start:020d}-{end:020d}"):
                continue
            if start not in self._reported_gaps:
                self._report(
                    MISSING,
                    name,
                    f"all rows from offset {start} on are missing: the stream was written up to"
                    f" offset {end - 1}"
                    if end == self.end
                    else f"offsets {start} to {end - 1} are missing",
                )

    def _mark(self, mark: str) -> bool:
        """Create a note, an empty file in the quarantine, for later starts of the broker.

        Return True if an earlier start created the note; False if not, or if the disk is full.
        """
        # The stream's directory may be missing.
        path, *below = self._directory.rsplit("/", _DEPTH)
        for part in below:
            self._disk.make_directory(f"{path}/{part}")
            self._disk.sync_directory(path)
            path = f"{path}/{part}"
        try:
            return self._quarantine.mark(mark)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            return False

    def _report(
        self, kind: str, name: str, reason: str, at: int = 0, size: int = 0, copy: str = ""
    ) -> None:
        self.findings.append(
            Finding(kind, f"{self._place}/{name}" if name else self._place, at, size, reason, copy)
        )

    def _recover_segment(self, epoch: int, base: int, name: str, names: set[str]) -> None:
        disk, path = self._disk, f"{self._directory}/{name}"
        file = disk.open(path, False)
        size = int(file.size())
        head = read_schema(file.read(0, SCHEMA_SIZE))
        if head is None and size <= int(SCHEMA_SIZE) and (base, epoch) == max(self._segment_names):
            # A crash came before the first batch of this segment was durable.
            self._remove(path)
            return
        if head is not None and head[0] != self._stream:
            # The file belongs to a deleted stream of the same name.
            self._remove(path)
            return
        if base < int(self._cut_offset):
            self._first_offset = min(self._first_offset, base)
        if head is None or head[1:] != (epoch, base):
            self._reported_gaps.add(int(self.segments[-1].end) if self.segments else base)
            self._move_to_quarantine(name, "the schema is damaged, or belongs to another segment")
            return
        segment = Segment(disk, path, epoch, base)
        if base >= int(self._cut_offset):
            self._report(CUT, name, "no row of this segment was ever confirmed", 0, size)
            self._remove(path)
            return
        index = f"{name}{INDEX}"
        indexed = index in names and self._load_index(segment, index, size)
        if index in names and not indexed:
            self._report(WRONG, index, "the index is damaged, and must be written again")
        if indexed and segment.end <= self._cut_offset and not self._thorough:
            self._add(segment)
            return
        self._scan(segment, file, size, name, indexed)

    def _load_index(self, segment: Segment, index: str, size: int) -> bool:
        file = self._disk.open(f"{self._directory}/{index}", False)
        return segment.load_index(file.read(0, file.size()), size)

    def _add(self, segment: Segment) -> None:
        if segment.end > segment.base:
            self.segments.append(segment)

    def _scan(self, known: Segment, file: File, size: int, name: str, indexed: bool) -> None:
        """Read a whole segment, and deal with damage and with rows that were never confirmed.

        `known` is the segment with its epoch and base offset. If `indexed` is True, `known` also
        has the values of the segment's index, with which the rows in the file are compared.
        """
        segment = Segment(self._disk, known.path, known.epoch, int(known.base))
        place = SCHEMA_SIZE
        walk = BatchScan(file, place, size)
        batch = walk.next()
        while batch is not None and batch.base == segment.end:
            if batch.base + batch.rows > self._cut_offset:
                self._cut_batch(segment, batch, place, size)
                return
            segment.add_batch(
                batch.base,
                batch.rows,
                place,
                batch.end - batch.at,
                batch.published_at(0),
                batch.published_at(batch.rows - 1),
            )
            place = walk.place
            if segment.end == self._cut_offset:
                break
            batch = walk.next()
        rest = file.read(place, size - place) if size - place <= len(END_OF_STREAM) else b"more"
        ends = rest in (b"", END_OF_STREAM)
        if (
            indexed
            and known.end <= self._cut_offset
            and ends
            and segment.encode_index() == known.encode_index()
        ):
            segment.full = True
            self._add(segment)
            return
        salvaged: list[Segment] = []
        if (
            segment.end < self._cut_offset
            and not ends
            and not self._is_continued(segment)
            and not self._is_torn_end(segment, file, place, size)
        ):
            salvaged = self._salvage(
                segment, file, name, place, size, known.batch_places() if indexed else []
            )
        elif not ends:
            reason = "the batch at this byte was never confirmed"
            self._report(CUT, name, reason, int(place), int(size - place))
        elif indexed and known.end <= self._cut_offset:
            reason = "the index differs from the segment, and must be written again"
            self._report(WRONG, f"{name}{INDEX}", reason)
        if segment.end > segment.base:
            self._finish(segment, place)
        else:
            self._remove(segment.path)
        for part in salvaged:
            self._finish(part, part.size)

    def _is_torn_end(self, segment: Segment, file: File, place: i64, size: int) -> bool:
        """True if the bad data from `place` on is the torn end of the last segment.

        Always False if the log is intact: an intact log says where the durable rows end.
        """
        if self._ends_exact or max(self._segment_names) != (int(segment.base), segment.epoch):
            return False
        return (
            segment.end >= self.end and BatchScan(file, place, size).find(segment.end, []) is None
        )

    def _salvage(
        self, segment: Segment, file: File, name: str, place: i64, size: int, marks: list[int]
    ) -> list[Segment]:
        """Copy the intact batches after damage to new segments, and return these segments.

        The caller removes the damage afterwards. If the broker crashes before that, the next start
        copies the batches again. The damage begins at `place`; `size` is the size of the file in
        bytes. `marks` are the places of batches in the index.
        """
        start = segment.end
        copy = self._quarantine.copy(file, 0, size, f"{name}-{place}-{size - place}.bad")
        self._reported_gaps.add(int(start))
        salvaged: list[Segment] = []
        walk = BatchScan(file, place, size)
        batch = walk.find(start, marks)
        while batch is not None and batch.base + batch.rows <= self._cut_offset:
            if not salvaged or batch.base != salvaged[-1].end:
                self._sync_last(salvaged)
                salvaged.append(self._new_segment(segment, int(batch.base)))
            part = salvaged[-1]
            data = batch.data[batch.at : batch.end]
            self._disk.open(part.path, True).write(part.size, data)
            part.add_batch(
                batch.base,
                batch.rows,
                part.size,
                len(data),
                batch.published_at(0),
                batch.published_at(batch.rows - 1),
            )
            batch = walk.find(part.end, marks)
        self._sync_last(salvaged)
        lost = (
            f"all rows from offset {start} on are lost"
            if not salvaged
            else (
                f"offsets {start} to {salvaged[0].base - 1} are lost, and the rows behind them are"
                " in new segments"
            )
        )
        self._report(
            QUARANTINED,
            name,
            f"there is no batch with a correct checksum at byte {place}: {lost}",
            int(place),
            int(size - place),
            copy,
        )
        return salvaged

    def _sync_last(self, salvaged: list[Segment]) -> None:
        if salvaged:
            self._disk.open(salvaged[-1].path, True).sync()

    def _new_segment(self, segment: Segment, base: int) -> Segment:
        """Return a new segment for the rows of a damaged or cut segment from offset `base` on."""
        for other in [
            one for one in self._segment_names if one[0] == base and one[1] > segment.epoch
        ]:
            # An earlier start was interrupted after it had created this segment.
            self._remove(f"{self._directory}/{self._segment_names[other]}")
            del self._segment_names[other]
        self._epoch += 1
        part = Segment(
            self._disk, f"{self._directory}/{segment_name(self._epoch, base)}", self._epoch, base
        )
        file = self._disk.create(part.path)
        file.write(0, encode_schema(self._stream, self._epoch, base))
        self._disk.sync_directory(self._directory)
        return part

    def _is_continued(self, segment: Segment) -> bool:
        """True if another segment has the rows that follow the last row of `segment`.

        In this case, invalid data at the end of `segment` is not a loss of rows: the data is an end
        marker whose write failed, or the rest of a write that an earlier start truncated.
        """
        own = (int(segment.base), segment.epoch)
        return any(
            one != own and one[1] >= segment.epoch and one[0] == int(segment.end)
            for one in self._segment_names
        )

    def _cut_batch(self, segment: Segment, batch: BatchView, place: i64, size: int) -> None:
        """Cut off the batch at byte `place`, which has rows that were never confirmed.

        If the first rows of the batch were confirmed, they are first copied to a new segment.
        """
        rows = self._cut_offset - batch.base
        self._report(
            CUT,
            segment.name,
            "the last rows of the batch at this byte were never confirmed",
            int(place),
            int(size - place),
        )
        if rows > 0:
            part = self._new_segment(segment, int(batch.base))
            data = batch.first_rows(rows)
            file = self._disk.open(part.path, True)
            file.write(part.size, data)
            file.sync()
            part.add_batch(
                batch.base,
                rows,
                SCHEMA_SIZE,
                len(data),
                batch.published_at(0),
                batch.published_at(rows - 1),
            )
        if segment.end > segment.base:
            self._finish(segment, place)
        else:
            self._remove(segment.path)
        if rows > 0:
            self._finish(part, part.size)

    def _finish(self, segment: Segment, place: i64) -> None:
        """Cut a segment at a place, write the end marker, and write the segment's index."""
        file = self._disk.open(segment.path, True)
        file.truncate(place)
        try:
            file.write(place, END_OF_STREAM)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            file.truncate(place)  # The end marker is optional; the next start tries again.
        file.sync()
        file.close()
        segment.full = True
        remove_derived(self._disk, segment.path)
        try:
            write_index(self._disk, segment)
        except OSError as refused:
            if refused.errno not in _DISK_FULL:
                raise
        self._disk.sync_directory(self._directory)
        self._add(segment)

    def _remove(self, path: str) -> None:
        remove_derived(self._disk, path)
        self._disk.remove(path)

    def _move_to_quarantine(self, name: str, reason: str) -> None:
        """Move a whole file of the stream to the quarantine, and add a finding with the reason."""
        size = int(self._disk.open(f"{self._directory}/{name}", False).size())
        self._report(QUARANTINED, name, reason, 0, size, self._quarantine.move(name))


def _base(segment: Segment) -> int:
    return int(segment.base)
