"""What must happen after the outermost call, and when: queue drains, dead letters, wills, expiry,
slices.

Nothing beneath a delivery calls back into the core; it leaves a Task here. The top floor calls
`turn` once per turn of its loop, before it flushes the outlets, and `advance` when `deadline` has
come.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

#: Tasks run in one turn; the rest waits for the next, so that a cycle of tasks cannot hold the
#: loop. (A dead letter costs some 10 us.)
TURN_TASKS: Final[i64] = 500


def _no_clock() -> float:
    """Says that no time goes by."""
    return 0.0


def _ignore() -> None:
    """Wakes nobody: tests call `turn` themselves."""


class Task:
    """Something to do once, later."""

    def run(self) -> None:
        raise NotImplementedError


class Agenda:
    """The deferred work of a broker, and its clocks, which only `advance` moves.

    `now` is monotonic milliseconds, `wall` seconds since the epoch. `clock`, in seconds, only tells
    when a turn has lasted for its `share` of the loop.
    """

    def __init__(self) -> None:
        self.now: i64 = 1
        self.wall: float = 0.0
        self.wake: Callable[[], None] = _ignore
        self.clock: Callable[[], float] = _no_clock
        self.share = 1.0
        self._tasks: list[Task] = []
        self._next_turn: list[Task] = []
        self._timers: list[tuple[int, int, Task]] = []
        self._timers_added = 0

    def add(self, task: Task) -> None:
        """Run the task at the end of this turn."""
        if not self._tasks:
            self.wake()
        self._tasks.append(task)

    def later(self, task: Task) -> None:
        """Run the task at the end of the next turn: what comes in slices lets others have this one."""
        if not self._next_turn:
            self.wake()
        self._next_turn.append(task)

    def at(self, when: i64, task: Task) -> None:
        """Run the task when the clock has come to `when` ms.

        A task finds out itself whether it is still wanted.
        """
        self._timers_added += 1
        heapq.heappush(self._timers, (when, self._timers_added, task))

    @property
    def idle(self) -> bool:
        """Whether no task waits for a turn."""
        return not self._tasks and not self._next_turn

    @property
    def deadline(self) -> int:
        """When `advance` should be called next, in ms; 0 for never."""
        return self._timers[0][0] if self._timers else 0

    def advance(self, now: int, wall: float) -> None:
        """Set the clocks, and move what is due to this turn's work."""
        self.now = now
        self.wall = wall
        while self._timers and self._timers[0][0] <= now:
            self.add(heapq.heappop(self._timers)[2])

    def turn(self) -> None:
        """Do the work, including the work it makes, up to TURN_TASKS and for its share of the time.
        A task that fails takes no other with it."""
        tasks = self._tasks
        if self._next_turn:
            tasks += self._next_turn
            self._next_turn = []
        if not tasks:
            return
        done: i64 = 0
        end = self.clock() + self.share
        try:
            while done < len(tasks) and done < TURN_TASKS:
                done += 1
                tasks[done - 1].run()
                if self.clock() > end:
                    break
        finally:
            del tasks[:done]
            if self._tasks or self._next_turn:
                self.wake()
