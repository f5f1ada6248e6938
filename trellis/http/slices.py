"""Slices: the work of all API calls gets at most SLICE_SECONDS in one turn of the event loop.

After SLICES slices, the work of all calls rests for REST_SECONDS. Without these rests, many API
calls would use a whole processor, and when a message arrives, the operating system would run other
processes before the broker.

Each REST_SECONDS without API calls add SLICES slices to a budget of at most BURST slices (a token
bucket). So a single call after an idle time runs with fewer rests.
"""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

#: Seconds of work for API calls between two turns of the event loop. A message waits for at most
#: two slices: at its publication and at its delivery.
SLICE_SECONDS: Final = 0.0005
#: After this number of slices, the work of all API calls rests for REST_SECONDS.
SLICES: Final = 4
REST_SECONDS: Final = 0.001
#: Largest number of slices without a rest, after a long time without calls: 50 ms of work.
BURST: Final = 100


class RestBudget:
    """A token bucket that limits the work of all API calls together.

    `slices` is the number of slices of work that are left until the API calls must rest.
    """

    def __init__(self) -> None:
        self.slices = BURST

    def add_idle(self, seconds: float) -> None:
        """Add SLICES slices for each REST_SECONDS in `seconds`, a time without API calls."""
        self.slices = min(BURST, self.slices + int(seconds / REST_SECONDS) * SLICES)

    def spend(self) -> bool:
        """Count a slice. Return True if a rest must follow the slice."""
        self.slices -= 1
        if self.slices > 0:
            return False
        self.slices = SLICES
        return True


class Slices:
    """The queue of API calls that wait for a slice; each turn of the event loop serves one call."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._budget = RestBudget()
        #: Number of slices so far.
        self.taken = 0
        #: The time at which the last slice ended, in seconds of the monotonic clock.
        self._ended = 0.0

    async def begin(self) -> float:
        """Wait for the next slice.

        Return the time at which the slice ends, on the monotonic clock.
        """
        idle = not self._turn.locked()
        await self._turn.acquire()
        self.taken += 1
        now = perf_counter()
        if idle:
            self._budget.add_idle(now - self._ended)
        return now + SLICE_SECONDS

    async def end(self) -> None:
        """End the present slice. The next slice begins in a later turn of the event loop.

        If a rest must follow, the next slice begins after REST_SECONDS.
        """
        try:
            await asyncio.sleep(REST_SECONDS if self._budget.spend() else 0)
        finally:
            self._ended = perf_counter()
            self._turn.release()


class Slice:
    """A context manager for the work of one API call, which is done in slices of time.

    The call must await `pause` whenever `over` is True.
    """

    def __init__(self, slices: Slices) -> None:
        self._slices = slices
        self._held = False
        self._ends = 0.0

    async def __aenter__(self) -> Slice:
        await self._begin()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._held:
            await self._end()

    @property
    def over(self) -> bool:
        """True if the present slice has used its time."""
        return perf_counter() >= self._ends

    async def pause(self, until: asyncio.Event | None = None) -> None:
        """End the slice, wait for the event `until` if there is one, and begin the next slice."""
        await self._end()
        if until is not None:
            await until.wait()
        await self._begin()

    async def _begin(self) -> None:
        self._ends = await self._slices.begin()
        self._held = True

    async def _end(self) -> None:
        self._held = False
        await self._slices.end()
