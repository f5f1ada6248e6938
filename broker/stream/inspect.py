"""Looking into the streams of a stopped broker: verify, repair. The commands print what these
yield.

verify    does what a start would do, on a disk where nothing comes to pass, and reads full
segments, too repair    does that
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from mypy_extensions import i64

from broker.store.contract import Defined
from broker.store.disk import Disk, File
from broker.store.findings import CUT, MISSING, QUARANTINED, WRONG, Finding
from broker.store.inspect import FINE
from broker.stream.archive import directory_name
from broker.stream.leftover import find_foreign_files, remove_deleted_streams
from broker.stream.recovery import StreamRecovery

#: What to do about a finding.
_ADVICE: Final = {
    CUT: "a start cuts it",
    QUARANTINED: "`trellis store repair` copies the file to quarantine/ beside it, and keeps what can be read",
    MISSING: "get the file back from a backup, or let `trellis store repair` note the gap",
    WRONG: "`trellis store repair` makes it anew",
}


def verify(
    disk: Disk,
    root: str,
    definitions: Iterable[tuple[int, Defined]],
    ends: dict[int, int],
    ends_exact: bool,
) -> Iterator[Finding]:
    """A line for each stream, and what is wrong with it. Changes nothing. `ends` says how far the
    log knows each stream, by its number; `sure`: the log has no damage. Raises StoreError."""
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
    """Cut, copy aside and note: after that `verify` finds nothing. Raises StoreError."""
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
        found = StreamRecovery(
            disk, directory, number, ends.get(number, 0), ends_exact, thorough=True
        )
        yield from found.findings
        yield from find_foreign_files(disk, directory)
        segments = found.segments
        yield Finding(
            FINE,
            "/".join(directory.split("/")[-3:]),
            0,
            0,
            f"{len(segments)} segments, "
            f"{sum(int(segment.end - segment.base) for segment in segments)} rows up to offset {int(found.end)}, "
            f"{sum(int(segment.size) for segment in segments)} octets",
        )
    newest = (
        max((number for number, _ in definitions), default=0) if not ends_exact else (1 << 63) - 1
    )
    yield from remove_deleted_streams(
        disk, root, [(entry.vhost, entry.name) for _, entry in queues], newest
    )


class ReadOnlyDisk(Disk):
    """Another disk, of which nothing is changed.

    What is made is nowhere; what is moved or removed stays.
    """

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._created: dict[str, File] = {}

    def open(self, path: str, writable: bool) -> File:
        if path in self._created:
            return self._created[path]
        return NullFile() if writable else self._disk.open(path, False)

    def create(self, path: str) -> File:
        file = self._created[path] = NullFile()
        return file

    def list(self, directory: str) -> list[str]:
        try:
            return self._disk.list(directory)
        except FileNotFoundError:
            return []

    def make_directory(self, path: str) -> None:
        """It is not needed."""

    def rename(self, old: str, new: str) -> None:
        self._created.pop(old, None)

    def remove(self, path: str) -> None:
        self._created.pop(path, None)

    def remove_directory(self, path: str) -> None:
        """It stays."""

    def sync_directory(self, path: str) -> None:
        """Nothing was changed."""

    def free(self, directory: str) -> i64:
        return self._disk.free(directory)


class NullFile(File):
    """Takes what is written, and has nothing."""

    def read(self, offset: i64, count: i64) -> bytes:
        return b""

    def write(self, offset: i64, data: bytes | memoryview) -> None:
        """That was all."""

    def sync(self) -> None:
        """There is nothing."""

    def truncate(self, size: i64) -> None:
        """There is nothing."""

    def size(self) -> i64:
        return 0

    def close(self) -> None:
        """Nothing is open."""
