"""A disk in memory: what a broker that keeps nothing has its streams on."""

from __future__ import annotations

from mypy_extensions import i64

from broker.store.disk import Disk, File


class MemoryFile(File):
    """Octets that whoever holds the file may read, also after it is removed."""

    def __init__(self) -> None:
        self.octets = bytearray()

    def read(self, offset: i64, count: i64) -> bytes:
        return bytes(self.octets[offset : offset + count])

    def write(self, offset: i64, octets: bytes | memoryview) -> None:
        if offset == len(self.octets):
            self.octets += octets
        else:
            self.octets[offset : offset + len(octets)] = octets

    def sync(self) -> None:
        """It is as durable as it will be."""

    def truncate(self, size: i64) -> None:
        del self.octets[size:]

    def size(self) -> i64:
        return len(self.octets)

    def close(self) -> None:
        """Nothing is open."""


class MemoryDisk(Disk):
    """Files by path; directories are where files are."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}

    def open(self, path: str, writable: bool) -> File:
        return self._there(path)

    def _there(self, path: str) -> MemoryFile:
        file = self._files.get(path)
        if file is None:
            raise FileNotFoundError(2, "no such file", path)
        return file

    def create(self, path: str) -> File:
        if path in self._files:
            raise FileExistsError(17, "there is such a file", path)
        file = self._files[path] = MemoryFile()
        return file

    def list(self, directory: str) -> list[str]:
        names = {
            path[len(directory) + 1 :].partition("/")[0]
            for path in self._files
            if path.startswith(directory + "/")
        }
        return sorted(names)

    def make_directory(self, path: str) -> None:
        """It is there."""

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._there(old)
        del self._files[old]

    def remove(self, path: str) -> None:
        self._there(path)
        del self._files[path]

    def remove_directory(self, path: str) -> None:
        """It is gone with its last file."""

    def sync_directory(self, path: str) -> None:
        """It is as durable as it will be."""

    def free(self, directory: str) -> i64:
        return 1 << 60
