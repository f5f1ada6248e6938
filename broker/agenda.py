"""Deferred work of a broker: queue drains, wills, and bulk work in slices.

While a protocol front end delivers a message, it must not call back into the core. The front end
leaves a Task on the agenda instead. The server calls `turn` once per turn of its event loop, before
it sends the bytes that the outlets collected. The server also calls `advance`, which sets the
clocks, at the time `deadline` or earlier.

There are two classes of work, so that one queue's mass of work does not delay other queues:

    deliveries    queue drains and all that a client waits for: first in each turn, in order
    bulk work     expiry, dead letters, removal of bindings, policies, purges: after the
                  deliveries, one slice of each task in turn (round robin)
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

#: Largest number of tasks that run in one turn; further tasks wait for the next turn, so that tasks
#: that add each other cannot block the event loop.
TURN_TASKS: Final[i64] = 500
#: Largest number of slices of bulk work that run in one turn, at most one of each task. A slice
#: takes up to 2 ms, so a turn also ends when its time is over; at least one slice runs in each
#: turn.
TURN_SLICES: Final[i64] = 8
#: Timers that are no longer needed are removed once they outnumber the needed timers by more than
#: this number.
TIMER_SLACK: Final = 64


def _no_clock() -> float:
    """Return 0: the `clock` of an agenda without a server, as in tests."""
    return 0.0


def _ignore() -> None:
    """Do nothing: the `wake` of an agenda without a server. Tests call `turn` themselves."""


class Task:
    """A piece of deferred work. The agenda runs a task once for each time the task was added."""

    def run(self) -> None:
        """Do the deferred work. The agenda calls this method."""
        raise NotImplementedError

    def needs_timer(self, when: i64) -> bool:
        """True if the task still needs its timer for the time `when`, in ms of Agenda.now.

        The agenda removes timers that are not needed: see `Agenda.drop_timer`.
        """
        return True


class Agenda:
    """The deferred work of a broker, and its clocks `now` and `wall`, which only `advance` sets.

    `now` is a monotonic time in milliseconds, `wall` is Unix time in seconds. The function `clock`
    returns seconds, and only measures how long a turn has lasted: a turn ends after `share`
    seconds, even if more tasks wait. The agenda calls `wake` when it gets work, so that the server
    calls `turn` soon.
    """

    def __init__(self) -> None:
        self.now: i64 = 1
        self.wall: float = 0.0
        self.wake: Callable[[], None] = _ignore
        self.clock: Callable[[], float] = _no_clock
        self.share = 1.0
        self._tasks: list[Task] = []
        self._next_turn: list[Task] = []
        self._bulk: list[Task] = []
        #: The bulk tasks that got a slice in this turn and need another slice.
        self._next_bulk: list[Task] = []
        #: The bulk task that runs now.
        self._slicing: Task | None = None
        self._timers: list[tuple[int, int, Task]] = []
        self._timers_added = 0
        #: Number of timers in `_timers` that are no longer needed.
        self._timers_dropped = 0

    def add(self, task: Task) -> None:
        """Run the task at the end of this turn of the event loop."""
        if not self._tasks:
            self.wake()
        self._tasks.append(task)

    def later(self, task: Task) -> None:
        """Run the task in the next call of `turn`, after the tasks that wait already.

        A task that works in slices adds itself with this method, so that other work runs between
        two slices.
        """
        if not self._next_turn:
            self.wake()
        self._next_turn.append(task)

    def add_bulk(self, task: Task) -> None:
        """Run the task once, after the deliveries of a turn and the bulk tasks that already wait.

        A task that adds itself while it runs gets its next slice in the next turn.
        """
        if task is self._slicing:
            self._next_bulk.append(task)
            return
        if not self._bulk:
            self.wake()
        self._bulk.append(task)

    def at(self, when: i64, task: Task) -> None:
        """Run the task once the clock `now` reaches `when` ms.

        The task may run even after `drop_timer`, so the task must check if its work is still
        needed.
        """
        self._timers_added += 1
        heapq.heappush(self._timers, (when, self._timers_added, task))

    def drop_timer(self) -> None:
        """Tell the agenda that one timer is no longer needed, so that the agenda can remove it.

        The timer's task must return False from `needs_timer` now. An unneeded timer that is not
        dropped takes memory until its time has come.
        """
        self._timers_dropped += 1
        if 2 * self._timers_dropped > len(self._timers) + TIMER_SLACK:
            self._timers = [timer for timer in self._timers if timer[2].needs_timer(timer[0])]
            heapq.heapify(self._timers)
            self._timers_dropped = 0

    @property
    def idle(self) -> bool:
        """True if no task waits for a turn."""
        return not self._tasks and not self._next_turn and not self._bulk

    @property
    def deadline(self) -> int:
        """Time at which `advance` should be called next, in ms; 0 for never."""
        return self._timers[0][0] if self._timers else 0

    def advance(self, now: int, wall: float) -> None:
        """Set `now` and `wall`, and add each task whose timer has run out.

        A BulkTask is added with `add_bulk`, any other task with `add`.
        """
        self.now = now
        self.wall = wall
        while self._timers and self._timers[0][0] <= now:
            when, _, task = heapq.heappop(self._timers)
            if self._timers_dropped and not task.needs_timer(when):
                self._timers_dropped -= 1
            if isinstance(task, BulkTask):
                self.add_bulk(task)
            else:
                self.add(task)

    def turn(self) -> None:
        """Run the tasks, and the tasks that they add, up to TURN_TASKS tasks and `share` seconds.

        Then run bulk tasks: one slice in any case, and more slices until `share` seconds are over.
        An exception in a task ends this turn; the other tasks run in the next turn.
        """
        tasks = self._tasks
        if self._next_turn:
            tasks += self._next_turn
            self._next_turn = []
        if not tasks and not self._bulk:
            return
        done: i64 = 0
        end = self.clock() + self.share
        try:
            while done < len(tasks) and done < TURN_TASKS:
                done += 1
                tasks[done - 1].run()
                if self.clock() > end:
                    break
            if self._bulk:
                self._run_bulk(end)
        finally:
            del tasks[:done]
            if self._tasks or self._next_turn or self._bulk:
                self.wake()

    def _run_bulk(self, end: float) -> None:
        """Run one slice of each bulk task, until TURN_SLICES slices are done or `clock` reaches
        `end` seconds.
        """
        tasks = self._bulk
        done: i64 = 0
        try:
            while done < len(tasks) and done < TURN_SLICES:
                done += 1
                self._slicing = tasks[done - 1]
                tasks[done - 1].run()
                if self.clock() > end:
                    break
        finally:
            self._slicing = None
            del tasks[:done]
            tasks += self._next_bulk
            self._next_bulk = []


class BulkTask(Task):
    """A piece of bulk work. `run` does one slice of the work, and adds the task again if the work
    is not finished.

    If a slice raises an unexpected exception, the task goes on with its next slice. So `do_slice`
    removes each item from the task before it handles the item. The next slice then skips only the
    item that failed.

    If the task waits for a timer, it joins the bulk work when the timer runs out.
    """

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        #: True while a slice of this task waits on the agenda.
        self.waits = False

    def do_slice(self) -> None:
        """Do one slice of the bulk work, which should take at most 2 ms."""
        raise NotImplementedError

    def has_work(self) -> bool:
        """True if the task needs another slice, even if the last slice has failed."""
        raise NotImplementedError

    def on_failure(self) -> None:
        """React to an unexpected exception in a slice; by default, do nothing.

        The caller calls `has_work` afterwards.
        """

    def schedule(self) -> None:
        """Add the next slice to the agenda, if the task needs one and none is on the agenda yet."""
        if not self.waits and self.has_work():
            self.waits = True
            self._agenda.add_bulk(self)

    def run_first_slice(self) -> None:
        """Run the first slice now. If the slice raises an exception, report the exception later.

        So the caller always completes its own change, such as the deletion of a queue.
        """
        try:
            self.run()
        except Exception as error:  # noqa: BLE001  the agenda reports it
            self._agenda.add(FailedSlice(error))

    def run(self) -> None:
        self.waits = False
        try:
            self.do_slice()
        except Exception:
            self.on_failure()
            raise
        finally:
            self.schedule()


class FailedSlice(Task):
    """A task that raises the exception of a failed first slice, so that the server reports it."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def run(self) -> None:
        raise self._error
