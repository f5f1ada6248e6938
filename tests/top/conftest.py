"""Fixtures: brokers in the test's event loop.

Asynchronous tests run on uvloop, the loop of a real broker. `make test-long` repeats them on the
loop of asyncio.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import cast

import pytest
import pytest_asyncio
import uvloop

from broker.access.identity import Identity
from broker.store.disk import Disk
from tests import forks
from tests.authority import Authority
from tests.password_hashes import CHEAP, COST
from trellis.auth.account import Account
from trellis.auth.authenticate import Accounts
from trellis.auth.passwords import HASHER
from trellis.auth.private_files import scram_secret
from trellis.http import gateway_process
from trellis.settings import Settings

pytest.register_assert_rewrite("tests.top.running")

from tests.top.commands import Commands  # noqa: E402 - imports tests.top.running
from tests.top.password_logins import QUICK, SLOW, Make  # noqa: E402 - imports tests.top.running
from tests.top.running import Running, settings  # noqa: E402 - rewritten first

Start = Callable[..., Awaitable[Running]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark the tests on asyncio's own loop as `long`, because the same tests also run on uvloop."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if parameters.get("_asyncio_loop_factory") is asyncio.new_event_loop:
        item.add_marker(pytest.mark.long)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Make a certificate authority in a new directory."""
    return Authority(tmp_path / "certificates")


def fork_gateway(module: str, descriptors: list[int]) -> subprocess.Popen[bytes]:
    """Start the program of a gateway with these file descriptors (tests/forks.py)."""
    with open(os.devnull, "wb") as out:
        process = forks.start(module, stdout=out.fileno(), descriptors=descriptors)
    return cast("subprocess.Popen[bytes]", process)


@pytest.fixture(autouse=True)
def fast_gateways(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start gateways by a fork of a process that has loaded the program."""
    monkeypatch.setattr(gateway_process, "start_program", fork_gateway)


@pytest.fixture(autouse=True)
def cheap_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give new password hashes the smallest cost."""
    monkeypatch.setattr(HASHER, COST, getattr(CHEAP, COST))


@pytest_asyncio.fixture
async def start(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Start]:
    """Yield a function that starts a broker in this event loop with given settings.

    The brokers are stopped after the test.

    Each broker must end without a log line above warning, without an unfinished task of its own,
    and without an exception that reached the event loop.
    """
    loop = asyncio.get_running_loop()
    unhandled: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    running: list[Running] = []

    async def begin(
        chosen: Settings | None = None, disk: Disk | None = None, **sections: object
    ) -> Running:
        app = Running(chosen or settings(**sections), disk)
        await app.start()
        running.append(app)
        return app

    yield begin
    for app in running:
        await app.stop()
    assert asyncio.all_tasks() - {asyncio.current_task()} == set()
    assert unhandled == []
    # These brokers have no cluster. A Kafka client of an earlier test in this process may still try
    # to reach its ended Kafka, in a thread of librdkafka.
    assert [
        record.getMessage()
        for record in caplog.records
        if record.levelname in ("ERROR", "CRITICAL")
        and not record.getMessage().startswith("kafka client ")
    ] == []


@pytest_asyncio.fixture
async def running(start: Start) -> Running:
    """Start a broker with the settings of most tests."""
    return await start()


@pytest_asyncio.fixture
async def accounts() -> AsyncIterator[Make]:
    """Yield a function that makes Accounts of the users `quick`, `slow` and `here`.

    The passwords of `quick` and `slow` are their names. `here` has the password of `quick`, and may
    log in from loopback only.
    """
    opened: list[Accounts] = []

    def make(
        anonymous: bool = True, from_afar: bool = False, queue: int = 10, remember: float = 300.0
    ) -> Accounts:
        users = [
            Account(Identity("quick"), QUICK, False),
            Account(Identity("slow"), SLOW, False),
            Account(Identity("here"), QUICK, True),
        ]
        opened.append(
            Accounts(
                users,
                Identity("anonymous") if anonymous else None,
                from_afar,
                1,
                queue,
                remember,
                scram_secret(None),
            )
        )
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def commands(
    broker: Running, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Commands:
    """Return an object that runs `trellis` commands against the fixture `broker` of the test's
    file.
    """
    return Commands(broker, capsys, monkeypatch)
