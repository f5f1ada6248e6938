"""Every asynchronous test here runs on both loops; an App in the test's own loop is a fixture."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
import pytest_asyncio
import uvloop

from broker.store.disk import Disk
from trellis.settings import Settings

pytest.register_assert_rewrite("tests.top.running")

from tests.top.running import Running, settings  # noqa: E402 - rewritten first

Start = Callable[..., Awaitable[Running]]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def start(caplog: pytest.LogCaptureFixture) -> AsyncIterator[Start]:
    """Starts brokers in this loop (`settings` says with which settings), and stops them with the
    test.

    Each must end without a line of log above warning, without a task of its own left, and without
    one exception that came as far as the loop.
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
    assert [
        record.getMessage()
        for record in caplog.records
        if record.levelname in ("ERROR", "CRITICAL")
    ] == []


@pytest_asyncio.fixture
async def running(start: Start) -> Running:
    """A broker with the settings of most tests."""
    return await start()
