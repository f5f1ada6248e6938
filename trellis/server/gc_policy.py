"""Policy for Python's garbage collector: short pauses, however many objects the broker holds.

The core makes no reference cycles (a test checks this), so the collector finds only the cycles that
the tasks of `trellis` make. With a million subscriptions, a collection of all objects would block
the event loop for seconds. So a full collection runs as soon as a few thousand new objects have
survived, examines those, and freezes them: every pause is short. Cycles among frozen objects are
collected when the broker is idle and memory has grown.
"""

from __future__ import annotations

import asyncio
import gc
import time
from typing import Final

from trellis.process import resident_bytes
from trellis.server.turn import LoopTurn

#: Thresholds of the collector: allocations before a young collection, young collections before a
#: middle one, middle ones before a full one. The pause of a full collection grows with their
#: product: 250,000 objects block the loop for 64 ms, 25,000 for 5 ms (CPython 3.11, uncompiled
#: connections). The cost for each surviving object does not depend on the product.
THRESHOLDS: Final = (1_000, 3, 1)
#: Seconds between two checks whether the broker is idle.
CHECK_INTERVAL: Final = 10.0
#: Factor by which memory must have grown before an idle broker collects the frozen objects too.
GROWTH: Final = 2.0


class GcPolicy:
    """The garbage collector's settings while the broker runs, and a count of its pauses."""

    def __init__(self) -> None:
        #: Number of collections.
        self.collections = 0
        #: Total duration of all collections, in seconds.
        self.paused_seconds = 0.0
        #: Duration of the longest collection, in seconds.
        self.longest_pause = 0.0
        #: Number of full collections.
        self.full = 0
        self._began = 0.0
        self._resident = 0
        self._seen = 0
        self._due = False
        self._thresholds = gc.get_threshold()

    def settle(self) -> None:
        """Freeze all objects made so far, and count pauses from now on."""
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
        """Call `check` every CHECK_INTERVAL seconds, for ever."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            self.check(turn.turns)

    def check(self, turns: int) -> None:
        """Collect garbage if the broker was busy before the last check, and idle since then.

        `turns` is the number of turns so far. Frozen objects are collected too if memory has grown.
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
        """Restore the collector's settings."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()
