"""Tests of the process that serves the HTTP API: its limits, and its order of checks."""

from __future__ import annotations

import asyncio
import errno
import gzip
import json
import socket
from typing import Any, Final, cast

import pytest
import uvicorn

from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.gateway_client import LOOPBACK, PLAIN, gateway_of, get, login, response
from tests.top.running import KNOWN, Running, Socket
from trellis.http import contract
from trellis.http.gateway.connections import (
    IDLE_SECONDS,
    GatewayAcceptor,
    GatewayServer,
    OpenConnections,
)
from trellis.http.gateway.link import BrokerLink
from trellis.http.management import api as routes
from trellis.http.management.answers import Call


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(users=[ADMIN, PLAIN, LOOPBACK])


def _unlogged(address: str, note: str) -> None:
    raise AssertionError(f"a connection from {address} was refused: {note}")


class Quiet:
    """A link to the broker that carries no data."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_process_without_requests_ends_after_a_while() -> None:
    connections = OpenConnections(8, 8, lambda reason: None, _unlogged)
    config = uvicorn.Config(lambda scope: None, log_config=None, lifespan="off")
    config.load()
    server = GatewayServer(config, cast(BrokerLink, Quiet()), connections, None, 1.0)
    slot = connections.admit("127.0.0.1")
    assert not await server.on_tick(1)
    connections.begin(slot)
    connections.active_at -= IDLE_SECONDS
    assert not await server.on_tick(1)  # The process is not idle: a request is being answered.
    connections.finish(slot)
    assert not await server.on_tick(1)
    connections.active_at -= IDLE_SECONDS
    assert await server.on_tick(1)


@pytest.mark.parametrize(
    ("limits", "addresses", "note"),
    [
        (
            (8, 2),
            ["2001:db8::1", "2001:db8::2", "2001:db8::3"],
            "the address has 2 connections: raise http.address_connections",
        ),
        (
            (2, 8),
            ["192.0.2.1", "192.0.2.2", "192.0.2.3"],
            "all 2 HTTP connections are in use: raise http.connections",
        ),
    ],
)
async def test_a_refused_connection_is_logged_with_its_address_and_the_limit(
    limits: tuple[int, int], addresses: list[str], note: str
) -> None:
    """Check that the log names the refused client's address, and the setting of the limit.

    The client's address is logged also if the limit counts all addresses of a network together.
    """
    closed: list[str] = []
    logged: list[tuple[str, str]] = []
    connections = OpenConnections(
        *limits, closed.append, lambda address, note: logged.append((address, note))
    )
    for address in addresses[:2]:
        slot = connections.admit(address)
        assert slot is not None
        connections.take(slot, True)
    assert connections.admit(addresses[2]) is None
    assert (closed, logged) == (["too_many"], [(addresses[2], note)])


# -- requests


async def test_a_connection_serves_many_requests(broker: Running) -> None:
    client = await broker.socket("http")
    for _ in range(3):
        await client.send(get("/api/whoami"))
        status, _, body = await response(client)
        assert (status, json.loads(body)["name"]) == (200, "admin")
    client.close()


async def test_long_answers_are_compressed_for_clients_that_allow_it(broker: Running) -> None:
    headers = "Accept-Encoding: gzip\r\n"
    status, given, body = await broker.ask("http", get("/api/overview", headers))
    assert (status, given["content-encoding"]) == (200, "gzip")
    assert json.loads(gzip.decompress(body))["product_name"] == "Trellis"
    status, given, body = await broker.ask("http", get("/api/overview"))
    assert "content-encoding" not in given
    assert json.loads(body)["product_name"] == "Trellis"


async def test_a_body_is_asked_for_after_the_login_only(broker: Running) -> None:
    def put(user: str, password: str) -> bytes:
        return (
            "PUT /api/vhosts/new HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
            f"Expect: 100-continue\r\n{login(user, password)}\r\n"
        ).encode()

    client = await broker.socket("http")
    await client.send(put("admin", "known"))
    assert (await client.read()).startswith(b"HTTP/1.1 100 ")
    await client.send(b"{}")
    assert (await response(client))[0] == 201
    await client.send(put("admin", "wrong"))
    status, headers, _ = await response(client)
    assert (status, headers["connection"]) == (401, "close")


async def test_large_bodies_of_unknown_users_are_not_read(broker: Running) -> None:
    client = await broker.socket("http")
    head = f"POST /api/definitions HTTP/1.1\r\nHost: x\r\n{login(password='no')}"
    await client.send(f"{head}Content-Length: {60 << 20}\r\n\r\n".encode())
    status, headers, _ = await response(client)
    assert (status, headers["connection"]) == (401, "close")
    client.close()


@pytest.mark.parametrize(
    ("path", "size", "expected"),
    [
        ("/api/vhosts/new", contract.BODY_MAX + 1, 413),
        ("/api/definitions", contract.DOCUMENT_MAX + 1, 413),
        ("/api/vhosts/new", 2, 201),
    ],
)
async def test_each_route_has_a_limit_for_its_body(
    broker: Running, path: str, size: int, expected: int
) -> None:
    method = "POST" if path.endswith("definitions") else "PUT"
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{login()}Content-Length: {size}\r\n\r\n"
    status, _, body = await broker.ask("http", head.encode() + b"{}")
    assert status == expected
    if expected == 413:
        assert json.loads(body)["error"] == "too_large"


async def test_a_chunked_body_is_limited_too(broker: Running) -> None:
    head = f"PUT /api/vhosts/new HTTP/1.1\r\nHost: x\r\n{login()}Transfer-Encoding: chunked\r\n\r\n"
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    status, _, _ = await broker.ask("http", head.encode() + chunk * 3)
    assert status == 413


async def test_a_handler_that_fails_answers_500_with_an_id_that_is_in_the_log(
    broker: Running, caplog: pytest.LogCaptureFixture
) -> None:
    async def fails(call: Call) -> object:
        raise KeyError("missing")

    at = next(n for n, route in enumerate(routes.ROUTES) if route[1] == "/api/whoami")
    route = routes.ROUTES[at]
    routes.ROUTES[at] = (*route[:3], fails)
    try:
        status, body = await api(broker, "GET", "whoami")
    finally:
        routes.ROUTES[at] = route
    assert (status, body["error"]) == (500, "internal_error")
    identifier = body["reason"].rpartition("id=")[2]
    logged = [record for record in caplog.records if identifier in record.getMessage()]
    assert len(logged) == 1
    assert "KeyError" in logged[0].getMessage()
    caplog.clear()
    assert (await api(broker, "GET", "cluster-name"))[0] == 200


async def test_names_that_are_not_utf8_are_refused(broker: Running) -> None:
    for method in ("PUT", "GET", "DELETE"):
        status, body = await api(broker, method, "queues/%2F/%FF")
        assert (status, body["error"]) == (400, "bad_request")


async def test_the_description_names_every_route(broker: Running) -> None:
    status, body = await broker.get("http", "/api/openapi.json")
    description = json.loads(body)
    assert (status, description["openapi"]) == (200, "3.1.0")
    described = {
        (method.upper(), path)
        for path, operations in description["paths"].items()
        for method in operations
    }
    assert described == {(method, path) for method, path, _, _ in routes.ROUTES}


# -- where requests come from


FOREIGN: Final = (
    "Host: evil.example:15672\r\n",
    "Host: localhost\r\nOrigin: http://evil.example\r\n",
    "Host: 127.0.0.1\r\nX-Forwarded-For: 192.0.2.1\r\n",
    "Host: [::1]:15672\r\nForwarded: for=192.0.2.1\r\n",
    "Host: 192.0.2.7\r\n",
    "Host: localhost.evil.example\r\n",
    "Host: localhost:80@evil.example\r\n",
    "Host: [::1]evil.example\r\n",
)
DIRECT: Final = (
    "Host: localhost\r\n",
    "Host: LOCALHOST:15672\r\n",
    "Host: 127.0.0.1:15672\r\nOrigin: http://127.0.0.1:15672\r\n",
    "Host: [::1]\r\n",
    "Host: broker.local:80\r\n",
)


async def test_privileges_of_this_machine_need_its_name(start: Start) -> None:
    broker = await start(users=[ADMIN, LOOPBACK], http={"hosts": "broker.local"})

    async def status(headers: str, user: str) -> int:
        request = f"GET /api/whoami HTTP/1.1\r\n{headers}{login(user)}\r\n"
        return (await broker.ask("http", request.encode()))[0]

    for headers in DIRECT:
        assert (headers, await status(headers, "here")) == (headers, 200)
    for headers in FOREIGN:
        assert (headers, await status(headers, "here")) == (headers, 401)
        assert (headers, await status(headers, "admin")) == (headers, 200)


@pytest.mark.parametrize(
    "headers",
    ["Origin: http://evil.example\r\n", "Origin: null\r\n", "Sec-Fetch-Site: cross-site\r\n"],
)
async def test_pages_of_other_sites_change_nothing(broker: Running, headers: str) -> None:
    for method in ("PUT", "DELETE"):
        request = f"{method} /api/vhosts/x HTTP/1.1\r\nHost: localhost\r\n{login()}{headers}\r\n"
        status, _, body = await broker.ask("http", request.encode())
        assert (status, json.loads(body)["error"]) == (403, "not_authorised")
    assert "x" not in broker.node.broker.vhosts
    request = (
        f"PUT /api/vhosts/x HTTP/1.1\r\nHost: localhost\r\n{login()}Origin: http://localhost\r\n"
    )
    assert (await broker.ask("http", f"{request}\r\n".encode()))[0] == 201


async def test_a_user_that_loses_its_tag_during_the_upload_changes_nothing(start: Start) -> None:
    broker = await start(users=[ADMIN])
    body = {"password": "known", "tags": "administrator"}
    assert (await api(broker, "PUT", "users/former", body))[0] == 201
    rows = [{"name": "new", "password_hash": "", "tags": "administrator"}]
    for path, data in (
        ("POST /api/definitions", json.dumps({"users": rows}).encode()),
        ("PUT /api/users/new", json.dumps(body).encode()),
    ):
        client = await broker.socket("http")
        head = f"{path} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n{login('former')}"
        await client.send(f"{head}Content-Length: {len(data)}\r\n\r\n".encode())
        assert (await client.read()).startswith(b"HTTP/1.1 100 ")
        assert (await api(broker, "PUT", "users/former", body | {"tags": ""}))[0] == 204
        await client.send(data)
        status, _, answer = await response(client)
        assert (status, json.loads(answer)["error"]) == (403, "not_authorised")
        client.close()
        assert "new" not in broker.node.broker.users.by_name
        assert (await api(broker, "PUT", "users/former", body))[0] == 204


async def test_metrics_can_ask_for_a_login(start: Start) -> None:
    watcher = KNOWN | {"name": "watcher", "tags": ("monitoring",)}
    broker = await start(users=[ADMIN, PLAIN, LOOPBACK, watcher], metrics={"login": True})
    for path in ("/metrics", "/metrics/per-object"):
        for user, expected in (("watcher", 200), ("admin", 200), ("here", 200), ("plain", 403)):
            assert (await broker.ask("metrics", get(path, user=user)))[0] == expected
        evil = get(path, user="here", host="evil.example")
        assert (await broker.ask("metrics", evil))[0] == 401
        status, headers, _ = await broker.ask(
            "metrics", f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        assert (status, headers["www-authenticate"]) == (401, 'Basic realm="trellis"')
    assert (await broker.get("metrics", "/healthz"))[0] == 200
    assert (await broker.get("metrics", "/readyz"))[0] == 200


# -- limits


async def test_an_address_has_a_limited_number_of_connections(start: Start) -> None:
    broker = await start(users=[ADMIN], http={"address_connections": 3})
    silent = []
    for _ in range(3):
        client = await broker.socket("http")
        await client.send(get("/api/whoami"))
        assert (await response(client))[0] == 200
        silent.append(client)
    assert (await api(broker, "GET", "whoami"))[0] == 200
    # The connection that was idle for longest was closed to make room; the others still serve.
    assert await silent[0].read() == b""
    for client in silent[1:]:
        await client.send(get("/api/whoami"))
        assert (await response(client))[0] == 200
        client.close()
    page = await broker.scrape()
    assert page.value("trellis_http_closed_total", listener="http", reason="too_many") == 1


async def test_users_leave_connections_to_administrators(start: Start) -> None:
    limits = {"connections": 8, "address_connections": 8}
    broker = await start(users=[ADMIN, PLAIN], http=limits, limits={"handshake": 20})

    async def hang(number: int) -> Socket:
        """Begin a request without sending its body: it counts as one of the open requests."""
        client = await broker.socket("http")
        head = f"PUT /api/queues/%2F/q{number} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
        await client.send(f"{head}{login('plain')}Content-Length: 2\r\n\r\n".encode())
        return client

    waiting = [await hang(number) for number in range(4)]
    for client in waiting:
        assert (await client.read()).startswith(b"HTTP/1.1 100 ")
    status, body = await api(broker, "GET", "whoami", user="plain")
    assert (status, body["error"]) == (503, "busy")
    assert (await api(broker, "GET", "whoami"))[0] == 200
    for client in waiting:
        await client.send(b"{}")
        assert (await response(client))[0] == 201
        client.close()
    assert (await api(broker, "GET", "whoami", user="plain"))[0] == 200


async def test_a_body_that_does_not_come_ends_the_request_and_frees_the_broker(
    start: Start,
) -> None:
    broker = await start(users=[ADMIN], limits={"handshake": 0.5})
    client = await broker.socket("http")
    head = f"PUT /api/vhosts/x HTTP/1.1\r\nHost: x\r\n{login()}Content-Length: 20\r\n\r\n{{"
    await client.send(head.encode())
    status, _, body = await response(client)
    assert (status, json.loads(body)["error"]) == (503, "timeout")
    assert json.loads(body)["reason"] == (
        "the body of the request did not arrive within 0.5 s (limits.handshake), so the request "
        "has changed nothing: send the request again"
    )
    client.close()
    server = gateway_of(broker).server
    assert server is not None
    await broker.until(lambda: not server._calls)
    assert "x" not in broker.node.broker.vhosts


async def test_pauses_in_accepting_are_counted_and_name_the_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[str] = []
    connections = OpenConnections(16, 16, counted.append, _unlogged)
    with socket.socket() as listening:
        listening.setblocking(False)
        acceptor = GatewayAcceptor(listening, cast(Any, None), connections, None, 1.0)
        acceptor._pause_accepting(OSError(errno.EMFILE, "Too many open files"))
        acceptor.close()
    assert counted == ["descriptors"]
    assert "lower http.connections" in caplog.text
    assert "limits.connections" not in caplog.text
