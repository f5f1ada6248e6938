"""Policy for Python's garbage collector: short pauses, however many objects the broker holds.

A collection of all objects blocks the event loop for 20 ms in an empty broker, and for seconds with
a million subscriptions. So a collection runs as soon as a few thousand new objects have survived.
The collection examines only these objects, and then freezes them: no later collection examines
frozen objects. Every pause is short.

A reference cycle among frozen objects is never found. The broker makes no such cycle: reference
counts alone free the objects of a client, a request or a connection attempt
(tests/top/test_cycles.py checks this for every listener). `collected` counts the objects of cycles
that were found before they were frozen. If this number grows with the number of clients, some code
makes cycles, and memory leaks.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from typing import Final

from trellis.server.turn import LoopTurn

#: Thresholds of the collector: allocations before a young collection, young collections before a
#: middle collection, and middle collections before a full collection. The pause of a full
#: collection grows with their product: 250,000 objects block the loop for 64 ms, 25,000 for 5 ms
#: (CPython 3.11, uncompiled connections). The cost for each surviving object does not depend on the
#: product.
THRESHOLDS: Final = (1_000, 3, 1)
#: Seconds between two checks whether the broker is idle.
CHECK_INTERVAL: Final = 10.0
#: The lowest generation after whose collections the surviving objects are frozen. Python 3.14
#: collects in increments, which belong to generation 1, and makes no full collection by itself.
FREEZING: Final = 1 if sys.version_info >= (3, 14) else 2


class GcPolicy:
    """The garbage collector's settings while the broker runs, and a count of its pauses."""

    def __init__(self) -> None:
        #: Number of collections since `settle`.
        self.collections = 0
        #: Total duration of all collections, in seconds.
        self.paused_seconds = 0.0
        #: Duration of the longest collection, in seconds.
        self.longest_pause = 0.0
        #: CPU time of the longest collection, in seconds: less than its duration if the machine
        #: did not run the thread meanwhile.
        self.longest_pause_cpu = 0.0
        #: Number of collections whose survivors were frozen.
        self.full = 0
        #: Number of objects that collections found in reference cycles.
        self.collected = 0
        self._began = self._began_cpu = 0.0
        self._seen = 0
        self._due = False
        self._thresholds = gc.get_threshold()

    def settle(self) -> None:
        """Freeze all objects made so far, and count pauses from now on.

        Blocks the event loop for a collection of all objects, so it must be called before the first
        client is served.
        """
        gc.collect()
        gc.freeze()
        # Python postpones a full collection while the new survivors are fewer than a fourth of the
        # objects that the last full collection examined. The next line makes a full collection that
        # examines no object, so no later full collection is postponed.
        gc.collect()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)

    def _on_collection(self, phase: str, details: dict[str, int]) -> None:
        if phase == "start":
            self._began, self._began_cpu = time.perf_counter(), time.thread_time()
            return
        pause = time.perf_counter() - self._began
        self.collections += 1
        self.collected += details["collected"] + details["uncollectable"]
        self.paused_seconds += pause
        if pause > self.longest_pause:
            self.longest_pause = pause
            self.longest_pause_cpu = time.thread_time() - self._began_cpu
        if details["generation"] >= FREEZING:
            self.full += 1
            gc.freeze()

    async def run(self, turn: LoopTurn) -> None:
        """Call `check` every CHECK_INTERVAL seconds until the task is cancelled."""
        while True:
            await asyncio.sleep(CHECK_INTERVAL)
            self.check(turn.turns)

    def check(self, turns: int) -> None:
        """Collect garbage if the broker was busy before the last check, and idle since then.

        `turns` is the number of turns so far. The collection does not examine frozen objects.
        """
        idle = turns == self._seen
        self._seen = turns
        if self._due and idle:
            gc.collect()
            self._due = False
        self._due = self._due or not idle

    def close(self) -> None:
        """Restore the garbage collector's earlier settings, and stop counting its pauses."""
        if self._on_collection in gc.callbacks:
            gc.callbacks.remove(self._on_collection)
            gc.set_threshold(*self._thresholds)
            gc.unfreeze()
