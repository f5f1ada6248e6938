"""A stream at a start: its segments are found, what nobody was promised is cut, and what cannot be read is put aside.

    names --> schema --> index, or all batches with their checksums --> segments, in order
                                                                        what stands behind the durable offset is cut
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.store.disk import Disk, File, StoreError
from broker.store.files import complaint
from broker.store.findings import CUT, MISSING, QUARANTINED, Finding, Quarantine
from broker.stream.archive import write_index
from broker.stream.arrow import END_OF_STREAM, SCHEMA_OCTETS, View, needed, read_schema, schema, view
from broker.stream.segments import Segment, parse_segment, segment_name

#: Octets that are read at once.
_CHUNK: Final[i64] = 1 << 20


class Found:
    """The segments of one stream, and what was not as it should be."""

    def __init__(self, disk: Disk, directory: str, stream: int, end: int) -> None:
        """`end` is the durable offset, as the log says. Raises StoreError."""
        self.segments: list[Segment] = []
        self.findings: list[Finding] = []
        self._disk = disk
        self._directory = directory
        self._kept = Quarantine(disk, directory)
        self._stream = stream
        self._end: i64 = end
        self._epoch = 0
        try:
            self._look()
        except OSError as error:
            raise StoreError(complaint(directory, "read", error)) from error

    def _look(self) -> None:
        try:
            names = self._disk.list(self._directory)
        except (FileNotFoundError, NotADirectoryError):
            names = []
        known = sorted((parsed, name) for name in names if (parsed := parse_segment(name)) is not None)
        for name in names:
            if name.endswith(".tmp"):
                self._disk.remove(f"{self._directory}/{name}")
        self._epoch = max((parsed[0] for parsed, _ in known), default=0)
        for (epoch, base), name in known:
            self._take(epoch, base, name, set(names))
        last: i64 = self.segments[-1].end if self.segments else 0
        if last < self._end:
            self._tell(MISSING, self.segments[-1].name if self.segments else self._directory.rpartition("/")[2],
                       f"the stream ends with offset {last}, and was written up to {self._end}")

    def _tell(self, what: str, name: str, reason: str, at: int = 0, octets: int = 0, copy: str = "") -> None:
        self.findings.append(Finding(what, name, at, octets, reason, copy))

    def _take(self, epoch: int, base: int, name: str, names: set[str]) -> None:
        disk, path = self._disk, f"{self._directory}/{name}"
        file = disk.open(path, False)
        size = int(file.size())
        head = read_schema(file.read(0, SCHEMA_OCTETS))
        if head is None and size <= int(SCHEMA_OCTETS):
            self._remove(path, names)  # The crash came before its first batch.
            return
        if head is not None and head[0] != self._stream:
            self._remove(path, names)  # Of a queue that had this name before, and is deleted.
            return
        if head is None or head[1:] != (epoch, base):
            self._set_aside(name, "its schema is none of this stream's")
            return
        segment = Segment(disk, path, epoch, base)
        if base >= int(self._end):
            self._tell(CUT, name, "a segment that was promised to nobody", 0, size)
            self._remove(path, names)
            return
        index = f"{name}.index"
        if index in names and self._indexed(segment, index, size) and segment.end <= self._end:
            self._add(segment)
            return
        self._scan(segment, file, size, name)

    def _indexed(self, segment: Segment, index: str, size: int) -> bool:
        file = self._disk.open(f"{self._directory}/{index}", False)
        return segment.take_index(file.read(0, file.size()), size)

    def _add(self, segment: Segment) -> None:
        """It goes on where the one before ended, or behind a gap, which was reported with what was put aside."""
        if segment.end > segment.base:
            self.segments.append(segment)

    def _scan(self, segment: Segment, file: File, size: int, name: str) -> None:
        """Read all of it."""
        segment = Segment(self._disk, segment.path, segment.epoch, int(segment.base))
        place: i64 = SCHEMA_OCTETS
        octets = b""
        start: i64 = place
        while True:
            found = view(octets, place - start)
            if found is None:
                wanted = needed(octets, place - start) if len(octets) > place - start else _CHUNK
                if place + wanted > size and len(octets) - (place - start) >= size - place or wanted == 0:
                    break
                had: i64 = len(octets) - (place - start)
                octets = file.read(place, max(wanted, _CHUNK))
                start = place
                if len(octets) <= had:
                    break
                continue
            if not found.sound() or found.base != segment.end:
                break
            if found.base + found.rows > self._end:
                self._cut_batch(segment, found, place, size)
                return
            segment.grow(found.base, found.rows, place, found.end - found.at, found.published_at(0), found.published_at(found.rows - 1))
            place = start + found.end
            if segment.end == self._end:
                break
        rest = file.read(place, size - place) if size - place <= len(END_OF_STREAM) else b"more"
        if segment.end < self._end and rest not in (b"", END_OF_STREAM) and not self._goes_on(segment):
            copy = self._kept.copy(file, 0, size, name)
            self._tell(QUARANTINED, name, f"no batch with a right checksum stands at {place}: what was there from offset {segment.end} on "
                       "is lost", int(place), int(size - place), copy)
        elif rest not in (b"", END_OF_STREAM):
            self._tell(CUT, name, "a batch that was promised to nobody", int(place), int(size - place))
        if segment.end > segment.base:
            self._finish(segment, place)
        else:
            self._remove(segment.path, {f"{name}.index"})

    def _goes_on(self, segment: Segment) -> bool:
        """Whether another segment has what follows: then what stands here behind the last batch is the end that could not be
        written, or what an earlier start cut off."""
        names = [parsed for parsed in map(parse_segment, self._disk.list(self._directory)) if parsed is not None]
        own = (segment.epoch, int(segment.base))
        return any(name != own and name[0] >= segment.epoch and name[1] == int(segment.end) for name in names)

    def _cut_batch(self, segment: Segment, batch: View, place: i64, size: int) -> None:
        """Only the first rows of a batch were promised. They go into a segment of their own before the batch goes."""
        rows = self._end - batch.base
        self._tell(CUT, segment.name, "the end of a batch that was promised to nobody", int(place), int(size - place))
        if rows > 0:
            self._epoch += 1
            base = int(batch.base)
            path = f"{self._directory}/{segment_name(self._epoch, base)}"
            part = Segment(self._disk, path, self._epoch, base)
            octets = batch.first_rows(rows)
            file = self._disk.create(path)
            file.write(0, schema(self._stream, self._epoch, base) + octets)
            file.sync()
            self._disk.sync_directory(self._directory)
            part.grow(batch.base, rows, SCHEMA_OCTETS, len(octets), batch.published_at(0), batch.published_at(rows - 1))
        if segment.end > segment.base:
            self._finish(segment, place)
        else:
            self._remove(segment.path, set())
        if rows > 0:
            self._finish(part, part.size)

    def _finish(self, segment: Segment, place: i64) -> None:
        """It is never written again: it ends there."""
        file = self._disk.open(segment.path, True)
        file.truncate(place)
        file.write(place, END_OF_STREAM)
        file.sync()
        file.close()
        segment.full = True
        index = f"{segment.path}.index"
        if index.rpartition("/")[2] in self._disk.list(self._directory):
            self._disk.remove(index)
        write_index(self._disk, segment)
        self._disk.sync_directory(self._directory)
        self._add(segment)

    def _remove(self, path: str, names: set[str]) -> None:
        if f"{path.rpartition('/')[2]}.index" in names:
            try:
                self._disk.remove(f"{path}.index")
            except FileNotFoundError:
                pass
        self._disk.remove(path)

    def _set_aside(self, name: str, reason: str) -> None:
        """Move a whole file to the quarantine."""
        size = int(self._disk.open(f"{self._directory}/{name}", False).size())
        self._tell(QUARANTINED, name, reason, 0, size, self._kept.take(name))
