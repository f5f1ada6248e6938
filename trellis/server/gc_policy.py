"""The garbage collector's keeper: what stays is looked at once and then left alone, and every pause
is counted.

Nothing the core makes is freed by cycle collection (a test holds that), so collections find only
what the top floor's tasks leave behind. At a million subscriptions a look at everything would stop
the loop for seconds. So a full collection comes as soon as a few thousand objects have stayed,
looks at those, and freezes them: however many there are, each pause is as short. What became
garbage in the cold is found when nothing happens, after memory has grown.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

from trellis.process import resident_bytes
from trellis.server.turn import LoopTurn

#: Allocations until a young collection, young ones until a middle one, and those until a full one.
#: The pause of a full one grows with the product, and what an object costs that stays does not
#: depend on it: 250,000 objects hold the loop for 64 ms, 25,000 for 5 ms (CPython 3.11, uncompiled
#: connections).
THRESHOLDS: Final = (1_000, 3, 1)
#: Seconds between two looks, and growth of memory after which everything is looked at, once nothing
#: happens.
LOOK: Final = 10.0
GROWTH: Final = 2.0


class GcPolicy:
    """Owns the collector while the broker runs."""

    def __init__(self) -> None:
        self.collections = 0
        self.paused_seconds = 0.0
        self.longest_pause = 0.0
        self.full = 0
        self._began = 0.0
        self._resident = 0
        self._seen = 0
        self._due = False
        self._thresholds = gc.get_threshold()

    def settle(self) -> None:
        """What was made until now stays: leave it alone. From now on pauses count."""
        gc.collect()
        gc.freeze()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)
        self._resident = resident_bytes()

    def _on_collection(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._began = time.perf_counter()
            return
        pause = time.perf_counter() - self._began
        self.collections += 1
        self.paused_seconds += pause
        self.longest_pause = max(self.longest_pause, pause)
        if details["generation"] == 2:
            self.full += 1
            gc.freeze()

    async def run(self, turn: LoopTurn) -> None:
        """Look every LOOK seconds."""
        while True:
            await asyncio.sleep(LOOK)
            self.look(turn.turns)

    def look(self, turns: int) -> None:
        """Collect when there was work, but none since the last look: all there is, if memory has
        grown.
        """
        idle = turns == self._seen
        self._seen = turns
        if self._due and idle:
            if resident_bytes() > GROWTH * self._resident:
                gc.unfreeze()
                self._resident = resident_bytes()
            gc.collect()
            self._due = False
        self._due = self._due or not idle

    def close(self) -> None:
        """Give the collector back as it was."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()
