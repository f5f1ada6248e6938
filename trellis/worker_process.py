"""Starts a worker process of the broker, and starts it again after its end.

Broker and worker exchange messages over a pair of sockets: one line of text for each message.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import Callable
from typing import Final, cast

from trellis.child_process import start_program, wait_or_kill

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
    """The worker, restarted after each end until `close`.

    `module` is the module that Python runs. It gets the number of its socket as argument, and the
    environment of the broker without the broker's settings. `opening` returns the first line that
    each worker gets. `received` is called with each line of the worker, without its end. When the
    worker has said that it is ready, `received` sets `ready`. `log_lost` is called after each end,
    with the reason and the number of seconds until the next start.
    """

    def __init__(
        self,
        module: str,
        opening: Callable[[], bytes],
        received: Callable[[bytes], None],
        log_lost: Callable[[str, float], None],
    ) -> None:
        self._module = module
        self._log_lost = log_lost
        self._opening = opening
        self._received = received
        self._connection: _Connection | None = None
        #: True from the worker's message that it is ready until its end. Before, nothing is sent.
        self.ready = False
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = False
        #: Number of workers that ended although the broker had not closed them.
        self.lost = 0
        self._task = asyncio.get_running_loop().create_task(self._run())

    @property
    def pid(self) -> int:
        """The process number of the worker; 0 while no worker runs."""
        return 0 if self._process is None else self._process.pid

    def send(self, text: bytes) -> None:
        """Send a line to the worker, if one is ready."""
        if self.ready:
            self._write(text)

    def _write(self, text: bytes) -> None:
        if self._connection is not None and self._connection.transport is not None:
            self._connection.transport.write(text)

    def close(self) -> None:
        """Kill the worker. Work in progress is cut off; the next worker repeats it."""
        self._closed = True
        self._task.cancel()
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        delay = RESTART_MIN
        while not self._closed:
            began = loop.time()
            try:
                status = await self._serve()
                reason = f"exit status {status}"
            except OSError as error:
                reason = f"not started: {error.strerror or error}"
            self.lost += 1
            if loop.time() - began > RESTART_MAX:
                delay = RESTART_MIN
            self._log_lost(reason, delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, RESTART_MAX)

    async def _serve(self) -> int:
        """Run one worker from its start to its end; return its exit status. Raises OSError."""
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        try:
            ours.setblocking(False)
            with theirs:
                start = loop.run_in_executor(None, start_program, self._module, [theirs.fileno()])
                try:
                    process = self._process = await asyncio.shield(start)
                except asyncio.CancelledError:
                    (await start).kill()
                    raise
            connection = _Connection(self._received)
            await loop.create_unix_connection(lambda: connection, sock=ours)
            self._connection = connection
            try:
                self._write(self._opening())
                await connection.lost.wait()
            finally:
                self.ready = False
                self._connection = None
            return await asyncio.to_thread(wait_or_kill, process)
        finally:
            ours.close()
