"""Times of many things that mostly do not come: sessions that end if nobody returns, wills that wait.

    heap   (when, serial, Alarm) ...      one timer of the agenda, for the first of them

A cancelled alarm stays in the heap, without what it was for, until it comes up or most of the heap is such.
"""

from __future__ import annotations

import heapq
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task

#: What runs in one turn because its time has come.
SLICE: Final = 200
#: Cancelled alarms that may stay, however few others there are.
SLACK: Final = 64


class Alarm:
    """Something to do at a time, unless it is cancelled."""

    __slots__ = ("task", "when")

    def __init__(self, when: i64, task: Task) -> None:
        self.when: i64 = when
        self.task: Task | None = task


class Deadlines(Task):
    """Of one front end. Times are in ms of the agenda's clock."""

    def __init__(self, agenda: Agenda) -> None:
        self._agenda = agenda
        self._heap: list[tuple[int, int, Alarm]] = []
        self._serial = 0
        self._live = 0
        #: When the agenda's timer comes; 0 for none.
        self._armed: i64 = 0

    def __len__(self) -> int:
        return self._live

    def at(self, when: i64, task: Task) -> Alarm:
        """Run the task at this time."""
        alarm = Alarm(when, task)
        self._serial += 1
        self._live += 1
        heapq.heappush(self._heap, (int(when), self._serial, alarm))
        self._arm()
        return alarm

    def cancel(self, alarm: Alarm) -> None:
        """Not any more."""
        if alarm.task is not None:
            alarm.task = None
            self._live -= 1
            if len(self._heap) > 2 * self._live + SLACK:
                self._heap = [entry for entry in self._heap if entry[2].task is not None]
                heapq.heapify(self._heap)

    def run(self) -> None:
        if self._armed <= self._agenda.now:
            self._armed = 0  # Else this was a timer set before an earlier one.
        left = SLICE
        while self._heap and self._heap[0][0] <= self._agenda.now:
            if left == 0:
                break
            alarm = heapq.heappop(self._heap)[2]
            task, alarm.task = alarm.task, None
            if task is not None:
                left -= 1
                self._live -= 1
                task.run()
        self._arm()

    def _arm(self) -> None:
        if self._heap:
            when: i64 = max(self._heap[0][0], int(self._agenda.now))
            if self._armed == 0 or when < self._armed:
                self._armed = when
                self._agenda.at(when, self)
