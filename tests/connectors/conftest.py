"""Fixtures of the tests of `trellis connect`: links in the test's event loop, and services."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aio_pika
import pytest
from aiohttp import web

from tests.broker import BrokerProcess
from trellis.connect import settings
from trellis.connect.link import ConnectorLink
from trellis.connect.service import links_of

SECRET: Final = "whsec_" + base64.b64encode(b"k" * 32).decode()
#: Seconds that a test waits for a condition.
PATIENCE: Final = 20.0


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises TimeoutError after PATIENCE seconds."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (links have no event for it)
            await asyncio.sleep(0.01)


class Service:
    """An HTTP service in the test's event loop.

    `answer` gets the body of each request and returns the response; by default, the status is 200.
    `bodies` and `requests` keep the bodies and the headers of all requests.
    """

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.answer: Callable[[bytes], Awaitable[web.StreamResponse]] = self._accept
        self.active = 0
        self.most_active = 0

    @staticmethod
    async def _accept(_: bytes) -> web.StreamResponse:
        return web.Response()

    async def receive(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        self.requests.append({name.lower(): value for name, value in request.headers.items()})
        self.bodies.append(body)
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            return await self.answer(body)
        finally:
            self.active -= 1


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    """Start an HTTP service on a free port."""
    service = Service()
    application = web.Application(client_max_size=10 << 20)
    application.router.add_route("*", "/{path:.*}", service.receive)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    yield service
    await runner.cleanup()


@pytest.fixture(scope="session")
def keeping_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """Start one broker with a data directory, which streams need; each test uses its own names."""
    process = BrokerProcess("--data-dir", str(tmp_path_factory.mktemp("data")))
    yield process
    process.stop()


@pytest.fixture
async def channel(keeping_broker: BrokerProcess) -> AsyncIterator[aio_pika.abc.AbstractChannel]:
    """Return a channel to the broker `keeping_broker`, with publisher confirms."""
    connection = await aio_pika.connect(keeping_broker.amqp_url)
    yield await connection.channel()
    await connection.close()


class Links:
    """The links that a test runs in its event loop."""

    def __init__(self, broker: BrokerProcess) -> None:
        self._broker = broker
        self._running: dict[ConnectorLink, asyncio.Task[None]] = {}

    def start(self, kind: str, **section: Any) -> ConnectorLink:
        """Start a link of this kind, such as "webhook", with these settings."""
        parsed = settings.parse(_toml(self._broker, kind, section), "test")
        [link] = links_of(parsed)
        self._running[link] = asyncio.create_task(link.run())
        return link

    async def stop(self, link: ConnectorLink) -> None:
        """Stop a link as SIGTERM does, and check that it ended without a fault."""
        link.stopping.set()
        await asyncio.wait_for(self._running.pop(link), PATIENCE)

    async def kill(self, link: ConnectorLink) -> None:
        """Cancel the task of a link during its work, without an orderly stop."""
        task = self._running.pop(link)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def close(self) -> None:
        for link in list(self._running):
            await self.kill(link)


def _toml(broker: BrokerProcess, kind: str, section: dict[str, Any]) -> str:
    lines = [f'[broker]\nurl = "{broker.amqp_url}"', f"[[{kind}]]"]
    for name, value in section.items():
        text = str(value).lower() if isinstance(value, bool) else repr(value)
        if isinstance(value, dict):
            text = "{" + ", ".join(f'"{key}" = {each!r}' for key, each in value.items()) + "}"
        lines.append(f"{name} = {text}")
    return "\n".join(lines)


@pytest.fixture
async def links(keeping_broker: BrokerProcess) -> AsyncIterator[Links]:
    """Return an object that starts links."""
    links = Links(keeping_broker)
    yield links
    await links.close()


async def depth(channel: aio_pika.abc.AbstractChannel, queue: str) -> int:
    """Return the number of messages of a queue that are ready."""
    declared = await channel.declare_queue(queue, passive=True)
    return int(declared.declaration_result.message_count or 0)


async def letters(
    channel: aio_pika.abc.AbstractChannel, queue: str, count: int
) -> list[aio_pika.abc.AbstractIncomingMessage]:
    """Wait for `count` messages in a queue, and return them."""
    received = []
    async with asyncio.timeout(PATIENCE):
        target = await channel.get_queue(queue, ensure=False)
        async with target.iterator(no_ack=True) as messages:
            async for message in messages:
                received.append(message)
                if len(received) == count:
                    break
    return received


def record(tmp_path: Path) -> Path:
    """Return the path of the file in which a target process (target.py) stores received bodies."""
    return tmp_path / "received"
