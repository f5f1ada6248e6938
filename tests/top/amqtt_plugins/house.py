"""A broker without sockets whose amqtt plugins decide logins before its accounts, and clients."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pamqp.commands as spec
import pamqp.frame

from broker.broker import Broker
from broker.limits import BrokerLimits
from broker.messages.fates import MESSAGE_FATES
from broker.messages.outlet import FunctionSender
from broker.store.memory import MemoryStore
from protocols.amqp.connection.handshake import GREETING
from protocols.amqp.front import AmqpFront
from protocols.amqp.options import AmqpOptions
from protocols.connection import Connection
from protocols.mqtt.front import MqttFront
from protocols.peer import Peer
from tests.top.amqtt_plugins.plugins import Hangs
from trellis.auth.amqtt_plugins import PluginAuthenticator
from trellis.auth.authenticate import Accounts

AFAR = Peer("192.0.2.7", 1, False)
ACCEPTED, UNAVAILABLE, BAD_CREDENTIALS, NOT_AUTHORISED = 0, 3, 4, 5


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def packet(first: int, body: bytes) -> bytes:
    assert len(body) < 128
    return bytes([first, len(body)]) + body


def connect(user: str | None, password: str | bytes | None, client_id: str) -> bytes:
    flags = 2 | (128 if user is not None else 0) | (64 if password is not None else 0)
    return packet(
        0x10,
        text("MQTT")
        + bytes([4, flags, 0, 0])
        + text(client_id)
        + b"".join(text(part) for part in (user, password) if part is not None),
    )


def publish(topic: str, body: bytes = b"x") -> bytes:
    return packet(0x30, text(topic) + body)


def subscribe(*filters: str) -> bytes:
    return packet(
        0x82, b"\x00\x01" + b"".join(text(topic_filter) + b"\x00" for topic_filter in filters)
    )


class House:
    """A broker with both front ends, whose authenticator asks the plugins before the accounts."""

    def __init__(
        self, plugins: dict[str, dict[str, object]], accounts: Accounts, **limits: Any
    ) -> None:
        self.authenticator = PluginAuthenticator(plugins, accounts, **limits)
        ids = itertools.count()
        self.broker = Broker(
            MemoryStore(), self.authenticator, lambda: f"id-{next(ids)}", BrokerLimits()
        )
        self.mqtt = MqttFront(self.broker)
        self.amqp = AmqpFront(self.broker, AmqpOptions())

    def close(self) -> None:
        Hangs.released.set()
        self.authenticator.close()

    async def join(
        self,
        user: str | None = None,
        password: str | bytes | None = None,
        client_id: str = "c",
        peer: Peer | None = None,
    ) -> Client:
        """Return an MQTT client that has its CONNACK."""
        client = Client(self, self.mqtt.connect(peer or Peer()))
        client.greeting = await client.ask(connect(user, password, client_id))
        return client

    async def quiet(self) -> None:
        """Wait until no login waits for a plugin."""
        for _ in iter(lambda: self.authenticator.waiting, 0):
            await asyncio.sleep(0)

    async def code(self, *who: Any, **more: Any) -> int:
        """Connect an MQTT client, and return the return code of its CONNACK."""
        return (await self.join(*who, **more)).greeting[3]

    async def join_amqp(self, user: str, password: str, peer: Peer | None = None) -> Client:
        """Return an AMQP client on channel 1; if the login fails, its `greeting` is the refusal."""
        client = Client(self, self.amqp.connect(peer or Peer()))
        properties: Any = {"capabilities": {"authentication_failure_close": True}}
        await client.ask(GREETING)
        client.greeting = await client.ask(
            marshal(0, spec.Connection.StartOk(properties, response=f"\0{user}\0{password}"))
        )
        if isinstance(client.frames(client.greeting)[0], spec.Connection.Tune):
            await client.ask(
                marshal(0, spec.Connection.TuneOk(2047, 131_072, 0))
                + marshal(0, spec.Connection.Open())
                + marshal(1, spec.Channel.Open())
            )
        return client

    def fates(self) -> dict[str, int]:
        ingress = self.broker.vhosts["/"].contexts.ingress_counters().values()
        totals = [sum(counts) for counts in zip(*(one.fates for one in ingress), strict=True)]
        return {name: count for name, count in zip(MESSAGE_FATES, totals, strict=True) if count}


class Client:
    def __init__(self, house: House, connection: Connection) -> None:
        self.house = house
        self.connection = connection
        self.greeting = b""

    async def ask(self, data: bytes) -> bytes:
        """Send data, wait until no login waits for its verdict, and return the broker's output."""
        woken = asyncio.Event()
        self.connection.sender = FunctionSender(woken.set)
        self.connection.receive_data(data)
        while self.connection.stalled:
            await asyncio.wait_for(woken.wait(), 30)
            woken.clear()
        self.house.broker.agenda.turn()
        return self.connection.data_to_send()

    def frames(self, data: bytes) -> list[Any]:
        frames = []
        while data:
            size, _, frame = pamqp.frame.unmarshal(data)
            frames.append(frame)
            data = data[size:]
        return frames

    async def send(self, *methods: Any) -> list[Any]:
        """Send AMQP methods on channel 1, and return the broker's replies."""
        return self.frames(await self.ask(b"".join(marshal(1, method) for method in methods)))

    async def publish(self, exchange: str, key: str) -> list[Any]:
        body = pamqp.header.ContentHeader(body_size=1, properties=spec.Basic.Properties())
        return await self.send(
            spec.Basic.Publish(exchange=exchange, routing_key=key),
            body,
            pamqp.body.ContentBody(b"x"),
        )


def marshal(channel: int, frame: Any) -> bytes:
    return pamqp.frame.marshal(frame, channel)


Build = Callable[..., House]
