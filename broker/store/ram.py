"""A disk in memory, for the streams of a broker without a data directory."""

from __future__ import annotations

from mypy_extensions import i64

from broker.store.disk import Disk, File


class MemoryFile(File):
    """A file in memory, which stays readable through open references after its removal."""

    def __init__(self) -> None:
        self.data = bytearray()

    def read(self, offset: i64, count: i64) -> bytes:
        return bytes(self.data[offset : offset + count])

    def write(self, offset: i64, data: bytes | memoryview) -> None:
        if offset == len(self.data):
            self.data += data
        else:
            self.data[offset : offset + len(data)] = data

    def sync(self) -> None:
        """Do nothing: memory is never durable."""

    def truncate(self, size: i64) -> None:
        del self.data[size:]

    def size(self) -> i64:
        return len(self.data)

    def close(self) -> None:
        """Do nothing: there is no descriptor to close."""


class MemoryDisk(Disk):
    """A file system in memory. A directory exists while a file is in it."""

    def __init__(self) -> None:
        self._files: dict[str, MemoryFile] = {}

    def open(self, path: str, writable: bool) -> File:
        return self._file(path)

    def _file(self, path: str) -> MemoryFile:
        file = self._files.get(path)
        if file is None:
            raise FileNotFoundError(2, "no such file", path)
        return file

    def open_directory(self, path: str) -> File:
        return MemoryFile()

    def create(self, path: str) -> File:
        if path in self._files:
            raise FileExistsError(17, "the file exists", path)
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
        """Do nothing: directories appear with their first file."""

    def rename(self, old: str, new: str) -> None:
        self._files[new] = self._file(old)
        del self._files[old]

    def remove(self, path: str) -> None:
        self._file(path)
        del self._files[path]

    def remove_directory(self, path: str) -> None:
        """Do nothing: directories disappear with their last file."""

    def sync_directory(self, path: str) -> None:
        """Do nothing: memory is never durable."""

    def free(self, directory: str) -> i64:
        return 1 << 60
