"""Tests with attackers: other clients keep working, nothing leaks, closed connections are counted.

The metrics count the closed connections by reason.
"""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import ssl
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import pytest

from protocols.amqp.connection.handshake import GREETING
from tests.authority import Authority
from tests.broker import BrokerProcess
from tests.clients import connect_packet
from tests.foreign import require
from tests.top.conftest import Start
from tests.top.running import PATIENCE, Leaks, Mqtt0, Running, Socket

ON: Final = {"enabled": True, "port": 0, "host": "127.0.0.1"}
DOORS: Final = ("amqp", "amqps", "mqtt", "mqtts", "ws", "wss")
#: Incomplete first input for each listener.
BEGINNINGS: Final = {
    "amqp": GREETING + b"\x01\x00\x00\x00\x00\xff\x00",
    "mqtt": b"\x10\xff\x7f",
    "ws": b"GET /ws HTTP/1.1\r\nX: ",
    **dict.fromkeys(("amqps", "mqtts", "wss"), b"\x16\x03\x01\x3f\x00\x01\x00\x3e\x00"),
}


def every_door(authority: Authority, **more: Any) -> dict[str, Any]:
    """Return settings with all listeners."""
    return {
        **dict.fromkeys(("amqps", "mqtts", "ws", "wss"), ON),
        "tls": {"certificate": str(authority.sign("localhost"))},
        **more,
    }


@asynccontextmanager
async def working(running: Running) -> AsyncIterator[None]:
    """Let a client send pings during the `with` body; check that each ping is answered."""
    client = await running.mqtt("neighbour", user="known/known")

    async def work() -> None:
        while True:
            await client.ping()
            await asyncio.sleep(0)

    task = asyncio.create_task(work())
    try:
        yield
        assert not task.done()
    finally:
        task.cancel()
        await asyncio.wait([task])
    client.socket.close()


def closed_count(running: Running, reason: str) -> int:
    return sum(front.closed.get(reason, 0) for front in running.node.fronts)


async def test_a_client_that_sends_a_byte_now_and_then_is_closed_on_every_listener(
    start: Start, authority: Authority
) -> None:
    running = await start(**every_door(authority, limits={"handshake": 1.0}))

    async def drip(door: str) -> None:
        client = await running.socket(door)
        reading = asyncio.create_task(client.read_to_end())
        try:
            await client.send(BEGINNINGS[door])
            for _ in range(10_000):
                await client.send(b"a")
                await asyncio.wait([reading], timeout=0.02)
        except OSError:
            pass
        await reading

    async with working(running):
        leaks = await Leaks.watch(running)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*(drip(door) for door in DOORS for _ in range(3)))
        await leaks.check()
    assert closed_count(running, "handshake_timeout") == 3 * len(DOORS)
    page = await running.scrape()
    for door in ("amqps", "mqtts", "wss"):
        assert page.value("trellis_tls_failures_total", listener=door, reason="timeout") == 3
    assert page.value("trellis_websocket_refused_total", listener="ws", reason="timeout") == 3


async def test_half_closed_connection_is_closed_on_every_listener(
    start: Start, authority: Authority
) -> None:
    running = await start(**every_door(authority))
    leaks = await Leaks.watch(running)
    for door in DOORS:
        client = await running.socket(door)
        await client.send(BEGINNINGS[door])
        client.shut_down()
        await client.read_to_end()
    await leaks.check()
    assert closed_count(running, "lost") == len(DOORS)


async def test_client_lost_within_a_record_or_a_frame_leaves_nothing(
    start: Start, authority: Authority
) -> None:
    running = await start(**every_door(authority))
    leaks = await Leaks.watch(running)
    for _ in range(5):
        client = Mqtt0(await running.tls("mqtts", authority.client()))
        assert await client.connect("vanishes", user="known/known") == 0
        sock = client.socket._sock
        os.write(sock.fileno(), b"\x17\x03\x03\x40\x00half a record")
        client.socket.writer.transport.abort()  # type: ignore[attr-defined]
    await leaks.check()


def test_renegotiation_is_refused(authority: Authority) -> None:
    """The broker refuses TLS renegotiation.

    If the broker permitted it, a client could renegotiate again and again. Each renegotiation costs
    the server ten times as much work as the client.
    """
    openssl = require("openssl")
    broker = BrokerProcess(
        "--mqtts-enabled",
        "true",
        "--mqtts-port",
        "0",
        "--tls-certificate",
        str(authority.sign("localhost")),
    )
    try:
        host, port = broker.addresses["mqtts"]
        command = [
            openssl,
            "s_client",
            "-connect",
            f"{host}:{port}",
            "-tls1_2",
            "-CAfile",
            str(authority.file),
        ]
        with subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as client:
            assert client.stdin is not None and client.stdout is not None
            seen = ""
            while "Verify return code: 0" not in seen:
                seen += client.stdout.readline()
            client.stdin.write("R\n")  # This command makes openssl s_client renegotiate.
            client.stdin.flush()
            rest, _ = client.communicate(timeout=PATIENCE)
        assert "no renegotiation" in rest, rest
    finally:
        broker.stop()


async def test_out_of_descriptors_every_door_waits_and_goes_on(
    start: Start, authority: Authority
) -> None:
    running = await start(**every_door(authority))
    async with working(running):
        clients = [socket.socket() for _ in range(12)]
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (max(client.fileno() for client in clients) + 3, hard)
        )
        try:
            for number, client in enumerate(clients):
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", running.port(("mqtts", "wss")[number % 2])))
            await running.until(lambda: running.node.admission.refused["descriptors"] > 0)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await running.until(lambda: len(running.node.turn.links) == len(clients) + 1)
        for client in clients:
            client.close()
        await running.until(lambda: len(running.node.turn.links) == 1)


# -- a thousand connections a second

#: Makes connections to PORT, RATE a second for SECONDS, sends HELLO (in hexadecimal digits) on
#: each, and closes it.
FLOOD: Final = """
import socket, sys, time
port, rate, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
hello = bytes.fromhex(sys.argv[4])
begun, made, waiting = time.monotonic(), 0, []
while (now := time.monotonic() - begun) < seconds:
    while made < now * rate:
        client = socket.socket()
        client.setblocking(False)
        client.connect_ex(("127.0.0.1", port))
        waiting.append((now, client))
        made += 1
    while waiting and waiting[0][0] < now - 0.05:
        client = waiting.pop(0)[1]
        try:
            client.send(hello)
            client.close()
        except OSError:
            client.close()
    time.sleep(0.001)
print(made)
"""


def hello() -> bytes:
    """Return the first data (ClientHello) of a TLS client, which costs the server a signature."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


def laps(client: Socket | socket.socket, seconds: float) -> list[float]:
    """Send pings for `seconds`; return the duration of each ping in seconds."""
    assert isinstance(client, socket.socket)
    taken, end = [], time.monotonic() + seconds
    while (begun := time.monotonic()) < end:
        client.sendall(b"\xc0\x00")
        assert client.recv(2) == b"\xd0\x00"
        taken.append(time.monotonic() - begun)
        time.sleep(0.001)
    return taken


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.parametrize("door", ["mqtt", "mqtts", "ws"])
def test_a_thousand_connections_a_second_are_hardly_noticed(
    authority: Authority, door: str
) -> None:
    """Measure the tail latency of a client while 1,000 others a second connect and disconnect.

    The bound is only an order of magnitude, because the broker, the attackers and the client may
    have to share two processors.
    """
    flags = ["--tls-certificate", str(authority.sign("localhost"))]
    for listener in ("mqtts", "ws"):
        flags += [f"--{listener}-enabled", "true", f"--{listener}-port", "0"]
    broker = BrokerProcess(*flags)
    first = {
        "mqtt": connect_packet("flood"),
        "mqtts": hello(),
        "ws": b"GET /ws HTTP/1.1\r\nHost: x\r\n",
    }[door]
    try:
        with socket.create_connection(broker.mqtt, PATIENCE) as client:
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            client.sendall(connect_packet("neighbour"))
            assert client.recv(4)[3] == 0
            calm = laps(client, 2.0)
            command = [
                sys.executable,
                "-c",
                FLOOD,
                str(broker.addresses[door].port),
                "1000",
                "4",
                first.hex(),
            ]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
                stormy = laps(client, 3.5)
                connections = int(flood.communicate(timeout=PATIENCE)[0])
            p99 = [statistics.quantiles(taken, n=100)[98] * 1000 for taken in (calm, stormy)]
            print(
                f"{door}: p99 {p99[0]:.2f} ms calm, {p99[1]:.2f} ms with {connections / 4:.0f} "
                "connections a second"
            )
            assert connections > 3_000
            assert p99[1] < max(10 * p99[0], 20.0)
    finally:
        broker.stop()
