"""A broker that often runs out of disk space and descriptors.

    python -m tests.crash.scarce SEED FLAG...       the flags of `trellis serve`

In times of shortage, which come and go with the number of operations, the disk is full, or no file
can be opened. The free space that the broker sees is small in these times, so the disk alarm is on.
There is no shortage during a start.
"""

from __future__ import annotations

import errno
import sys
import threading
from collections.abc import Mapping, Sequence
from random import Random
from resource import RLIMIT_NOFILE, setrlimit
from typing import Final

from broker.store.disk import Disk
from tests.top.disks import HandledDisk
from trellis import app
from trellis.cli import main
from trellis.cluster.membership import Membership
from trellis.server import alarms, durable_store_writer
from trellis.server.reload import Read
from trellis.settings import Settings

#: Hard limit of file descriptors of a broker with shortages.
DESCRIPTORS: Final = 128
#: Maximum number of operations between two shortages, and of refused operations in a shortage.
CALM, SHORT = 60, 8
#: Operations that fail while the disk is full.
WRITES = ("write", "allocate", "create")
#: Operations that fail while no file descriptor is left.
OPENINGS = ("open", "opendir", "create", "list", "allocate")
#: Number of reads of the free disk space after which the start of the broker is over.
STARTED = 4


class ScarceDisk(HandledDisk):
    """A disk that is full or out of file descriptors from time to time, as a seed decides."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = Random(seed)
        self._lock = threading.Lock()
        self._calm = self._random.randrange(CALM)
        self._short = 0
        self._looks = 0
        self._number = errno.ENOSPC
        self.refuse = self._refuse

    def _refuse(self, operation: str, path: str) -> int:
        with self._lock:
            if self._looks < STARTED:
                return 0
            if self._calm > 0:
                self._calm -= 1
                if self._calm == 0:
                    self._short = self._random.randint(1, SHORT)
                    self._number = self._random.choice((errno.ENOSPC, errno.EMFILE, errno.ENFILE))
                return 0
            full = self._number == errno.ENOSPC
            if operation not in (WRITES if full else OPENINGS):
                return 0
            self._short -= 1
            if self._short <= 0:
                self._calm = self._random.randint(1, CALM)
            return self._number

    def free(self, directory: str) -> int:
        self._looks += 1
        return super().free(directory) if self._calm > 0 else 0


def serve(seed: int, arguments: list[str]) -> int:
    """Run `trellis serve` on a ScarceDisk, and with few file descriptors.

    `seed` decides the shortages of the disk.
    """
    # The process sets its own limit: if its parent had more descriptors open, and set the limit
    # between fork and exec, the pipe of its output could not be moved to descriptor 1.
    setrlimit(RLIMIT_NOFILE, (DESCRIPTORS,) * 2)
    durable_store_writer.RETRY_SECONDS = 0.01  # type: ignore[misc]
    alarms.CHECK_INTERVAL = 0.02  # type: ignore[misc]
    plain = app.run

    def run(
        settings: Settings,
        read: Read | None = None,
        disk: Disk | None = None,
        membership: Membership | None = None,
        files: Sequence[str] = (),
        sources: Mapping[str, str] | None = None,
        adopt: bool = False,
    ) -> int:
        return plain(settings, read, ScarceDisk(seed), membership, files, sources, adopt)

    app.run = run
    return main(["serve", *arguments])


if __name__ == "__main__":
    sys.exit(serve(int(sys.argv[1]), sys.argv[2:]))
