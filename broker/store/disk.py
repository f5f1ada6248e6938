"""The interface between the store and the file system, and its errors.

All file operations of the log and of streams go through a `Disk`, so that tests can lose, tear,
reorder and fail writes. To replace a file safely, the operations have this order:

    write --> sync the file --> rename --> sync the directory --> remove the replaced files

SQLite accesses the files of the catalog itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
import sys
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64, mypyc_attr

#: Errors of a full disk, and of a shortage of file descriptors in this process or in the system. A
#: write that failed with one of them is retried.
DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
NO_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE)
TRANSIENT: Final = (*DISK_FULL, *NO_DESCRIPTORS)

#: Largest number of bytes that one system call writes.
_WRITE_MAX: Final[i64] = 1 << 26


class StoreError(Exception):
    """Raised if an operation of the store fails. The text names the file and a remedy."""


class DirectoryLocked(StoreError):
    """Raised if another process uses the data directory."""


class OutOfDescriptors(StoreError):
    """Raised if no file descriptor is free to open a file. The caller may try again."""


class Poisoned(StoreError):
    """Raised if the store is stopped after a failed sync or truncation.

    The content of the disk is unknown after such a failure.
    """


class WriteFailed(StoreError):
    """Raised if a write fails, and can be repeated because it added no bytes to the file.

    `errno` has the reason.
    """

    def __init__(self, text: str, errno: int) -> None:
        super().__init__(text)
        self.errno = errno


class DamagedStore(StoreError):
    """Raised if data on the disk is damaged: the bytes differ from the bytes that were written."""


class TooNew(StoreError):
    """Raised if data on the disk has a format that only a later version of Trellis can read."""


@mypyc_attr(allow_interpreted_subclasses=True)
class File:
    """An open file. All methods may raise OSError."""

    def read(self, offset: i64, count: i64) -> bytes:
        """Return `count` bytes from an offset, or fewer if the file ends before."""
        raise NotImplementedError

    def write(self, offset: i64, data: bytes | memoryview) -> None:
        """Write all of `data` at an offset. After an error, a part of it may be written."""
        raise NotImplementedError

    def sync(self) -> None:
        """Make the content and the size of the file durable."""
        raise NotImplementedError

    def truncate(self, size: i64) -> None:
        """Cut the file to `size` bytes."""
        raise NotImplementedError

    def size(self) -> i64:
        """Return the size of the file in bytes."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the file.

        Do not call this method for a file that several threads read. Such a file is closed when the
        last reference to it is dropped.
        """
        raise NotImplementedError


@mypyc_attr(allow_interpreted_subclasses=True)
class Disk:
    """A file system. All methods may raise OSError."""

    def pause(self) -> None:
        """Let the event loop run, after a long batch in the writer's thread.

        A RealDisk calls its function `pause`, if it has one; other disks do nothing.
        """

    def open(self, path: str, writable: bool) -> File:
        """Open an existing file for reading, and if `writable` is True for writing, too."""
        raise NotImplementedError

    def open_directory(self, path: str) -> File:
        """Open a directory, so that it can be synced later without a new file descriptor.

        Only `sync` and `close` of the result may be called.
        """
        raise NotImplementedError

    def create(self, path: str) -> File:
        """Create a file that does not exist yet, and open it for reading and writing."""
        raise NotImplementedError

    def list(self, directory: str) -> list[str]:
        """Return the sorted names of the files and directories in a directory."""
        raise NotImplementedError

    def make_directory(self, path: str) -> None:
        """Make a directory if it does not exist. The parent directory must exist."""
        raise NotImplementedError

    def rename(self, old: str, new: str) -> None:
        """Rename a file atomically, replacing a file named `new`."""
        raise NotImplementedError

    def remove(self, path: str) -> None:
        """Remove a file."""
        raise NotImplementedError

    def remove_directory(self, path: str) -> None:
        """Remove an empty directory."""
        raise NotImplementedError

    def sync_directory(self, path: str) -> None:
        """Make the creations, renames and removals in a directory durable.

        The method opens the directory, so it needs a file descriptor.
        """
        raise NotImplementedError

    def free(self, directory: str) -> i64:
        """Return the free space of the file system that holds a directory, in bytes."""
        raise NotImplementedError

    def keep_spares(self) -> None:
        """Open new spare file descriptors in place of used spares, as many as are available."""

    def close_spares(self) -> None:
        """Close the spare file descriptors for good, because the broker ends."""

    def allocate(self, path: str, size: i64) -> None:
        """Create a file that does not exist yet, and allocate `size` bytes of the disk for it.

        After an error, there is no file.
        """
        raise NotImplementedError


def remove_files(disk: Disk, paths: list[str]) -> None:
    """Remove files and directories, and skip each that cannot be removed.

    The next start of the broker finds and removes the skipped files. Raises WriteFailed if no file
    descriptor is free for a sync: then `paths` has the paths that remain, for a later call. The end
    of a path selects the action:

    - `/`: remove the directory and then its parent, each only if it is empty.
    - `/.`: sync the directory, so that removals in it are durable before the next removal.
    - Any other end: remove the file.
    """
    paths.reverse()
    while paths:
        path = paths[-1]
        try:
            if path.endswith("/."):
                disk.sync_directory(path[:-2])
            elif path.endswith("/"):
                _remove_empty(disk, path[:-1])
                _remove_empty(disk, path[:-1].rpartition("/")[0])
            else:
                disk.remove(path)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                paths.reverse()
                raise WriteFailed(
                    f"cannot sync '{path}': {error.strerror or error}", error.errno or 0
                ) from error
        paths.pop()


def _remove_empty(disk: Disk, path: str) -> None:
    try:
        disk.remove_directory(path)
    except FileNotFoundError:
        pass


class RealFile(File):
    """A file of the operating system."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def read(self, offset: i64, count: i64) -> bytes:
        data = os.pread(self._descriptor, count, offset)
        got: i64 = len(data)
        if got == count or got == 0:
            return data
        parts = [data]
        while got < count:
            data = os.pread(self._descriptor, count - got, offset + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def write(self, offset: i64, data: bytes | memoryview) -> None:
        size: i64 = len(data)
        done: i64 = 0
        if size <= _WRITE_MAX:
            done = os.pwrite(self._descriptor, data, offset)
        if done < size:
            view = memoryview(data)
            while done < size:
                done += os.pwrite(self._descriptor, view[done : done + _WRITE_MAX], offset + done)

    def sync(self) -> None:
        _sync(self._descriptor)

    def truncate(self, size: i64) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> i64:
        return os.fstat(self._descriptor).st_size

    def duplicate(self) -> int:
        """Return a duplicate of the file descriptor, which the caller has to close."""
        return os.dup(self._descriptor)

    def close(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()


class RealDirectory(RealFile):
    """A directory of the operating system."""

    def sync(self) -> None:
        os.fsync(self._descriptor)


class RealDisk(Disk):
    """The file system of the operating system.

    `spares` file descriptors are kept open. When a file is to be opened and no descriptor is free,
    a spare descriptor is closed for the file, so that clients cannot use up the descriptors of the
    store. The method `pause` calls the function that the constructor got as `pause`.
    """

    def __init__(self, spares: int = 0, pause: Callable[[], None] | None = None) -> None:
        self._spares_max = spares
        self._pause = pause
        self._spares: list[int] = []
        self.keep_spares()

    def pause(self) -> None:
        if self._pause is not None:
            self._pause()

    def keep_spares(self) -> None:
        while len(self._spares) < self._spares_max:
            try:
                self._spares.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            except OSError:
                return

    def _give_spare(self, error: OSError) -> bool:
        """Close a spare descriptor if descriptors have run out. Return True if one was closed."""
        if error.errno not in NO_DESCRIPTORS:
            return False
        try:
            os.close(self._spares.pop())
        except IndexError:
            return False
        return True

    def _open(self, path: str, flags: int, mode: int = 0o600) -> int:
        while True:
            try:
                return os.open(path, flags | os.O_CLOEXEC, mode)
            except OSError as error:
                if not self._give_spare(error):
                    raise

    def close_spares(self) -> None:
        self._spares_max = 0
        while self._spares:
            os.close(self._spares.pop())

    def open(self, path: str, writable: bool) -> File:
        return RealFile(self._open(path, os.O_RDWR if writable else os.O_RDONLY))

    def open_directory(self, path: str) -> File:
        return RealDirectory(self._open(path, os.O_RDONLY | os.O_DIRECTORY))

    def create(self, path: str) -> File:
        return RealFile(self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL))

    def list(self, directory: str) -> list[str]:
        while True:
            try:
                return sorted(os.listdir(directory))
            except OSError as error:
                if not self._give_spare(error):
                    raise

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
        directory = self.open_directory(path)
        try:
            directory.sync()
        finally:
            directory.close()

    def free(self, directory: str) -> i64:
        status = os.statvfs(directory)
        return status.f_bavail * status.f_frsize

    def allocate(self, path: str, size: i64) -> None:
        descriptor = self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            os.posix_fallocate(descriptor, 0, size)
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(descriptor)


def create_private(path: str) -> None:
    """Create an empty file that only its owner can read, unless the file exists.

    SQLite alone would create such a file readable for all users. If the file cannot be created, no
    error is raised here: SQLite reports the error.
    """
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except OSError:
        pass


def _sync(descriptor: int) -> None:
    if (
        sys.platform == "darwin"
    ):  # macOS has no fdatasync, and its fsync leaves data in the drive's cache.
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    else:
        os.fdatasync(descriptor)


class Lock:
    """The lock that lets only one process use a data directory.

    The operating system releases the lock when the process ends, also after a crash.
    """

    def __init__(self, directory: str) -> None:
        """Take the lock on a data directory.

        Raises DirectoryLocked if another process holds it, StoreError if the directory is not
        writable.
        """
        path = f"{directory}/lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(
                f"cannot write '{path}' in the data directory '{directory}': {error.strerror}; "
                "check the owner and the permissions of this file"
            ) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0).decode("ascii", "replace").strip()
            self.release()
            raise DirectoryLocked(
                f"the data directory '{directory}' is in use by process {holder or 'unknown'}; "
                "stop that process, or choose another data directory"
            ) from None
        except OSError as failure:
            self.release()
            raise StoreError(
                f"cannot lock the data directory '{directory}': {failure.strerror}; use a file "
                "system that supports locks"
            ) from failure
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        except OSError as refusal:
            self.release()
            raise StoreError(
                f"cannot write '{path}' in the data directory '{directory}': {refusal.strerror}; "
                "check the owner and the permissions of this file"
            ) from refusal

    def release(self) -> None:
        """Release the lock on the data directory."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            os.close(descriptor)
