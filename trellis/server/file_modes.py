"""Modes of the files in the data directory: only the user of the broker can read them.

New files get these modes when they are made. `restrict` gives them to files that an older version,
an operator or a backup program made.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from broker.store.opening import CATALOG, LOG, STREAMS
from trellis import logs
from trellis.auth.private_files import SCRAM_SECRET_FILE
from trellis.auth.settings_users import GENERATED_USER_FILE
from trellis.server.disk_reserve import NAME as RESERVE

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600
#: Names of the broker's files at the top of the data directory. `restrict` does not change other
#: files there.
_FILES: Final = (
    CATALOG,
    *(f"{CATALOG}{end}" for end in ("-wal", "-shm", "-journal")),
    "lock",
    RESERVE,
    GENERATED_USER_FILE,
    SCRAM_SECRET_FILE,
)


def restrict(directory: Path) -> None:
    """Permit only the user of the broker to access the data directory and the broker's files in it.

    Log each path whose mode cannot be changed, such as a directory of another user, and continue.
    """
    refused: list[str] = []
    for path in _paths(directory):
        try:
            status = os.lstat(path)
            mode = DIRECTORY_MODE if stat.S_ISDIR(status.st_mode) else FILE_MODE
            # A directory that all users share, such as /tmp.
            shared = status.st_mode & stat.S_ISVTX
            regular = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
            permissions = stat.S_IMODE(status.st_mode)
            if regular and not shared and permissions & ~mode & 0o777:
                # A file that the operator has made read-only stays read-only.
                os.chmod(path, permissions & mode)
        except FileNotFoundError:
            continue
        except OSError:
            refused.append(path)
    if refused:
        logs.warning(
            "data_readable",
            path=refused[0],
            more=len(refused) - 1,
            note="other users of the machine may be able to read this file, because its mode "
            "cannot be changed; make the user of the broker its owner",
        )


def _paths(directory: Path) -> Iterator[str]:
    """Yield the data directory, and the files and directories of the broker in it."""
    yield str(directory)
    for name in _FILES:
        yield str(directory / name)
    for name in (LOG, STREAMS):
        for parent, _, files in os.walk(directory / name):
            yield parent
            for file in files:
                yield f"{parent}/{file}"
