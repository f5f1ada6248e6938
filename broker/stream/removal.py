"""Removal of a stream's files, because of retention or because the stream is deleted."""

from __future__ import annotations

from broker.store.disk import NO_DESCRIPTORS, Disk, WriteFailed, remove_files
from broker.store.files import os_error_text
from broker.store.stream_contract import StreamGarbage
from broker.stream.arrow import SCHEMA_SIZE, read_schema
from broker.stream.local_segments import LocalSegments
from broker.stream.segments import (
    Segment,
    derived_paths,
    directory_name,
    parse_segment,
    segment_name,
)


class SegmentRemoval(StreamGarbage):
    """Segments of a stream to remove, with the files that are derived from them."""

    def __init__(
        self, vhost: str, name: str, stream: int, segments: list[tuple[int, int]], deleted: bool
    ) -> None:
        super().__init__(vhost, name, stream, segments, deleted)
        #: The paths that remain to be removed; None before the first call of `remove`.
        self._paths: list[str] | None = None

    def _directory(self, root: str) -> str:
        return f"{root}/{directory_name(self.vhost)}/{directory_name(self.name)}"

    def remove(self, disk: Disk, root: str) -> None:
        if self._paths is None:
            directory = self._directory(root)
            self._paths = []
            for epoch, base in self.segments:
                path = f"{directory}/{segment_name(epoch, base)}"
                self._paths += [path, *derived_paths(path)]
                if not self.deleted:
                    # Remove the oldest segment first, and sync the directory after each segment: a
                    # crash must not leave a gap.
                    self._paths.append(f"{directory}/.")
            if self.deleted:
                self._paths.append(f"{directory}/")
        remove_files(disk, self._paths)

    def remove_own(self, disk: Disk, root: str) -> None:
        directory = self._directory(root)
        segments = self._present(disk, directory) if self.deleted else self.segments
        paths: list[str] = []
        for epoch, base in segments:
            path = f"{directory}/{segment_name(epoch, base)}"
            if stream_number(disk, path) == self.stream:
                # Remove the derived files before their segment: if a crash comes between the two,
                # the next start finds the segment and removes it.
                paths += [*derived_paths(path), path, f"{directory}/."]
        if self.deleted:
            paths.append(f"{directory}/")
        remove_files(disk, paths)

    def _present(self, disk: Disk, directory: str) -> list[tuple[int, int]]:
        """Return (epoch, base offset) of each segment in a directory, the oldest first."""
        try:
            names = disk.list(directory)
        except OSError:
            return []
        segments = [parsed for parsed in map(parse_segment, names) if parsed is not None]
        return sorted(segments, key=lambda segment: segment[1])


def removal_of(local: LocalSegments, segments: list[Segment], deleted: bool) -> SegmentRemoval:
    """Return the SegmentRemoval of these segments; `deleted` is True if the stream is deleted."""
    return SegmentRemoval(
        local.vhost,
        local.name,
        local.number,
        [(segment.epoch, int(segment.base)) for segment in segments],
        deleted,
    )


def stream_number(disk: Disk, path: str) -> int:
    """Return the stream's number in a segment; 0 if the schema is damaged or cannot be read.

    Raises WriteFailed if no file descriptor is free to read the segment.
    """
    try:
        head = read_schema(disk.open(path, False).read(0, SCHEMA_SIZE))
    except OSError as error:
        if error.errno in NO_DESCRIPTORS:
            raise WriteFailed(os_error_text(path, "open", error), error.errno or 0) from error
        return 0
    return 0 if head is None else head[0]
