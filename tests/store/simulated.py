"""A disk in memory that loses unsynced changes.

At a power loss, each unsynced write is kept, lost or torn, and each unsynced change of a directory
is kept or lost. The disk can also refuse operations.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random

from broker.store.disk import Disk, File
from broker.stream.segments import TOPICS

SECTOR = 512

Event = tuple[str, str, int, bytes]


class Inode:
    def __init__(self, data: bytes = b"") -> None:
        self.durable = data
        self.now = bytearray(data)
        #: The unsynced changes: (offset, bytes) of a write, or (size, None) of a truncation.
        self.pending: list[tuple[int, bytes | None]] = []

    def write(self, offset: int, data: bytes) -> None:
        self.pending.append((offset, data))
        put(self.now, offset, data)

    def truncate(self, size: int) -> None:
        self.pending.append((size, None))
        cut(self.now, size)

    def sync(self) -> None:
        self.durable = bytes(self.now)
        self.pending.clear()

    def after_crash(self, random: Random, kept: float) -> bytes:
        """Return the content of the file after a power loss.

        Each change that was not synced is kept with the chance `kept`.
        """
        there = bytearray(self.durable)
        for offset, data in self.pending:
            if random.random() >= kept:
                continue
            if data is None:
                cut(there, offset)
            elif kept == 1 or random.random() < 0.5:
                put(there, offset, data)
            elif random.random() < 0.5:
                # A torn write: only its beginning is kept.
                put(there, offset, data[: random.randrange(len(data) + 1)])
            else:
                # A torn write: only some of its sectors are kept, or only a part of the first
                # sector.
                for start in range(0, len(data), SECTOR):
                    if random.random() < 0.5:
                        put(
                            there,
                            offset + start,
                            data[
                                start : start
                                + random.choice((SECTOR, SECTOR, random.randrange(SECTOR)))
                            ],
                        )
        return bytes(there)


def put(there: bytearray, offset: int, data: bytes) -> None:
    if len(there) < offset:
        there.extend(bytes(offset - len(there)))
    there[offset : offset + len(data)] = data


def cut(there: bytearray, size: int) -> None:
    del there[size:]
    there.extend(bytes(size - len(there)))


class SimulatedFile(File):
    def __init__(self, disk: SimulatedDisk, path: str, inode: Inode, writable: bool) -> None:
        self._disk, self._path, self._inode, self._writable = disk, path, inode, writable

    def read(self, offset: int, count: int) -> bytes:
        self._disk.ask("read", self._path)
        return bytes(self._inode.now[offset : offset + count])

    def write(self, offset: int, data: bytes | memoryview) -> None:
        assert self._writable
        data = bytes(data)
        try:
            self._disk.ask("write", self._path)
        except OSError:
            self._inode.write(offset, data[: len(data) // 2])
            raise
        self._disk.happened("write", self._path, offset, data)
        self._inode.write(offset, data)

    def sync(self) -> None:
        self._disk.ask("sync", self._path)
        self._disk.happened("sync", self._path)
        self._inode.sync()
        self._disk.done("sync", self._path)

    def truncate(self, size: int) -> None:
        assert self._writable
        self._disk.ask("truncate", self._path)
        self._disk.happened("truncate", self._path, size)
        self._inode.truncate(size)

    def size(self) -> int:
        return len(self._inode.now)

    def close(self) -> None:
        pass


class SimulatedDirectory(File):
    def __init__(self, disk: SimulatedDisk, path: str) -> None:
        self._disk, self._path = disk, path

    def sync(self) -> None:
        self._disk.ask("syncdir", self._path)
        self._disk.happened("syncdir", self._path)
        self._disk.settle(self._path)

    def close(self) -> None:
        pass


class SimulatedDisk(Disk):
    """A simulated disk.

    `refuse(operation, path)` returns the errno with which an operation fails, or 0. `done` is
    called after each successful sync. `events` has all changes in order.
    """

    def __init__(self, files: dict[str, bytes] | None = None) -> None:
        self.names = {path: Inode(data) for path, data in (files or {}).items()}
        self.durable = dict(self.names)
        self.pending: list[tuple[str, str, str, Inode | None]] = []
        self.events: list[Event] = []
        self.refuse: Callable[[str, str], int] = lambda operation, path: 0
        self.done: Callable[[str, str], None] = lambda operation, path: None

    def ask(self, operation: str, path: str) -> None:
        number = self.refuse(operation, path)
        if number:
            raise OSError(number, os.strerror(number), path)

    def happened(self, operation: str, path: str, offset: int = 0, data: bytes = b"") -> None:
        self.events.append((operation, path, offset, data))

    # -- Disk

    def open(self, path: str, writable: bool) -> File:
        self.ask("open", path)
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return SimulatedFile(self, path, self.names[path], writable)

    def open_directory(self, path: str) -> File:
        self.ask("opendir", path)
        return SimulatedDirectory(self, path)

    def create(self, path: str) -> File:
        self.ask("create", path)
        if path in self.names:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self.happened("create", path)
        inode = self.names[path] = Inode()
        self.pending.append(("create", path, "", inode))
        return SimulatedFile(self, path, inode, True)

    def list(self, directory: str) -> list[str]:
        """Return the names of the files in a directory. A directory exists while it has files."""
        self.ask("list", directory)
        return sorted(
            {
                path[len(directory) + 1 :].partition("/")[0]
                for path in self.names
                if path.startswith(f"{directory}/")
            }
        )

    def make_directory(self, path: str) -> None:
        self.ask("mkdir", path)

    def rename(self, old: str, new: str) -> None:
        self.ask("rename", old)
        self.happened("rename", old, 0, new.encode())
        self.names[new] = self.names.pop(old)
        self.pending.append(("rename", old, new, self.names[new]))

    def remove(self, path: str) -> None:
        if not path.endswith(TOPICS) or path in self.names:
            # No simulated broker makes summaries of topics. The attempt to remove a missing summary
            # is no event: otherwise each seed that a test has chosen would get another history.
            self.ask("remove", path)
        if path not in self.names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.happened("remove", path)
        del self.names[path]
        self.pending.append(("remove", path, "", None))

    def remove_directory(self, path: str) -> None:
        self.ask("rmdir", path)
        if self.list(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)

    def sync_directory(self, path: str) -> None:
        self.open_directory(path).sync()

    def settle(self, directory: str) -> None:
        left = []
        for change in self.pending:
            if change[1].rpartition("/")[0] == directory:
                apply(self.durable, change)
            else:
                left.append(change)
        self.pending = left

    def free(self, directory: str) -> int:
        return 1 << 30

    # -- for tests

    def contents(self) -> dict[str, bytes]:
        return {path: bytes(inode.now) for path, inode in self.names.items()}

    def crashed(self, random: Random, kept: float) -> SimulatedDisk:
        """Return the disk after a power loss that keeps each unsynced change with this chance.

        With `kept` = 1, the result is the disk after a kill of the process without a power loss.
        """
        names = dict(self.durable)
        for change in self.pending:
            if random.random() < kept:
                apply(names, change)
        return SimulatedDisk(
            {path: inode.after_crash(random, kept) for path, inode in names.items()}
        )

    def replay(self, event: Event) -> None:
        """Repeat a change that another disk recorded."""
        operation, path, offset, data = event
        if operation == "write":
            self.names[path].write(offset, data)
        elif operation == "sync":
            self.names[path].sync()
        elif operation == "truncate":
            self.names[path].truncate(offset)
        elif operation == "create":
            self.create(path)
        elif operation == "rename":
            self.rename(path, data.decode())
        elif operation == "remove":
            self.remove(path)
        else:
            self.settle(path)


def apply(names: dict[str, Inode], change: tuple[str, str, str, Inode | None]) -> None:
    operation, path, new, inode = change
    if operation == "remove":
        names.pop(path, None)
    elif operation == "create":
        assert inode is not None
        names[path] = inode
    elif names.get(path) is inode and inode is not None:
        names[new] = names.pop(path)
