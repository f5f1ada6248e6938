"""A disk that a test controls: the test makes it wait, or makes operations fail."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable

from broker.store.disk import Disk, File, RealDisk

#: Seconds after which a waiting disk gives up, so that a failed test ends.
PATIENCE = 30.0


class HandledFile(File):
    """A file whose disk may delay or refuse every operation."""

    def __init__(self, disk: HandledDisk, path: str, file: File) -> None:
        self._disk = disk
        self._path = path
        self._file = file

    def read(self, offset: int, count: int) -> bytes:
        self._disk.ask("read", self._path)
        return self._file.read(offset, count)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        self._disk.ask("write", self._path)
        self._file.write(offset, data)

    def sync(self) -> None:
        self._disk.ask("sync", self._path)
        assert self._disk.open_for_syncs.wait(PATIENCE), "the test did not let the disk go on"
        self._file.sync()
        self._disk.syncs += 1

    def truncate(self, size: int) -> None:
        self._disk.ask("truncate", self._path)
        self._file.truncate(size)

    def size(self) -> int:
        return int(self._file.size())

    def close(self) -> None:
        self._file.close()


class HandledDirectory(HandledFile):
    """A directory whose disk may delay or refuse every sync."""

    def sync(self) -> None:
        self._disk.ask("syncdir", self._path)
        self._file.sync()


class HandledDisk(Disk):
    """A disk whose operations fail if `refuse(operation, path)` returns an errno other than 0."""

    def __init__(self) -> None:
        self.refuse: Callable[[str, str], int] = lambda operation, path: 0
        #: While this event is set, syncs do not wait.
        self.open_for_syncs = threading.Event()
        self.open_for_syncs.set()
        self.syncs = 0
        self._disk = RealDisk()

    def ask(self, operation: str, path: str) -> None:
        number = self.refuse(operation, path)
        if number:
            raise OSError(number, os.strerror(number), path)

    def open(self, path: str, writable: bool) -> File:
        self.ask("open", path)
        return HandledFile(self, path, self._disk.open(path, writable))

    def open_directory(self, path: str) -> File:
        self.ask("opendir", path)
        return HandledDirectory(self, path, self._disk.open_directory(path))

    def create(self, path: str) -> File:
        self.ask("create", path)
        return HandledFile(self, path, self._disk.create(path))

    def list(self, directory: str) -> list[str]:
        self.ask("list", directory)
        return self._disk.list(directory)

    def make_directory(self, path: str) -> None:
        self.ask("mkdir", path)
        self._disk.make_directory(path)

    def rename(self, old: str, new: str) -> None:
        self.ask("rename", old)
        self._disk.rename(old, new)

    def remove(self, path: str) -> None:
        self.ask("remove", path)
        self._disk.remove(path)

    def remove_directory(self, path: str) -> None:
        self.ask("rmdir", path)
        self._disk.remove_directory(path)

    def sync_directory(self, path: str) -> None:
        self.open_directory(path).sync()

    def free(self, directory: str) -> int:
        return int(self._disk.free(directory))

    def allocate(self, path: str, size: int) -> None:
        self.ask("allocate", path)
        self._disk.allocate(path, size)


class SmallDisk(HandledDisk):
    """A disk of `capacity` bytes.

    Its used space is the size of all files below `directory`, plus `ballast` bytes.
    """

    def __init__(self, directory: str, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        #: Bytes that other programs have written to the disk.
        self.ballast = 0
        self._directory = directory
        self.refuse = self._refuse

    def free(self, directory: str) -> int:
        used = self.ballast
        for path, _, names in os.walk(self._directory):
            for name in names:
                try:
                    used += os.stat(os.path.join(path, name)).st_size
                except FileNotFoundError:
                    continue
        return max(0, self.capacity - used)

    def _refuse(self, operation: str, path: str) -> int:
        full = operation in ("write", "create", "allocate") and self.free(path) == 0
        return errno.ENOSPC if full else 0
