"""Divides time into periods in which the bindings stay the same, and divides the messages of a
topic by these periods.

    bind 12:00:10 ... unbind 12:31:05     the binding existed in the minutes 12:00 to 12:31
    bind 12:50:00 ...                     and again from 12:50 on

Messages are counted by minutes, so a binding counts for each whole minute in which it existed at
any time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MINUTE: Final = 60_000_000
#: The time before the first change that `$topology` knows.
ALWAYS: Final = -(1 << 62)


@dataclass
class Existence:
    """The times at which a binding or a name existed.

    `facts` are the fields of the binding or name. `changes` are times in microseconds since 1970:
    the binding began to exist at the first, ceased at the second, began again at the third, and so
    on.
    """

    facts: dict[str, Any]
    changes: list[int] = field(default_factory=list)

    @property
    def exists(self) -> bool:
        """True if the binding or name exists at the end of the stream."""
        return len(self.changes) % 2 == 1

    def set(self, exists: bool, at: int) -> None:
        """Record that the binding or name exists, or does not exist, from the time `at` on.

        `at` is in microseconds since 1970.
        """
        if exists != self.exists:
            self.changes.append(at)

    def minutes(self) -> list[int]:
        """Return `changes` rounded to minutes: beginnings are rounded down, ends up."""
        minutes: list[int] = []
        for number, at in enumerate(self.changes):
            ends = number % 2
            minute = (
                at if at == ALWAYS else -(-at // MINUTE) * MINUTE if ends else at // MINUTE * MINUTE
            )
            if not ends and minutes and minute <= minutes[-1]:
                minutes.pop()  # the binding ceased and began again within a minute
            else:
                minutes.append(minute)
        return minutes


class Periods:
    """The periods between the times at which a binding or a name began or ceased to exist.

    The times are rounded to minutes. Within a period, the bindings and names stay the same. Periods
    are numbered from 0 on.
    """

    def __init__(self, existences: Iterable[Existence] = ()) -> None:
        self.begins: Final = sorted(
            {at for each in existences for at in each.minutes() if at != ALWAYS}
        )

    def numbers(self, times: pa.Array | pa.ChunkedArray) -> NDArray[np.int32]:
        """Return the number of the period of each time, which is a timestamp in microseconds."""
        micros = pc.cast(times, pa.int64()).to_numpy(zero_copy_only=False)
        begins = np.array(self.begins, np.int64)
        minutes = micros // MINUTE * MINUTE
        numbers: NDArray[np.int32] = np.searchsorted(begins, minutes, side="right").astype(np.int32)
        return numbers

    def lifetimes(self, existences: Sequence[Existence]) -> tuple[int, ...]:
        """Return the lifetimes of bindings: the numbers of the periods in which their existence
        changes.

        The bindings count as one binding, which exists while at least one of them exists. This
        binding begins to exist in the first of these periods (period 0 if it always existed),
        ceases in the second, begins again in the third, and so on. Changes that cancel out within a
        period are left out.
        """
        steps = sorted(
            (0 if at == ALWAYS else bisect_right(self.begins, at), -1 if number % 2 else 1)
            for each in existences
            for number, at in enumerate(each.minutes())
        )
        periods: list[int] = []
        count = 0
        for period, step in steps:
            before, count = count, count + step
            if (before > 0) != (count > 0):
                if periods and periods[-1] == period:
                    periods.pop()
                else:
                    periods.append(period)
        return tuple(periods)


@dataclass(frozen=True)
class RowSplits:
    """A division of the messages of each topic into parts, each with the same destinations.

    Messages of different `periods` are counted separately, and so are the messages of each user in
    `users`.
    """

    periods: Periods = field(default_factory=Periods)
    users: frozenset[str] = frozenset()

    @property
    def divides(self) -> bool:
        """True if the messages of one topic may be divided into several parts."""
        return bool(self.periods.begins or self.users)
