"""Division of the file descriptor limit among the store, HTTP and client connections.

The store must always get a descriptor. Without one it could not begin a new segment of its log or a
checkpoint, and the broker could confirm no message. Therefore the number of files that stay open is
limited, and spare descriptors are held for files that are opened rarely (`RealDisk` in
broker/store/disk.py).
"""

from __future__ import annotations

from typing import Final

from trellis import process
from trellis.settings import SettingsError

#: Number of descriptors for all purposes without a share of their own: checkpoints, threads,
#: reloads.
MARGIN: Final = 8
#: Descriptors that the broker needs for the gateway, the process that serves the HTTP API: two
#: connections, and for a short time the descriptors that the gateway needs at its start, and those
#: of the files that the broker passes to the gateway.
GATEWAY: Final = 8
#: Smallest number of client connections with which a broker starts.
CLIENTS_MIN: Final = 4


def _part(limit: int, divisor: int, least: int, most: int) -> int:
    return max(least, min(most, limit // divisor))


class DescriptorShares:
    """The division of the process's file descriptor limit: shares of the store, HTTP and clients.

    Each share is a number of descriptors. `limit` is the limit of the process; all descriptors
    without another share are for clients.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Spare descriptors, which the store uses when no other descriptor is free.
        self.spares = _part(limit, 64, 4, 16)
        #: Number of full segment files of the log that stay open.
        self.log_files = _part(limit, 16, 4, 64)
        #: Number of stream files that stay open for the writer, at most; the same number for
        #: readers.
        self.stream_files = _part(limit, 32, 2, 64)
        #: Largest number of open connections of the metrics port. (The connections of the HTTP API
        #: belong to the gateway, a process with descriptors of its own.)
        self.http = _part(limit, 32, 4, 64)
        #: Number of descriptors that were open when `reserve_open` was called.
        self.open = 0

    def reserve_open(self) -> None:
        """Reserve the descriptors that are open now, so that they are not in the share `clients`.

        Called once during the start of the broker, when the broker's own files are open.
        """
        self.open = process.open_descriptors()

    @property
    def clients(self) -> int:
        """The number of client connections that the descriptor limit leaves room for.

        Raises SettingsError if this number is below CLIENTS_MIN.
        """
        others = self.open + self.log_files + 2 * self.stream_files + self.http + GATEWAY + MARGIN
        if self.limit - others < CLIENTS_MIN:
            raise SettingsError(
                f"the limit of file descriptors is {self.limit}, and a broker with these settings "
                f"needs {others + CLIENTS_MIN} or more: raise it with `ulimit -n`, or with "
                "LimitNOFILE= of systemd"
            )
        return self.limit - others
