"""Tests that the HTTP API does long work in slices, and does not repeat work."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any
from urllib.parse import quote

import pytest

from broker.routing.binding import Binding
from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.gateway_client import LOOPBACK, PLAIN, gateway_of
from tests.top.running import Running
from trellis.http import contract
from trellis.http.gateway.app import Gateway
from trellis.http.gateway.connections import OpenConnections
from trellis.http.gateway.link import BrokerLink
from trellis.http.management import api as routes
from trellis.http.management.answers import Call, Empty
from trellis.settings import Http, Tls


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(users=[ADMIN, PLAIN, LOOPBACK])


async def test_long_listings_give_way_to_other_work(broker: Running) -> None:
    declarations = broker.node.broker.vhosts["/"]
    for number in range(5_000):
        declarations.declare_queue(f"q{number}")
    server = gateway_of(broker)
    assert (await api(broker, "GET", "whoami"))[0] == 200
    assert server.server is not None
    slices = server.server._backend.slices
    before = slices.taken
    turns = 0
    query = "queues?page=1&page_size=1&name=q4999&use_regex=true"
    listing = asyncio.create_task(api(broker, "GET", query))
    while not listing.done():
        turns += 1
        await asyncio.sleep(0)
    status, page = await listing
    assert (status, page["filtered_count"], page["total_count"]) == (200, 1, 5_000)
    assert slices.taken - before > 5
    assert turns >= slices.taken - before


class WatchedArguments(dict[str, Any]):
    """Arguments of a binding. `on_read` is called whenever they are read."""

    def __init__(self, on_read: Callable[[], None], number: int) -> None:
        super().__init__(number=number)
        self._on_read = on_read

    def __iter__(self) -> Iterator[str]:
        self._on_read()
        return super().__iter__()

    def keys(self) -> Any:
        self._on_read()
        return super().keys()


async def test_many_bindings_of_one_queue_give_way_to_other_work(broker: Running) -> None:
    assert (await api(broker, "GET", "whoami"))[0] == 200
    server = gateway_of(broker).server
    assert server is not None
    slices = server._backend.slices
    #: Number of reads of the arguments of bindings, by slice.
    reads: Counter[int] = Counter()

    def on_read() -> None:
        reads[slices.taken] += 1

    vhost = broker.node.broker.vhosts["/"]
    queue = vhost.declare_queue("q")
    count = 2_000
    for number in range(count):
        arguments = WatchedArguments(on_read, number)
        vhost.bind("amq.topic", Binding(f"key.{number}", queue, arguments=arguments))
    between = "bindings/%2F/e/amq.topic/q/q"
    rows = (await api(broker, "GET", between))[1]
    assert len(rows) == count
    last = f"{between}/{quote(rows[-1]['properties_key'], '')}"
    for method, path, status in (
        ("GET", between, 200),
        ("GET", "queues/%2F/q/bindings", 200),
        ("GET", last, 200),
        ("DELETE", last, 204),
    ):
        reads.clear()
        assert (path, (await api(broker, method, path))[0]) == (path, status)
        assert reads.total() >= count
        assert max(reads.values()) < reads.total() / 2, path


async def test_definitions_are_imported_in_slices(broker: Running) -> None:
    rows: list[dict[str, Any]] = [
        {"name": f"q{n}", "vhost": "/", "durable": True, "arguments": {}} for n in range(3_000)
    ]
    rows[1_000] = {"name": "q1000"}
    large = {"name": "large", "vhost": "/", "arguments": {"x": "y" * contract.ROW_MAX}}
    document = {"queues": [*rows, large], "bindings": 7, "parameters": [1], "unknown": [2]}
    assert (await api(broker, "GET", "whoami"))[0] == 200
    server = gateway_of(broker).server
    assert server is not None
    before = server._backend.slices.taken
    status, report = await api(broker, "POST", "definitions", document)
    assert (status, report["taken"]) == (200, {"queues": 2_999})
    assert report["refused"] == [
        "parameters[0]: the entry must be a JSON object",
        "queues[1000] 'q1000': lacks the field 'vhost'",
        "queues: row 3000 has 65591 bytes, more than 65536",
        "bindings: the section must be a list",
    ]
    assert server._backend.slices.taken - before > 5


async def test_a_slow_change_ends_although_a_slow_reading_request_does_not(
    start: Start,
) -> None:
    broker = await start(users=[ADMIN], limits={"handshake": 0.5})
    assert (await api(broker, "GET", "whoami"))[0] == 200
    begun, finish = asyncio.Event(), asyncio.Event()

    async def slow(call: Call) -> Empty:
        begun.set()
        await finish.wait()
        return Empty(created=True)

    kept = list(routes.ROUTES)
    for at, route in enumerate(kept):
        if route[:2] in (("GET", "/api/whoami"), ("DELETE", "/api/users/{name}")):
            routes.ROUTES[at] = (*route[:3], slow)
    try:
        change = asyncio.create_task(api(broker, "DELETE", "users/any"))
        await begun.wait()
        status, answer = await api(broker, "GET", "whoami")
        assert (status, answer["error"]) == (503, "timeout")
        # The change began before the GET: if the time limit applied to changes, the change would
        # have ended by now.
        assert not change.done()
        finish.set()
        assert (await change)[0] == 201
    finally:
        finish.set()
        routes.ROUTES[:] = kept


def _unlogged(address: str, note: str) -> None:
    raise AssertionError(f"a connection from {address} was refused: {note}")


def _uncounted(reason: str) -> None:
    raise AssertionError(f"a connection was closed: {reason}")


async def test_the_description_is_compressed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def compress(data: bytes, level: int = 9) -> bytes:
        calls.append(level)
        return real(data, level)

    real = gzip.compress
    monkeypatch.setattr(gzip, "compress", compress)
    greeting = contract.Greeting("info", 1.0, "1", Http(), Tls(), [], [], {})
    ours, theirs = socket.socketpair()
    link = BrokerLink(theirs, lambda: None)
    transport, _ = await asyncio.get_running_loop().create_connection(lambda: link, sock=ours)
    gateway = Gateway(link, greeting, OpenConnections(16, 16, _uncounted, _unlogged))
    scope: dict[str, Any] = {
        "type": "http",
        "method": "GET",
        "raw_path": b"/api/openapi.json",
        "query_string": b"",
        "headers": [(b"accept-encoding", b"gzip")],
        "client": ("127.0.0.1", 1),
    }

    async def receive() -> dict[str, Any]:
        raise AssertionError("the request has no body")

    async def send(event: MutableMapping[str, Any]) -> None:
        events.append(event)

    events: list[MutableMapping[str, Any]] = []
    for _ in range(3):
        await gateway(scope, receive, send)
    heads = [event for event in events if event["type"] == "http.response.start"]
    assert [head["status"] for head in heads] == [200] * 3
    bodies = {event["body"] for event in events if event.get("body")}
    assert len(bodies) == 1 and b"openapi" in gzip.decompress(bodies.pop())
    # A text that is compressed once and kept has compression level 9, the smallest size.
    assert calls == [9]
    transport.close()
    theirs.close()
