"""A clock in an event loop: it records for how long the loop was held, and the code that held it.

The loop is held while a callback runs, so that no other callback can run.
"""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import time
from typing import Final

#: Seconds between two ticks of the clock.
TICK: Final = 0.001
#: The modes of a clock. TICKS: a tick each TICK seconds; the ticks themselves take about 3 % of a
#: processor, and short turns between two ticks count as one hold. TURNS: a tick in each turn of the
#: loop, so that a hold is exactly one turn; the loop never sleeps. OFF: no ticks, to measure the
#: CPU time of the process.
TICKS: Final = "ticks"
TURNS: Final = "turns"
OFF: Final = "off"
#: Seconds of CPU time between two ticks above which a hold is described (TICKS).
LONG: Final = 0.01
#: Seconds of CPU time between two ticks above which a hold is recorded, and described (TURNS).
NOTED: Final = 0.002
#: The most holds that are described in one phase.
DESCRIBED: Final = 5


def stolen() -> float:
    """Return the time that the host has taken away from this machine's processors, in seconds."""
    with open("/proc/stat") as file:
        return int(file.readline().split()[8]) / os.sysconf("SC_CLK_TCK")


class LoopClock:
    """A timer in an event loop that records for how long other callbacks held the loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._mode = OFF
        self._timer: asyncio.Handle | None = None
        gc.callbacks.append(self._collection)
        self.begin()

    def begin(self, mode: str = TICKS) -> None:
        """Reset the records to begin a new phase in the mode TICKS, TURNS or OFF of the clock."""
        self.held = self.late = self.collected = 0.0
        self.generation = 0
        self.long: list[str] = []
        #: (begin, end, CPU time) in seconds of each hold with more than NOTED of CPU time.
        self.holds: list[tuple[float, float, float]] = []
        self._in_gc = 0.0
        self._usage, self._stolen = resource.getrusage(resource.RUSAGE_THREAD), stolen()
        self._used, self._rang = time.thread_time(), time.perf_counter()
        self._mode = mode
        if self._timer is not None:
            self._timer.cancel()
        self._schedule()

    def _schedule(self) -> None:
        if self._mode == TICKS:
            self._timer = self._loop.call_later(TICK, self._ring)
        elif self._mode == TURNS:
            self._timer = self._loop.call_soon(self._ring)

    def _collection(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._collecting = time.thread_time()
            return
        took = time.thread_time() - self._collecting
        self._in_gc += took
        if took > self.collected:
            self.collected, self.generation = took, details["generation"]

    def _ring(self) -> None:
        used, rang = time.thread_time(), time.perf_counter()
        # In a virtual machine, the CPU time of a thread may jump by 10 ms within 0.1 ms.
        held = min(used - self._used, rang - self._rang)
        self.held = max(self.held, held)
        self.late = max(self.late, rang - self._rang - TICK)
        if held > NOTED:
            self.holds.append((self._rang, rang, held))
        usage, before = resource.getrusage(resource.RUSAGE_THREAD), self._usage
        described = NOTED if self._mode == TURNS else LONG
        if held > described and len(self.long) < DESCRIBED:
            self.long.append(
                f"{(used - self._used) * 1e3:.1f} ms of CPU time in "
                f"{(rang - self._rang) * 1e3:.1f} ms: user "
                f"{(usage.ru_utime - before.ru_utime) * 1e3:.1f} ms, system "
                f"{(usage.ru_stime - before.ru_stime) * 1e3:.1f} ms, collection "
                f"{self._in_gc * 1e3:.1f} ms, page faults {usage.ru_minflt - before.ru_minflt}, "
                f"preempted {usage.ru_nivcsw - before.ru_nivcsw} times, steal since the phase "
                f"began {(stolen() - self._stolen) * 1e3:.0f} ms"
            )
        self._usage, self._in_gc = usage, 0.0
        self._used, self._rang = used, rang
        self._schedule()
