"""The timers of expiring sessions and delayed wills, most of which are cancelled before their time.

    heap   Deadline Deadline Deadline ...   one timer of the agenda, for the first deadline

A cancelled deadline stays in the heap without its task until its time comes, or until most
deadlines of the heap are cancelled. (heapq would need a tuple and two integers for each deadline:
140 bytes for each session whose client is away.)
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task

#: Largest number of tasks that run in one turn of the event loop.
SLICE: Final = 200
#: Cancelled deadlines are removed from the heap once there are more than this many more of them
#: than other deadlines.
SLACK: Final = 64


class Deadline:
    """A task and the time at which it runs, in ms of the agenda's clock.

    `task` is None once the deadline is cancelled.
    """

    __slots__ = ("number", "task", "when")

    def __init__(self, when: i64, number: i64, task: Task) -> None:
        self.when: i64 = when
        self.number: i64 = number
        self.task: Task | None = task


class Deadlines(Task):
    """All deadlines of the MQTT front end."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._heap: list[Deadline] = []
        self._set_count: i64 = 0
        self._live = 0
        #: Time of the agenda's timer, in ms; 0 for none.
        self._armed: i64 = 0

    def __len__(self) -> int:
        return self._live

    def at(self, when: i64, task: Task) -> Deadline:
        """Schedule a task for the time `when`, in ms of the agenda's clock; return its deadline."""
        self._set_count += 1
        deadline = Deadline(when, self._set_count, task)
        self._live += 1
        self._heap.append(deadline)
        self._rise(len(self._heap) - 1)
        self._arm()
        return deadline

    def cancel(self, deadline: Deadline) -> None:
        """Cancel a deadline: its task is not run."""
        if deadline.task is not None:
            deadline.task = None
            self._live -= 1
            if len(self._heap) > 2 * self._live + SLACK:
                self._heap = [entry for entry in self._heap if entry.task is not None]
                at: i64 = len(self._heap) // 2
                while at > 0:
                    at -= 1
                    self._sink(at)

    def run(self) -> None:
        if self._armed <= self._agenda.now:
            self._armed = 0  # Otherwise an earlier timer was set after this one.
        left = SLICE
        while self._heap and self._heap[0].when <= self._agenda.now:
            if left == 0:
                break
            deadline = self._pop()
            task, deadline.task = deadline.task, None
            if task is not None:
                left -= 1
                self._live -= 1
                task.run()
        self._arm()

    def _pop(self) -> Deadline:
        """Remove and return the first deadline."""
        heap = self._heap
        last = heap.pop()
        if not heap:
            return last
        first, heap[0] = heap[0], last
        self._sink(0)
        return first

    def _rise(self, at: i64) -> None:
        """Move the deadline at index `at` up the heap, before all deadlines that are later."""
        heap = self._heap
        deadline = heap[at]
        while at > 0:
            above: i64 = (at - 1) >> 1
            other = heap[above]
            if _comes_before(other, deadline):
                break
            heap[at] = other
            at = above
        heap[at] = deadline

    def _sink(self, at: i64) -> None:
        """Move the deadline at index `at` down the heap, after all deadlines that are earlier."""
        heap = self._heap
        deadline = heap[at]
        size: i64 = len(heap)
        below: i64 = 2 * at + 1
        while below < size:
            if below + 1 < size and _comes_before(heap[below + 1], heap[below]):
                below += 1
            other = heap[below]
            if _comes_before(deadline, other):
                break
            heap[at] = other
            at = below
            below = 2 * at + 1
        heap[at] = deadline

    def _arm(self) -> None:
        if self._heap:
            when: i64 = max(self._heap[0].when, self._agenda.now)
            if self._armed == 0 or when < self._armed:
                self._armed = when
                self._agenda.at(when, self)


def _comes_before(one: Deadline, other: Deadline) -> bool:
    """True if `one` is earlier than `other`, or has the same time and was scheduled first."""
    return one.when < other.when or one.when == other.when and one.number < other.number
