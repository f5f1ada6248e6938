"""The audit log: a file with one line of JSON for each change that a user made.

    AuditTrail --> write(record) --> `_waiting` --> a thread appends the lines to the file

The file is opened for each write, so a tool may rename it at any time (logrotate needs no signal).
A line is written soon after the change, and the change does not wait for the line. If the file
cannot be written, lines of up to WAITING_BYTES in total wait in memory for the next attempt.
Further lines are lost; their number is counted.

A write to a disk that hangs may never end. So the writing thread is a daemon thread, which does not
keep the process alive, and a broker that stops waits for this thread for FINISH_SECONDS at most.
"""

from __future__ import annotations

import asyncio
import os
import threading
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue
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

        Raises SettingsError if the file cannot be written.
        """
        #: Number of lines that were written to the file; number of lines that were lost because the
        #: file could not be written.
        self.written = 0
        self.lost = 0
        self._path = path
        self._loop = loop
        self._waiting: list[bytes] = []
        #: Size of the waiting lines in bytes, including the lines that are being written.
        self.waiting_bytes = 0
        #: The lines that the thread writes now; empty if it writes none.
        self._writing: list[bytes] = []
        #: Set while the thread writes nothing.
        self._idle = asyncio.Event()
        self._idle.set()
        #: The data that the thread writes next; None ends the thread.
        self._writes: SimpleQueue[bytes | None] = SimpleQueue()
        #: The error of the last write; None after a success.
        self._failure: Exception | None = None
        #: The timer of the next attempt after a failed write.
        self._retry: asyncio.TimerHandle | None = None
        #: True once `finish` is called: a failed write is then not repeated. `_finished` is True
        #: once `finish` has ended: further lines are then lost.
        self._finishing = self._finished = False
        try:
            append(path, b"")
        except OSError as error:
            raise SettingsError(
                f"log.audit: cannot write to {path}: {error.strerror}: create its directory, or "
                "give the broker's user the right to write there"
            ) from None
        threading.Thread(target=self._run, name="audit", daemon=True).start()

    def write(self, record: AuditRecord) -> None:
        """Add the present time to a record, and append the record to the audit file soon.

        Never fails. After `finish`, the line is lost.
        """
        line = timed_line(record)
        if self._finished or self.waiting_bytes + len(line) > WAITING_BYTES:
            self.lost += 1
            return
        self._waiting.append(line)
        self.waiting_bytes += len(line)
        if self._failure is None:
            self._start()

    def _start(self) -> None:
        if self._waiting and not self._writing and not self._finished:
            self._writing, self._waiting = self._waiting, []
            self._idle.clear()
            self._writes.put(b"".join(self._writing))

    def _run(self) -> None:
        """Write the data of `_writes` to the file, in a thread."""
        while (data := self._writes.get()) is not None:
            error: Exception | None = None
            try:
                append(self._path, data)
            except Exception as failure:  # noqa: BLE001  every failure is passed to the loop
                error = failure
            with suppress(RuntimeError):  # The event loop is closed, because the broker stops.
                self._loop.call_soon_threadsafe(self._written, error)

    def _written(self, error: Exception | None) -> None:
        """Handle the end of a write: count the lines, or after a failure keep them for a retry."""
        lines, self._writing = self._writing, []
        before, self._failure = self._failure, error
        self._idle.set()
        if error is None:
            self.written += len(lines)
            self.waiting_bytes -= sum(len(line) for line in lines)
            if before is not None:
                logs.warning("audit_recovered", file=self._path, lost=self.lost)
            self._start()
            return
        self._waiting = lines + self._waiting
        if before is None and not self._finishing:
            logs.error(
                "audit_failed",
                file=self._path,
                error=error,
                note="remove the cause that `error` names: up to "
                f"{WAITING_BYTES >> 20} MiB of lines wait until the file can be written, and "
                "further lines are lost",
            )
        if not self._finishing:
            self._retry = self._loop.call_later(RETRY_SECONDS, self._start)

    async def finish(self) -> None:
        """Write all waiting lines, because the broker stops, and write no later lines.

        If a write fails, or if the writes have not ended after FINISH_SECONDS, log the number of
        lost lines, and return.
        """
        self._finishing = True
        if self._retry is not None:
            self._retry.cancel()
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                error = await self._write_rest()
        except TimeoutError:
            error = f"a write has not ended within {FINISH_SECONDS:g} s"
        self._finished = True
        self._writes.put(None)
        if error:
            self.lost += len(self._waiting)
            logs.error(
                "audit_failed",
                file=self._path,
                error=error,
                lost=self.lost,
                uncertain=len(self._writing),
                note="the broker stops: lost lines are not in the file, and uncertain lines may be "
                "missing there",
            )
            self._waiting.clear()

    async def _write_rest(self) -> str:
        """Write all waiting lines; return the error of the last write, or "" if none failed."""
        while self._writing or self._waiting:
            self._start()
            await self._idle.wait()
            if self._failure is not None:
                return str(self._failure) or repr(self._failure)
        return ""


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


def timed_line(record: AuditRecord) -> bytes:
    """Return a record with the present time as a line of JSON of at most LINE_BYTES."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    record = {"time": now, **record}
    line = msgspec.json.encode(record, enc_hook=str) + b"\n"
    if len(line) > LINE_BYTES:
        short = {name: value for name, value in record.items() if name != "definition"}
        line = msgspec.json.encode({**short, "left_out": "definition"}) + b"\n"
    return line
