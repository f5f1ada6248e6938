"""Store writers: one thread writes the store's entries to disk, another makes checkpoints.

    append -> sync -> take a batch -> [writer thread: write] -> written -> confirms
               ^                                                  |
               +------ entries appended meanwhile: at once -------+

Entries that no client waits for, such as settlements, are written up to LAZY_SECONDS later. A write
that fails because the disk is full, or because the replicated log of a cluster could lose the batch
or refuses it, is retried every RETRY_SECONDS. Until a retry succeeds, no persistent message is
confirmed. After any other failure the content of the disk is unknown: the writer calls `failed`,
and the broker must stop.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from broker.store.catalog import CatalogFull, CatalogUnwritten
from broker.store.checkpoint import Checkpointing
from broker.store.checkpoint_schedule import begin_checkpoint, live_estimate
from broker.store.contract import WriteBatch
from broker.store.disk import DISK_FULL, TRANSIENT, OutOfDescriptors, StoreError, WriteFailed
from broker.store.dropping import dead_files, dead_size, drop_dead_files
from broker.store.durable import DurableStore
from broker.store.durable_batch import ShippingRefused
from broker.store.segments import SegmentLog
from trellis import logs
from trellis.server.disk_reserve import DiskReserve
from trellis.server.store_writer import StoreWriter

#: Seconds between two attempts at a write that failed because the disk was full.
RETRY_SECONDS: Final = 1.0
#: Number of bytes waiting for the disk above which backpressure applies to publishers.
BACKLOG_BYTES: Final = 64 << 20
#: Longest time in seconds that entries wait if no client waits for them (settlements, for example).
LAZY_SECONDS: Final = 0.01
#: Total size in bytes up to which entries wait if no client waits for them.
LAZY_BYTES: Final = 1 << 20
#: The writer looks for dead files of the log, and for a worthwhile checkpoint, every LOOK_SECONDS
#: and after every LOOK_BYTES written. So the log of an idle broker shrinks too.
LOOK_SECONDS: Final = 1.0
LOOK_BYTES: Final = 16 << 20
#: While a checkpoint is made or dead files are dropped, publishers are throttled if the log is
#: larger than LOG_FACTOR times its live records plus LOG_SLACK bytes. So the log is bounded at
#: every speed of publishers.
LOG_FACTOR: Final = 3
LOG_SLACK: Final = 256 << 20
#: Longest time in seconds that a stop waits for a write, and for the end of a checkpoint.
CLOSE_SECONDS: Final = 20.0
#: Seconds between two steps of a checkpoint, during which the event loop can run.
CHECKPOINT_PAUSE: Final = 0.0005
#: Longest time in seconds that a checkpoint works without a pause. Its slices grow up to this limit
#: while the log grows faster than the checkpoint advances: a busy event loop lets other threads run
#: only every 5 ms.
CHECKPOINT_SLICE_MAX: Final = 0.005


class DurableStoreWriter(StoreWriter):
    """The writer of a durable store: one thread for batches, one for checkpoints."""

    def __init__(
        self,
        store: DurableStore,
        loop: asyncio.AbstractEventLoop,
        failed: Callable[[str], None],
        reserve: DiskReserve | None = None,
    ) -> None:
        """Start the threads; `failed` is called with the reason if the store cannot be written.

        The file of `reserve` is removed when the disk is full.
        """
        super().__init__(store)
        #: Number of batches written.
        self.batches = 0
        #: Number of writes that found the disk full.
        self.full_disk_failures = 0
        #: Number of checkpoints made.
        self.checkpoints = 0
        #: Size of the dead files that were dropped, in bytes.
        self.dropped_bytes = 0
        #: Text of the error while the disk is full; "" while it is not.
        self.blocked_reason = ""
        self.durable = store
        self._loop = loop
        self._failed = failed
        self._reserve = reserve
        #: Free bytes of the disk at the last look; None before the first look.
        self._free: int | None = None
        self._written_bytes = 0
        self._busy = False
        self._idle = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._broken = ""
        self._write_queue: SimpleQueue[WriteBatch | Checkpointing | None] = SimpleQueue()
        #: Checkpoints to make, and logs whose dead and leftover files are to be removed.
        self._checkpoint_queue: SimpleQueue[Checkpointing | SegmentLog | None] = SimpleQueue()
        #: The task of the checkpoint thread; None while the thread is idle.
        self._work: Checkpointing | SegmentLog | None = None
        #: True if dropping the dead files would free more than the checkpoint in progress; then
        #: that checkpoint is cancelled.
        self._superseded = False
        #: True while publishers wait for a checkpoint, or for the drop of dead files, because the
        #: log is too large.
        self.log_throttled = False
        #: Reason why the last attempt to free space failed; "" after a success. A failure for the
        #: same reason as the last failure is not logged.
        self._freeing_failure = ""
        self._closing = False
        #: Number of segments begun and of bytes written at the last look, and the bytes written at
        #: the last tick.
        self._looked = (0, 0)
        self._ticked = -1
        self._clock = loop.call_later(LOOK_SECONDS, self._tick)
        self._threads = [
            threading.Thread(target=self._run_writes, name="store", daemon=True),
            threading.Thread(target=self._run_checkpoints, name="checkpoint", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # -- in the event loop

    def sync(self) -> None:
        if self._busy or self._broken:
            return
        if self.durable.urgent or self.durable.unwritten_bytes > LAZY_BYTES:
            self._write_batch()
        elif self._timer is None:
            self._timer = self._loop.call_later(LAZY_SECONDS, self._write_batch)

    def _write_batch(self) -> None:
        """Pass the appended entries to the writer thread, unless the thread is busy."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._busy and not self._broken and self.durable.unbatched:
            self._busy = True
            self._write_queue.put(self.durable.take())

    @property
    def idle(self) -> bool:
        """True if all entries of the store are written to the disk."""
        return not self._busy and not self.durable.unbatched

    @property
    def unwritten_bytes(self) -> int:
        return self.durable.unwritten_bytes

    def on_free_space(self, free: int, short: bool) -> None:
        self._free = free
        if short:
            log = self.durable.log
            # The last measurement found too little to free. Unless many entries were settled since
            # then, another measurement would have the same result.
            if log.reclaimable >= log.short_check_reclaimable:
                log.check_reclaimable = 0
            self._look(True)

    @property
    def backlogged(self) -> bool:
        return self.log_throttled or self.durable.unwritten_bytes > BACKLOG_BYTES

    def set_clocks(self, now: int, wall: float) -> None:
        self.durable.set_clocks(now, wall)

    def _written(self, batch: WriteBatch, error: Exception | None) -> None:
        if error is not None:
            self._handle_failure(batch, error)
            return
        if self.blocked_reason:
            self.blocked_reason = ""
            logs.info("store_unblocked", note="the store can be written again; confirms resume")
        self.batches += 1
        self._busy = False
        self.wake()
        self._written_bytes += batch.size
        self.durable.written(batch)
        if self._written_bytes >= LOOK_BYTES:
            self._written_bytes = 0
            self.wrote_much()
        if self.durable.unbatched:
            self.sync()
        else:
            self._idle.set()
        log = self.durable.log
        rolls, written = self._looked
        if log.rolls != rolls or log.written - written >= LOOK_BYTES:
            self._look()

    def _handle_failure(self, batch: WriteBatch, error: Exception) -> None:
        is_full = isinstance(error, CatalogUnwritten) or (
            isinstance(error, WriteFailed) and error.errno in TRANSIENT
        )
        if is_full or isinstance(error, ShippingRefused):
            if is_full:
                self.full_disk_failures += 1
                self.wrote_much()
            if not self.blocked_reason:
                self.blocked_reason = str(error)
                logs.error(
                    "store_blocked",
                    reason=str(error),
                    note="no persistent message is confirmed until a retry succeeds: remove the "
                    "cause that `reason` names",
                )
                self._idle.set()
            if is_full:
                self._drop_dead_files()
            self._loop.call_later(RETRY_SECONDS, self._write_queue.put, batch)
            return
        self._broken = str(error) or repr(error)
        logs.error("store_failed", reason=self._broken)
        self._idle.set()
        self._failed(self._broken)

    # -- in the event loop: space for the log

    def _tick(self) -> None:
        """Look for disk space that can be freed, then schedule this method in LOOK_SECONDS."""
        written = int(self.durable.log.written)
        idle, self._ticked = written == self._ticked, written
        self._look(idle)
        if not self._broken:
            self._clock = self._loop.call_later(LOOK_SECONDS, self._tick)

    def _look(self, idle: bool = False) -> None:
        """Remove dead files if there are any; else begin a checkpoint if it frees enough space.

        With `idle`, retry to remove files that could not be removed before. Finally, begin or end
        the throttling of publishers.
        """
        log = self.durable.log
        self._looked = (log.rolls, int(log.written))
        if self._work is None and not self._drop_dead_files() and self._has_room():
            checkpointing = begin_checkpoint(log, self.durable.holder_numbers, idle)
            if checkpointing is not None:
                self._begin(checkpointing)
        elif isinstance(self._work, Checkpointing):
            self._superseded = 4 * dead_size(log) >= self._work.bytes_total
        if idle and self._work is None and log.leftover:
            self._begin(log)
        self._limit_log()

    def _has_room(self) -> bool:
        """True if the disk seems to have room for the files of a checkpoint."""
        return not self.blocked_reason and (
            self._free is None or self._free >= live_estimate(self.durable.log)
        )

    def _drop_dead_files(self) -> bool:
        """Begin to remove the log's dead files: their removal needs no disk space.

        Return False if no file is dead, or if other work on the log's files is under way.
        """
        log = self.durable.log
        if self._work is not None or self._closing or not dead_files(log):
            return False
        self._begin(log)
        return True

    def _begin(self, work: Checkpointing | SegmentLog) -> None:
        self._work = work
        self._superseded = False
        self._checkpoint_queue.put(work)

    def _limit_log(self) -> None:
        """Throttle publishers while space is being freed and the log is too large (LOG_FACTOR)."""
        log, before = self.durable.log, self.log_throttled
        self.log_throttled = (
            self._work is not None and log.size > LOG_FACTOR * log.live_size + LOG_SLACK
        )
        if before and not self.log_throttled:
            self.wake()

    def _freed(self, error: Exception | None) -> None:
        """Handle the end of a checkpoint or of a removal of dead files.

        `error` is None after a success. After a success, free more space if that is worthwhile.
        After a failure, log the reason.
        """
        work, self._work = self._work, None
        if isinstance(work, Checkpointing) and work.completed:
            self.checkpoints += 1
        if error is None:
            self._freeing_failure = ""
            self._look()
            return
        self._limit_log()
        self._log_freeing_failure(str(error))

    def _log_freeing_failure(self, reason: str) -> None:
        if self._freeing_failure != reason:
            self._freeing_failure = reason
            logs.error(
                "checkpoint_failed",
                reason=reason,
                note="the store's log grows until a retry succeeds: remove the cause in `reason`",
            )

    # -- in the threads

    def _run_writes(self) -> None:
        while True:
            batch = self._write_queue.get()
            if not isinstance(batch, WriteBatch):
                return
            error: Exception | None = None
            try:
                self._write(batch)
            except Exception as failure:  # noqa: BLE001  every failure is passed to the loop
                error = failure
            self._call(self._written, batch, error)

    def _write(self, batch: WriteBatch) -> None:
        """Write a batch.

        If the disk is full, remove the reserve's file, and write into that space.
        """
        try:
            batch.write()
        except (WriteFailed, CatalogFull) as error:
            full = isinstance(error, CatalogFull) or error.errno in DISK_FULL
            if not full or self._reserve is None or not self._reserve.give_up():
                raise
            self._call(self.wrote_much)
            batch.write()

    def _run_checkpoints(self) -> None:
        while True:
            work = self._checkpoint_queue.get()
            if work is None:
                return
            error: Exception | None = None
            try:
                if isinstance(work, Checkpointing):
                    self._make(work)
                else:
                    self.dropped_bytes += drop_dead_files(work)
            except Exception as failure:  # noqa: BLE001  every failure is passed to the loop
                error = failure
            self._call(self._freed, error)

    def _make(self, checkpointing: Checkpointing) -> None:
        while (
            not self._closing
            and not (self._superseded and checkpointing.can_cancel)
            and self._advance(checkpointing)
        ):
            time.sleep(CHECKPOINT_PAUSE)
        checkpointing.cancel()  # A complete checkpoint is not affected.

    def _advance(self, checkpointing: Checkpointing) -> bool:
        """Do one slice of a checkpoint. Return False when the checkpoint is complete.

        A slice lasts longer, the larger the log is. Let S be the total size of the files that the
        checkpoint replaces. Up to a log of 2 S, a slice is a single step. For a log of (2 + n) S, a
        slice lasts n ms, and at most CHECKPOINT_SLICE_MAX. While publishers are throttled, a slice
        lasts CHECKPOINT_SLICE_MAX.
        """
        grown = 2 * self.durable.log.size / checkpointing.bytes_total
        if self.log_throttled:
            grown = 1_000.0
        until = time.monotonic() + min(max(grown - 2, 0) / 1_000, CHECKPOINT_SLICE_MAX)
        try:
            while checkpointing.step():
                if time.monotonic() >= until:
                    return True
        except OutOfDescriptors as error:
            self._call(self._log_freeing_failure, str(error))
            time.sleep(RETRY_SECONDS)  # The caller repeats the step after this pause.
            return True
        return False

    def _call(self, function: Callable[..., None], *arguments: object) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            pass  # The event loop is closed, so the result is not needed.

    # -- closing

    async def close(self) -> None:
        """Write the remaining entries, and close the files.

        Entries that cannot be written were never confirmed. An unfinished checkpoint is cancelled.
        If a write does not end within CLOSE_SECONDS, such as on a network disk that does not
        answer, the files and the lock of the data directory stay open, and the broker fails.
        """
        self._closing = True
        self._clock.cancel()
        self._write_batch()
        if self._busy and not self._broken and not self.blocked_reason:
            self._idle.clear()
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._idle.wait()
            except TimeoutError:
                self._give_up()
                return
        self._write_queue.put(None)
        self._checkpoint_queue.put(None)
        for thread in self._threads:
            await asyncio.to_thread(thread.join, CLOSE_SECONDS)
            if thread.is_alive():
                self._give_up()
                return
        if not self._broken:
            try:
                self.durable.close()
            except StoreError as error:
                logs.error("store_failed", reason=str(error))

    def _give_up(self) -> None:
        """Fail, because a thread waits for the disk. The thread ends with the process."""
        reason = (
            f"the data directory did not answer within {CLOSE_SECONDS:g} s during the stop, so the "
            "broker stops without its last entries; no confirmed message is lost"
        )
        self.stuck = True
        logs.error("store_failed", reason=reason)
        self._failed(reason)
