"""Alarms for memory and disk: while one is on, publishers are blocked and consumers go on.

    memory    RSS above the limit --> the heap is trimmed --> RSS still above it: the alarm is on,
              and ends by an estimate of what the broker still holds (memory.py)
    disk      free space below the limit, or the reserve (disk_reserve.py) was given up: the alarm
              is on, and the store gives back space until there is enough

Both are checked every CHECK_INTERVAL, the disk also whenever the store has written LOOK_BYTES.
"""

from __future__ import annotations

import asyncio
from typing import Final

from broker.alarms import Alarms
from trellis import logs, process
from trellis.server.disk_reserve import DiskReserve
from trellis.server.heap import HeapTrimmer
from trellis.server.memory import MemoryAccount, MemoryEstimate
from trellis.server.store_writer import StoreWriter

#: Seconds between two checks.
CHECK_INTERVAL: Final = 1.0
#: The memory alarm ends when memory in use has fallen below the limit by this share of the
#: limit.
MEMORY_MARGIN: Final = 0.05


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
        #: Free bytes on the disk at the last check.
        self.disk_free = 0
        store_writer.wrote_much = self._look.set

    async def run(self) -> None:
        """Check memory and disk, for ever."""
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            self._look.clear()
            if loop.time() >= due:
                await self.check_memory()
                due = loop.time() + CHECK_INTERVAL
            await self.check_disk()
            timer = loop.call_later(CHECK_INTERVAL, self._look.set)
            try:
                await self._look.wait()
            finally:
                timer.cancel()

    async def check_memory(self) -> None:
        """Give back freed memory, then raise or end the memory alarm."""
        loop = asyncio.get_running_loop()
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
                # Publishers are blocked already while memory is counted for the first time.
                self._set("memory", True, used=resident, limit=limit)
            used = self._estimate.update(resident, await self.account.count())
        if "memory" in self._alarms.on:
            limit = int(limit * (1 - MEMORY_MARGIN))
        self._set("memory", 0 < limit < used, used=used, limit=self.memory_limit)

    async def check_disk(self) -> None:
        """Raise or end the disk alarm; while it is on, have the store give back space."""
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
