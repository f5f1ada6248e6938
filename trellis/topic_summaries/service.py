"""The broker's end of the summaries of topics: starts the process that makes them."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from broker.stream.full_segments import FullSegments
from trellis import logs
from trellis.child_process import Program, start_program, wait_or_kill

#: The module that the process runs.
PROGRAM: Final = "trellis.topic_summaries"
#: Largest number of directories passed to one process, so that sending them does not delay the
#: event loop.
DIRECTORIES_MAX: Final = 1_000
#: Shortest time in seconds from the end of a process to the start of the next one. A start takes
#: some 0.1 s of CPU time.
PAUSE: Final = 10.0


class TopicSummaries(FullSegments):
    """The directories of streams with new full segments, and the process that summarizes them."""

    def __init__(self) -> None:
        self._due: set[str] = set()
        #: The task that runs the process; None while there is nothing to do.
        self.task: asyncio.Task[None] | None = None
        self._process: Program | None = None
        self._started = False
        #: Number of processes that failed.
        self.failed = 0

    def add(self, directory: str) -> None:
        self._due.add(directory)
        if self._started and self.task is None:
            self._begin()

    def start(self) -> None:
        """Summarize the segments that were found at the start of the broker."""
        self._started = True
        if self._due:
            self._begin()

    def _begin(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End the process. The next start of the broker continues its work."""
        self._started = False
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def _run(self) -> None:
        """Summarize the directories with new full segments, one process after another.

        Wait PAUSE seconds after each process. Return when no directory is left.
        """
        while self._due:
            count = min(len(self._due), DIRECTORIES_MAX)
            directories = [self._due.pop() for _ in range(count)]
            try:
                status = await self.summarize(directories)
                reason = f"the process ended with exit status {status}" if status else ""
            except OSError as error:
                reason = f"the process could not be started: {error.strerror or error}"
            if reason:
                self.failed += 1
                logs.warning(
                    "topic_summaries_failed",
                    reason=reason,
                    note="readers with a topic filter read whole segments; the next full segment "
                    "of a stream starts the process again",
                )
            await asyncio.sleep(PAUSE)
        self.task = None

    async def summarize(self, directories: list[str]) -> int:
        """Run a process that summarizes the segments of directories; return its exit status.

        Raises OSError if the process cannot be started.
        """
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                start = loop.run_in_executor(None, start_program, PROGRAM, [theirs.fileno()])
                try:
                    process = self._process = await asyncio.shield(start)
                except asyncio.CancelledError:
                    self._process = await start  # `stop` ends it.
                    raise
            try:
                await loop.sock_sendall(ours, b"\0".join(map(os.fsencode, directories)))
                ours.shutdown(socket.SHUT_WR)
                await loop.sock_recv(ours, 1)  # Returns at the end of the process.
            except ConnectionError:
                pass  # The process has ended early; its exit status tells.
            status = await asyncio.to_thread(wait_or_kill, process)
            self._process = None
            return status
