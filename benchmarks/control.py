"""A control for measurements, which distinguishes a slow machine from a slow measured program.

A second process does the same small amount of work again and again, and measures its own CPU time.
If that time is many times its usual value, the whole machine was slow. This happens for example in
a virtual machine that returns free memory to its host: for some tens of milliseconds, the same
instructions take a hundred times as long, because the host must map memory pages again. The
counts of page faults and of stolen time do not show this.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Final

#: The work of one round: copies of SIZE bytes each.
COPIES: Final = 500
SIZE: Final = 4_100
#: Seconds between two rounds.
PAUSE: Final = 0.001
#: A round with more than SLOW times the median CPU time shows that the machine was slow.
SLOW: Final = 5
#: Seconds before and after a slow round in which the machine counts as slow: other programs touch
#: their memory at other times than the control.
MARGIN: Final = 0.1


def _copy() -> list[bytes]:
    data = bytes(SIZE + COPIES)
    return [data[at : at + SIZE] for at in range(COPIES)]


def _work(pipe: Connection) -> None:
    """Do rounds of a fixed amount of work until the pipe has input.

    First send True over the pipe. The measurement begins afterwards, so the rounds cover the whole
    measurement. At the end, send the list of rounds: begin, end and CPU time of each, in seconds.
    """
    rounds: list[tuple[float, float, float]] = []
    pipe.send(True)
    while not rounds or not pipe.poll():
        begun, used = time.perf_counter(), time.thread_time()
        _copy()
        rounds.append((begun, time.perf_counter(), time.thread_time() - used))
        time.sleep(PAUSE)
    pipe.send(rounds)


class Control:
    """A second process, which finds out when the whole machine is slow during a measurement.

    The constructor returns when the process has begun its work.
    """

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._pipe.recv()

    def stop(self) -> list[tuple[float, float]]:
        """End the process. Return (begin, end) of each time when the machine was slow.

        `begin` and `end` are in seconds of time.perf_counter.
        """
        self._pipe.send(True)
        rounds: list[tuple[float, float, float]] = self._pipe.recv()
        self._process.join()
        usual = sorted(used for _, _, used in rounds)[len(rounds) // 2]
        return [
            (begun - MARGIN, ended + MARGIN) for begun, ended, used in rounds if used > SLOW * usual
        ]


def longest(
    holds: list[tuple[float, float, float]], slow: list[tuple[float, float]]
) -> tuple[float, float]:
    """Return the longest hold outside the times `slow`, and the longest hold within them.

    A hold, (begin, end, CPU time), is a time for which the event loop was held by one callback.
    Both results are in seconds of CPU time; 0 if there is no such hold.
    """
    result = [0.0, 0.0]
    for begun, ended, used in holds:
        overlaps = any(begun < until and ended > since for since, until in slow)
        result[overlaps] = max(result[overlaps], used)
    return result[0], result[1]
