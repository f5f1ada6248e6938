"""Tests that a thousand logins at the same time do not block the event loop."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator
from typing import Final

import argon2
import pytest

from tests.password_hashes import CHEAP, COST
from tests.top.conftest import Start
from trellis.auth.passwords import HASHER, decoy_hash

LOGINS: Final = 1_000
#: Seconds for which the event loop may be blocked. LIMIT is for uvloop, on which the broker runs;
#: LIMIT_ASYNCIO is for asyncio's loop, which runs all ready callbacks in one turn (mostly 2 to 4
#: ms, in one of eight runs 15 ms). LOOK is the interval of the measurements in seconds.
LIMIT: Final = 0.005
LIMIT_ASYNCIO: Final = 0.025
LOOK: Final = 0.001
#: Largest number of measurements. One within the limit is enough, because code that blocks the
#: event loop blocks it in every measurement. A host that runs several virtual machines can take the
#: processor away, and the guest counts this time as CPU time of the thread (32 ms were seen).
ATTEMPTS: Final = 3


@pytest.fixture(autouse=True)
def cheap_hashes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the hashes of unknown names the usual cost in the long tests, else the smallest."""
    if request.node.get_closest_marker("long") is None:
        monkeypatch.setattr(HASHER, COST, getattr(CHEAP, COST))
    decoy_hash.cache_clear()
    yield
    decoy_hash.cache_clear()


class Held:
    """Measures the longest time for which the event loop was blocked.

    A measurement is the smaller of two numbers: the delay of a timer, and the CPU time that the
    thread used meanwhile. So a delay that other processes cause does not count.
    """

    def __init__(self) -> None:
        self.longest = 0.0
        self._loop = asyncio.get_running_loop()
        self._note()

    def _note(self) -> None:
        self._worked, self._at = time.thread_time(), time.perf_counter()
        self._timer = self._loop.call_later(LOOK, self._look)

    def _look(self) -> None:
        late = time.perf_counter() - self._at - LOOK
        self.longest = max(self.longest, min(late, time.thread_time() - self._worked))
        self._note()

    def stop(self) -> None:
        self._timer.cancel()


async def log_in(start: Start, hasher: argon2.PasswordHasher) -> tuple[dict[str, int], float]:
    """Log in LOGINS clients. Return the number of logins by verdict, and the longest time in
    seconds for which the event loop was blocked.
    """
    running = await start(
        users=[{"name": "known", "password_hash": hasher.hash("known")}],
        limits={"handshake": 100.0},
    )
    command = [
        "-m",
        "tests.top.logins",
        str(running.port("amqp")),
        str(running.port("mqtt")),
        str(LOGINS),
        "known",
    ]
    pipe = asyncio.subprocess.PIPE
    clients = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdin=pipe, stdout=pipe
    )
    assert clients.stdout is not None
    held = Held()
    line = await clients.stdout.readline()
    held.stop()
    await clients.communicate(b"")
    print(
        f"held for {held.longest * 1000:.2f} ms, longest turn "
        f"{running.node.turn.longest_seconds * 1000:.2f} ms"
    )
    verdicts: dict[str, int] = json.loads(line)
    # The wrong passwords are guesses at one name, so the broker delays their checks: most of these
    # logins end with code 3 (server unavailable).
    verdicts["mqtt wrong: code 4"] += verdicts.pop("mqtt wrong: code 3", 0)
    return verdicts, held.longest


def right_verdicts() -> dict[str, int]:
    numbers = [(("right", "wrong", "unknown")[number % 3], number % 2) for number in range(LOGINS)]
    right = {
        "amqp right: tune": numbers.count(("right", 0)),
        "amqp wrong: close": numbers.count(("wrong", 0)),
        "amqp unknown: close": numbers.count(("unknown", 0)),
        "mqtt right: code 0": numbers.count(("right", 1)),
        "mqtt wrong: code 4": numbers.count(("wrong", 1)),
        "mqtt unknown: code 4": numbers.count(("unknown", 1)),
    }
    assert sum(right.values()) == LOGINS
    return right


async def check_logins(start: Start, limit: float, hasher: argon2.PasswordHasher) -> None:
    """Check the verdicts, and that the event loop was never blocked for `limit` seconds."""
    measured: list[float] = []
    while not measured or (measured[-1] >= limit and len(measured) < ATTEMPTS):
        verdicts, held = await log_in(start, hasher)
        assert verdicts == right_verdicts()
        measured.append(held)
    assert min(measured) < limit


#: Verifies a hash very fast, so that verdicts come faster than in production. In the long tests,
#: unknown names cost the usual 24 ms in a thread.
FAST: Final = argon2.PasswordHasher(1, 8, 1)


@pytest.mark.alone
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_thousand_logins_at_once_do_not_hold_the_loop(start: Start) -> None:
    await check_logins(start, LIMIT, FAST)


@pytest.mark.alone
@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_thousand_logins_at_once_do_not_hold_the_loop_of_asyncio(start: Start) -> None:
    await check_logins(start, LIMIT_ASYNCIO, FAST)


@pytest.mark.alone
@pytest.mark.long
# uvloop is the loop of a real broker. Hashing slows the processor for all threads.
@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_thousand_logins_with_hashes_that_take_their_time_do_not_hold_the_loop(
    start: Start,
) -> None:
    await check_logins(start, LIMIT, argon2.PasswordHasher(2, 19_456, 1))
