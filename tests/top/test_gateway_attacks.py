"""Requests that try to stop the gateway or the broker: both continue."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from pathlib import Path
from typing import Any

import pytest

from broker.nesting import NESTING_MAX, is_nested_too_deep
from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.gateway_client import gateway_of, get, login, response
from tests.top.running import Running
from trellis.http import contract
from trellis.http.gateway.connections import HEAD_MAX
from trellis.http.management.definitions import REFUSED_MAX


def nested(levels: int) -> Any:
    """Return an empty list inside a list, inside a list, ...: `levels` lists in all."""
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_nesting_is_counted_in_levels_of_tables_and_lists() -> None:
    assert not is_nested_too_deep(nested(NESTING_MAX))
    assert is_nested_too_deep(nested(NESTING_MAX + 1))
    assert not is_nested_too_deep({"a": [{"b": 1}], "c": "text"}, 3)
    assert is_nested_too_deep({"a": [{"b": 1}]}, 2)


@pytest.mark.parametrize("levels", [NESTING_MAX, 500, 900])
async def test_deeply_nested_definitions_are_refused_and_the_store_goes_on(
    start: Start, tmp_path: Path, levels: int
) -> None:
    broker = await start(users=[ADMIN], data={"dir": str(tmp_path)})
    queue = {"durable": True, "arguments": {"x-a": nested(levels)}}
    policy = {"pattern": "x", "definition": {"queue-mode": nested(levels)}}
    for path, body in (("queues/%2F/q", queue), ("policies/%2F/p", policy)):
        status, answer = await api(broker, "PUT", path, body)
        assert (status, "nested more than 100 levels" in answer["reason"]) == (400, True)
    document = {"queues": [{"name": "q", "vhost": "/", **queue}]}
    status, answer = await api(broker, "POST", "definitions", document)
    assert status == 200
    [reason] = answer["refused"]
    assert "nested more than 100 levels" in reason
    # The definition becomes durable, so the store still works.
    assert (await api(broker, "PUT", "queues/%2F/later", {"durable": True}))[0] == 201


async def test_a_long_head_is_refused_however_it_arrives(start: Start) -> None:
    broker = await start(users=[ADMIN])
    assert (await api(broker, "GET", "whoami"))[0] == 200
    pid = gateway_of(broker).pid
    for size in (HEAD_MAX, 140_000):
        client = await broker.socket("http")
        pipelined = get("/nope/" + "a" * 8_000) * 20
        await client.send(pipelined + get("/api/queues/%2F/" + "a" * size))
        answered = b""
        while b"HTTP/1.1 431 " not in answered and b"HTTP/1.1 400 " not in answered:
            more = await client.read()
            assert more, answered[-300:]
            answered += more
        client.close()
    assert (await api(broker, "GET", "whoami"))[0] == 200
    assert gateway_of(broker).pid == pid


@pytest.mark.parametrize("port", ["http", "metrics"])
@pytest.mark.parametrize(
    ("target", "headers", "status"),
    [
        ("{path}", login("admin"), 200),
        ("{path}", login("admin") + login("admin"), 400),
        ("{path}", login("admin", "wrong") + login("admin"), 400),
        ("{path}", login("admin") + "Origin: http://localhost\r\nOrigin: http://evil\r\n", 400),
        ("http://localhost{path}", login("admin"), 200),
        ("HTTP://LOCALHOST{path}", login("admin"), 200),
        ("http://evil.example{path}", login("admin"), 400),
    ],
)
async def test_a_request_has_one_meaning(
    start: Start, port: str, target: str, headers: str, status: int
) -> None:
    broker = await start(users=[ADMIN])
    path = "/api/whoami" if port == "http" else "/metrics"
    client = await broker.socket(port)
    request = f"GET {target.format(path=path)} HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n"
    await client.send(request.encode())
    assert (await response(client))[0] == status
    client.close()


def refused_upload() -> bytes:
    """Return a request that uploads 32 MiB of definitions with a wrong password."""
    head = f"POST /api/definitions HTTP/1.1\r\nHost: x\r\n{login('admin', 'wrong')}"
    return f"{head}Content-Length: {32 << 20}\r\n\r\n".encode() + bytes(32 << 20)


async def test_a_client_that_reads_after_its_whole_upload_reads_why_it_was_refused(
    start: Start,
) -> None:
    broker = await start(users=[ADMIN])
    client = await broker.socket("http")
    await client.send(refused_upload())
    client.shut_down()
    status, headers, _ = await response(client)
    assert (status, headers["connection"]) == (401, "close")
    assert await client.read() == b""


async def test_a_refused_client_that_never_closes_is_cut_off_after_the_time_limit(
    start: Start,
) -> None:
    broker = await start(users=[ADMIN], limits={"handshake": 1.0})
    client = await broker.socket("http")
    await client.send(refused_upload()[:1_000])
    assert (await response(client))[0] == 401
    closed = False
    while not closed:
        await asyncio.sleep(0.05)
        try:
            await client.send(bytes(1_000))
        except ConnectionError:
            closed = True
    client.close()
    assert (await api(broker, "GET", "whoami"))[0] == 200


async def reset(broker: Running, request: bytes) -> None:
    """Send a request, and reset the connection without reading the response."""
    with socket.create_connection(("127.0.0.1", broker.port("http"))) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.sendall(request)
        await asyncio.sleep(0)


async def test_clients_that_reset_leave_no_open_call(start: Start) -> None:
    broker = await start(users=[ADMIN])
    assert (await api(broker, "GET", "whoami"))[0] == 200
    gateway = gateway_of(broker)
    pid = gateway.pid
    for number in range(contract.CALLS_MAX + 100):
        head = f"POST /api/users/bulk-delete HTTP/1.1\r\nHost: x\r\n{login('admin', f'{number}')}"
        await reset(broker, f"{head}Content-Length: 2\r\n\r\n{{}}".encode())
    server = gateway.server
    assert server is not None
    await broker.until(lambda: not server._calls)
    assert (await api(broker, "GET", "whoami"))[0] == 200
    assert gateway_of(broker).pid == pid


async def test_a_body_with_two_lengths_is_refused_and_its_connection_closed(start: Start) -> None:
    broker = await start(users=[ADMIN])
    client = await broker.socket("http")
    head = f"PUT /api/vhosts/new HTTP/1.1\r\nHost: x\r\n{login()}"
    await client.send(
        f"{head}Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".encode()
    )
    status, headers, _ = await response(client)
    assert (status, headers["connection"]) == (400, "close")
    assert (await api(broker, "GET", "vhosts/new"))[0] == 404


@pytest.mark.parametrize(
    "path",
    ["queues?page=", "health/checks/certificate-expiration/"],
)
async def test_long_numbers_are_bad_requests(start: Start, path: str) -> None:
    broker = await start(users=[ADMIN])
    status, _ = await api(broker, "GET", path + "1" * 5_000 + "/days" * path.endswith("tion/"))
    assert status == 400


async def test_refused_definitions_are_counted_not_kept(start: Start) -> None:
    broker = await start(users=[ADMIN])
    status, answer = await api(broker, "POST", "definitions", {"queues": [1] * 40_000})
    assert status == 200
    assert len(answer["refused"]) == REFUSED_MAX + 1
    assert answer["refused"][-1] == f"and {40_000 - REFUSED_MAX} more"
    assert json.loads(json.dumps(answer))["taken"] == {}
