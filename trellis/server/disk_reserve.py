"""The disk reserve: a file that keeps space for settlements and checkpoints when the disk is full.

    start         the file is allocated, if twice its size is free
    disk full     the writer thread removes the file, and writes its batch into that space
    while missing the disk alarm is on: publishers are blocked, consumers settle messages
    later         the file is allocated again once twice its size is free

A file system that copies on write, such as btrfs or ZFS, cannot promise space to a file. On such a
file system, no file is made, and the disk alarm is on while less than the size of the reserve is
free.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from broker.store.disk import Disk
from trellis import logs, process

#: Name of the reserve's file in the data directory.
NAME: Final = "reserve"
#: Number of log segments that the reserve has room for.
SEGMENTS: Final = 2
#: Part of the reserve for the write-ahead log of the catalog, in bytes.
CATALOG_BYTES: Final = 4 << 20


class DiskReserve:
    """The reserve of a data directory. Any thread may use it.

    `size` is the size of the reserve in bytes; with 0 there is no reserve.
    """

    def __init__(self, disk: Disk, directory: Path, size: int) -> None:
        self._disk = disk
        self._directory = str(directory)
        self._path = f"{directory}/{NAME}"
        self._lock = threading.Lock()
        self._exists = False
        #: Number of free bytes on the disk below which the disk alarm is on, if the file system
        #: cannot promise space to a file; 0 for other file systems.
        self.threshold = size if size and process.copies_on_write(directory) else 0
        self.size = 0 if self.threshold else size
        #: Number of times that the reserve's file was removed because the disk was full.
        self.given_up = 0
        #: True after a failure to make the reserve was logged. Later failures are not logged until
        #: the reserve was made again.
        self._refused = False
        try:
            # A file that an earlier process left may have another size, or holes.
            disk.remove(self._path)
        except OSError:
            pass
        self.look()

    @property
    def missing(self) -> bool:
        """True while the reserve's file is missing because `give_up` has removed it."""
        return self.given_up > 0 and self.size > 0 and not self._exists

    @property
    def held(self) -> int:
        """Size of the reserve's file in bytes; 0 while the file does not exist."""
        return self.size if self._exists else 0

    def look(self) -> int:
        """Make the reserve's file again if the disk has room. Return the free bytes of the disk.

        Return 0 if the free space cannot be determined. Also replace the spare file descriptors
        that were used. May block.
        """
        self._disk.keep_spares()
        with self._lock:
            try:
                free = int(self._disk.free(self._directory))
                if self.size and not self._exists and free >= 2 * self.size:
                    self._make()
                    free = int(self._disk.free(self._directory))
            except OSError as error:
                if not self._refused:
                    logs.warning("reserve_refused", path=self._path, error=error.strerror)
                    self._refused = True
                return self._free()
            return free

    def _free(self) -> int:
        try:
            return int(self._disk.free(self._directory))
        except OSError:
            return 0

    def _make(self) -> None:
        self._disk.allocate(self._path, self.size)
        self._exists = True
        self._refused = False
        if self.given_up:
            logs.info("reserve_made", bytes=self.size, note="the disk has space again")

    def give_up(self) -> bool:
        """Remove the reserve's file, because the disk is full: the store writes into that space.

        Return True if the file was removed. May block.
        """
        with self._lock:
            if not self._exists:
                return False
            try:
                self._disk.remove(self._path)
            except OSError as error:
                logs.error("reserve_stuck", path=self._path, error=error.strerror)
                return False
            self._exists = False
            self.given_up += 1
        logs.warning(
            "reserve_given_up",
            bytes=self.size,
            note="the disk is full; publishers are blocked until it has space for a new reserve",
        )
        return True

    def close(self) -> None:
        """Remove the reserve's file: a stopped broker reserves no space."""
        with self._lock:
            if self._exists:
                self._exists = False
                try:
                    self._disk.remove(self._path)
                except OSError:
                    pass  # The next start removes the file.
