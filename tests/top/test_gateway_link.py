"""Tests of the gateway while the broker's process is paused.

Requests end with an error in limited time. When the broker continues, requests succeed again.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final, cast

import pytest

from tests.broker import BrokerProcess
from tests.top.gateway_client import response
from tests.top.running import PATIENCE, Scrape, Socket, parsed
from trellis.http import contract
from trellis.http.gateway.link import UNREAD_MAX, BrokerLink

#: The time limit of these tests, in seconds.
SECONDS: Final = 2
PING: Final = contract.frame(contract.Ping())
LOGIN: Final = f"Authorization: Basic {base64.b64encode(b'guest:guest').decode()}\r\n"


@pytest.fixture
def process() -> Iterator[BrokerProcess]:
    broker = BrokerProcess("--limits-handshake", str(SECONDS))
    try:
        yield broker
        broker.stop()
    finally:
        broker.kill()


@contextlib.contextmanager
def stopped(broker: BrokerProcess) -> Iterator[None]:
    """Pause the broker's process, but not its gateway; resume it at the end."""
    broker.process.send_signal(signal.SIGSTOP)
    try:
        # os.waitid cannot wait for the broker, because it may be a child of another process.
        status = Path(f"/proc/{broker.process.pid}/status")
        while "\nState:\tT" not in status.read_text():
            os.sched_yield()
        yield
    finally:
        broker.process.send_signal(signal.SIGCONT)


async def client_of(broker: BrokerProcess) -> Socket:
    return await Socket.connect(broker.addresses["http"].port)


def head(method: str, path: str, headers: str = "") -> bytes:
    return f"{method} /api/{path} HTTP/1.1\r\nHost: localhost\r\n{LOGIN}{headers}\r\n".encode()


async def ask(broker: BrokerProcess, method: str, path: str) -> tuple[int, Any]:
    client = await client_of(broker)
    await client.send(head(method, path, "Connection: close\r\n"))
    status, _, body = parsed(await client.read_to_end())
    return status, json.loads(body) if body else None


async def begun(broker: BrokerProcess, method: str, path: str, size: int) -> Socket:
    """Begin a request that the broker accepts, without sending its body of `size` bytes."""
    client = await client_of(broker)
    headers = f"Content-Length: {size}\r\nExpect: 100-continue\r\n"
    await client.send(head(method, path, headers))
    assert (await client.read()).startswith(b"HTTP/1.1 100 ")
    return client


async def is_served(broker: BrokerProcess, path: str) -> None:
    async with asyncio.timeout(PATIENCE):
        while (await ask(broker, "GET", path))[0] != 200:
            pass  # No pause is needed: each request takes time.


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_requests_to_a_stopped_broker_end_and_later_ones_are_served(
    process: BrokerProcess,
) -> None:
    assert (await ask(process, "GET", "whoami"))[0] == 200
    change = await begun(process, "PUT", "queues/%2F/begun", 2)
    rows = b'{"queues":[{"name":"imported","vhost":"/"}]}'
    upload = await begun(process, "POST", "definitions", len(rows))
    with stopped(process):
        await change.send(b"{}")
        await upload.send(rows)
        waiting = [ask(process, method, "queues/%2F/new") for method in ("GET", "PUT", "DELETE")]
        for status, answer in await asyncio.gather(*waiting):
            assert (status, answer["error"]) == (503, "timeout")
            assert "limits.handshake" in answer["reason"]
        for client in (change, upload):
            status, _, body = await response(client)
            assert (status, json.loads(body)["error"]) == (503, "timeout")
            assert "the change may take effect nevertheless" in json.loads(body)["reason"]
            client.close()
    # The broker completes the change that it had not answered, and serves new requests.
    await is_served(process, "queues/%2F/begun")
    assert (await ask(process, "PUT", "queues/%2F/new"))[0] == 201
    assert (await ask(process, "GET", "queues/%2F/new"))[0] == 200


async def refusals(broker: BrokerProcess) -> float:
    """Return the value of the metric that counts the HTTP port's responses with status 503."""
    client = await Socket.connect(broker.addresses["metrics"].port)
    await client.send(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
    page = Scrape(parsed(await client.read_to_end())[2].decode())
    return page.value("trellis_http_responses_total", listener="http", status="503")


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_requests_that_fill_the_link_are_refused_and_all_are_counted(
    process: BrokerProcess,
) -> None:
    assert (await ask(process, "GET", "whoami"))[0] == 200
    rounds, clients, size = 3, 12, 14_000
    # The requests are larger than the unread bytes that kernel and gateway keep for the broker.
    assert rounds * clients * size > 212_992 + UNREAD_MAX
    with stopped(process):
        for _ in range(rounds):
            asking = [ask(process, "GET", f"whoami?x={'x' * size}") for _ in range(clients)]
            for status, answer in await asyncio.gather(*asking):
                assert (status, answer["error"]) == (503, "timeout")
    await is_served(process, "whoami")
    async with asyncio.timeout(PATIENCE):
        while await refusals(process) < rounds * clients:
            pass  # No pause is needed: each request takes time.
    assert await refusals(process) == rounds * clients


class FullTransport:
    """A transport whose other end has stopped reading."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.pings: asyncio.Queue[bytes] = asyncio.Queue()

    def set_write_buffer_limits(self, high: int) -> None:
        self.high = high

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        self.sent.append(data)
        if data == PING:
            self.pings.put_nowait(data)


@pytest.fixture
async def link() -> AsyncIterator[tuple[BrokerLink, FullTransport]]:
    with socket.socket() as files:
        link, transport = BrokerLink(files, lambda: None), FullTransport()
        link.connection_made(cast(asyncio.BaseTransport, transport))
        yield link, transport


async def test_a_link_that_is_full_takes_no_more_bytes(
    link: tuple[BrokerLink, FullTransport],
) -> None:
    gateway, transport = link
    assert transport.high == UNREAD_MAX
    gateway.pause_writing()
    with pytest.raises(TimeoutError):
        await gateway.writable(0)
    for _ in range(1_000):
        gateway.count_response(404)
        gateway.count_closed("lost")
        gateway.ping()
    assert transport.sent == [PING]
    gateway.resume_writing()
    await gateway.writable(0)
    tally = contract.frame(contract.Tally({404: 1_000}, {"lost": 1_000}, 0))
    assert transport.sent[1:] == [tally]
    gateway.count_response(200)
    assert transport.sent[2:] == [contract.frame(contract.Tally({200: 1}, {}, 0))]


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_change_waits_as_long_as_the_broker_answers(
    link: tuple[BrokerLink, FullTransport],
) -> None:
    gateway, transport = link
    exchange = gateway.begin(lambda number: cast(contract.ApiCall, contract.Cancel(number)))
    change = asyncio.create_task(exchange.next_of_change(0.05))
    for _ in range(3):
        await transport.pings.get()
        assert not change.done()
        gateway.data_received(contract.frame(contract.Pong()))
    answer = contract.Answer(exchange.number, 204, contract.EMPTY)
    gateway.data_received(contract.frame(answer))
    assert await change == answer
    with pytest.raises(TimeoutError):
        await exchange.next_of_change(0.01)
