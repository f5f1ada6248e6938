"""Tests that a power loss during a move leaves each message in one queue."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import pytest

from broker.vhost.message_move import RUNNING
from broker.vhost.move_destination import ToQueue
from tests.store.homes import Home
from tests.store.message_moves import MANY, bodies, filled, move_of
from tests.store.simulated import SimulatedDisk


def counted(home: Home) -> list[bytes]:
    return sorted(bodies(home.queue("q")) + bodies(home.queue("r")))


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]
)
@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 2}], ids=["plain", "priority"])
def test_after_a_power_loss_each_message_is_in_one_queue(
    tmp_path: Path, seed: int, arguments: dict[str, Any]
) -> None:
    random = Random(seed)
    disk = SimulatedDisk()
    home = Home(tmp_path / "data", disk=disk, segment_size=2_000)
    home.store.window = random.choice((3, 1_000))
    client = home.amqp()
    client.queue("q", durable=True, **arguments)
    client.queue("r", durable=True)
    sent = filled(client, 250)
    home.turn()
    before, recorded = SimulatedDisk(disk.contents()), len(disk.events)
    shutil.copytree(tmp_path / "data", tmp_path / "catalog")
    home.slow_disk = True
    move = move_of(home, ToQueue("r"), count=random.choice((100, MANY)))
    move.schedule()
    while not move.is_complete:
        home.broker.agenda.turn()
        if random.random() < 0.5 or move.state != RUNNING:
            home.durable()
    assert counted(home) == sent
    moved = bodies(home.queue("r"))
    home.crash()
    moved_counts: set[int] = set()
    for events, event in enumerate(disk.events[recorded:]):
        for kept in (0.0, 0.5, 1.0):
            after = check_crash(tmp_path, f"{events}-{kept}", before.crashed(random, kept), sent)
            assert after == moved[: len(after)]
            moved_counts.add(len(after))
        before.replay(event)
    assert check_crash(tmp_path, "end", before.crashed(random, 0.0), sent) == moved
    # The crashes happened before, during and after the move.
    assert 0 in moved_counts
    assert len(moved_counts) > 1


def check_crash(tmp_path: Path, name: str, disk: SimulatedDisk, sent: list[bytes]) -> list[bytes]:
    """Check that each message is in one queue after a crash; return the moved messages."""
    shutil.copytree(tmp_path / "catalog", tmp_path / name)
    # In the simulated disk, the log has the path of the first broker.
    moved = SimulatedDisk(
        {
            path.replace(str(tmp_path / "data"), str(tmp_path / name), 1): data
            for path, data in disk.contents().items()
        }
    )
    home = Home(tmp_path / name, disk=moved)
    assert counted(home) == sent, name
    after = bodies(home.queue("r"))
    home.crash()
    return after
