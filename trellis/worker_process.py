"""Runs a worker: a child process that exchanges lines with the broker, started again after its end.

The archive, the telemetry and the bridges have a worker each. The first line that the broker sends
opens the worker. A worker works until the broker closes the connection.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable
from typing import Final, cast

from trellis.child_process import Program, start_program, wait_or_kill

#: Seconds before the worker is started again: doubled after each worker that ended within
#: RESTART_MAX seconds, up to RESTART_MAX.
RESTART_MIN: Final = 1.0
RESTART_MAX: Final = 60.0


class _Connection(asyncio.Protocol):
    """The broker's end of the connection to a worker."""

    def __init__(self, received: Callable[[bytes], None]) -> None:
        self._received = received
        self._data = bytearray()
        self.transport: asyncio.Transport | None = None
        #: Set when the worker has closed its end.
        self.lost = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Handle the complete lines that were received."""
        self._data += data
        if b"\n" in data:
            *lines, rest = bytes(self._data).split(b"\n")
            self._data = bytearray(rest)
            for text in lines:
                self._received(text)

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the worker."""
        self.lost.set()


class WorkerProcess:
    """The worker of a `program` (a module), restarted after each end until `close`.

    The worker gets the environment of the broker, which may have the credentials of a service.
    `opening` is the line that opens a worker. `received` is called with each line of the worker,
    and must set `ready` when the worker has answered the opening. After an unexpected end,
    `on_lost` is called with the reason, and with the seconds until the next start.
    """

    def __init__(
        self,
        program: str,
        opening: bytes,
        received: Callable[[bytes], None],
        on_lost: Callable[[str, float], None],
    ) -> None:
        self._program = program
        self._opening = opening
        self._received = received
        self._on_lost = on_lost
        self._connection: _Connection | None = None
        #: True from the worker's answer to the opening until its end. Before and after this time,
        #: nothing is sent to the worker.
        self.ready = False
        self._process: Program | None = None
        #: The broker's end of the connection, while a worker runs.
        self._socket: socket.socket | None = None
        self._closed = False
        #: Number of workers that ended although the broker had not closed them.
        self.lost = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def pid(self) -> int:
        """The process number of the worker; 0 while no worker runs."""
        return 0 if self._process is None else self._process.pid

    @property
    def unsent(self) -> int:
        """Number of bytes that were passed to `send` and that the worker has not read yet."""
        connection = self._connection
        if connection is None or connection.transport is None:
            return 0
        return connection.transport.get_write_buffer_size()

    def send(self, line: bytes) -> None:
        """Send a line to the worker; drop the line if no worker is ready."""
        if self.ready:
            self._write(line)

    def _write(self, line: bytes) -> None:
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.write(line)

    def close(self, patience: float = 0.0, last: bytes = b"") -> None:
        """End the worker.

        If `patience` is not 0, send the line `last` (b"" is no line), and wait up to `patience`
        seconds for the end of the worker. Then kill the worker.
        """
        self._closed = True
        self._task.cancel()
        if self._process is None:
            return
        if patience and self._socket is not None and self.ready:
            self._end_lines(self._socket, patience, last)
        self._process.kill()
        self._process.wait()

    def _end_lines(self, broker_end: socket.socket, patience: float, last: bytes) -> None:
        """Send the line `last`, close the sending side, and wait for the end of the worker.

        The call blocks the event loop for at most `patience` seconds. So the line is written
        directly to `broker_end`, the broker's end of the socket pair. If earlier lines are still
        unsent, `last` is dropped.
        """
        assert self._process is not None
        end = time.monotonic() + patience
        try:
            broker_end.settimeout(patience)
            if not self.unsent:
                broker_end.sendall(last)
            broker_end.shutdown(socket.SHUT_WR)
            self._process.wait(max(0.0, end - time.monotonic()))
        except (OSError, subprocess.TimeoutExpired):
            pass  # The worker has ended already, or does not end in time.

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        delay = RESTART_MIN
        while not self._closed:
            began = loop.time()
            try:
                status = await self._serve()
                reason = f"the process ended with exit status {status}"
            except OSError as error:
                reason = f"the process could not be started: {error.strerror or error}"
            self.lost += 1
            if loop.time() - began > RESTART_MAX:
                delay = RESTART_MIN
            self._on_lost(reason, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, RESTART_MAX)

    async def _serve(self) -> int:
        """Run one worker from its start to its end; return its exit status. Raises OSError."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            with theirs:
                start = loop.run_in_executor(None, start_program, self._program, [theirs.fileno()])
                try:
                    process = self._process = await asyncio.shield(start)
                except asyncio.CancelledError:
                    (await start).kill()
                    raise
            connection = _Connection(self._received)
            await loop.create_unix_connection(lambda: connection, sock=ours)
            self._connection, self._socket = connection, ours
            try:
                self._write(self._opening)
                await connection.lost.wait()
            finally:
                self.ready = False
                self._connection = self._socket = None
            return await asyncio.to_thread(wait_or_kill, process)
        finally:
            ours.close()
