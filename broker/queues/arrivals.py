"""Arrival times of the waiting messages of a queue, estimated from a few marks.

A mark is a sequence number, and the time at which the message with this number came. The marks
begin anew when a message comes to the empty queue. A queue makes at most one mark in MARK_MS, and
keeps at most MARKS_MAX marks. Above this number, every second mark is dropped, and later marks are
twice as far apart. So a waiting message needs no memory for its arrival time.

For a message that waited when the broker started, the time of the start counts as its arrival. For
a message that was returned to the empty queue, the time of the return counts.
"""

from __future__ import annotations

from array import array
from typing import Final

from mypy_extensions import i64

#: Least time between two marks, in ms.
MARK_MS: Final[i64] = 1_000
#: Largest number of marks of one queue.
MARKS_MAX: Final[i64] = 64


class Arrivals:
    """The arrival times of some messages of one queue, from which other times are estimated.

    A mark is a message's sequence number and its arrival time, in ms of the agenda's clock.
    """

    __slots__ = ("_sequences", "_spacing", "_times")

    def __init__(self) -> None:
        self._sequences = array("q")
        self._times = array("q")
        self._spacing: i64 = MARK_MS

    def mark(self, sequence: i64, now: i64, oldest: i64) -> i64:
        """Record that the message with the number `sequence` came at the time `now`, in ms.

        Return the time at which the next arrival must be recorded. `oldest` is the lowest sequence
        number of a waiting message. Marks that only concern messages before `oldest` are dropped.
        """
        sequences, times = self._sequences, self._times
        if sequences and sequence <= sequences[-1]:
            # The message was returned to the queue: it came before the last mark.
            return now + self._spacing
        passed = 0
        while passed + 1 < len(sequences) and sequences[passed + 1] <= oldest:
            passed += 1
        del sequences[:passed], times[:passed]
        if len(sequences) < MARKS_MAX // 4:
            self._spacing = MARK_MS
        elif len(sequences) >= MARKS_MAX:
            del sequences[1::2], times[1::2]
            self._spacing *= 2
        sequences.append(int(sequence))
        times.append(int(now))
        return now + self._spacing

    def time_of(self, sequence: i64) -> i64:
        """Return the estimated arrival time of the message with this sequence number, in ms.

        The result is the time of the last mark whose number is not above `sequence`. If the numbers
        of all marks are above `sequence`, the result is the time of the first mark.
        """
        mark_time: i64 = self._times[0]
        for at, marked in enumerate(self._sequences):
            if marked > sequence:
                break
            mark_time = self._times[at]
        return mark_time
