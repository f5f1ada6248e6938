"""The programs that a broker of a test starts: the spawner forks them.

    broker: ForkedProgram ---> spawner (spawner.py): forks ---> run(): the gateway

The broker sends the spawner the name of the program's module, and descriptors: one end of a socket
pair, the broker's error output, and the descriptors that the program inherits. On the other end of
the pair, the broker reads two lines: the program's process ID, and its exit code after its end.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Final, NoReturn

from trellis import child_process
from trellis.http.gateway_process import API_MODULES, PROGRAM

#: The modules that the spawner loads when no request waits, in this order: those of the gateway,
#: the only program that the spawner forks, then those with which a broker answers the gateway. Each
#: takes less than 30 ms, so no request waits longer.
MODULES: Final = (
    *("uvicorn.config", "uvicorn", "starlette.responses", f"{PROGRAM}.__main__"),
    *API_MODULES,
)
#: Largest number of descriptors in a request.
DESCRIPTORS_MAX: Final = 32


class ForkedProgram:
    """A program that the spawner has forked, with the methods of Popen that a broker needs."""

    def __init__(self, spawner: socket.socket, module: str, descriptors: list[int]) -> None:
        """Ask the spawner for the program. Raises OSError if the spawner has ended."""
        self._lines, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(spawner, [module.encode()], [theirs.fileno(), 2, *descriptors])
        self.pid = self._number()
        self._code: int | None = None

    def kill(self) -> None:
        """Kill the program if it still runs."""
        try:
            self.wait(0.0)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):  # It has ended meanwhile.
                os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        if self._code is None:
            self._lines.settimeout(timeout)
            try:
                self._code = self._number()
            except (BlockingIOError, TimeoutError):
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0) from None
            self._lines.close()
        return self._code

    def _number(self) -> int:
        """Read a line with a number. Raises OSError if the spawner has ended."""
        line = b""
        while not line.endswith(b"\n"):
            data = self._lines.recv(1)
            if not data:
                raise ConnectionError("the process that starts brokers ended")
            line += data
        return int(line)


def use(spawner: socket.socket) -> None:
    """Let the spawner fork the programs that this process starts and that the spawner knows."""

    def start(module: str, descriptors: list[int]) -> ForkedProgram | None:
        known = module == PROGRAM and len(descriptors) + 2 <= DESCRIPTORS_MAX
        return ForkedProgram(spawner, module, descriptors) if known else None

    child_process.starter = start


def run(module: str, descriptors: list[int]) -> NoReturn:
    """Run a program in this process, a child of the spawner.

    The first of `descriptors` is the program's error output; the others are its arguments.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    replace_streams(nothing, os.dup(nothing), descriptors.pop(0))
    os.setsid()
    sys.argv = [module, *map(str, descriptors)]
    exit_after(importlib.import_module(f"{module}.__main__").main)


def replace_streams(*descriptors: int) -> None:
    """Make these descriptors the standard input, the standard output and the error output."""
    for target, source in enumerate(descriptors):
        os.dup2(source, target)
        os.close(source)


def exit_after(program: Callable[[], int | None]) -> NoReturn:
    """Run a program, and end this process with the exit code that the program returns.

    None is exit code 0, and an exception is exit code 1.
    """
    code: int | None = 1
    try:
        code = program()
    except BaseException:  # noqa: BLE001 - the process ends in any case
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code or 0)
