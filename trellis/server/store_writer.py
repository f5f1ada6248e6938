"""The store at work: one thread that writes, one batch at a time, and checkpoints beside it.

    append --> sync --> take --> [writer thread: write] --> written --> confirms
                 ^                                             |
                 +------- appended meanwhile: at once ---------+      (what nobody waits for: a little later)

A write that fails because the disk is full is tried again; nobody hears a confirm until it
succeeds. After any other failure nobody knows what is on the disk: `failed` is told, and the broker
must stop.
"""

from __future__ import annotations

import asyncio
import errno
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from broker.store.catalog import CatalogUnwritten
from broker.store.checkpoint import Checkpointing, begin_checkpoint
from broker.store.contract import Store, WriteBatch
from broker.store.disk import StoreError, WriteFailed
from broker.store.durable import DurableStore
from trellis import logs

#: Seconds until a write that found no room is tried again.
RETRY_SECONDS: Final = 1.0
#: Octets that may wait for the disk; beyond that publishers wait.
BACKLOG_BYTES: Final = 64 << 20
#: Seconds, and octets, that changes may wait for which nobody waits, such as settlements.
LAZY_SECONDS: Final = 0.01
LAZY_BYTES: Final = 1 << 20
#: Seconds between two steps of a checkpoint: the loop's.
CHECKPOINT_PAUSE: Final = 0.0005
#: ... and what a checkpoint takes at once, at most, when the log grows faster than it gets on: the
#: loop at full speed gives the interpreter back only every 5 ms.
CHECKPOINT_SLICE_MAX: Final = 0.005


def _nobody() -> None:
    """Wakes nobody."""


class StoreWriter:
    """What the turn asks to sync. This one keeps a store that need not wait."""

    def __init__(self, store: Store) -> None:
        self.store = store
        #: Called before those who waited are told.
        self.wake: Callable[[], None] = _nobody

    def sync(self) -> None:
        """Something was appended."""
        self.store.sync()

    @property
    def backlogged(self) -> bool:
        """Whether so much waits for the disk that publishers should wait."""
        return False

    def set_clocks(self, now: int, wall: float) -> None:
        """The clocks of the broker, now and then."""

    async def close(self) -> None:
        """Write what is left, and let go of the files."""


class DurableStoreWriter(StoreWriter):
    """Writes batches in a thread."""

    def __init__(
        self, store: DurableStore, loop: asyncio.AbstractEventLoop, failed: Callable[[str], None]
    ) -> None:
        """`failed` is told why nothing can be written any more."""
        super().__init__(store)
        #: Batches written; writes that found no room; checkpoints made; why there is none to be
        #: had.
        self.batches = 0
        self.full_disk_failures = 0
        self.checkpoints = 0
        self.blocked_reason = ""
        self.durable = store
        self._loop = loop
        self._failed = failed
        self._busy = False
        self._idle = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._broken = ""
        self._write_queue: SimpleQueue[WriteBatch | Checkpointing | None] = SimpleQueue()
        self._checkpoint_queue: SimpleQueue[Checkpointing | None] = SimpleQueue()
        self._checkpointing: Checkpointing | None = None
        self._closing = False
        self._sealed_segments = 0
        self._threads = [
            threading.Thread(target=self._run_writes, name="store", daemon=True),
            threading.Thread(target=self._run_checkpoints, name="checkpoint", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- the loop's side

    def sync(self) -> None:
        if self._busy or self._broken:
            return
        if self.durable.urgent or self.durable.unwritten_bytes > LAZY_BYTES:
            self._write_batch()
        elif self._timer is None:
            self._timer = self._loop.call_later(LAZY_SECONDS, self._write_batch)

    def _write_batch(self) -> None:
        """Hand what was appended to the writer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._busy and not self._broken and self.durable.unbatched:
            self._busy = True
            self._write_queue.put(self.durable.take())

    @property
    def backlogged(self) -> bool:
        return self.durable.unwritten_bytes > BACKLOG_BYTES

    def set_clocks(self, now: int, wall: float) -> None:
        self.durable.set_clocks(now, wall)

    def _written(self, batch: WriteBatch, error: Exception | None) -> None:
        if error is not None:
            self._handle_failure(batch, error)
            return
        if self.blocked_reason:
            self.blocked_reason = ""
            logs.info("store_unblocked", note="the disk has room again")
        self.batches += 1
        self._busy = False
        self.wake()
        self.durable.written(batch)
        if self.durable.unbatched:
            self.sync()
        else:
            self._idle.set()
        self._checkpoint_if_worthwhile()

    def _handle_failure(self, batch: WriteBatch, error: Exception) -> None:
        full = (
            isinstance(error, CatalogUnwritten)
            or isinstance(error, WriteFailed)
            and error.errno in (errno.ENOSPC, errno.EDQUOT)
        )
        if full:
            self.full_disk_failures += 1
            if not self.blocked_reason:
                self.blocked_reason = str(error)
                logs.error(
                    "store_blocked",
                    reason=str(error),
                    note="nothing is confirmed until there is room; tried again every second",
                )
                self._idle.set()
            self._loop.call_later(RETRY_SECONDS, self._write_queue.put, batch)
            return
        self._broken = str(error) or repr(error)
        logs.error("store_failed", reason=self._broken)
        self._idle.set()
        self._failed(self._broken)

    def _checkpoint_if_worthwhile(self) -> None:
        """Is a checkpoint worth it? Asked when a segment is full."""
        log = self.durable.log
        sealed = len(log.files)
        if sealed == self._sealed_segments or self._checkpointing is not None:
            return
        self._sealed_segments = sealed
        self._checkpointing = begin_checkpoint(log, self.durable.holder_numbers)
        if self._checkpointing is not None:
            self._checkpoint_queue.put(self._checkpointing)

    def _checkpointed(self, error: Exception | None) -> None:
        checkpointing, self._checkpointing = self._checkpointing, None
        if checkpointing is not None and checkpointing.completed:
            self.checkpoints += 1
            self._sealed_segments = 0
        if error is not None:
            logs.error(
                "checkpoint_failed", reason=str(error), note="the log grows until one succeeds"
            )

    # -- the threads' side

    def _run_writes(self) -> None:
        while True:
            batch = self._write_queue.get()
            if not isinstance(batch, WriteBatch):
                return
            error: Exception | None = None
            try:
                batch.write()
            except Exception as failure:  # noqa: BLE001  whatever it is, the loop must hear of it
                error = failure
            self._call(self._written, batch, error)

    def _run_checkpoints(self) -> None:
        while True:
            checkpointing = self._checkpoint_queue.get()
            if checkpointing is None:
                return
            error: Exception | None = None
            try:
                while not self._closing and self._advance(checkpointing):
                    time.sleep(CHECKPOINT_PAUSE)
                checkpointing.cancel()  # What is done is left as it is.
            except Exception as failure:  # noqa: BLE001  whatever it is, the loop must hear of it
                error = failure
            self._call(self._checkpointed, error)

    def _advance(self, checkpointing: Checkpointing) -> bool:
        """A step, or more: a millisecond for each time that the log has become larger by what it
        was when this began. False when all is done."""
        grown = 2 * self.durable.log.size / checkpointing.bytes_total
        until = time.monotonic() + min(max(grown - 2, 0) / 1_000, CHECKPOINT_SLICE_MAX)
        while checkpointing.step():
            if time.monotonic() >= until:
                return True
        return False

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # The loop is closed: nobody waits any more.

    # -- the end

    async def close(self) -> None:
        """Write what is left, and let go of the files. What cannot be written was confirmed to
        nobody, and a checkpoint that is not done is not waited for."""
        self._closing = True
        self._write_batch()
        if self._busy and not self._broken and not self.blocked_reason:
            self._idle.clear()
            await self._idle.wait()
        self._write_queue.put(None)
        self._checkpoint_queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        if not self._broken:
            try:
                self.durable.close()
            except StoreError as error:
                logs.error("store_failed", reason=str(error))
