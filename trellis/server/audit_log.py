"""The audit log: a file with one line of JSON for each change that a user made.

    AuditTrail --> write(record) --> `_waiting` --> a thread appends the lines to the file

The file is opened for each write, so a tool may rename it at any time (logrotate needs no signal).
A line is written soon after the change, and the change does not wait for the line. If the file
cannot be written, lines of up to WAITING_BYTES in total wait in memory for the next attempt.
Further lines are lost; their number is counted.
"""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec

from broker.store.audit import AuditRecord
from trellis import logs
from trellis.settings import SettingsError

#: Largest size of the lines that wait to be written, in bytes.
WAITING_BYTES: Final = 4 << 20
#: Largest size of a line in bytes. A longer line is written without the fields of its definition.
LINE_BYTES: Final = 16 << 10
#: Seconds until the next attempt to write, if the file cannot be written.
RETRY_SECONDS: Final = 1.0
#: Longest time in seconds for which `finish` waits: a write to a disk that hangs would never end.
FINISH_SECONDS: Final = 5.0


class AuditLog:
    """Appends audit records to a file, in a thread."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        """Create the audit file if it is missing, readable by its owner only.

        Raises SettingsError.
        """
        #: Number of lines that were written to the file; number of lines that were lost because the
        #: file could not be written.
        self.written = 0
        self.lost = 0
        self._path = path
        self._loop = loop
        self._waiting: list[bytes] = []
        #: Size of the waiting lines, the lines that are being written included.
        self.waiting_bytes = 0
        self._writing: asyncio.Future[None] | None = None
        self._failing = False
        self._thread = ThreadPoolExecutor(1, "audit")
        #: The timer of the next attempt after a failed write. `_finishing` is True once `finish` is
        #: called: a failed write is then not repeated.
        self._retry: asyncio.TimerHandle | None = None
        self._finishing = False
        try:
            append(path, b"")
        except OSError as error:
            raise SettingsError(
                f"log.audit: cannot write to {path}: {error.strerror}: create its directory, or "
                "give the broker's user the right to write there"
            ) from None

    def write(self, record: AuditRecord) -> None:
        """Add the present time to a record, and append the record to the audit file soon.

        Never fails.
        """
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = _line({"time": now, **record})
        if self.waiting_bytes + len(line) > WAITING_BYTES:
            self.lost += 1
            return
        self._waiting.append(line)
        self.waiting_bytes += len(line)
        if not self._failing:
            self._start()

    def _start(self) -> None:
        if self._writing is None and self._waiting:
            lines, self._waiting = self._waiting, []
            self._writing = self._loop.run_in_executor(
                self._thread, append, self._path, b"".join(lines)
            )
            self._writing.add_done_callback(lambda done: self._written(lines, done))

    def _written(self, lines: list[bytes], done: asyncio.Future[None]) -> None:
        """Handle the end of a write: count the lines, or after a failure keep them for a retry."""
        self._writing = None
        error = None if done.cancelled() else done.exception()
        if error is None:
            self.written += len(lines)
            self.waiting_bytes -= sum(len(line) for line in lines)
            if self._failing:
                logs.warning("audit_recovered", file=self._path, lost=self.lost)
            self._failing = False
            self._start()
            return
        self._waiting = lines + self._waiting
        if not self._failing:
            logs.error(
                "audit_failed",
                file=self._path,
                error=error,
                note=f"up to {WAITING_BYTES >> 20} MiB of lines wait until the file can be "
                "written; further lines are lost",
            )
        self._failing = True
        if not self._finishing:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._start)

    async def finish(self) -> None:
        """Write all waiting lines, because the broker stops.

        After a failed write, or a write that does not end within FINISH_SECONDS, the remaining
        lines are lost. Python joins the thread of such a write when the process ends, unless the
        process ends with os._exit, as after a handover of a cluster's log.
        """
        self._finishing = True
        if self._retry is not None:
            self._retry.cancel()
        end = self._loop.time() + FINISH_SECONDS
        while self._writing is not None or self._waiting and not self._failing:
            self._start()
            if self._writing is not None:
                await asyncio.wait([self._writing], timeout=max(0.0, end - self._loop.time()))
                # Let the event loop call `_written`, the callback of the future.
                await asyncio.sleep(0)
            if self._writing is not None and self._loop.time() >= end:
                logs.error(
                    "audit_failed",
                    file=self._path,
                    error=f"a write has not ended within {FINISH_SECONDS:g} s",
                    note=f"{self.waiting_bytes} bytes of lines may be missing in the file, because "
                    "the broker stops",
                )
                self.lost += len(self._waiting)
                self._waiting.clear()
                break
        # Later lines start no write, because the thread ends.
        self._failing = True
        self._thread.shutdown(wait=False)


def append(path: Path, lines: bytes) -> None:
    """Append whole lines to a file: all of them or none. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        end = os.fstat(descriptor).st_size
        try:
            while lines:
                lines = lines[os.write(descriptor, lines) :]
        except OSError:
            os.ftruncate(descriptor, end)
            raise
    finally:
        os.close(descriptor)


def _line(record: dict[str, object]) -> bytes:
    line = msgspec.json.encode(record, enc_hook=str) + b"\n"
    if len(line) > LINE_BYTES:
        short = {name: value for name, value in record.items() if name != "definition"}
        line = msgspec.json.encode({**short, "left_out": "definition"}) + b"\n"
    return line
