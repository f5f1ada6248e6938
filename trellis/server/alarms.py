"""Alarms for memory and disk: while one is on, publishers are blocked and consumers go on."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from broker.alarms import Alarms
from trellis import logs, process

#: Seconds between two checks.
CHECK_INTERVAL: Final = 1.0
#: The memory alarm ends when memory in use has fallen below the limit by this share of the
#: limit.
MEMORY_MARGIN: Final = 0.05


class AlarmWatch:
    """The task that raises and ends the memory alarm and the disk alarm of a broker.

    `memory` is the limit as a share of the machine's memory, from 0 to 1. `disk_free` is the number
    of free bytes on the disk below which the alarm is raised. 0 means no limit.
    """

    def __init__(
        self, alarms: Alarms, memory: float, disk_free: int, directory: Path | None
    ) -> None:
        self._alarms = alarms
        self.memory_limit = int(memory * process.memory_bytes())
        self.disk_limit = 0 if directory is None else disk_free
        self._directory = directory

    async def run(self) -> None:
        """Check memory and disk every CHECK_INTERVAL seconds, for ever."""
        while True:
            free = 0
            if self._directory is not None and self.disk_limit:
                free = await asyncio.get_running_loop().run_in_executor(
                    None, process.free_disk_bytes, self._directory
                )
            self.check(process.resident_bytes(), free)
            await asyncio.sleep(CHECK_INTERVAL)

    def check(self, resident: int, free: int) -> None:
        """Raise or end the alarms for `resident` bytes of memory in use, `free` bytes of disk."""
        limit = (
            self.memory_limit * (1 - MEMORY_MARGIN)
            if "memory" in self._alarms.on
            else self.memory_limit
        )
        self._set("memory", 0 < limit < resident, used=resident, limit=self.memory_limit)
        self._set("disk", free < self.disk_limit, free=free, limit=self.disk_limit)

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
