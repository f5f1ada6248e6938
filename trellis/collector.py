"""The garbage collector's keeper: no full collections while messages flow, and every pause counted.

Nothing the core makes is freed by cycle collection (a test holds that), so full collections find only what
the top floor's tasks leave behind. At a million subscriptions one would stop the loop for seconds.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

from trellis.process import resident
from trellis.turn import Turn

#: Allocations until a young collection, young ones until a middle one; full ones are asked for.
THRESHOLDS: Final = (50_000, 20, 1_000_000_000)
#: Seconds between two looks, and growth of memory after which a full collection is due even under load.
LOOK: Final = 10.0
GROWTH: Final = 2.0


class Collector:
    """Owns the collector while the broker runs."""

    def __init__(self) -> None:
        self.pauses = 0
        self.paused = 0.0
        self.longest = 0.0
        self.full = 0
        self._began = 0.0
        self._resident = 0
        gc.callbacks.append(self._on_collection)

    def settle(self) -> None:
        """What was made until now stays: leave it alone."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        self._resident = resident()

    def _on_collection(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        pause = time.perf_counter() - self._began
        self.pauses += 1
        self.paused += pause
        self.longest = max(self.longest, pause)
        if details["generation"] == 2:
            self.full += 1

    async def watch(self, turn: Turn) -> None:
        """Collect in full when nothing happened since the last look, or when memory has grown."""
        seen, due = turn.turns, False
        while True:
            await asyncio.sleep(LOOK)
            idle = turn.turns == seen
            due = due or not idle
            seen = turn.turns
            if due and idle or resident() > GROWTH * self._resident:
                gc.collect()
                self._resident = resident()
                due = False

    def close(self) -> None:
        """Give the collector back as it was."""
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(700, 10, 10)
        gc.unfreeze()
