"""Programs that the broker starts as child processes: the gateway, and workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import trellis

#: Seconds that `wait_or_kill` waits for the end of a program before it kills the program.
END_SECONDS: Final = 5.0


class Program(Protocol):
    """A running program, with the methods of subprocess.Popen that the broker needs."""

    @property
    def pid(self) -> int:
        """The number of the process."""

    def kill(self) -> None:
        """Kill the program if it still runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""


#: A function that starts a program faster than a new Python process loads it; it returns None for a
#: program that it does not know. Only tests set this function (trellis/testing/programs.py).
starter: Callable[[str, list[int]], Program | None] | None = None


def start_program(module: str, descriptors: list[int]) -> Program:
    """Start `python -m MODULE`, which inherits the file descriptors. Raises OSError.

    The arguments of the program are the numbers of the descriptors, in the same order. The program
    gets the broker's environment variables except the variables of settings (TRELLIS_...).
    """
    if starter is not None:
        program = starter(module, descriptors)
        if program is not None:
            return program
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


def wait_or_kill(process: Program) -> int:
    """Wait up to END_SECONDS for the end of a program, then kill it; return its exit status."""
    try:
        return process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
