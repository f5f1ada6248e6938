"""Tests that permissions have the same effect over AMQP and MQTT, on every listener."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, Final

import pamqp.commands as spec
import pytest
from websockets import ClientConnection, Subprotocol
from websockets.asyncio.client import connect

from broker.messages.fates import DENIED
from protocols.amqp.connection.handshake import GREETING
from tests.authority import Authority
from tests.clients import marshal, mqtt_publish, publication, start_ok
from tests.top.conftest import Start
from tests.top.running import KNOWN, PATIENCE, Amqp0, Mqtt0, Running, Socket, Stream
from tests.wire.mqtt.client import subscribe

AMQP: Final = ("amqp", "amqps", "amqp by a file")
MQTT: Final = ("mqtt", "mqtts", "ws", "wss", "mqtt by a file")

USERS: Final[dict[str, dict[str, Any]]] = {
    "all": {},
    "unknown": {"configure": "", "write": "", "read": ""},
    # Binding a queue requires permission to write to the queue and to read from the exchange.
    "reader": {"configure": "", "write": "^q$", "read": r"^amq\.topic$"},
    "writer": {"configure": "", "write": r"^(amq\.topic|q)$", "read": ""},
    "fenced": {
        "rules": [
            "deny all open/but/not/this",
            "allow publish {username}/#",
            "allow subscribe open/#",
        ]
    },
    "denied": {"rules": ["deny all secret/#", "allow all #"]},
}
#: (action, topic) -> the users that may do it. A user with a rule that denies some topics may
#: subscribe to MQTT's `#` and receives the other topics; an AMQP binding is refused instead.
TABLE: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("subscribe", "open/a"): ("all", "reader", "fenced", "denied"),
    ("subscribe", "open/but/not/this"): ("all", "reader", "denied"),
    ("subscribe", "secret/a"): ("all", "reader"),
    ("subscribe", "secret/#"): ("all", "reader"),
    ("subscribe", "fenced/a"): ("all", "reader", "denied"),
    ("publish", "open/a"): ("all", "writer", "denied"),
    ("publish", "secret/a"): ("all", "writer"),
    ("publish", "fenced/a"): ("all", "writer", "fenced", "denied"),
}
PARTS: Final = {
    "#": {"fenced", "denied", "all", "reader"},
    "open/#": {"fenced", "denied", "all", "reader"},
}


class Framed(Socket):
    """A WebSocket client as a stream of bytes."""

    def __init__(self, client: ClientConnection) -> None:
        self._client = client
        self._buffer = b""

    async def send(self, data: bytes) -> None:
        await self._client.send(data)

    async def read(self, most: int = 1 << 16) -> bytes:
        if not self._buffer:
            async with asyncio.timeout(PATIENCE):
                some = await self._client.recv()
            assert isinstance(some, bytes)
            self._buffer = some
        data, self._buffer = self._buffer[:most], self._buffer[most:]
        return data

    async def leave(self) -> None:
        await self._client.close()


class Doors:
    """A broker with every listener.

    `socket` opens a connection to the listener with the name `door`, such as `amqps` or `ws`.
    """

    def __init__(self, running: Running, authority: Authority, directory: Path) -> None:
        self.running = running
        self._authority = authority
        self._directory = directory

    @classmethod
    async def open(cls, start: Start, authority: Authority, directory: Path) -> Doors:
        listener = {"enabled": True, "port": 0, "host": "127.0.0.1"}
        secured = dict.fromkeys(("amqps", "mqtts", "wss", "ws"), listener)
        plain = {name: {"socket": str(directory / name)} for name in ("amqp", "mqtt")}
        running = await start(
            users=[KNOWN | {"name": name} | rights for name, rights in USERS.items()],
            **secured,
            **plain,
            tls={
                "certificate": str(authority.sign("localhost", file="server.pem")),
                "ca": str(authority.file),
            },
        )
        return cls(running, authority, directory)

    async def socket(self, door: str) -> Socket:
        running = self.running
        if door.endswith("file"):
            return Stream(
                *await asyncio.open_unix_connection(str(self._directory / door.split()[0]))
            )
        context = self._authority.client() if door in ("amqps", "mqtts", "wss") else None
        if door in ("ws", "wss"):
            scheme = (
                f"{door}://localhost:{running.port(door)}/ws"
                if context
                else f"{door}://127.0.0.1:{running.port(door)}/ws"
            )
            return Framed(
                await connect(scheme, ssl=context, subprotocols=[Subprotocol("mqtt")], proxy=None)
            )
        return await running.socket(door) if context is None else await running.tls(door, context)

    def denied(self) -> int:
        return sum(
            one.fates[DENIED]
            for one in self.running.node.broker.vhosts["/"].contexts.ingress_counters().values()
        )


async def mqtt_may(doors: Doors, door: str, user: str) -> set[tuple[str, str]]:
    """Try each (action, topic) of TABLE over MQTT, at one listener; return the allowed ones."""
    socket = await doors.socket(door)
    client = Mqtt0(socket)
    assert await client.connect(f"{door} {user}", user=f"{user}/known") == 0
    may = set()
    for action, topic in [*TABLE, *(("subscribe", part) for part in PARTS)]:
        if action == "subscribe":
            await socket.send(subscribe(1, (topic, 1)))
            allowed = (await socket.exactly(5))[4] == 1
        else:
            before = doors.denied()
            await socket.send(mqtt_publish(topic, b"", 1, 1))
            while (packet := await client.packet())[0] != 0x40:
                pass  # Other packets are messages to the client's own subscription.
            allowed = doors.denied() == before
            assert packet == (0x40, b"\x00\x01")
        if allowed:
            may.add((action, topic))
    if isinstance(socket, Framed):
        await socket.leave()
    else:
        socket.close()
    return may


async def amqp_may(doors: Doors, door: str, user: str) -> set[tuple[str, str]]:
    """Try each (action, topic) of TABLE over AMQP, at one listener; return the allowed ones."""
    socket = await doors.socket(door)
    client = Amqp0(socket)
    await client.log_in(user, "known")
    may = set()
    for action, topic in TABLE:
        key = topic.replace("/", ".")
        if action == "subscribe":
            await socket.send(
                marshal(1, spec.Queue.Bind(queue="q", exchange="amq.topic", routing_key=key))
            )
        else:
            await socket.send(
                publication("amq.topic", key, b"x") + marshal(1, spec.Basic.Qos(prefetch_count=1))
            )
        if isinstance(close := await client.frame(), spec.Channel.Close):
            assert close.reply_code == 403
            await socket.send(marshal(1, spec.Channel.CloseOk()))
            await client.call(spec.Channel.Open(), spec.Channel.OpenOk)
        else:
            may.add((action, topic))
    socket.close()
    return may


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("door", [*AMQP, *MQTT])
async def test_users_have_the_rights_in_the_table_on_every_listener(
    start: Start, authority: Authority, tmp_path: Path, door: str
) -> None:
    doors = await Doors.open(start, authority, tmp_path)
    doors.running.node.broker.vhosts["/"].declare_queue("q", durable=True)
    for user in USERS:
        expected = {cell for cell, who in TABLE.items() if user in who}
        if door in MQTT:
            expected |= {("subscribe", part) for part, who in PARTS.items() if user in who}
            assert await mqtt_may(doors, door, user) == expected, user
        else:
            assert await amqp_may(doors, door, user) == expected, user


@pytest.mark.asyncio(loop_factories=["uvloop"])
@pytest.mark.parametrize("door", [*AMQP, *MQTT])
async def test_a_wrong_password_and_an_unknown_name_are_refused_alike(
    start: Start, authority: Authority, tmp_path: Path, door: str
) -> None:
    doors = await Doors.open(start, authority, tmp_path)
    answers = []
    for user, password in (("all", "wrong"), ("stranger", "known")):
        socket = await doors.socket(door)
        if door in MQTT:
            answers.append(str(await Mqtt0(socket).connect("c", user=f"{user}/{password}")))
        else:
            client = Amqp0(socket)
            await socket.send(GREETING)
            await client.expect(spec.Connection.Start)
            await socket.send(start_ok(user, password))
            close = await client.expect(spec.Connection.Close)
            assert close.reply_code == 403
            answers.append(close.reply_text)
        if isinstance(socket, Framed):
            await socket.leave()
        else:
            socket.close()
    assert answers[0] == answers[1]
