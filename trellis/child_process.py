"""Programs that the broker starts as child processes: the gateway, and workers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import trellis

#: Seconds that `wait_or_kill` waits for the end of a program before it kills the program.
END_SECONDS: Final = 5.0


def start_program(module: str, descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Start `python -m MODULE`, which inherits the file descriptors. Raises OSError.

    The arguments of the program are the numbers of the descriptors, in the same order. The program
    gets the broker's environment variables except those of settings (TRELLIS_...).
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")
    }
    environment["PYTHONPATH"] = str(Path(trellis.__file__).parent.parent)
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module, *map(str, descriptors)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        pass_fds=descriptors,
        env=environment,
        start_new_session=True,
    )


def wait_or_kill(process: subprocess.Popen[bytes]) -> int:
    """Wait up to END_SECONDS for the end of a program, then kill it; return its exit status."""
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
