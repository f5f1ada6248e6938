"""Tests of the two HTTP listeners: /metrics and health, and the HTTP API with its lists."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import socket
import struct
from typing import Any, Final

import pamqp.commands as spec
import pytest

from broker.queues.statistics import DEATH_REASONS
from tests.broker import run_command
from tests.clients import marshal, publication
from tests.top.conftest import Start
from tests.top.running import KNOWN, Running, parsed
from trellis.http.credentials import parse_basic
from trellis.http.server import MAX_CONNECTIONS


async def rows(running: Running, kind: str) -> list[dict[str, Any]]:
    status, body = await running.get("http", f"/api/trellis/{kind}", of(b"known:known"))
    assert status == 200
    listed: list[dict[str, Any]] = json.loads(body)
    return listed


# -- the protocol


PAGES: Final = {
    "/metrics": (200, b"# HELP "),
    "/metrics?name[]=x": (200, b"# HELP "),
    "/metrics/per-object": (200, b""),
    "/healthz": (200, b"alive\n"),
    "/readyz": (200, b"ready\n"),
    "/": (
        404,
        (
            b"there is no path '/'; the paths are /healthz, /metrics, /metrics/detailed, "
            b"/metrics/per-object, /readyz\n"
        ),
    ),
    "/metrics/": (404, b"there is no path '/metrics/'; "),
    "/api/queues": (404, b"there is no path '/api/queues'; "),
    "*": (404, b"there is no path '*'; "),
}


async def test_pages_of_the_metrics_port(running: Running) -> None:
    answers = {path: await running.get("metrics", path) for path in PAGES}
    assert {
        path: (status, body[: len(PAGES[path][1])]) for path, (status, body) in answers.items()
    } == PAGES


async def test_response_has_its_headers_and_ends_the_connection(running: Running) -> None:
    status, headers, body = await running.ask(
        "metrics", b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert (status, body) == (200, b"alive\n")
    assert headers["content-length"] == "6"
    assert headers["connection"] == "close"
    assert headers["cache-control"] == "no-store"
    assert headers["content-type"] == "text/plain; charset=utf-8"


async def test_head_is_answered_without_a_body(running: Running) -> None:
    status, headers, body = await running.ask(
        "metrics", b"HEAD /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
    )
    assert (status, headers["content-length"], body) == (200, "6", b"")


async def test_an_old_client_is_answered_too(running: Running) -> None:
    assert (await running.ask("metrics", b"GET /healthz HTTP/1.0\r\n\r\n"))[0] == 200


@pytest.mark.parametrize("path", ["/api/queues", "/page/main.js"])
async def test_other_methods_are_not_allowed(running: Running, path: str) -> None:
    for method in ("POST", "DELETE", "OPTIONS", "BREW"):
        status, headers, _ = await running.ask(
            "http", f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        )
        assert (status, headers["allow"]) == (405, "GET, HEAD")


async def test_a_request_that_comes_byte_by_byte_is_answered(running: Running) -> None:
    client = await running.socket("metrics")
    for byte in b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n":
        await client.send(bytes([byte]))
        await asyncio.sleep(0)
    assert parsed(await client.read_to_end())[0] == 200


async def test_silent_clients_do_not_keep_others_out(running: Running) -> None:
    silent = [await running.socket("metrics") for _ in range(MAX_CONNECTIONS + 5)]
    assert (await running.get("metrics", "/healthz"))[0] == 200
    # The oldest connections were closed to make room for later connections.
    assert await silent[0].read() == b""
    page = await running.scrape()
    assert page.value("trellis_http_closed_total", listener="metrics", reason="too_many") >= 6
    for client in silent:
        client.close()


# -- the user


def of(credentials: bytes) -> str:
    return f"Authorization: Basic {base64.b64encode(credentials).decode()}\r\n"


LOGINS: Final = {
    of(b"known:known"): 200,
    of(b"known:known").replace("Basic", "bAsIc"): 200,
    "": 401,
    "Authorization: Basic\r\n": 401,
    "Authorization: Basic %%%\r\n": 401,
    "Authorization: Bearer known\r\n": 401,
    of(b"\xff"): 401,
    of(b"known"): 401,
    of(b":"): 401,
    of(b"known:wrong"): 401,
    of(b"unknown:known"): 401,
}


async def test_listings_are_for_users(running: Running) -> None:
    for header, expected in LOGINS.items():
        status, headers, _ = await running.ask(
            "http", f"GET /api/trellis/queues HTTP/1.1\r\nHost: x\r\n{header}\r\n".encode()
        )
        assert (header, status) == (header, expected)
        assert headers.get("www-authenticate") == (
            'Basic realm="trellis"' if status == 401 else None
        )


@pytest.mark.parametrize(
    ("header", "user", "password"),
    [
        (b"Basic Og==", "", b""),
        (b"Basic YTpiOmM=", "a", b"b:c"),
        (b"Basic  YTpiOmM= ", "a", b"b:c"),
        (b"Basic w6Q6/w==", "ä", b"\xff"),
        (b"Digest YTpi", None, b""),
        (b"", None, b""),
    ],
)
def test_basic_authentication_is_read(header: bytes, user: str | None, password: bytes) -> None:
    assert parse_basic(header) == (user, password)


# -- the rows


async def test_queues_are_listed(running: Running) -> None:
    client = await running.amqp()
    await client.queue("plain", durable=True)
    await client.queue(
        "limited", arguments={"x-max-length": 2, "x-overflow": "reject-publish"}, exclusive=True
    )
    for queue in ("plain", "plain", "limited"):
        await client.socket.send(publication("", queue, b"x"))
    await client.socket.send(marshal(1, spec.Basic.Get(queue="plain")))
    await client.expect(spec.Basic.GetOk)
    for _ in ("header", "body"):
        await client.frame()
    await client.call(spec.Basic.Consume(queue="limited", consumer_tag="c"), spec.Basic.ConsumeOk)
    session = await running.mqtt("reader", clean=False)
    common = {"vhost": "/", "auto_delete": False, "policy": "", "paused": False, "delivered": 1}
    common |= dict.fromkeys(("redelivered", "acknowledged", "expired", "over_limit"), 0)
    common |= dict.fromkeys(("rejected", "dead_lettered"), 0)
    common |= dict.fromkeys([f"dead_lettered_{reason}" for reason in DEATH_REASONS], 0)
    listed = await rows(running, "queues")
    ages = [row.pop("head_age_ms") for row in listed]
    assert ages[0] >= 0
    assert ages[1] is None
    assert listed == [
        {
            "name": "plain",
            "kind": "queue",
            "durable": True,
            "exclusive": False,
            "messages_ready": 1,
            "messages_unacknowledged": 1,
            "consumers": 0,
            "published": 2,
            "arguments": "",
        }
        | common,
        {
            "name": "limited",
            "kind": "queue",
            "durable": False,
            "exclusive": True,
            "messages_ready": 0,
            "messages_unacknowledged": 1,
            "consumers": 1,
            "published": 1,
            "arguments": '{"x-max-length":2,"x-overflow":"reject-publish"}',
        }
        | common,
    ]
    await session.leave()


async def test_exchanges_are_listed(running: Running) -> None:
    client = await running.amqp()
    arguments: Any = {"alternate-exchange": "amq.fanout", "x-matcher": "bitmap"}
    declare = spec.Exchange.Declare(
        exchange="mine", exchange_type="topic", durable=True, arguments=arguments
    )
    await client.call(declare, spec.Exchange.DeclareOk)
    await client.queue("q", "mine", "a.*")
    exchanges = {row["name"]: row for row in await rows(running, "exchanges")}
    assert list(exchanges) == [
        "",
        "amq.direct",
        "amq.fanout",
        "amq.topic",
        "amq.headers",
        "amq.match",
        "mine",
    ]
    assert exchanges["mine"] == {
        "vhost": "/",
        "name": "mine",
        "type": "topic",
        "durable": True,
        "auto_delete": False,
        "internal": False,
        "bindings": 1,
        "matcher": "bitmap",
        "published": 0,
        "copies": 0,
        "unroutable": 0,
        **dict.fromkeys([f"dead_letters_{reason}" for reason in DEATH_REASONS], 0),
        "arguments": '{"alternate-exchange":"amq.fanout","x-matcher":"bitmap"}',
    }
    assert (exchanges["amq.topic"]["matcher"], exchanges["amq.direct"]["matcher"]) == ("auto", "")


async def test_bindings_are_listed(running: Running) -> None:
    client = await running.amqp()
    await client.queue("q", "amq.topic", "sensors.#")
    odd = marshal(1, spec.Queue.Bind(queue="q", exchange="amq.direct", routing_key="?"))
    await client.socket.send(odd.replace(b"\x01?", b"\x01\xff"))  # A key that is not UTF-8.
    await client.expect(spec.Queue.BindOk)
    headers: Any = {
        "x-match": "any",
        "n": 5,
        "raw": bytearray(b"\xff"),
        "deep": {"list": [1, None, True]},
    }
    await client.call(
        spec.Queue.Bind(queue="q", exchange="amq.headers", routing_key="", arguments=headers),
        spec.Queue.BindOk,
    )
    await client.call(
        spec.Exchange.Bind(destination="amq.fanout", source="amq.direct", routing_key="k"),
        spec.Exchange.BindOk,
    )
    session = await running.mqtt("reader")
    await session.subscribe("sensors/+/temp", 1)
    names = ("source", "routing_key", "grammar", "destination", "destination_type", "arguments")
    assert [tuple(row[name] for name in names) for row in await rows(running, "bindings")] == [
        ("", "q", "amqp", "q", "queue", ""),
        ("amq.direct", "\\xff", "amqp", "q", "queue", ""),
        ("amq.direct", "k", "amqp", "amq.fanout", "exchange", ""),
        ("amq.topic", "sensors.#", "amqp", "q", "queue", ""),
        ("amq.topic", "sensors/+/temp", "mqtt", "reader", "session", ""),
        (
            "amq.headers",
            "",
            "amqp",
            "q",
            "queue",
            '{"deep":{"list":[1,null,true]},"n":5,"raw":"/w==","x-match":"any"}',
        ),
    ]


async def test_connections_are_listed(start: Start) -> None:
    running = await start(users=[KNOWN | {"tags": ("monitoring",)}])
    client, session = await running.amqp(), await running.mqtt("reader")
    greeted = await running.socket("amqp")
    await running.until(lambda: len(running.node.amqp.connections) == 2)
    connections = await rows(running, "connections")
    assert [(row["protocol"], row["user"], row["client"], row["state"]) for row in connections] == [
        ("amqp091", "known", "test", "running"),
        ("amqp091", "", "", "greeting"),
        ("mqtt311", "", "reader", "open"),
    ]
    assert connections[0]["channels"] == 1
    assert connections[0]["peer"].startswith("127.0.0.1:")
    assert connections[0]["octets_in"] > connections[1]["octets_in"] == 0
    for one in (client.socket, session.socket, greeted):
        one.close()


async def test_sessions_are_listed(running: Running) -> None:
    gone = await running.mqtt("gone", clean=False)
    await gone.subscribe("a/b", 1)
    await gone.leave()
    here = await running.mqtt("here")
    publisher = await running.amqp()
    await publisher.socket.send(
        publication("amq.topic", "a.b", b"x", delivery_mode=2)
        + publication("amq.topic", "a.b", b"x")
    )
    await publisher.queue("sync")
    assert [
        {
            name: row[name]
            for name in (
                "client_id",
                "connected",
                "persistent",
                "subscriptions",
                "queued",
                "missed",
            )
        }
        for row in await rows(running, "sessions")
    ] == [
        {
            "client_id": "gone",
            "connected": False,
            "persistent": True,
            "subscriptions": 1,
            "queued": 1,
            "missed": 1,
        },
        {
            "client_id": "here",
            "connected": True,
            "persistent": False,
            "subscriptions": 0,
            "queued": 0,
            "missed": 0,
        },
    ]
    await here.leave()


async def test_listing_continues_while_its_objects_change(running: Running) -> None:
    client = await running.amqp()
    await client.queue("q")
    for number in range(1_200):
        await client.socket.send(
            marshal(
                1,
                spec.Queue.Bind(
                    queue="q", exchange="amq.topic", routing_key=f"k.{number}", nowait=True
                ),
            )
        )
    await client.queue("q")
    listing = asyncio.create_task(rows(running, "bindings"))
    number = 0
    while not listing.done():
        await client.call(
            spec.Queue.Unbind(queue="q", exchange="amq.topic", routing_key=f"k.{number}"),
            spec.Queue.UnbindOk,
        )
        number += 1
    assert len(await listing) >= 1_200 - number


# -- the commands


async def trellis(*arguments: str) -> tuple[int, str, str]:
    """Return exit code, output and errors of a `trellis` command."""
    done = await asyncio.to_thread(run_command, *arguments, "--config", os.devnull)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_commands_ask_a_broker(running: Running) -> None:
    client = await running.amqp()
    await client.queue("q", "amq.topic", "a.#", arguments={"x-max-length": 7})
    session = await running.mqtt("reader")
    url = f"http://127.0.0.1:{running.port('http')}"
    health = f"http://127.0.0.1:{running.port('metrics')}"
    kinds = ("queues", "exchanges", "bindings", "connections", "sessions", "channels", "consumers")
    known = ("--url", url, "--user", "known", "--password", "known")
    commands: list[tuple[str, ...]] = [("list", kind, "--json", *known) for kind in kinds]
    commands += [
        ("list", "queues", "--columns", "name,arguments", *known),
        ("list", "queues", "--url", url, "--user", "known", "--password", "wrong"),
        ("health", "--url", health),
    ]
    # The gateway is started first, and the commands run one after another, because the time limit
    # of a command includes the time that its process and the gateway need to start.
    await rows(running, "queues")
    answers = [await trellis(*command) for command in commands]
    for kind, (code, out, err) in zip(kinds, answers, strict=False):
        assert (code, err) == (0, "")
        assert json.loads(out) == await rows(running, kind) or kind == "connections"
    table, refused, ready = answers[len(kinds) :]
    assert table[0] == 0
    assert table[1].splitlines()[:2] == [
        "name  arguments",
        'q     {"x-max-length":7}',
    ]
    assert refused[0] == 1
    assert "refused user known (unknown user or wrong password)" in refused[2]
    assert ready == (0, f"ready: {health}/readyz\n", "")
    code, out, _ = await trellis("health", "--url", health, "--json")
    assert json.loads(out) == {"state": "ready", "ready": True, "url": f"{health}/readyz"}
    running.node.ready = False
    code, _, err = await trellis("health", "--url", health)
    assert code == 1
    assert "answered 503: not ready: starting, stopping or without a lease" in err
    await session.leave()


@pytest.mark.parametrize("listener", ["metrics", "http"])
async def test_clients_that_reset_their_connections_cause_no_traceback(
    running: Running, listener: str
) -> None:
    """Reset connections at all moments of a request; the broker must continue to serve.

    The fixture `running` fails if an exception reaches the event loop, or an error is logged.
    """
    whole = b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"
    metrics, gateway = running.http.metrics, running.http.gateway
    assert metrics is not None
    assert gateway is not None
    for request in (b"", whole[:9], whole, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x00\n\r\n\r\n"):
        for turns in range(12):
            sock = socket.socket()
            sock.setblocking(False)
            await asyncio.get_running_loop().sock_connect(
                sock, ("127.0.0.1", running.port(listener))
            )
            if request:
                await asyncio.get_running_loop().sock_sendall(sock, request)
            for _ in range(turns):
                await asyncio.sleep(0)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.close()  # The kernel of the client sends RST instead of FIN.
    await running.until(lambda: not metrics._serving)
    status, _ = await running.get("metrics", "/healthz")
    assert status == 200
    assert (await running.get("http", "/api/overview"))[0] == 401
    assert gateway.pid
