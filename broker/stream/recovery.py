"""A stream at a start: its segments are found, what nobody was promised is cut, and what cannot be
read is put aside.

    names --> schema --> index, or all batches with their checksums --> segments, in order
                                                                        what stands behind the durable offset is cut

Where a segment is damaged, a copy of it goes to `quarantine/`, and the sound batches behind the
damage into segments of their own, before the damage goes. Offsets that are lost are noted there too
(`lost-STREAM-FROM-TO`, a file without octets): so that they are told once; and how far a stream is
of which a damaged log knows less (`written-STREAM-END`).
"""

from __future__ import annotations

import errno
from itertools import pairwise
from typing import Final

from mypy_extensions import i64

from broker.store.disk import Disk, File, StoreError
from broker.store.files import os_error_text
from broker.store.findings import CUT, MISSING, QUARANTINED, WRONG, Finding, Quarantine
from broker.stream.archive import write_index
from broker.stream.arrow import (
    BATCH_HEADER_SIZE,
    END_OF_STREAM,
    SCHEMA_SIZE,
    BatchView,
    batch_size,
    encode_schema,
    read_schema,
    view_batch,
)
from broker.stream.segments import Segment, parse_segment, segment_name

#: Octets that are read at once.
_READ_SIZE: Final[i64] = 1 << 20
_INDEX: Final = ".index"
#: Directories from that of all streams to a stream's.
_DEPTH: Final = 3
#: How names of notes begin.
LOST: Final = "lost-"
WRITTEN: Final = "written-"
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
#: Beyond any offset.
_NO_END: Final[i64] = (1 << 63) - 1


class StreamRecovery:
    """The segments of one stream, and what was not as it should be.

    `end` is the offset of what comes next.
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
        """`end` is the durable offset, as the log says; it is `sure` unless the log is damaged:
        then everything that can be read stays. `thorough`: full segments are read too, whatever
        their index says. Raises StoreError.
        """
        self.segments: list[Segment] = []
        self.findings: list[Finding] = []
        self.end: i64 = end
        self._disk = disk
        self._directory = directory
        #: As findings say it: from the directory of all streams on.
        self._place = "/".join(directory.split("/")[-3:])
        self._quarantine = Quarantine(disk, directory)
        self._stream = stream
        for name in self._quarantine.names():
            if name.startswith(f"{WRITTEN}{stream}-"):
                self.end = max(self.end, int(name.rpartition("-")[2]))
        self._cut_offset: i64 = self.end if ends_exact else _NO_END
        self._ends_exact = ends_exact
        self._thorough = thorough
        self._epoch = 0
        #: Where the first file begins.
        self._first_offset: i64 = _NO_END
        #: Segments by their names, as (base, epoch).
        self._segment_names: dict[tuple[int, int], str] = {}
        #: Offsets from which on rows are lost, as was told already.
        self._reported_gaps: set[int] = set()
        try:
            self._recover()
        except OSError as error:
            raise StoreError(os_error_text(directory, "read", error)) from error

    def _recover(self) -> None:
        try:
            names = self._disk.list(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        for name in names:
            parsed = parse_segment(name)
            if parsed is not None:
                self._segment_names[parsed[1], parsed[0]] = name
            elif (
                name.endswith(".tmp")
                or name.endswith(_INDEX)
                and name.removesuffix(_INDEX) not in names
            ):
                self._disk.remove(f"{self._directory}/{name}")
        self._epoch = max((epoch for _, epoch in self._segment_names), default=0)
        for base, epoch in sorted(self._segment_names):
            name = self._segment_names.get((base, epoch), "")
            if name:
                self._recover_segment(epoch, base, name, set(names))
        self.segments.sort(key=_base)
        last: i64 = self.segments[-1].end if self.segments else 0
        if last > self.end:
            self.end = last
            self._mark(f"{WRITTEN}{self._stream}-{int(last):020d}")
        self._report_gaps(last)

    def _report_gaps(self, last: i64) -> None:
        """Say which offsets are not there, once."""
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
                    f"the stream ends with offset {start}, and was written up to {end}"
                    if end == self.end
                    else f"offsets {start} to {end - 1} are not there",
                )

    def _mark(self, mark: str) -> bool:
        """Whether an earlier start noted this; a later one knows it then, if there is room for a
        file.
        """
        # The stream's directory may be what is lost.
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
        self, what: str, name: str, reason: str, at: int = 0, size: int = 0, copy: str = ""
    ) -> None:
        self.findings.append(
            Finding(what, f"{self._place}/{name}" if name else self._place, at, size, reason, copy)
        )

    def _recover_segment(self, epoch: int, base: int, name: str, names: set[str]) -> None:
        disk, path = self._disk, f"{self._directory}/{name}"
        file = disk.open(path, False)
        size = int(file.size())
        head = read_schema(file.read(0, SCHEMA_SIZE))
        if head is None and size <= int(SCHEMA_SIZE) and (base, epoch) == max(self._segment_names):
            self._remove(path, names)  # The crash came before its first batch.
            return
        if head is not None and head[0] != self._stream:
            self._remove(path, names)  # Of a queue that had this name before, and is deleted.
            return
        if base < int(self._cut_offset):
            self._first_offset = min(self._first_offset, base)
        if head is None or head[1:] != (epoch, base):
            self._reported_gaps.add(int(self.segments[-1].end) if self.segments else base)
            self._move_to_quarantine(name, "its schema is none of this stream's")
            return
        segment = Segment(disk, path, epoch, base)
        if base >= int(self._cut_offset):
            self._report(CUT, name, "a segment that was promised to nobody", 0, size)
            self._remove(path, names)
            return
        index = f"{name}{_INDEX}"
        indexed = index in names and self._load_index(segment, index, size)
        if index in names and not indexed:
            self._report(WRONG, index, "it cannot be read, and is made anew")
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
        """Read all of it. `known` is what its index says, if it is `indexed`."""
        segment = Segment(self._disk, known.path, known.epoch, int(known.base))
        place = SCHEMA_SIZE
        walk = BatchScan(file, place, size)
        found = walk.next()
        while found is not None and found.base == segment.end:
            if found.base + found.rows > self._cut_offset:
                self._cut_batch(segment, found, place, size)
                return
            segment.add_batch(
                found.base,
                found.rows,
                place,
                found.end - found.at,
                found.published_at(0),
                found.published_at(found.rows - 1),
            )
            place = walk.place
            if segment.end == self._cut_offset:
                break
            found = walk.next()
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
        parts: list[Segment] = []
        if (
            segment.end < self._cut_offset
            and not ends
            and not self._is_continued(segment)
            and not self._is_torn_end(segment, file, place, size)
        ):
            parts = self._salvage(
                segment, file, name, place, size, known.batch_places() if indexed else []
            )
        elif not ends:
            self._report(
                CUT, name, "a batch that was promised to nobody", int(place), int(size - place)
            )
        elif indexed and known.end <= self._cut_offset:
            self._report(
                WRONG, f"{name}{_INDEX}", "it does not say what the segment has, and is made anew"
            )
        if segment.end > segment.base:
            self._finish(segment, place)
        else:
            self._remove(segment.path, {f"{name}{_INDEX}"})
        for part in parts:
            self._finish(part, part.size)

    def _is_torn_end(self, segment: Segment, file: File, place: i64, size: int) -> bool:
        """Whether it is the end of the last segment, of which nobody can say any more what was
        promised.
        """
        if self._ends_exact or max(self._segment_names) != (int(segment.base), segment.epoch):
            return False
        return (
            segment.end >= self.end and BatchScan(file, place, size).find(segment.end, []) is None
        )

    def _salvage(
        self, segment: Segment, file: File, name: str, place: i64, size: int, marks: list[int]
    ) -> list[Segment]:
        """What is sound behind the damage goes into segments of its own, which the caller finishes.
        They are there before the damage goes: if the process ends between, a start does this again.
        `marks` are places of batches, as the index knows them.
        """
        start = segment.end
        copy = self._quarantine.copy(file, 0, size, f"{name}-{place}-{size - place}.bad")
        self._reported_gaps.add(int(start))
        parts: list[Segment] = []
        walk = BatchScan(file, place, size)
        found = walk.find(start, marks)
        while found is not None and found.base + found.rows <= self._cut_offset:
            if not parts or found.base != parts[-1].end:
                self._sync_last(parts)
                parts.append(self._new_segment(segment, int(found.base)))
            part = parts[-1]
            data = found.data[found.at : found.end]
            self._disk.open(part.path, True).write(part.size, data)
            part.add_batch(
                found.base,
                found.rows,
                part.size,
                len(data),
                found.published_at(0),
                found.published_at(found.rows - 1),
            )
            found = walk.find(part.end, marks)
        self._sync_last(parts)
        lost = (
            f"what was there from offset {start} on is lost"
            if not parts
            else (
                f"offsets {start} to {parts[0].base - 1} are lost, and what could be read behind them has files of its own"
            )
        )
        self._report(
            QUARANTINED,
            name,
            f"no batch with a right checksum stands at {place}: {lost}",
            int(place),
            int(size - place),
            copy,
        )
        return parts

    def _sync_last(self, parts: list[Segment]) -> None:
        if parts:
            self._disk.open(parts[-1].path, True).sync()

    def _new_segment(self, segment: Segment, base: int) -> Segment:
        """A new segment for what stands in this one from an offset on."""
        for other in [
            one for one in self._segment_names if one[0] == base and one[1] > segment.epoch
        ]:
            # An earlier start came so far, and no further.
            self._remove(
                f"{self._directory}/{self._segment_names[other]}",
                {f"{self._segment_names[other]}{_INDEX}"},
            )
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
        """Whether another segment has what follows: then what stands here behind the last batch is
        the end that could not be written, or what an earlier start cut off."""
        own = (int(segment.base), segment.epoch)
        return any(
            one != own and one[1] >= segment.epoch and one[0] == int(segment.end)
            for one in self._segment_names
        )

    def _cut_batch(self, segment: Segment, batch: BatchView, place: i64, size: int) -> None:
        """Only the first rows of a batch were promised.

        They go into a segment of their own before the batch goes.
        """
        rows = self._cut_offset - batch.base
        self._report(
            CUT,
            segment.name,
            "the end of a batch that was promised to nobody",
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
            self._remove(segment.path, {f"{segment.name}{_INDEX}"})
        if rows > 0:
            self._finish(part, part.size)

    def _finish(self, segment: Segment, place: i64) -> None:
        """It is never written again: it ends there."""
        file = self._disk.open(segment.path, True)
        file.truncate(place)
        try:
            file.write(place, END_OF_STREAM)
        except OSError as error:
            if error.errno not in _DISK_FULL:
                raise
            file.truncate(place)  # It can do without; the next start tries again.
        file.sync()
        file.close()
        segment.full = True
        index = f"{segment.path}{_INDEX}"
        if index.rpartition("/")[2] in self._disk.list(self._directory):
            self._disk.remove(index)
        try:
            write_index(self._disk, segment)
        except OSError as refused:
            if refused.errno not in _DISK_FULL:
                raise
        self._disk.sync_directory(self._directory)
        self._add(segment)

    def _remove(self, path: str, names: set[str]) -> None:
        if f"{path.rpartition('/')[2]}{_INDEX}" in names:
            try:
                self._disk.remove(f"{path}{_INDEX}")
            except FileNotFoundError:
                pass
        self._disk.remove(path)

    def _move_to_quarantine(self, name: str, reason: str) -> None:
        """Move a whole file to the quarantine."""
        size = int(self._disk.open(f"{self._directory}/{name}", False).size())
        self._report(QUARANTINED, name, reason, 0, size, self._quarantine.move(name))


class BatchScan:
    """The sound batches of a segment's file, from a place on."""

    def __init__(self, file: File, place: i64, size: i64) -> None:
        #: Where the next one is looked for.
        self.place: i64 = place
        self._file = file
        self._size: i64 = size
        self._data = b""
        #: Where the octets that were read begin in the file.
        self._start: i64 = place

    def next(self) -> BatchView | None:
        """The batch that begins here; None when there is none with a right checksum."""
        while True:
            at: i64 = self.place - self._start
            found = view_batch(self._data, at)
            if found is not None:
                if not found.is_intact():
                    return None
                self.place = self._start + found.end
                return found
            had: i64 = len(self._data) - at
            wanted: i64 = batch_size(self._data, at) if had > 0 else _READ_SIZE
            if wanted == 0 or had >= wanted or self.place + had >= self._size:
                return None
            self._data = self._file.read(self.place, max(wanted, _READ_SIZE))
            self._start = self.place
            if len(self._data) <= had:
                return None

    def find(self, least: i64, marks: list[int]) -> BatchView | None:
        """The next one that has rows from an offset on, or later ones. Behind damage it is looked
        for only where the damaged one says that it ends, and at `marks`: octets like those of a
        batch may stand in a message.
        """
        while self.place < self._size:
            here = self.place
            found = self.next()
            if found is not None and found.base >= least:
                return found
            if found is None:
                said = here + batch_size(self._file.read(here, BATCH_HEADER_SIZE), 0)
                self.place = said
                if said == here or said >= self._size or self.next() is None:
                    said = min((mark for mark in marks if mark > here), default=self._size)
                self.place = said
        return None


def _base(segment: Segment) -> int:
    return int(segment.base)
