"""The disk, as the store sees it: a seam, so that tests can drop, tear, reorder and fail what is
written.

Everything a store does to files goes through a `Disk`, in this order where it matters:

    write --> sync of the file --> rename --> sync of the directory --> removal of what it replaces

The catalog is SQLite's own affair, and its files are not touched here.
"""

from __future__ import annotations

import fcntl
import os
import sys
from typing import Final

from mypy_extensions import i64, mypyc_attr

#: Octets of the largest single write.
_WRITE_MAX: Final[i64] = 1 << 26


class StoreError(Exception):
    """The store cannot do what it was asked; says to which file, and what to do."""


class DirectoryLocked(StoreError):
    """Another process has the data directory."""


class Poisoned(StoreError):
    """A sync failed: nobody knows what is on the disk, so nothing is written any more."""


class WriteFailed(StoreError):
    """A write failed, and its octets were cut off again: the same may be tried later.

    `errno` says why.
    """

    def __init__(self, text: str, errno: int) -> None:
        super().__init__(text)
        self.errno = errno


class DamagedStore(StoreError):
    """What was read is not what was written."""


class TooNew(StoreError):
    """Written in a format that this version does not know."""


@mypyc_attr(allow_interpreted_subclasses=True)
class File:
    """An open file. Any of its methods raises OSError."""

    def read(self, offset: i64, count: i64) -> bytes:
        """Octets from there; fewer than `count` only where the file ends."""
        raise NotImplementedError

    def write(self, offset: i64, octets: bytes | memoryview) -> None:
        """Write all of it. After an error some of it may be written."""
        raise NotImplementedError

    def sync(self) -> None:
        """Returns when content and size are durable."""
        raise NotImplementedError

    def truncate(self, size: i64) -> None:
        raise NotImplementedError

    def size(self) -> i64:
        raise NotImplementedError

    def close(self) -> None:
        """Not called while others may still read: the file closes itself when nobody holds it any
        more.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Disk:
    """Directories and files, by path. Any of its methods raises OSError."""

    def open(self, path: str, writable: bool) -> File:
        """A file that is there."""
        raise NotImplementedError

    def create(self, path: str) -> File:
        """A file that is not there yet, for reading and writing."""
        raise NotImplementedError

    def list(self, directory: str) -> list[str]:
        """Names in it, sorted."""
        raise NotImplementedError

    def make_directory(self, path: str) -> None:
        """One that may be there already; its parent must be."""
        raise NotImplementedError

    def rename(self, old: str, new: str) -> None:
        """Atomic; a file called `new` is replaced."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        raise NotImplementedError

    def remove_directory(self, path: str) -> None:
        """One that is empty."""
        raise NotImplementedError

    def sync_directory(self, path: str) -> None:
        """Returns when what was created, renamed and removed in it is durable."""
        raise NotImplementedError

    def free(self, directory: str) -> i64:
        """Octets that may still be written there."""
        raise NotImplementedError


def remove_files(disk: Disk, paths: list[str]) -> None:
    """Remove what is there of these. A path that ends with `/` is a directory: it goes if it is
    empty, and the one that it is in with it. One that ends with `/.` is a directory too: what was
    removed there before is gone for good before the next one goes. What cannot be removed stays: a
    start looks at it again.
    """
    for path in paths:
        try:
            if path.endswith("/."):
                disk.sync_directory(path[:-2])
            elif path.endswith("/"):
                _remove_empty(disk, path[:-1])
                _remove_empty(disk, path[:-1].rpartition("/")[0])
            else:
                disk.remove(path)
        except OSError:
            continue


def _remove_empty(disk: Disk, path: str) -> None:
    try:
        disk.remove_directory(path)
    except FileNotFoundError:
        pass


class RealFile(File):
    """A file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: i64, count: i64) -> bytes:
        octets = os.pread(self._descriptor, count, offset)
        got: i64 = len(octets)
        if got == count or got == 0:
            return octets
        parts = [octets]
        while got < count:
            octets = os.pread(self._descriptor, count - got, offset + got)
            if not octets:
                break
            parts.append(octets)
            got += len(octets)
        return b"".join(parts)

    def write(self, offset: i64, octets: bytes | memoryview) -> None:
        size: i64 = len(octets)
        done: i64 = 0
        if size <= _WRITE_MAX:
            done = os.pwrite(self._descriptor, octets, offset)
        if done < size:
            view = memoryview(octets)
            while done < size:
                done += os.pwrite(self._descriptor, view[done : done + _WRITE_MAX], offset + done)

    def sync(self) -> None:
        _sync(self._descriptor)

    def truncate(self, size: i64) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> i64:
        return os.fstat(self._descriptor).st_size

    def duplicate(self) -> int:
        """Another descriptor of the file, the caller's own."""
        return os.dup(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class RealDisk(Disk):
    """The operating system's."""

    def open(self, path: str, writable: bool) -> File:
        return RealFile(os.open(path, (os.O_RDWR if writable else os.O_RDONLY) | os.O_CLOEXEC))

    def create(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def list(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def make_directory(self, path: str) -> None:
        if not os.path.isdir(path):
            os.mkdir(path, 0o700)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_directory(self, path: str) -> None:
        os.rmdir(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def free(self, directory: str) -> i64:
        there = os.statvfs(directory)
        return there.f_bavail * there.f_frsize


def _sync(descriptor: int) -> None:
    """macOS has no fdatasync, and its fsync stops at the drive's cache."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


class Lock:
    """One process per data directory.

    Held until `release`, or until the process ends, however it does.
    """

    def __init__(self, directory: str) -> None:
        """Raises Locked, or StoreError when the directory cannot be written in."""
        path = f"{directory}/lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot write in the data directory '{directory}': {error.strerror}"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            self.release()
            raise DirectoryLocked(
                f"the data directory '{directory}' is in use by process {holder or 'unknown'}; "
                "one process at a time may use it"
            ) from None
        except OSError as failure:
            self.release()
            raise StoreError(
                f"cannot lock the data directory '{directory}': {failure.strerror}"
            ) from failure
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        except OSError as refusal:
            self.release()
            raise StoreError(
                f"cannot write in the data directory '{directory}': {refusal.strerror}"
            ) from refusal

    def release(self) -> None:
        """Let another process in."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
