"""Runs threads one at a time. Before each shared access, a seeded draw picks the next thread.

Each thread waits at a lock of its own, and the running thread passes control by opening another
thread's lock. The interleaving is therefore arbitrary, and the same seed repeats it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random
from typing import ClassVar, TypeVar

from matching.cells import Cell

T = TypeVar("T")


class Course:
    """A run of several threads, only one of which executes at any time.

    Each thread runs a script. The script calls `step` before each access to shared memory, and
    `step` may switch to another thread.
    """

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        #: The probability that a step switches threads. If it is low, one thread pauses while the
        #: others do many steps; if it is high, steps alternate. The tests need both.
        self._haste = self.random.choice((0.03, 0.1, 0.3))
        self._doors: list[threading.Lock] = []
        self._running: list[int] = []
        self._present = 0
        self._home = threading.Lock()
        self._error: BaseException | None = None

    def run(self, scripts: list[Callable[[], None]]) -> None:
        """Run all scripts to their end. Raises the exception that a script raised."""
        self._running = list(range(len(scripts)))
        self._doors = [threading.Lock() for _ in scripts]
        for lock in (self._home, *self._doors):
            lock.acquire()
        threads = [
            threading.Thread(target=self._follow, args=(number, script))
            for number, script in enumerate(scripts)
        ]
        for thread in threads:
            thread.start()
        self._pass(self.random.choice(self._running))
        self._home.acquire()
        for thread in threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def step(self) -> None:
        """Switch to a random other thread, with a probability that the course's seed has chosen."""
        if self.random.random() < self._haste:
            own = self._present
            other = self.random.choice(self._running)
            if other != own:
                self._pass(other)
                self._doors[own].acquire()

    def _pass(self, number: int) -> None:
        self._present = number
        self._doors[number].release()

    def _follow(self, number: int, script: Callable[[], None]) -> None:
        self._doors[number].acquire()
        try:
            script()
        except BaseException as error:  # noqa: BLE001 - raised again where the course was run
            self._error = error
        self._running.remove(number)
        if self._running:
            self._pass(self.random.choice(self._running))
        else:
            self._home.release()


def walk() -> None:
    """Do nothing. This is the default of `SteppedCell.step`, used while no Course runs."""


class SteppedCell(Cell[T]):
    """A cell that calls `step` before each access, so that a Course may switch threads there."""

    __slots__ = ("value",)

    #: The function that each cell calls before each access.
    step: ClassVar[Callable[[], None]] = walk

    def __init__(self, value: T) -> None:
        self.value = value

    def get(self) -> T:
        SteppedCell.step()
        return self.value

    def compare_and_set(self, expected: T, desired: T) -> bool:
        SteppedCell.step()
        if self.value is not expected:
            return False
        self.value = desired
        return True


class CarelessCell(SteppedCell[T]):
    """Wrong on purpose: a cell that sets its value without a comparison, and so loses updates."""

    def compare_and_set(self, expected: T, desired: T) -> bool:
        SteppedCell.step()
        self.value = desired
        return True
