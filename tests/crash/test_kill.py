"""Tests that a broker killed at any moment keeps all confirmed messages."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from random import Random
from typing import Final

import pytest
import uvloop

from tests.crash.storm import AT_WORK, IN_CHECKPOINT, IN_RECOVERY, Storm, storm

#: Each kind of work must happen more often than this before the first kill.
LEAST: Final = 10


def run_storm(directory: Path, seed: int, kills: list[str], least: int = -1) -> Storm:
    """Run `storm` with these arguments: kill a broker under load, and check the kept messages.

    A failure names the seed. A new run with this seed repeats the moments of the kills, but not the
    work between them.
    """
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(storm(directory, seed, kills, least))
    except Exception as error:
        error.add_note(
            f"seed {seed}, kills {kills}, logs and data in {directory}; "
            f"repeat with TRELLIS_CRASH_SEED={seed}"
        )
        raise


@pytest.mark.long
def test_broker_that_is_killed_five_times_keeps_its_guarantees(tmp_path: Path) -> None:
    seed = int(os.environ.get("TRELLIS_CRASH_SEED") or Random().randrange(1 << 32))
    kills = [IN_CHECKPOINT, AT_WORK, IN_RECOVERY, IN_CHECKPOINT]
    Random(seed).shuffle(kills)
    ended = run_storm(tmp_path, seed, [AT_WORK, *kills], LEAST)
    assert ended.missing_work(LEAST) == []


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20))
def test_broker_that_is_killed_two_hundred_times_keeps_its_guarantees(
    seed: int, tmp_path: Path
) -> None:
    """Kill a broker ten times on one data directory (twenty seeds: 200 kills).

    Check that the broker keeps all that it has confirmed (`storm`).
    """
    random = Random(seed)
    run_storm(
        tmp_path,
        seed,
        [AT_WORK, *random.choices((AT_WORK, IN_CHECKPOINT, IN_RECOVERY), (4, 4, 1), k=9)],
    )
