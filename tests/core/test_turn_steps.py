"""The steps of one turn of the event loop, for the largest work that one client can ask for.

A step is one call of a function of the broker or of a protocol, as the profiler counts it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pamqp.commands as spec

from protocols.amqp.channel.commit import PARTS_PER_SLICE
from tests.clients import Amqp, World, marshal, publication
from tests.store.homes import Home


def steps(work: Callable[[], object], part: str = "") -> int:
    """Do the work, and return its steps in files whose path contains `part`."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        name = frame.f_code.co_filename
        if event == "call" and part in name and ("/broker/" in name or "/protocols/" in name):
            count += 1

    before = sys.getprofile()
    sys.setprofile(called)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def turns(world: World, part: str = "") -> list[int]:
    """Run turns until the agenda is idle; return the steps of each turn."""
    counts = []
    while not world.broker.agenda.idle:
        counts.append(steps(world.broker.agenda.turn, part))
        assert len(counts) < 5_000, "no end"
    return counts


def begin(client: Amqp, *methods: Any) -> int:
    """Send methods in one chunk, and return the steps of their input alone."""
    data = b"".join(marshal(1, method) for method in methods)
    return steps(lambda: client.connection.receive_data(data))


# -- tx.commit


def test_the_turn_that_applies_a_commit_encodes_no_publication(tmp_path: Path) -> None:
    world = Home(tmp_path)
    client = world.amqp()
    client.queue("d", durable=True)
    client.send(spec.Tx.Select())
    many = 3 * PARTS_PER_SLICE // 2
    for number in range(many):
        client.connection.receive_data(publication("", "d", b"%d" % number, delivery_mode=2))
        world.settle(client.connection)
    begin(client, spec.Tx.Commit())
    applying = 0
    while not world.queue("d").depth:
        applying = steps(world.broker.agenda.turn, "/store/records.py")
    # Of each record, only the figures for checkpoints are counted.
    assert world.queue("d").depth == many and applying < 3 * many + 100
    world.durable()
    world.crash()
    again = Home(tmp_path)
    reader = again.amqp()
    for number in range(3):
        assert reader.send(spec.Basic.Get(queue="d"))[2].value == b"%d" % number
    assert again.queue("d").depth == many - 3
