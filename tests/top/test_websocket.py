"""Tests of MQTT over WebSocket: accepted and refused clients, and protocol errors."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

from tests.authority import Authority
from tests.clients import connect_packet, mqtt_publish
from tests.top.conftest import Start
from tests.top.running import KNOWN, PATIENCE, Leaks, Mqtt0, Running

WS: Final = {"enabled": True, "port": 0, "host": "127.0.0.1"}
MIB: Final = 1 << 20


async def opened(
    running: Running, origin: str | None = None, host: str = "localhost"
) -> ClientConnection:
    subprotocols = [Subprotocol("mqtt")]
    return await connect(
        f"ws://{host}:{running.port('ws')}/ws",
        origin=origin,  # type: ignore[arg-type]
        subprotocols=subprotocols,
        max_size=None,
        proxy=None,
    )


async def logged_in(
    running: Running, user: str = "known/known", **options: Any
) -> ClientConnection:
    client = await opened(running, **options)
    await client.send(connect_packet("over-ws", user=user))
    assert await client.recv() == b"\x20\x02\x00\x00"
    return client


async def exactly(client: ClientConnection, count: int) -> bytes:
    data = b""
    async with asyncio.timeout(PATIENCE):
        while len(data) < count:
            message = await client.recv()
            assert isinstance(message, bytes)
            data += message
    return data


async def test_messages_of_any_size_go_both_ways_in_frames_of_any_size(
    start: Start,
) -> None:  # [MQTT-6.0.0-2]
    running = await start(ws=WS)
    client, plain = await logged_in(running), await running.mqtt("plain", user="known/known")
    await client.send(b"\x82\x06\x00\x01\x00\x01t\x00")
    assert await client.recv() == b"\x90\x03\x00\x01\x00"
    for size in (0, 1, 120, 70_000, 2 * MIB):
        sent = mqtt_publish("t", bytes(range(256)) * (size // 256) + bytes(size % 256))
        await plain.socket.send(sent)
        assert await exactly(client, len(sent)) == sent
        # The fragments of one WebSocket message.
        await client.send([sent[at : at + 30_000] for at in range(0, len(sent), 30_000)])
        assert await exactly(client, len(sent)) == sent
    await client.send(b"\xc0")
    await client.send(b"\x00")  # An MQTT packet divided into two WebSocket messages.
    assert await client.recv() == b"\xd0\x00"
    await plain.leave()
    await client.close()


async def test_pings_are_answered_and_a_close_is_a_lost_client(start: Start) -> None:
    running = await start(ws=WS)
    watcher = await running.mqtt("watcher", user="known/known")
    await watcher.subscribe("gone")
    client = await opened(running)
    await client.send(connect_packet("willing", user="known/known", will=("gone", b"sorry")))
    assert await client.recv() == b"\x20\x02\x00\x00"
    async with asyncio.timeout(PATIENCE):
        await (await client.ping(b"there?"))
    await client.close()
    assert client.close_code == 1000
    assert await watcher.packet() == (0x30, b"\x00\x04gonesorry")
    assert running.node.mqtt.closed == {"websocket_closed": 1}
    await watcher.leave()


async def closed(client: ClientConnection) -> int:
    """Read until the close frame, and return its code."""
    async with asyncio.timeout(PATIENCE):
        await client.wait_closed()
    assert client.close_code is not None
    return client.close_code


async def test_each_reason_for_a_close_has_its_code(start: Start) -> None:  # [MQTT-6.0.0-1]
    running = await start(ws=WS, mqtt={"port": 0, "max_packet": 1_000})
    for data, code in (
        (b"\xe0\x00", 1000),
        (b"\x00\x00", 1002),
        (b"\x30\x90\x4e", 1009),
        ("text", 1003),
    ):
        client = await logged_in(running)
        await client.send(data)
        assert await closed(client) == code
    client = await opened(running)
    await client.send(connect_packet("guesses", user="known/wrong"))
    assert await client.recv() == b"\x20\x02\x00\x04"
    assert await closed(client) == 1008
    client = await logged_in(running)
    running.app.stop()
    assert await closed(client) == 1001


async def test_listing_shows_the_client_of_a_websocket(start: Start) -> None:
    running = await start(ws=WS)
    client = await logged_in(running)
    (connection,) = running.node.mqtt.connections
    assert (connection.describe()["listener"], connection.describe()["user"]) == ("ws", "known")
    await client.close()


@pytest.mark.parametrize(
    ("anonymous", "origin", "code"),
    [
        ("loopback", None, 0),
        ("loopback", "http://localhost:8000", 0),
        ("loopback", "https://app.example", 5),
        ("true", "http://localhost:8000", 0),
        ("true", "https://app.example", 5),
        ("false", None, 5),
    ],
)
async def test_a_page_of_another_host_never_comes_in_without_a_user(
    start: Start, anonymous: str, origin: str | None, code: int
) -> None:
    running = await start(
        ws=WS | {"origins": "https://app.example"}, mqtt={"port": 0, "anonymous": anonymous}
    )
    client = await opened(running, origin)
    await client.send(connect_packet("nameless"))
    answer = await client.recv()
    assert isinstance(answer, bytes)
    assert answer[3] == code
    await client.close()


async def test_a_page_of_another_host_is_not_on_this_machine(start: Start) -> None:
    near = KNOWN | {"name": "near", "loopback_only": True}
    running = await start(ws=WS | {"origins": "*"}, users=[KNOWN, near])
    for origin, user, code in (
        (None, "near", 0),
        ("https://app.example", "near", 4),
        ("https://app.example", "known", 0),
    ):
        client = await opened(running, origin)
        await client.send(connect_packet("page", user=f"{user}/known"))
        answer = await client.recv()
        assert isinstance(answer, bytes)
        assert answer[3] == code
        await client.close()


async def test_origins_that_are_not_allowed_are_refused_and_counted(start: Start) -> None:
    running = await start(ws=WS)
    leaks = await Leaks.watch(running)
    for origin in ("https://evil.example", "null"):
        with pytest.raises(InvalidStatus) as raised:
            await opened(running, origin)
        assert raised.value.response.status_code == 403
        assert b"the setting ws.origins" in bytes(raised.value.response.body or b"")
    await leaks.check()
    page = await running.scrape()
    assert page.value("trellis_websocket_refused_total", listener="ws", reason="origin") == 2
    assert (
        page.value("trellis_connections_closed_total", protocol="mqtt", reason="websocket_refused")
        == 2
    )


FAULTS: Final = {
    "silent": (b"", b"", "timeout"),
    "half a request": (b"GET /ws HTTP/1.1\r\nHost: x\r\n", b"", "timeout"),
    "endless request": (b"GET /ws HTTP/1.1\r\nX: " + b"x" * 100_000, b"HTTP/1.1 431 ", "too_large"),
    "plain MQTT": (connect_packet("plain"), b"HTTP/1.1 400 ", "request"),
    "a page": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"HTTP/1.1 404 ", "path"),
}


async def test_a_request_that_is_no_upgrade_is_closed_and_counted(start: Start) -> None:
    running = await start(ws=WS, limits={"handshake": 1.0})
    neighbour = await running.mqtt("neighbour", user="known/known")
    leaks = await Leaks.watch(running)
    refused = running.node.listener_contexts["ws"].websocket.refused
    for name, (data, answer, reason) in FAULTS.items():
        before = refused.get(reason, 0)
        client = await running.socket("ws")
        await client.send(data)
        response = await client.read_to_end()
        assert response.startswith(answer) and bool(response) == bool(answer), name
        assert refused.get(reason, 0) == before + 1, name
    await leaks.check()
    page = await running.scrape()
    for reason, times in Counter(reason for _, _, reason in FAULTS.values()).items():
        assert page.value("trellis_websocket_refused_total", listener="ws", reason=reason) == times
    await neighbour.ping()
    await neighbour.leave()


async def test_client_that_disconnects_before_the_upgrade_is_counted(start: Start) -> None:
    running = await start(ws=WS)
    client = await running.socket("ws")
    await client.send(b"GET /ws")
    client.close()
    await running.until(lambda: running.node.listener_contexts["ws"].websocket.refused["lost"] == 1)


async def test_over_tls_a_certificate_may_be_the_user(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    running = await start(
        wss=WS | {"client_certificate": "required", "certificate_user": True},
        tls={"certificate": str(authority.sign("localhost")), "ca": str(authority.file)},
    )
    context = authority.client(authority.sign("x", common_name="known"))
    client = await connect(
        f"wss://localhost:{running.port('wss')}/ws",
        ssl=context,
        subprotocols=[Subprotocol("mqtt")],
        proxy=None,
    )
    await client.send(connect_packet("secure"))
    assert await client.recv() == b"\x20\x02\x00\x00"
    (connection,) = running.node.mqtt.connections
    assert (connection.describe()["listener"], connection.describe()["user"]) == ("wss", "known")
    await client.send(b"\xc0\x00")
    assert await client.recv() == b"\xd0\x00"
    await client.close()
    assert client.close_code == 1000
    await running.until(lambda: not running.node.turn.links)


async def test_the_subprotocol_is_mqtt(start: Start) -> None:  # [MQTT-6.0.0-4]
    running = await start(ws=WS)
    for offered in (["mqtt"], ["mqttv3.1", "mqtt"], ["other", "mqtt", "mqttv3.1"]):
        client = await connect(
            f"ws://localhost:{running.port('ws')}/ws",
            subprotocols=[Subprotocol(name) for name in offered],
            proxy=None,
        )
        assert client.subprotocol == "mqtt"
        await client.close()


async def test_mqtt_over_tcp_is_served_beside_mqtt_over_websocket(start: Start) -> None:
    running = await start(ws=WS)
    client, plain = await logged_in(running), await running.mqtt("plain", user="known/known")
    assert isinstance(plain, Mqtt0)
    await plain.ping()
    await plain.leave()
    await client.close()
