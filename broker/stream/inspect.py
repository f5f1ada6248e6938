"""Verification and repair of the streams of a stopped broker, for `trellis store`.

verify    run the recovery of all streams on a read-only disk, reading full segments too
repair    run the same recovery on the real disk
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mypy_extensions import i64

from broker.store.disk import Disk, File
from broker.store.entries import Defined
from broker.store.findings import CUT, MISSING, QUARANTINED, WRONG, Finding
from broker.store.inspect import FINE
from broker.stream.leftover import find_foreign_files, remove_deleted_streams
from broker.stream.recovery import StreamRecovery
from broker.stream.segments import directory_name

#: Advice to the operator for each kind of finding.
_ADVICE: Final = {
    CUT: "the next start of the broker removes this part",
    QUARANTINED: "`trellis store repair` copies the file to quarantine/ beside it, and keeps the"
    " intact batches",
    MISSING: "restore the file from a backup, or let `trellis store repair` note the gap",
    WRONG: "a start of the broker or `trellis store repair` does this",
}


def verify(
    disk: Disk,
    root: str,
    definitions: Iterable[tuple[int, Defined]],
    ends: dict[int, int],
    ends_exact: bool,
) -> Iterator[Finding]:
    """Yield a finding for each stream and for each problem, without changing anything.

    `ends` maps the number of each stream to its durable end, as the log has it. `ends_exact` is
    False if the log is damaged. Raises StoreError if a stream cannot be read.
    """
    for finding in _recover_streams(ReadOnlyDisk(disk), root, list(definitions), ends, ends_exact):
        if finding.kind in _ADVICE:
            yield Finding(
                finding.kind,
                finding.file,
                finding.offset,
                finding.size,
                f"{finding.reason}; {_ADVICE[finding.kind]}",
            )
        else:
            yield finding


def repair(
    disk: Disk,
    root: str,
    definitions: Iterable[tuple[int, Defined]],
    ends: dict[int, int],
    ends_exact: bool,
) -> Iterator[Finding]:
    """Recover all streams, and yield the findings. After that, `verify` finds no problem.

    `ends` and `ends_exact` are as in `verify`. Raises StoreError if a stream cannot be read or
    repaired.
    """
    yield from _recover_streams(disk, root, list(definitions), ends, ends_exact)


def _recover_streams(
    disk: Disk,
    root: str,
    definitions: list[tuple[int, Defined]],
    ends: dict[int, int],
    ends_exact: bool,
) -> Iterator[Finding]:
    queues = [(number, entry) for number, entry in definitions if entry.kind == "queue"]
    for number, entry in queues:
        arguments = entry.definition.get("arguments")
        if not isinstance(arguments, dict) or arguments.get("x-queue-type") != "stream":
            continue
        directory = f"{root}/{directory_name(entry.vhost)}/{directory_name(entry.name)}"
        recovery = StreamRecovery(
            disk, directory, number, ends.get(number, 0), ends_exact, thorough=True
        )
        yield from recovery.findings
        yield from find_foreign_files(disk, directory)
        segments = recovery.segments
        yield Finding(
            FINE,
            "/".join(directory.split("/")[-3:]),
            0,
            0,
            f"{len(segments)} segments, "
            f"{sum(int(segment.end - segment.base) for segment in segments)} rows up to offset "
            f"{int(recovery.end)}, {sum(int(segment.size) for segment in segments)} bytes",
        )
    newest = (
        max((number for number, _ in definitions), default=0) if not ends_exact else (1 << 63) - 1
    )
    yield from remove_deleted_streams(
        disk, root, [(entry.vhost, entry.name) for _, entry in queues], newest
    )


class ReadOnlyDisk(Disk):
    """A view of another disk that does not change it.

    Writes are ignored: a file that is created or opened for writing is a NullFile. Renames and
    removals are ignored, too.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._created: dict[str, File] = {}

    def open(self, path: str, writable: bool) -> File:
        if path in self._created:
            return self._created[path]
        return NullFile() if writable else self._disk.open(path, False)

    def open_directory(self, path: str) -> File:
        return NullFile()

    def create(self, path: str) -> File:
        file = self._created[path] = NullFile()
        return file

    def list(self, directory: str) -> list[str]:
        try:
            return self._disk.list(directory)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """Do nothing: the disk must not change."""

    def rename(self, old: str, new: str) -> None:
        self._created.pop(old, None)

    def remove(self, path: str) -> None:
        self._created.pop(path, None)

    def remove_directory(self, path: str) -> None:
        """Do nothing: the disk must not change."""

    def sync_directory(self, path: str) -> None:
        """Do nothing: the disk has not changed."""

    def free(self, directory: str) -> i64:
        return self._disk.free(directory)


class NullFile(File):
    """An empty file that ignores writes."""

    def read(self, offset: i64, count: i64) -> bytes:
        return b""

    def write(self, offset: i64, data: bytes | memoryview) -> None:
        """Ignore the data."""

    def sync(self) -> None:
        """Do nothing: there is no data to sync."""

    def truncate(self, size: i64) -> None:
        """Ignore the size: the file is empty."""

    def size(self) -> i64:
        return 0

    def close(self) -> None:
        """Do nothing: no descriptor is open."""
