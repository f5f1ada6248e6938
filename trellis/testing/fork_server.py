"""Forks brokers for tests, and the gateways of these brokers (see spawner.py)."""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import trellis.app
import trellis.cli.serve  # noqa: F401 - loaded before the first fork
from trellis.cli import main as command
from trellis.parent_process import end_with_parent
from trellis.testing import programs

#: Largest number of bytes that are read at once.
CHUNK: Final = 1 << 16


class ForkServer:
    """Forks brokers and gateways on request, and waits for their ends."""

    def __init__(self) -> None:
        self._requests = 0
        self._answers = os.dup(1)
        os.dup2(2, 1)
        self._line = b""
        #: The process id of the broker whose end the test run waits for; 0 if there is none.
        self._ending = 0
        #: Exit codes of brokers that have ended; the test run may ask for each once.
        self._codes: dict[int, int] = {}
        #: The connection of each running broker, on which it asks for gateways.
        self._brokers: dict[int, socket.socket] = {}
        #: The socket for the exit code of each running gateway.
        self._gateways: dict[int, socket.socket] = {}
        # A child's end writes a byte into this pipe, which ends a wait of the selector.
        self._ends, self._end_written = os.pipe()
        for end in (self._ends, self._end_written):
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda _signal, _frame: None)
        signal.set_wakeup_fd(self._end_written)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._requests, selectors.EVENT_READ, self._on_request)
        self._selector.register(self._ends, selectors.EVENT_READ, self._on_end)

    def serve(self) -> None:
        """Answer requests until the end of standard input.

        The modules of gateways and of the HTTP API are loaded when no request waits.
        """
        gc.freeze()
        unloaded = list(reversed(programs.MODULES))
        while True:
            ready = self._selector.select(0 if unloaded else None)
            if not ready and unloaded:
                importlib.import_module(unloaded.pop())
                gc.freeze()
            # Handle one event at a time: its handler may close the connection of the next event.
            for key, _ in ready[:1]:
                handle: Callable[[], bool] = key.data
                if not handle():
                    return

    def close(self) -> None:
        """Kill all brokers and gateways, and wait for their ends."""
        signal.set_wakeup_fd(-1)
        for child in (*self._gateways, *self._brokers):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    # -- requests of the test run

    def _on_request(self) -> bool:
        """Read a chunk of input, and carry out the request if its line is now complete.

        Return False at the end of input.
        """
        data = os.read(self._requests, CHUNK)
        self._line += data
        if self._line.endswith(b"\n"):
            request, self._line = json.loads(self._line), b""
            try:
                if "start" in request:
                    self._answer(self._start(request["start"], request["log"]))
                else:
                    self._end(request["end"], request["signal"])
            except OSError as error:
                self._answer({"error": str(error)})
        return bool(data)

    def _answer(self, answer: dict[str, Any]) -> None:
        os.write(self._answers, json.dumps(answer).encode() + b"\n")

    def _start(self, flags: list[str], log: str) -> dict[str, Any]:
        """Fork a broker, and wait until it is ready or has ended.

        Return the answer to the request: the broker's process number and addresses, or an error.
        """
        readable, writable = os.pipe()
        ours, theirs = socket.socketpair()
        pid = os.fork()
        if pid == 0:
            os.close(readable)
            ours.close()
            self._forget()
            _serve(flags, log, writable, theirs)
        os.close(writable)
        theirs.close()
        with os.fdopen(readable) as output:
            ready = output.readline().split()
        if ready[:1] != ["ready"]:
            _, status = os.waitpid(pid, 0)
            ours.close()
            written = Path(log).read_text(errors="replace").strip().splitlines()
            reason = written[-1] if written else "the log of the broker is empty"
            code = os.waitstatus_to_exitcode(status)
            return {"error": f"the broker did not start (exit code {code}): {reason}"}
        self._brokers[pid] = ours
        self._selector.register(ours, selectors.EVENT_READ, lambda: self._on_broker(ours))
        return {"pid": pid, "addresses": dict(word.split("=", 1) for word in ready[1:])}

    def _end(self, pid: int, number: int) -> None:
        """Send the signal `number` to the broker `pid`; answer with its exit code when it ends."""
        if pid in self._codes:
            self._answer({"code": self._codes.pop(pid)})
        elif pid in self._brokers:
            self._ending = pid
            os.kill(pid, number)
        else:
            reason = f"process {pid} is not a running broker of this spawner"
            self._answer({"error": reason})

    # -- requests of brokers, and ends of children

    def _on_broker(self, connection: socket.socket) -> bool:
        """Fork a gateway for a broker. Return True, because the spawner goes on."""
        data, descriptors, _, _ = socket.recv_fds(connection, CHUNK, programs.DESCRIPTORS_MAX)
        if not data:  # The broker has ended, which SIGCHLD reports, too.
            self._selector.unregister(connection)
            return True
        exit_code = socket.socket(fileno=descriptors.pop(0))
        pid = os.fork()
        if pid == 0:
            self._forget()
            exit_code.close()
            programs.run(data.decode(), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        self._gateways[pid] = exit_code
        with contextlib.suppress(OSError):
            exit_code.send(b"%d\n" % pid)
        return True

    def _on_end(self) -> bool:
        """Collect the exit codes of ended children. Return True, because the spawner goes on."""
        os.read(self._ends, CHUNK)
        while self._brokers or self._gateways:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            code = os.waitstatus_to_exitcode(status)
            gateway = self._gateways.pop(pid, None)
            if gateway is not None:
                with gateway, contextlib.suppress(OSError):  # The broker may have ended.
                    gateway.send(b"%d\n" % code)
                continue
            self._remove(pid)
            if pid == self._ending:
                self._ending = 0
                self._answer({"code": code})
            else:
                self._codes[pid] = code
        return True

    def _remove(self, pid: int) -> None:
        """Close the connection of a broker that has ended."""
        connection = self._brokers.pop(pid)
        if connection in self._selector.get_map():
            self._selector.unregister(connection)
        connection.close()

    def _forget(self) -> None:
        """In a child process, close the descriptors that the child inherited from the spawner."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for descriptor in (self._answers, self._ends, self._end_written):
            os.close(descriptor)
        for connection in (*self._brokers.values(), *self._gateways.values()):
            connection.close()


def _serve(flags: list[str], log: str, writable: int, spawner: socket.socket) -> NoReturn:
    """Run a broker in this process, a child of the spawner.

    `log` is the path of the broker's log file, and `writable` a descriptor for its standard output.
    `spawner` is the connection over which the broker asks for its gateway.
    """
    end_with_parent()
    errors = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    programs.replace_streams(os.open(os.devnull, os.O_RDONLY), writable, errors)
    programs.use(spawner)
    programs.exit_after(lambda: command(["serve", *flags]))
