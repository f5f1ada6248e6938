"""Tests of the wall clock of a cluster's new active node.

The clock never shows a time before the last time of the former active node.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import pytest_asyncio

from tests.top.conftest import Start
from tests.top.running import Running
from trellis.server.clock_floor import ClockFloor

#: The highest wall clock in the replicated log, as Unix time in seconds.
FLOOR = 1_700_000_000.0


@pytest_asyncio.fixture
async def durable(start: Start, tmp_path: Path) -> Running:
    """Start a broker with a data directory."""
    return await start(data={"dir": str(tmp_path / "data")})


class Clock:
    """The wall clock of a machine. `reads` counts how often the broker read the clock."""

    def __init__(self, now: float) -> None:
        self.now = now
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


def walls(running: Running) -> tuple[float, int]:
    """Update the broker's clocks; return the wall clocks of the broker (s) and its store (ms)."""
    turn = running.node.turn
    turn.set_clocks()
    store = running.node.broker.store
    clock = store._recorder.clock  # type: ignore[attr-defined]
    return turn._agenda.wall, int(clock) + turn.now()


async def test_slow_clock_stands_still_until_it_has_caught_up(
    durable: Running, caplog: pytest.LogCaptureFixture
) -> None:
    clock, turn = Clock(FLOOR - 10), durable.node.turn
    ClockFloor(turn, FLOOR, clock)
    assert turn._agenda.wall == FLOOR
    for late in (10, 5, 0.25):
        clock.now = FLOOR - late
        assert walls(durable) == (FLOOR, FLOOR * 1000)
    [line] = [record for record in caplog.records if "cluster_clock_behind" in record.getMessage()]
    assert "behind_ms=10000" in line.getMessage()
    # The clock has caught up: the broker follows the machine's clock again, without a comparison.
    clock.now = FLOOR + 0.25
    assert walls(durable) == (FLOOR + 0.25, (FLOOR + 0.25) * 1000)
    assert turn.wall_clock is clock
    clock.now = FLOOR - 3
    assert walls(durable)[0] == FLOOR - 3


@pytest.mark.parametrize("ahead", [0.0, 5.0])
async def test_fast_clock_is_used_at_once(
    durable: Running, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    clock, turn = Clock(FLOOR + ahead), durable.node.turn
    ClockFloor(turn, FLOOR, clock)
    assert walls(durable)[0] == FLOOR + ahead
    assert turn.wall_clock is clock
    assert not [record for record in caplog.records if "clock" in record.getMessage()]
