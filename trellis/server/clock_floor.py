"""The lower limit of a new owner's wall clock: the clock never goes behind that of the last owner.

TTLs, delays and timestamps follow the wall clock of the active node. If a standby with a slow clock
took over, TTLs, delays and timestamps would move back. So the wall clock of a new owner stands at
the wall clock of the last record in the replicated log until the machine's clock has passed this
time. Then the broker calls `time.time` directly again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from trellis import logs
from trellis.server.turn import LoopTurn

#: Milliseconds by which the clock must be slow for a log line.
LOGGED_MS: Final = 1_000


class ClockFloor:
    """The wall clock of a LoopTurn until the machine's clock has passed `floor`.

    `floor` is Unix time in seconds. `clock` returns the Unix time of the machine in seconds.
    """

    def __init__(
        self, turn: LoopTurn, floor: float, clock: Callable[[], float] = time.time
    ) -> None:
        """Replace the wall clock of `turn`, and set the clocks of the broker by the new clock."""
        self._turn = turn
        self._floor = floor
        self._clock = clock
        behind = int((floor - clock()) * 1000)
        if behind > LOGGED_MS:
            logs.warning(
                "cluster_clock_behind",
                behind_ms=behind,
                note="the clock of this node is behind the clock of the former active node; TTLs "
                "and delays stand still until this clock has caught up; synchronize the clocks of "
                "the nodes (NTP)",
            )
        turn.wall_clock = self._read
        turn.set_clocks()

    def _read(self) -> float:
        now = self._clock()
        if now < self._floor:
            return self._floor
        self._turn.wall_clock = self._clock
        return now
