"""Tests of the process that serves the HTTP API: its limits, and its order of checks."""

from __future__ import annotations

import asyncio
import base64
import errno
import gzip
import json
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator, MutableMapping
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import quote

import pytest
import uvicorn

from broker.routing.binding import Binding
from tests.authority import Authority
from tests.top.api_client import ADMIN, api
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running, Socket, parsed, settings
from trellis.http import contract
from trellis.http.gateway.app import Gateway
from trellis.http.gateway.connections import (
    IDLE_SECONDS,
    GatewayAcceptor,
    GatewayServer,
    OpenConnections,
)
from trellis.http.gateway.link import BrokerLink
from trellis.http.gateway_process import GatewayProcess
from trellis.http.management import api as routes
from trellis.http.management.answers import Call, Empty
from trellis.settings import Http, SettingsError, Tls

PLAIN: Final = KNOWN | {"name": "plain", "tags": ("management",)}
LOOPBACK: Final = ADMIN | {"name": "here", "loopback_only": True}


def login(user: str = "admin", password: str = "known") -> str:
    return f"Authorization: Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}\r\n"


def get(path: str, headers: str = "", user: str = "admin", host: str = "localhost") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{login(user)}{headers}\r\n".encode()


def gateway_of(running: Running) -> GatewayProcess:
    gateway = running.http.gateway
    assert gateway is not None
    return gateway


async def response(client: Socket) -> tuple[int, dict[str, str], bytes]:
    """Return the next response of a connection that stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await client.read()
        assert more, f"closed after {data!r}"
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    while len(body) < int(headers.get("content-length", "0")):
        body += await client.read()
    return int(first.split()[1]), headers, body


@pytest.fixture
async def broker(start: Start) -> Running:
    return await start(users=[ADMIN, PLAIN, LOOPBACK])


class Quiet:
    """A link to the broker that carries no data."""

    def __init__(self) -> None:
        self.draining = asyncio.Event()


@pytest.mark.asyncio(loop_factories=["asyncio"])
async def test_a_process_without_requests_ends_after_a_while() -> None:
    connections = OpenConnections(8, 8, lambda reason: None)
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
    assert "0.5 s (limits.handshake)" in json.loads(body)["reason"]
    client.close()
    server = gateway_of(broker).server
    assert server is not None
    await broker.until(lambda: not server._calls)
    assert "x" not in broker.node.broker.vhosts


# -- work in slices


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
        "parameters[0]: not an object",
        "queues[1000] 'q1000': lacks the field 'vhost'",
        "queues: row 3000 has 65591 bytes, more than 65536",
        "bindings: not a list",
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
    gateway = Gateway(link, greeting, OpenConnections(16, 16, _uncounted))
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


async def test_pauses_in_accepting_are_counted_and_name_the_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    counted: list[str] = []
    connections = OpenConnections(16, 16, counted.append)
    with socket.socket() as listening:
        listening.setblocking(False)
        acceptor = GatewayAcceptor(listening, cast(Any, None), connections, None, 1.0)
        acceptor._pause_accepting(OSError(errno.EMFILE, "Too many open files"))
        acceptor.close()
    assert counted == ["descriptors"]
    assert "lower http.connections" in caplog.text
    assert "limits.connections" not in caplog.text


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


# -- TLS, and the metrics port


def secure(authority: Authority, **http: Any) -> dict[str, Any]:
    certificate = str(authority.sign("localhost", "127.0.0.1"))
    return {
        "users": [ADMIN],
        "tls": {"certificate": certificate, "ca": str(authority.file)},
        "http": {"tls": True} | http,
    }


async def over_tls(running: Running, context: ssl.SSLContext) -> int:
    client = await running.tls("http", context)
    await client.send(get("/api/whoami", "Connection: close\r\n"))
    return parsed(await client.read_to_end())[0]


async def test_the_api_speaks_https_and_uses_a_new_certificate_after_a_reload(
    start: Start, tmp_path: Path
) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    broker = await start(**secure(authority))
    assert await over_tls(broker, authority.client()) == 200
    # The gateway closes the connection of a client that speaks no TLS, and serves other clients.
    assert await (await talk(broker, get("/api/whoami"))).read_to_end() == b""
    with pytest.raises(ssl.SSLCertVerificationError):
        await over_tls(broker, other.client())
    await broker.reload(settings(**secure(other)))
    await broker.until(lambda: gateway_of(broker).pid == 0)
    assert await over_tls(broker, other.client()) == 200


async def test_a_gateway_uses_the_certificates_of_the_last_reload_after_its_files_have_changed(
    start: Start, authority: Authority
) -> None:
    """An idle gateway ends. The next gateway must not read files that are just being written."""
    name = str(authority.sign("other.example"))
    chosen = secure(authority)
    chosen["tls"] |= {"names": {"other.example": {"certificate": name}}}
    broker = await start(**chosen)
    for file in (chosen["tls"]["certificate"], name):
        os.truncate(file, 100)
    assert await over_tls(broker, authority.client()) == 200


async def test_the_api_asks_for_client_certificates(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    broker = await start(**secure(authority, client_certificate="required"))
    with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
        await over_tls(broker, authority.client())
    signed = authority.client(authority.sign("client"))
    assert await over_tls(broker, signed) == 200


async def test_a_wrong_certificate_ends_the_start(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "no.pem"
    file.write_text("nothing")
    with pytest.raises(SettingsError, match=r"tls\.certificate"):
        await start(users=[ADMIN], tls={"certificate": str(file)}, http={"tls": True})


async def talk(running: Running, request: bytes) -> Socket:
    client = await running.socket("http")
    await client.send(request)
    return client


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
