"""Alarms for memory and disk: an alarm blocks publishers, while consumers are served.

    memory    RSS above the limit --> the heap is trimmed --> RSS still above it: the alarm is on,
              and ends by an estimate of what the broker still holds (memory.py)
    disk      free space below the limit, or the reserve's file (disk_reserve.py) was removed: the
              alarm is on, and the store frees disk space until there is enough

Memory and disk are checked at least every CHECK_INTERVAL seconds. The disk is also checked whenever
the store has written LOOK_BYTES, and memory more often if little room is left below its limit
(`seconds_to_check`).
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from broker.alarms import Alarms
from trellis import logs, process
from trellis.server.disk_reserve import DiskReserve
from trellis.server.heap import HeapTrimmer
from trellis.server.memory import MemoryAccount, MemoryEstimate
from trellis.server.store_writer import StoreWriter

#: Seconds between two checks.
CHECK_INTERVAL: Final = 1.0
#: Largest growth of RSS, in bytes per second, at which memory is checked before it can exceed its
#: limit. Publishers that send messages of 10 KB at full speed cause a growth of about 1 GB/s.
GROWTH_MAX: Final = 1 << 30
#: Shortest time in seconds between two checks of memory.
CHECK_PAUSE: Final = 0.02
#: Fraction of the limit by which memory in use must fall below the limit before the memory alarm
#: ends.
MEMORY_MARGIN: Final = 0.05


def seconds_to_check(used: int, limit: int) -> float:
    """Return the seconds after which memory should be checked again.

    `used` is the memory in use, `limit` the limit of the memory alarm, both in bytes. The result is
    the time in which memory would reach the limit if it grew by GROWTH_MAX bytes per second, but at
    least CHECK_PAUSE and at most CHECK_INTERVAL seconds. If `used` is above the limit, the result
    is CHECK_INTERVAL.
    """
    room = limit - used
    if room <= 0:
        # If the alarm is on, or there is no limit, memory is checked at the usual interval.
        return CHECK_INTERVAL
    return min(max(room / GROWTH_MAX, CHECK_PAUSE), CHECK_INTERVAL)


class AlarmWatch:
    """The task that raises and ends the memory alarm and the disk alarm of a broker.

    `memory` is the limit as a share of the machine's memory, from 0 to 1. `disk_free` is the number
    of free bytes on the disk below which the alarm is raised. 0 means no limit. `reserve` is None
    if nothing is stored on disk.
    """

    def __init__(
        self,
        alarms: Alarms,
        memory: float,
        disk_free: int,
        reserve: DiskReserve | None,
        account: MemoryAccount,
        store_writer: StoreWriter,
    ) -> None:
        self._alarms = alarms
        self._reserve = reserve
        self._store_writer = store_writer
        self._estimate = MemoryEstimate()
        self._look = asyncio.Event()
        self.account = account
        self.heap = HeapTrimmer()
        self.memory_limit = int(memory * process.memory_bytes())
        self.disk_limit = 0 if reserve is None else max(disk_free, reserve.threshold)
        #: Memory in use at the last check, in bytes: RSS, or the estimate while RSS is above the
        #: limit.
        self.memory_used = 0
        #: Free bytes on the disk at the last check.
        self.disk_free = 0
        store_writer.wrote_much = self._look.set

    async def run(self) -> None:
        """Check memory and disk until the task is cancelled."""
        loop = asyncio.get_running_loop()
        memory_due = disk_due = loop.time()
        while True:
            wrote_much = self._look.is_set()
            self._look.clear()
            if loop.time() >= memory_due:
                await self.check_memory()
                memory_due = loop.time() + seconds_to_check(self.memory_used, self.memory_limit)
            if wrote_much or loop.time() >= disk_due:
                await self.check_disk()
                disk_due = loop.time() + CHECK_INTERVAL
            pause = max(min(memory_due, disk_due) - loop.time(), 0)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._look.wait()

    async def check_memory(self) -> None:
        """Give freed memory back to the operating system, then raise or end the memory alarm.

        Memory is given back (the heap is trimmed) only if enough was freed, or if RSS is above the
        limit.
        """
        loop = asyncio.get_running_loop()
        if self.heap.due:
            await loop.run_in_executor(None, self.heap.trim_if_worthwhile)
        limit = self.memory_limit
        resident = used = process.resident_bytes()
        if 0 < limit < resident and self.heap.due:
            await loop.run_in_executor(None, self.heap.trim)
            resident = used = process.resident_bytes()
        if not 0 < limit < resident:
            self._estimate.end()
        else:
            if not self._estimate.begun:
                # The alarm blocks publishers before the count begins, which takes many turns.
                self._set("memory", True, used=resident, limit=limit)
            used = self._estimate.update(resident, await self.account.count())
        self.memory_used = used
        if "memory" in self._alarms.on:
            limit = int(limit * (1 - MEMORY_MARGIN))
        self._set("memory", 0 < limit < used, used=used, limit=self.memory_limit)

    async def check_disk(self) -> None:
        """Raise or end the disk alarm; while it is on, make the store free disk space."""
        reserve = self._reserve
        if reserve is None:
            return
        loop = asyncio.get_running_loop()
        self.disk_free = await loop.run_in_executor(None, reserve.look)
        short = self.disk_free < self.disk_limit or reserve.missing
        self._set("disk", short, free=self.disk_free, limit=self.disk_limit)
        self._store_writer.on_free_space(self.disk_free, short)

    def _set(self, name: str, on: bool, **figures: int) -> None:
        if on == (name in self._alarms.on):
            return
        self._alarms.set(name, on)
        if on:
            logs.warning(
                "alarm", alarm=name, note="publishers are blocked until the alarm ends", **figures
            )
        else:
            logs.info("alarm_over", alarm=name, **figures)
