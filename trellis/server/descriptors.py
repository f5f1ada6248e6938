"""Shares of the file descriptor limit: the store and HTTP have theirs, clients get the rest.

Without a descriptor the store could begin neither a segment of its log nor a checkpoint, and no
message would be confirmed. So few files stay open, and spare descriptors are held for files that
are opened rarely (`RealDisk` in broker/store/disk.py).
"""

from __future__ import annotations

from typing import Final

from trellis import process
from trellis.settings import SettingsError

#: Descriptors for everything that has no share of its own: checkpoints, threads, reloads.
MARGIN: Final = 8
#: Descriptors for the process that serves the HTTP API: two connections, and for a moment those
#: that its start needs, and files that are passed to it.
GATEWAY: Final = 8
#: Least number of client connections with which a broker starts.
CLIENTS_MIN: Final = 4


def _part(limit: int, divisor: int, least: int, most: int) -> int:
    return max(least, min(most, limit // divisor))


class DescriptorShares:
    """The shares of a limit of file descriptors."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Descriptors that are held, and given to the store when no other one is left.
        self.spares = _part(limit, 64, 4, 16)
        #: Sealed files of the log that stay open.
        self.log_files = _part(limit, 16, 4, 64)
        #: Files of streams that stay open, for the writer and for readers each.
        self.stream_files = _part(limit, 32, 2, 64)
        #: Open connections of the metrics port. (Those of the HTTP API are the gateway's own.)
        self.http = _part(limit, 32, 4, 64)
        #: Descriptors that were open when `reserve_open` was called.
        self.open = 0

    def reserve_open(self) -> None:
        """Count the descriptors that are open now, at the end of a start."""
        self.open = process.open_descriptors()

    @property
    def clients(self) -> int:
        """The number of client connections that the limit has room for.

        Raises SettingsError if it is below CLIENTS_MIN.
        """
        others = self.open + self.log_files + 2 * self.stream_files + self.http + GATEWAY + MARGIN
        if self.limit - others < CLIENTS_MIN:
            raise SettingsError(
                f"the limit of file descriptors is {self.limit}, and a broker with these settings "
                f"needs {others + CLIENTS_MIN} or more: raise it with `ulimit -n`, or with "
                "LimitNOFILE= of systemd"
            )
        return self.limit - others
