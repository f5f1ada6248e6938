"""What was not as it should be on disk, and the directory where damage is kept."""

from __future__ import annotations

from typing import Final

from broker.store.disk import Disk, File

#: What a Finding found.
CUT: Final = "cut"
QUARANTINED: Final = "quarantined"
MISSING: Final = "missing"
IGNORED: Final = "ignored"
#: As it was written, but it makes no sense.
WRONG: Final = "wrong"

#: The directory.
QUARANTINE: Final = "quarantine"
#: Octets that are copied at once.
_COPY: Final = 1 << 20


class Finding:
    """Something that was not as it should be, and what was done."""

    def __init__(
        self, what: str, file: str, offset: int, octets: int, reason: str, copy: str = ""
    ) -> None:
        self.what = what
        self.file = file
        self.offset = offset
        self.octets = octets
        self.reason = reason
        #: Where the octets are now, if they were copied.
        self.copy = copy

    def __str__(self) -> str:
        place = f" at {self.offset}, {self.octets} octets" if self.octets else ""
        kept = f", copied to {self.copy}" if self.copy else ""
        return f"{self.what}: {self.file}{place}: {self.reason}{kept}"


class Quarantine:
    """`quarantine/` below a directory of files: copies of what was damaged in them, for people to
    look at. Raises OSError.
    """

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory

    def _made(self) -> str:
        path = f"{self._directory}/{QUARANTINE}"
        self._disk.make_directory(path)
        self._disk.sync_directory(self._directory)
        return path

    def note(self, name: str) -> bool:
        """Whether there is a file of that name; there is one from now on, with nothing in it."""
        path = self._made()
        if name in self._disk.list(path):
            return True
        self._disk.create(f"{path}/{name}").close()
        self._disk.sync_directory(path)
        return False

    def names(self) -> list[str]:
        """What is there."""
        try:
            return self._disk.list(f"{self._directory}/{QUARANTINE}")
        except FileNotFoundError:
            return []

    def take(self, name: str) -> str:
        """Move a whole file there; returns where it is now."""
        path = f"{self._made()}/{name}"
        self._disk.rename(f"{self._directory}/{name}", path)
        self._disk.sync_directory(self._directory)
        return path

    def copy(self, source: File, start: int, end: int, name: str) -> str:
        """Copy a part of a file there, under this name; returns where it is now.

        What is there was found before.
        """
        disk, directory = self._disk, self._made()
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
            octets = source.read(at, min(_COPY, end - at))
            if not octets:
                break
            target.write(at - start, octets)
            at += len(octets)
        target.sync()
        target.close()
        disk.rename(path + ".tmp", path)
        disk.sync_directory(directory)
        return path
