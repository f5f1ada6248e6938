"""Times of many things that mostly do not come: sessions that end if nobody returns, wills that
wait.

    heap   Alarm Alarm Alarm ...      one timer of the agenda, for the first of them

A cancelled alarm stays in the heap, without what it was for, until it comes up or most of the heap
is such. (The heap is our own: heapq would want a tuple and two ints with every alarm, 140 octets a
session whose client is away.)
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task

#: What runs in one turn because its time has come.
SLICE: Final = 200
#: Cancelled alarms that may stay, however few others there are.
SLACK: Final = 64


class Deadline:
    """Something to do at a time, unless it is cancelled."""

    __slots__ = ("serial", "task", "when")

    def __init__(self, when: i64, serial: i64, task: Task) -> None:
        self.when: i64 = when
        self.serial: i64 = serial
        self.task: Task | None = task


class Deadlines(Task):
    """Of one front end. Times are in ms of the agenda's clock."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._heap: list[Deadline] = []
        self._serial: i64 = 0
        self._live = 0
        #: When the agenda's timer comes; 0 for none.
        self._armed: i64 = 0

    def __len__(self) -> int:
        return self._live

    def at(self, when: i64, task: Task) -> Deadline:
        """Run the task at this time."""
        self._serial += 1
        alarm = Deadline(when, self._serial, task)
        self._live += 1
        self._heap.append(alarm)
        self._rise(len(self._heap) - 1)
        self._arm()
        return alarm

    def cancel(self, alarm: Deadline) -> None:
        """Not any more."""
        if alarm.task is not None:
            alarm.task = None
            self._live -= 1
            if len(self._heap) > 2 * self._live + SLACK:
                self._heap = [entry for entry in self._heap if entry.task is not None]
                at: i64 = len(self._heap) // 2
                while at > 0:
                    at -= 1
                    self._sink(at)

    def run(self) -> None:
        if self._armed <= self._agenda.now:
            self._armed = 0  # Else this was a timer set before an earlier one.
        left = SLICE
        while self._heap and self._heap[0].when <= self._agenda.now:
            if left == 0:
                break
            alarm = self._pop()
            task, alarm.task = alarm.task, None
            if task is not None:
                left -= 1
                self._live -= 1
                task.run()
        self._arm()

    def _pop(self) -> Deadline:
        """The first one, out of the heap."""
        heap = self._heap
        last = heap.pop()
        if not heap:
            return last
        first, heap[0] = heap[0], last
        self._sink(0)
        return first

    def _rise(self, at: i64) -> None:
        """Let the alarm at this place pass those that come later."""
        heap = self._heap
        alarm = heap[at]
        while at > 0:
            above: i64 = (at - 1) >> 1
            other = heap[above]
            if _comes_before(other, alarm):
                break
            heap[at] = other
            at = above
        heap[at] = alarm

    def _sink(self, at: i64) -> None:
        """Let the alarm at this place fall behind those that come before it."""
        heap = self._heap
        alarm = heap[at]
        size: i64 = len(heap)
        below: i64 = 2 * at + 1
        while below < size:
            if below + 1 < size and _comes_before(heap[below + 1], heap[below]):
                below += 1
            other = heap[below]
            if _comes_before(alarm, other):
                break
            heap[at] = other
            at = below
            below = 2 * at + 1
        heap[at] = alarm

    def _arm(self) -> None:
        if self._heap:
            when: i64 = max(self._heap[0].when, self._agenda.now)
            if self._armed == 0 or when < self._armed:
                self._armed = when
                self._agenda.at(when, self)


def _comes_before(one: Deadline, other: Deadline) -> bool:
    """Of two for the same time, the one that was set first."""
    return one.when < other.when or one.when == other.when and one.serial < other.serial
