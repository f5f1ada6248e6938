"""Slices: the work of all API calls gets at most SLICE_SECONDS in one turn of the event loop.

After SLICES slices, this work rests for REST_SECONDS. Otherwise a large number of API calls would
use a whole processor, and the operating system would schedule other processes before the broker
when a message arrives.
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


class Slices:
    """The queue of calls with work: in each turn of the event loop, one call gets a slice."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        #: Number of slices so far.
        self.taken = 0


class Slice:
    """A context manager for the work of one call, which gets one slice of time after another.

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
        await self._slices.turn.acquire()
        self._held = True
        self._slices.taken += 1
        self._ends = perf_counter() + SLICE_SECONDS

    async def _end(self) -> None:
        try:
            await asyncio.sleep(REST_SECONDS if self._slices.taken % SLICES == 0 else 0)
        finally:
            self._held = False
            self._slices.turn.release()
