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
from broker.store.checkpoint import Checkpointing, begin
from broker.store.contract import Store, WriteBatch
from broker.store.disk import StoreError, WriteFailed
from broker.store.durable import DurableStore
from trellis import logs

#: Seconds until a write that found no room is tried again.
PATIENCE: Final = 1.0
#: Octets that may wait for the disk; beyond that publishers wait.
PENDING: Final = 64 << 20
#: Seconds, and octets, that changes may wait for which nobody waits, such as settlements.
LAZINESS: Final = 0.01
LAZY: Final = 1 << 20
#: Seconds between two steps of a checkpoint: the loop's.
BREATH: Final = 0.0005
#: ... and what a checkpoint takes at once, at most, when the log grows faster than it gets on: the
#: loop at full speed gives the interpreter back only every 5 ms.
HASTE: Final = 0.005


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

    def tell_time(self, now: int, wall: float) -> None:
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
        self.refused = 0
        self.checkpoints = 0
        self.blocked = ""
        self.durable = store
        self._loop = loop
        self._failed = failed
        self._busy = False
        self._rest = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._broken = ""
        self._work: SimpleQueue[WriteBatch | Checkpointing | None] = SimpleQueue()
        self._spare: SimpleQueue[Checkpointing | None] = SimpleQueue()
        self._checkpointing: Checkpointing | None = None
        self._closing = False
        self._sealed = 0
        self._threads = [
            threading.Thread(target=self._write, name="store", daemon=True),
            threading.Thread(target=self._compact, name="checkpoint", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- the loop's side

    def sync(self) -> None:
        if self._busy or self._broken:
            return
        if self.durable.urgent or self.durable.octets > LAZY:
            self._take()
        elif self._timer is None:
            self._timer = self._loop.call_later(LAZINESS, self._take)

    def _take(self) -> None:
        """Hand what was appended to the writer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._busy and not self._broken and self.durable.waiting:
            self._busy = True
            self._work.put(self.durable.take())

    @property
    def backlogged(self) -> bool:
        return self.durable.octets > PENDING

    def tell_time(self, now: int, wall: float) -> None:
        self.durable.tell_time(now, wall)

    def _written(self, batch: WriteBatch, error: Exception | None) -> None:
        if error is not None:
            self._refuse(batch, error)
            return
        if self.blocked:
            self.blocked = ""
            logs.info("store_unblocked", note="the disk has room again")
        self.batches += 1
        self._busy = False
        self.wake()
        self.durable.written(batch)
        if self.durable.waiting:
            self.sync()
        else:
            self._rest.set()
        self._look()

    def _refuse(self, batch: WriteBatch, error: Exception) -> None:
        full = (
            isinstance(error, CatalogUnwritten)
            or isinstance(error, WriteFailed)
            and error.errno in (errno.ENOSPC, errno.EDQUOT)
        )
        if full:
            self.refused += 1
            if not self.blocked:
                self.blocked = str(error)
                logs.error(
                    "store_blocked",
                    reason=str(error),
                    note="nothing is confirmed until there is room; tried again every second",
                )
                self._rest.set()
            self._loop.call_later(PATIENCE, self._work.put, batch)
            return
        self._broken = str(error) or repr(error)
        logs.error("store_failed", reason=self._broken)
        self._rest.set()
        self._failed(self._broken)

    def _look(self) -> None:
        """Is a checkpoint worth it? Asked when a segment is full."""
        log = self.durable.log
        sealed = len(log.files)
        if sealed == self._sealed or self._checkpointing is not None:
            return
        self._sealed = sealed
        self._checkpointing = begin(log, self.durable.exist)
        if self._checkpointing is not None:
            self._spare.put(self._checkpointing)

    def _compacted(self, error: Exception | None) -> None:
        checkpointing, self._checkpointing = self._checkpointing, None
        if checkpointing is not None and checkpointing.made:
            self.checkpoints += 1
            self._sealed = 0
        if error is not None:
            logs.error(
                "checkpoint_failed", reason=str(error), note="the log grows until one succeeds"
            )

    # -- the threads' side

    def _write(self) -> None:
        while True:
            batch = self._work.get()
            if not isinstance(batch, WriteBatch):
                return
            error: Exception | None = None
            try:
                batch.write()
            except Exception as failure:  # noqa: BLE001  whatever it is, the loop must hear of it
                error = failure
            self._call(self._written, batch, error)

    def _compact(self) -> None:
        while True:
            checkpointing = self._spare.get()
            if checkpointing is None:
                return
            error: Exception | None = None
            try:
                while not self._closing and self._advance(checkpointing):
                    time.sleep(BREATH)
                checkpointing.abandon()  # What is done is left as it is.
            except Exception as failure:  # noqa: BLE001  whatever it is, the loop must hear of it
                error = failure
            self._call(self._compacted, error)

    def _advance(self, checkpointing: Checkpointing) -> bool:
        """A step, or more: a millisecond for each time that the log has become larger by what it
        was when this began. False when all is done."""
        grown = 2 * self.durable.log.octets / checkpointing.octets_total
        until = time.monotonic() + min(max(grown - 2, 0) / 1_000, HASTE)
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
        self._take()
        if self._busy and not self._broken and not self.blocked:
            self._rest.clear()
            await self._rest.wait()
        self._work.put(None)
        self._spare.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        if not self._broken:
            try:
                self.durable.close()
            except StoreError as error:
                logs.error("store_failed", reason=str(error))
