"""The pace of a scrape: how much work it does in one turn of the event loop."""

from __future__ import annotations

import asyncio
from time import perf_counter
from typing import Final

#: Number of steps of work in one turn of the event loop. To list an object is one step.
STEPS_SLICE: Final = 100
#: Seconds after which a turn ends even if it has done fewer steps.
SECONDS_SLICE: Final = 0.0005


class Pace:
    """Limits the work of a scrape in a turn to STEPS_SLICE steps and SECONDS_SLICE seconds."""

    def __init__(self) -> None:
        self._steps = 0
        self._ends = perf_counter() + SECONDS_SLICE

    async def add(self, steps: int) -> None:
        """Count steps of work, and wait for the next turn if the limit of this turn is reached."""
        self._steps += steps
        if self._steps >= STEPS_SLICE or perf_counter() >= self._ends:
            await asyncio.sleep(0)
            self._steps = 0
            self._ends = perf_counter() + SECONDS_SLICE
