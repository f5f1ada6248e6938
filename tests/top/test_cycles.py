"""Tests that clients of every listener leave no reference cycle.

The garbage collector would never free a cycle of old objects, because old objects are frozen.
"""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest
import uvloop

from tests.authority import Authority
from tests.top.running import KNOWN, Running, settings
from tests.top.visitors import VISITS

#: Rounds of all visits before the count: caches are full after them.
WARM: Final = 3
#: Rounds that are counted.
ROUNDS: Final = 25
LISTENER: Final = {"enabled": True, "port": 0, "host": "127.0.0.1"}


async def visited(running: Running, authority: Authority, rounds: int) -> None:
    """Let all clients of visitors.py connect and disconnect `rounds` times, in another process.

    Then wait until the broker has closed all their connections.
    """
    command = [sys.executable, "-m", "tests.top.visitors", str(rounds), str(authority.file)]
    command += [f"{name}={running.port(name)}" for name in running.app.addresses]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    await running.until(lambda: not running.node.turn.links)
    metrics, gateway = running.http.metrics, running.http.gateway
    assert metrics is not None
    assert gateway is not None
    await running.until(lambda: not metrics._serving)
    await running.until(lambda: gateway.server is None or not gateway.server._calls)


def found_cycles() -> Counter[str]:
    """Collect garbage; return the number of objects in reference cycles, by class."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
        return Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()


async def cycles_after_visits(directory: Path) -> Counter[str]:
    """Return class -> number of objects that clients leave in reference cycles in a broker.

    Each client of visitors.py connects and disconnects ROUNDS times before the objects are counted.
    """
    authority = Authority(directory / "certificates")
    running = Running(
        settings(
            amqps=LISTENER,
            mqtts=LISTENER,
            ws=LISTENER,
            tls={"certificate": str(authority.sign("localhost", "127.0.0.1"))},
            data={"dir": str(directory / "data")},
            users=[KNOWN | {"tags": ["administrator"]}],
        )
    )
    await running.start()
    try:
        assert {visit.listener for visit in VISITS} == set(running.app.addresses)
        await visited(running, authority, WARM)
        gc.collect()
        gc.disable()
        await visited(running, authority, ROUNDS)
        return found_cycles()
    finally:
        gc.enable()
        await running.stop()


@pytest.mark.alone
def test_clients_and_requests_leave_no_reference_cycle(tmp_path: Path) -> None:
    """Clients and requests of all kinds must not leave reference cycles in the broker.

    The test runs on uvloop, as in production: the transports of asyncio are reference cycles.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(cycles_after_visits(tmp_path)) == Counter()
    assert len(VISITS) * ROUNDS > 1_000
