"""Starts gateways by a fork, for tests: a gateway serves within some milliseconds.

    Gateways (in the test's process) --- socket ---> main() in a child, which has loaded the program
                                                       |  fork for each gateway
                                                       v
                                                     the gateway's own main()

A gateway that the broker starts loads its program anew, which takes 0.25 s of processor time.
tests/top/test_gateway.py tests that start. The child reads one request per line, and answers each
with one line: `start` with the descriptors of the gateway beside it, or the number of a process
whose exit status is asked for. The child ends when the socket is closed.
"""

from __future__ import annotations

import array
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import Final, cast

#: Largest number of descriptors of one gateway.
DESCRIPTORS_MAX: Final = 64


class ForkedGateway:
    """The part of subprocess.Popen that the broker uses, for a process that the child forked."""

    def __init__(self, gateways: Gateways, pid: int) -> None:
        self._gateways = gateways
        self._descriptor = os.pidfd_open(pid)
        self.pid = pid
        self.returncode: int | None = None

    def kill(self) -> None:
        if self.returncode is None:
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            if not ended.poll(None if timeout is None else timeout * 1_000):
                raise subprocess.TimeoutExpired("gateway", timeout or 0)
            self.returncode = self._gateways.ask(str(self.pid))
            os.close(self._descriptor)
        return self.returncode


class Gateways:
    """The child that forks gateways; it is started for the first gateway."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: socket.socket | None = None

    def start(self, descriptors: list[int]) -> subprocess.Popen[bytes]:
        return cast("subprocess.Popen[bytes]", ForkedGateway(self, self.ask("start", descriptors)))

    def ask(self, request: str, descriptors: list[int] | None = None) -> int:
        """Send a request to the child, and return its answer."""
        with self._lock:
            if self._connection is None:
                self._connection = self._start_child()
            socket.send_fds(self._connection, [request.encode()], descriptors or [])
            return int(self._connection.recv(64))

    @staticmethod
    def _start_child() -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            subprocess.Popen(
                [sys.executable, "-m", "tests.gateways", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={k: v for k, v in os.environ.items() if not k.startswith("TRELLIS_")},
                start_new_session=True,
            )
        return ours


def main() -> None:
    """Fork gateways until the socket is closed."""
    from trellis.http.gateway import __main__ as program

    connection = socket.socket(fileno=int(sys.argv[1]))
    gc.freeze()
    while True:
        size = array.array("i").itemsize * DESCRIPTORS_MAX
        request, descriptors, _, _ = socket.recv_fds(connection, 64, size)
        if not request:
            return
        if request != b"start":
            _, status = os.waitpid(int(request), 0)
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            connection.close()
            os.setsid()
            sys.argv[1:] = map(str, descriptors)
            try:
                program.main()
            finally:
                sys.stderr.flush()
                os._exit(0)
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(str(pid).encode())


if __name__ == "__main__":
    main()
