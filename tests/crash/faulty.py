"""A broker whose disk breaks: `python -m tests.crash.faulty ERRNO OPERATION DATA-DIR`.

While the file `DATA-DIR.breaks` exists, each call of OPERATION on the disk fails with the error
number ERRNO.
"""

from __future__ import annotations

import os
import sys

from tests.top.disks import HandledDisk
from tests.top.running import settings
from trellis.app import run


def main(number: int, operation: str, directory: str) -> int:
    disk = HandledDisk()
    disk.refuse = lambda call, path: (
        number if call == operation and os.path.exists(f"{directory}.breaks") else 0
    )
    return run(settings(data={"dir": directory}, auth={"guest": True}), disk=disk)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[3]))
