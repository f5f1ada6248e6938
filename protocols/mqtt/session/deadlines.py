"""The timers of expiring sessions and delayed wills, most of which are cancelled before their time.

    heap   Deadline Deadline Deadline ...   one timer of the agenda, for the first deadline

Each deadline knows its index in the heap, so a cancelled deadline is removed at once. The module
heapq is not used: it would keep cancelled deadlines in the heap until their time. It would also
need a tuple and two integers for each deadline: 140 bytes for each session whose client is away.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task

#: Largest number of tasks that run in one turn of the event loop. A task that does more work than
#: others counts as several tasks, see `Deadlines.charge`.
TASKS_PER_SLICE: Final[i64] = 200


class Deadline:
    """A task and the time at which it runs, in ms of the agenda's clock.

    `at` is the deadline's index in the heap. `task` is None once the deadline has passed or is
    cancelled.
    """

    __slots__ = ("at", "number", "task", "when")

    def __init__(self, when: i64, number: i64, task: Task) -> None:
        self.when: i64 = when
        self.number: i64 = number
        self.at: i64 = 0
        self.task: Task | None = task


class Deadlines(Task):
    """All deadlines of the MQTT front end."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._heap: list[Deadline] = []
        self._set_count: i64 = 0
        #: Number of tasks that may still run in this turn.
        self._left: i64 = 0
        #: Time of the agenda's timer, in ms; 0 for none.
        self._armed: i64 = 0

    def __len__(self) -> int:
        return len(self._heap)

    def at(self, when: i64, task: Task) -> Deadline:
        """Schedule a task for the time `when`, in ms of the agenda's clock; return its deadline."""
        self._set_count += 1
        deadline = Deadline(when, self._set_count, task)
        self._heap.append(deadline)
        self._rise(deadline, len(self._heap) - 1)
        self._arm()
        return deadline

    def cancel(self, deadline: Deadline) -> None:
        """Cancel a deadline: its task is not run."""
        if deadline.task is not None:
            deadline.task = None
            self._remove(deadline)

    def charge(self, tasks: i64) -> None:
        """Run `tasks` fewer deadlines in this turn, because the running task does much work."""
        self._left -= tasks

    def run(self) -> None:
        if self._armed <= self._agenda.now:
            # The timer of the time `_armed` has run. (A later `_armed` belongs to another timer.)
            self._armed = 0
        self._left = TASKS_PER_SLICE
        try:
            while self._left > 0 and self._heap and self._heap[0].when <= self._agenda.now:
                self._left -= 1
                deadline = self._heap[0]
                self._remove(deadline)
                task, deadline.task = deadline.task, None
                if task is not None:
                    task.run()
        finally:
            self._arm()  # If a task fails, the other tasks still run.

    def _remove(self, deadline: Deadline) -> None:
        """Remove a deadline from the heap."""
        heap = self._heap
        last = heap.pop()
        if last is not deadline:
            at = deadline.at
            if _comes_before(last, deadline):
                self._rise(last, at)
            else:
                self._sink(last, at)

    def _rise(self, deadline: Deadline, at: i64) -> None:
        """Put a deadline at index `at` of the heap, then move it up while its parent is later."""
        heap = self._heap
        while at > 0:
            above: i64 = (at - 1) >> 1
            other = heap[above]
            if _comes_before(other, deadline):
                break
            heap[at] = other
            other.at = at
            at = above
        heap[at] = deadline
        deadline.at = at

    def _sink(self, deadline: Deadline, at: i64) -> None:
        """Put a deadline at index `at` of the heap, then move it down while a child is earlier."""
        heap = self._heap
        size: i64 = len(heap)
        below: i64 = 2 * at + 1
        while below < size:
            if below + 1 < size and _comes_before(heap[below + 1], heap[below]):
                below += 1
            other = heap[below]
            if _comes_before(deadline, other):
                break
            heap[at] = other
            other.at = at
            at = below
            below = 2 * at + 1
        heap[at] = deadline
        deadline.at = at

    def _arm(self) -> None:
        if self._heap:
            when: i64 = max(self._heap[0].when, self._agenda.now)
            if self._armed == 0 or when < self._armed:
                self._armed = when
                self._agenda.at(when, self)


def _comes_before(one: Deadline, other: Deadline) -> bool:
    """True if `one` is earlier than `other`, or has the same time and was scheduled first."""
    return one.when < other.when or one.when == other.when and one.number < other.number
