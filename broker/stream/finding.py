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
from broker.store.files import complaint
from broker.store.findings import CUT, MISSING, QUARANTINED, WRONG, Finding, Quarantine
from broker.stream.archive import write_index
from broker.stream.arrow import (
    BATCH_OCTETS,
    END_OF_STREAM,
    SCHEMA_OCTETS,
    BatchView,
    needed,
    read_schema,
    schema,
    view,
)
from broker.stream.segments import Segment, parse_segment, segment_name

#: Octets that are read at once.
_CHUNK: Final[i64] = 1 << 20
_INDEX: Final = ".index"
#: Directories from that of all streams to a stream's.
_DEPTH: Final = 3
#: How names of notes begin.
LOST: Final = "lost-"
WRITTEN: Final = "written-"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
#: Beyond any offset.
_ENDLESS: Final[i64] = (1 << 63) - 1


class Found:
    """The segments of one stream, and what was not as it should be.

    `end` is the offset of what comes next.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        stream: int,
        end: int,
        sure: bool = True,
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
        self._kept = Quarantine(disk, directory)
        self._stream = stream
        for name in self._kept.names():
            if name.startswith(f"{WRITTEN}{stream}-"):
                self.end = max(self.end, int(name.rpartition("-")[2]))
        self._end: i64 = self.end if sure else _ENDLESS
        self._sure = sure
        self._thorough = thorough
        self._epoch = 0
        #: Where the first file begins.
        self._first: i64 = _ENDLESS
        #: Segments by their names, as (base, epoch).
        self._known: dict[tuple[int, int], str] = {}
        #: Offsets from which on rows are lost, as was told already.
        self._told: set[int] = set()
        try:
            self._look()
        except OSError as error:
            raise StoreError(complaint(directory, "read", error)) from error

    def _look(self) -> None:
        try:
            names = self._disk.list(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        for name in names:
            parsed = parse_segment(name)
            if parsed is not None:
                self._known[parsed[1], parsed[0]] = name
            elif (
                name.endswith(".tmp")
                or name.endswith(_INDEX)
                and name.removesuffix(_INDEX) not in names
            ):
                self._disk.remove(f"{self._directory}/{name}")
        self._epoch = max((epoch for _, epoch in self._known), default=0)
        for base, epoch in sorted(self._known):
            name = self._known.get((base, epoch), "")
            if name:
                self._take(epoch, base, name, set(names))
        self.segments.sort(key=_base)
        last: i64 = self.segments[-1].end if self.segments else 0
        if last > self.end:
            self.end = last
            self._noted(f"{WRITTEN}{self._stream}-{int(last):020d}")
        self._note_gaps(last)

    def _note_gaps(self, last: i64) -> None:
        """Say which offsets are not there, once."""
        gaps = [
            (int(one.end), int(other.base), one.name)
            for one, other in pairwise(self.segments)
            if one.end < other.base
        ]
        if self.segments and self._first < self.segments[0].base:
            gaps.append((int(self._first), int(self.segments[0].base), self.segments[0].name))
        if last < self.end:
            gaps.append((int(last), int(self.end), self.segments[-1].name if self.segments else ""))
        for start, end, name in gaps:
            if self._noted(f"{LOST}{self._stream}-{start:020d}-{end:020d}"):
                continue
            if start not in self._told:
                self._tell(
                    MISSING,
                    name,
                    f"the stream ends with offset {start}, and was written up to {end}"
                    if end == self.end
                    else f"offsets {start} to {end - 1} are not there",
                )

    def _noted(self, mark: str) -> bool:
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
            return self._kept.note(mark)
        except OSError as error:
            if error.errno not in _FULL:
                raise
            return False

    def _tell(
        self, what: str, name: str, reason: str, at: int = 0, octets: int = 0, copy: str = ""
    ) -> None:
        self.findings.append(
            Finding(
                what, f"{self._place}/{name}" if name else self._place, at, octets, reason, copy
            )
        )

    def _take(self, epoch: int, base: int, name: str, names: set[str]) -> None:
        disk, path = self._disk, f"{self._directory}/{name}"
        file = disk.open(path, False)
        size = int(file.size())
        head = read_schema(file.read(0, SCHEMA_OCTETS))
        if head is None and size <= int(SCHEMA_OCTETS) and (base, epoch) == max(self._known):
            self._remove(path, names)  # The crash came before its first batch.
            return
        if head is not None and head[0] != self._stream:
            self._remove(path, names)  # Of a queue that had this name before, and is deleted.
            return
        if base < int(self._end):
            self._first = min(self._first, base)
        if head is None or head[1:] != (epoch, base):
            self._told.add(int(self.segments[-1].end) if self.segments else base)
            self._set_aside(name, "its schema is none of this stream's")
            return
        segment = Segment(disk, path, epoch, base)
        if base >= int(self._end):
            self._tell(CUT, name, "a segment that was promised to nobody", 0, size)
            self._remove(path, names)
            return
        index = f"{name}{_INDEX}"
        indexed = index in names and self._indexed(segment, index, size)
        if index in names and not indexed:
            self._tell(WRONG, index, "it cannot be read, and is made anew")
        if indexed and segment.end <= self._end and not self._thorough:
            self._add(segment)
            return
        self._scan(segment, file, size, name, indexed)

    def _indexed(self, segment: Segment, index: str, size: int) -> bool:
        file = self._disk.open(f"{self._directory}/{index}", False)
        return segment.take_index(file.read(0, file.size()), size)

    def _add(self, segment: Segment) -> None:
        if segment.end > segment.base:
            self.segments.append(segment)

    def _scan(self, known: Segment, file: File, size: int, name: str, indexed: bool) -> None:
        """Read all of it. `known` is what its index says, if it is `indexed`."""
        segment = Segment(self._disk, known.path, known.epoch, int(known.base))
        place = SCHEMA_OCTETS
        walk = BatchWalk(file, place, size)
        found = walk.next()
        while found is not None and found.base == segment.end:
            if found.base + found.rows > self._end:
                self._cut_batch(segment, found, place, size)
                return
            segment.grow(
                found.base,
                found.rows,
                place,
                found.end - found.at,
                found.published_at(0),
                found.published_at(found.rows - 1),
            )
            place = walk.place
            if segment.end == self._end:
                break
            found = walk.next()
        rest = file.read(place, size - place) if size - place <= len(END_OF_STREAM) else b"more"
        ends = rest in (b"", END_OF_STREAM)
        if indexed and known.end <= self._end and ends and segment.index() == known.index():
            segment.full = True
            self._add(segment)
            return
        parts: list[Segment] = []
        if (
            segment.end < self._end
            and not ends
            and not self._goes_on(segment)
            and not self._torn(segment, file, place, size)
        ):
            parts = self._salvage(
                segment, file, name, place, size, known.places() if indexed else []
            )
        elif not ends:
            self._tell(
                CUT, name, "a batch that was promised to nobody", int(place), int(size - place)
            )
        elif indexed and known.end <= self._end:
            self._tell(
                WRONG, f"{name}{_INDEX}", "it does not say what the segment has, and is made anew"
            )
        if segment.end > segment.base:
            self._finish(segment, place)
        else:
            self._remove(segment.path, {f"{name}{_INDEX}"})
        for part in parts:
            self._finish(part, part.size)

    def _torn(self, segment: Segment, file: File, place: i64, size: int) -> bool:
        """Whether it is the end of the last segment, of which nobody can say any more what was
        promised.
        """
        if self._sure or max(self._known) != (int(segment.base), segment.epoch):
            return False
        return (
            segment.end >= self.end and BatchWalk(file, place, size).find(segment.end, []) is None
        )

    def _salvage(
        self, segment: Segment, file: File, name: str, place: i64, size: int, marks: list[int]
    ) -> list[Segment]:
        """What is sound behind the damage goes into segments of its own, which the caller finishes.
        They are there before the damage goes: if the process ends between, a start does this again.
        `marks` are places of batches, as the index knows them.
        """
        start = segment.end
        copy = self._kept.copy(file, 0, size, f"{name}-{place}-{size - place}.bad")
        self._told.add(int(start))
        parts: list[Segment] = []
        walk = BatchWalk(file, place, size)
        found = walk.find(start, marks)
        while found is not None and found.base + found.rows <= self._end:
            if not parts or found.base != parts[-1].end:
                self._sync_part(parts)
                parts.append(self._part(segment, int(found.base)))
            part = parts[-1]
            octets = found.octets[found.at : found.end]
            self._disk.open(part.path, True).write(part.size, octets)
            part.grow(
                found.base,
                found.rows,
                part.size,
                len(octets),
                found.published_at(0),
                found.published_at(found.rows - 1),
            )
            found = walk.find(part.end, marks)
        self._sync_part(parts)
        lost = (
            f"what was there from offset {start} on is lost"
            if not parts
            else (
                f"offsets {start} to {parts[0].base - 1} are lost, and what could be read behind them has files of its own"
            )
        )
        self._tell(
            QUARANTINED,
            name,
            f"no batch with a right checksum stands at {place}: {lost}",
            int(place),
            int(size - place),
            copy,
        )
        return parts

    def _sync_part(self, parts: list[Segment]) -> None:
        if parts:
            self._disk.open(parts[-1].path, True).sync()

    def _part(self, segment: Segment, base: int) -> Segment:
        """A new segment for what stands in this one from an offset on."""
        for other in [one for one in self._known if one[0] == base and one[1] > segment.epoch]:
            # An earlier start came so far, and no further.
            self._remove(
                f"{self._directory}/{self._known[other]}", {f"{self._known[other]}{_INDEX}"}
            )
            del self._known[other]
        self._epoch += 1
        part = Segment(
            self._disk, f"{self._directory}/{segment_name(self._epoch, base)}", self._epoch, base
        )
        file = self._disk.create(part.path)
        file.write(0, schema(self._stream, self._epoch, base))
        self._disk.sync_directory(self._directory)
        return part

    def _goes_on(self, segment: Segment) -> bool:
        """Whether another segment has what follows: then what stands here behind the last batch is
        the end that could not be written, or what an earlier start cut off."""
        own = (int(segment.base), segment.epoch)
        return any(
            one != own and one[1] >= segment.epoch and one[0] == int(segment.end)
            for one in self._known
        )

    def _cut_batch(self, segment: Segment, batch: BatchView, place: i64, size: int) -> None:
        """Only the first rows of a batch were promised.

        They go into a segment of their own before the batch goes.
        """
        rows = self._end - batch.base
        self._tell(
            CUT,
            segment.name,
            "the end of a batch that was promised to nobody",
            int(place),
            int(size - place),
        )
        if rows > 0:
            part = self._part(segment, int(batch.base))
            octets = batch.first_rows(rows)
            file = self._disk.open(part.path, True)
            file.write(part.size, octets)
            file.sync()
            part.grow(
                batch.base,
                rows,
                SCHEMA_OCTETS,
                len(octets),
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
            if error.errno not in _FULL:
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
            if refused.errno not in _FULL:
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

    def _set_aside(self, name: str, reason: str) -> None:
        """Move a whole file to the quarantine."""
        size = int(self._disk.open(f"{self._directory}/{name}", False).size())
        self._tell(QUARANTINED, name, reason, 0, size, self._kept.take(name))


class BatchWalk:
    """The sound batches of a segment's file, from a place on."""

    def __init__(self, file: File, place: i64, size: i64) -> None:
        #: Where the next one is looked for.
        self.place: i64 = place
        self._file = file
        self._size: i64 = size
        self._octets = b""
        #: Where the octets that were read begin in the file.
        self._start: i64 = place

    def next(self) -> BatchView | None:
        """The batch that begins here; None when there is none with a right checksum."""
        while True:
            at: i64 = self.place - self._start
            found = view(self._octets, at)
            if found is not None:
                if not found.sound():
                    return None
                self.place = self._start + found.end
                return found
            had: i64 = len(self._octets) - at
            wanted: i64 = needed(self._octets, at) if had > 0 else _CHUNK
            if wanted == 0 or had >= wanted or self.place + had >= self._size:
                return None
            self._octets = self._file.read(self.place, max(wanted, _CHUNK))
            self._start = self.place
            if len(self._octets) <= had:
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
                said = here + needed(self._file.read(here, BATCH_OCTETS), 0)
                self.place = said
                if said == here or said >= self._size or self.next() is None:
                    said = min((mark for mark in marks if mark > here), default=self._size)
                self.place = said
        return None


def _base(segment: Segment) -> int:
    return int(segment.base)
