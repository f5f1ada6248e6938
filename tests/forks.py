"""Runs `python -m MODULE ARGUMENT...` by a fork of a process that has loaded the modules.

    start() (in the test's process) --- socket ---> main() in a child, which has loaded the modules
                                           |          |  fork for each program
                                           |          v
                a broker starts its gateway          the module, run as __main__

The programs are brokers, commands and gateways. A fork saves the 0.1 to 0.5 s of processor time in
which a program loads its modules. These tests start their programs without a fork, as users do:
tests/cli, tests/top/test_start.py and tests/top/test_gateway_process.py.

The child has a connection to the test process, and one to each program, because a broker asks the
child to start the broker's gateway. Each message to the child is one request in JSON. The child
answers a `start` request with the pid of the program, and a `wait` request with the program's exit
code. File descriptors that a program inherits are sent with its request. All programs end with the
child, and the child ends with the test process.
"""

from __future__ import annotations

import array
import gc
import importlib
import json
import os
import pkgutil
import resource
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from matching.registry import algorithms
from tests.password_hashes import CHEAP, COST
from trellis import child_process
from trellis.auth.passwords import HASHER
from trellis.http.gateway_process import PROGRAM
from trellis.parent_process import end_with_parent

ROOT: Final = Path(__file__).parent.parent
#: Modules that the child loads, with all modules of these packages.
_LOADED: Final = ("trellis.app", "trellis.http.gateway.__main__")
_PACKAGES: Final = ("trellis.cli",)
#: Largest number of descriptors of one program, and of bytes of a request.
_DESCRIPTORS_MAX: Final = 64
_REQUEST_MAX: Final = 1 << 17


class ForkedProcess:
    """A running program, with the methods of subprocess.Popen that tests use."""

    def __init__(self, pid: int, stdout: TextIO | None) -> None:
        self._descriptor = os.pidfd_open(pid)
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, unless the program has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def poll(self) -> int | None:
        """Return the exit code, or None while the program runs."""
        return self.returncode if self._ended(0) else None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the program's end; return the exit code, or the negative number of a signal.

        Raises subprocess.TimeoutExpired after `timeout` seconds; None waits without limit.
        """
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
        assert self.returncode is not None
        return self.returncode

    def _ended(self, timeout: float | None) -> bool:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1_000):
                return False
            self.returncode = _child.ask({"wait": self.pid})
            os.close(self._descriptor)
        return True


class _Child:
    """The process that forks programs; it is started for the first program."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def ask(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> int:
        """Send a request to the child, and return its answer."""
        with self._lock:
            if self._connection is None:
                self._connection = self._start()
            socket.send_fds(self._connection, [json.dumps(request).encode()], descriptors)
            return int(self._connection.recv(64))

    def connect(self, connection: socket.socket) -> None:
        """Use a connection to the child, in a program that the child has forked."""
        self._connection = connection

    @staticmethod
    def _start() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.forks", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                env=_without_settings(os.environ),
                start_new_session=True,
            )
        return ours


_child: Final = _Child()


def _without_settings(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if not name.startswith("TRELLIS_")}


def start(
    module: str,
    *arguments: str,
    stdout: int | None = None,
    stderr: int = 2,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    limits: Mapping[int, int] | None = None,
    descriptors: Sequence[int] = (),
) -> ForkedProcess:
    """Start `python -m module arguments` without standard input.

    `stdout` is a file descriptor; if it is None, the result has a pipe as its `stdout`. If
    `environment` is None, the program has the environment of the tests without settings of
    Trellis. If `directory` is None, it runs in the directory of the tests. `limits` are maxima of
    resources, such as RLIMIT_NOFILE. The program inherits `descriptors`, and gets their numbers as
    its last arguments.
    """
    request = {
        "start": module,
        "arguments": arguments,
        "environment": environment,
        "directory": str(directory or Path.cwd()),
        "limits": {str(name): most for name, most in (limits or {}).items()},
    }
    with open(os.devnull, "rb") as stdin:
        if stdout is not None:
            streams = (stdin.fileno(), stdout, stderr)
            return ForkedProcess(_child.ask(request, [*streams, *descriptors]), None)
        readable, writable = os.pipe()
        try:
            pid = _child.ask(request, [stdin.fileno(), writable, stderr, *descriptors])
        finally:
            os.close(writable)
        return ForkedProcess(pid, os.fdopen(readable))


def main() -> None:
    """Fork programs until the socket is closed."""
    for package in _PACKAGES:
        path = importlib.import_module(package).__path__
        for module in pkgutil.iter_modules(path, f"{package}."):
            importlib.import_module(module.name)
    for name in _LOADED:
        importlib.import_module(name)
    # The parts of a start that need most of its processor time: hashes of passwords, and a search
    # for the matchers of installed packages, whose result is cached.
    setattr(HASHER, COST, getattr(CHEAP, COST))
    algorithms()
    connection = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()
    connections = selectors.DefaultSelector()
    connections.register(connection, selectors.EVENT_READ)
    # The loop ends with the test process. A program that has ended only closes its own connection.
    while connection.fileno() >= 0:
        for key, _ in connections.select():
            assert isinstance(key.fileobj, socket.socket)
            _answer(key.fileobj, connections)


def _answer(connection: socket.socket, connections: selectors.BaseSelector) -> None:
    """Answer the next request of a connection; close the connection if it has ended."""
    size = array.array("i").itemsize * _DESCRIPTORS_MAX
    data, descriptors, _, _ = socket.recv_fds(connection, _REQUEST_MAX, size)
    if not data:
        connections.unregister(connection)
        connection.close()
        return
    request = json.loads(data)
    if "wait" in request:
        _, status = os.waitpid(request["wait"], 0)
        connection.send(b"%d" % os.waitstatus_to_exitcode(status))
        return
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        for key in list(connections.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        connections.close()
        ours.close()
        _child.connect(theirs)
        child_process.starter = _start_gateway
        _run(request, descriptors)
    theirs.close()
    connections.register(ours, selectors.EVENT_READ)
    for descriptor in descriptors:
        os.close(descriptor)
    connection.send(b"%d" % pid)


def _start_gateway(module: str, descriptors: list[int]) -> ForkedProcess | None:
    """Start the gateway of a broker like child_process.start_program.

    Return None if `module` is another program, such as the worker that runs bridges.
    """
    if module != PROGRAM:
        return None
    with open(os.devnull, "wb") as out:
        return start(
            module,
            stdout=out.fileno(),
            environment=_without_settings(os.environ),
            descriptors=descriptors,
        )


def _run(request: dict[str, Any], descriptors: list[int]) -> None:
    """Run a program in this process, and exit."""
    code: object = 1
    try:
        os.setsid()
        # A background job of a shell ignores SIGINT, and its children inherit that. As in a program
        # that a user starts, SIGINT raises KeyboardInterrupt here.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        end_with_parent()
        for stream, descriptor in enumerate(descriptors[:3]):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        if request["environment"] is not None:
            os.environ.clear()
            os.environ.update(request["environment"])
        os.chdir(request["directory"])
        for name, most in request["limits"].items():
            resource.setrlimit(int(name), (most, most))
        sys.argv[1:] = [*request["arguments"], *map(str, descriptors[3:])]
        try:
            runpy.run_module(request["start"], run_name="__main__", alter_sys=True)
            code = 0
        except SystemExit as end:
            code = end.code
        except BaseException:  # noqa: BLE001 - a program may fail in any way
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code if isinstance(code, int) else 0 if code is None else 1)


if __name__ == "__main__":
    main()
