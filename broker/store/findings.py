"""Findings about the data on the disk, and the quarantine for damaged data."""

from __future__ import annotations

from typing import Final

from broker.store.disk import Disk, File

#: Kinds of findings. CUT: the torn end of the last batch, which was never confirmed, is removed.
CUT: Final = "cut"
#: Damaged data is copied to the quarantine.
QUARANTINED: Final = "quarantined"
#: Data is missing that should exist.
MISSING: Final = "missing"
#: A file is not used: a file of the log is moved to the quarantine.
IGNORED: Final = "ignored"
#: Data is undamaged, but contradicts other data.
WRONG: Final = "wrong"

#: Name of the quarantine directory.
QUARANTINE: Final = "quarantine"
#: Number of bytes copied at once.
_COPY: Final = 1 << 20


class Finding:
    """One result of a check of the data on the disk; most findings are problems.

    A finding has a kind, the file, the reason, the offset and size of the bad data in the file, and
    the path of a copy of the bad data in the quarantine (if there is one).
    """

    def __init__(
        self, kind: str, file: str, offset: int, size: int, reason: str, copy: str = ""
    ) -> None:
        self.kind = kind
        self.file = file
        self.offset = offset
        self.size = size
        self.reason = reason
        #: Path of the copy in the quarantine; empty if there is none.
        self.copy = copy

    def __str__(self) -> str:
        place = f" at offset {self.offset}, {self.size} bytes" if self.size else ""
        copied = f", copied to {self.copy}" if self.copy else ""
        return f"{self.kind}: {self.file}{place}: {self.reason}{copied}"


class Quarantine:
    """The directory `quarantine/` of a log or a stream, with copies of damaged parts of its files.

    Operators can examine the copies. All methods may raise OSError.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def _make_directory(self) -> str:
        path = f"{self._directory}/{QUARANTINE}"
        self._disk.make_directory(path)
        self._disk.sync_directory(self._directory)
        return path

    def mark(self, name: str) -> bool:
        """Create an empty file in the quarantine. Return True if it existed before."""
        path = self._make_directory()
        if name in self._disk.list(path):
            return True
        self._disk.create(f"{path}/{name}").close()
        self._disk.sync_directory(path)
        return False

    def names(self) -> list[str]:
        """Return the names of the files in the quarantine."""
        try:
            return self._disk.list(f"{self._directory}/{QUARANTINE}")
        except FileNotFoundError:
            return []

    def move(self, name: str) -> str:
        """Move a whole file to the quarantine, and return its new path."""
        path = f"{self._make_directory()}/{name}"
        self._disk.rename(f"{self._directory}/{name}", path)
        self._disk.sync_directory(self._directory)
        return path

    def copy(self, source: File, start: int, end: int, name: str) -> str:
        """Copy a file's bytes from `start` to `end` to the quarantine; return the path of the copy.

        If the quarantine has a file `name` already, copy nothing: the same damage was found before.
        """
        disk, directory = self._disk, self._make_directory()
        path = f"{directory}/{name}"
        if name in disk.list(directory):
            return path
        try:
            target: File = disk.create(path + ".tmp")
        except FileExistsError:
            disk.remove(path + ".tmp")
            target = disk.create(path + ".tmp")
        at = start
        while at < end:
            data = source.read(at, min(_COPY, end - at))
            if not data:
                break
            target.write(at - start, data)
            at += len(data)
        target.sync()
        target.close()
        disk.rename(path + ".tmp", path)
        disk.sync_directory(directory)
        return path
