"""Connections to a broker that is killed: they send methods and packets, and return events."""

from __future__ import annotations

import asyncio
import base64
import functools
import json
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import pamqp.commands as spec

from protocols.amqp.connection.handshake import GREETING
from tests.clients import connect_packet, marshal, mqtt_publish, packet, publication, start_ok, text

#: Exceptions that a connection raises when the broker has ended.
GONE: Final = (ConnectionError, asyncio.IncompleteReadError)
PATIENCE: Final = 20.0
#: Seconds between two checks of the condition in `until`.
GLANCE: Final = 0.001


class Refused(AssertionError):
    """Raised if the broker closes a connection or channel whose client violated no rule."""


class Confirmed(NamedTuple):
    """An event: the broker's basic.ack for the delivery tag `number`.

    If `multiple` is True, the event confirms all tags up to this number.
    """

    number: int
    multiple: bool


class Delivered(NamedTuple):
    """An event: basic.deliver, with its content."""

    tag: int
    consumer: str
    body: bytes
    #: Content header: class, weight, size, flags and properties.
    header: bytes
    redelivered: bool


class Answered(NamedTuple):
    """An event: a method other than basic.ack and basic.deliver."""

    method: tuple[int, int]
    arguments: bytes


class Socket:
    """A TCP connection to the broker, on which Amqp and Mqtt send and receive."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        if self.writer.transport.is_closing():
            raise ConnectionResetError("the broker has closed the connection")
        self.writer.write(data)
        await self.writer.drain()

    def abort(self) -> None:
        """Close the socket without sending connection.close or DISCONNECT."""
        self.writer.transport.abort()


class Amqp(Socket):
    """An AMQP connection with channel 1."""

    @classmethod
    async def connect(cls, port: int) -> Amqp:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client.writer.write(GREETING)
        await client.answer((10, 10))
        client.writer.write(start_ok("guest", "guest"))
        await client.answer((10, 30))
        client.writer.write(
            marshal(0, spec.Connection.TuneOk(2047, 131_072, 0))
            + marshal(0, spec.Connection.Open())
        )
        await client.answer((10, 41))
        await client.call(spec.Channel.Open(), (20, 11))
        return client

    async def call(self, method: Any, answer: tuple[int, int]) -> bytes:
        """Send a method; return the encoded arguments of its reply, which must be the next event.

        `answer` is (class id, method id) of the reply.
        """
        await self.send(marshal(1, method))
        return await self.answer(answer)

    async def answer(self, method: tuple[int, int]) -> bytes:
        event = await self.event()
        assert isinstance(event, Answered) and event.method == method, (
            f"{event} instead of {method}"
        )
        return event.arguments

    async def event(self) -> Confirmed | Delivered | Answered:
        kind, payload = await self._frame()
        assert kind == 1, f"a frame of type {kind}"
        method = int.from_bytes(payload[:2], "big"), int.from_bytes(payload[2:4], "big")
        if method == (60, 80):
            return Confirmed(int.from_bytes(payload[4:12], "big"), bool(payload[12]))
        if method == (60, 60):
            end = 5 + payload[4]
            _, header = await self._frame()
            size, body = int.from_bytes(header[4:12], "big"), b""
            while len(body) < size:
                body += (await self._frame())[1]
            return Delivered(
                int.from_bytes(payload[end : end + 8], "big"),
                payload[5:end].decode(),
                body,
                header,
                bool(payload[end + 8]),
            )
        if method in ((10, 50), (20, 40)):
            raise Refused(payload[4:].decode(errors="replace"))
        return Answered(method, payload[4:])

    async def _frame(self) -> tuple[int, bytes]:
        head = await self.reader.readexactly(7)
        return head[0], (await self.reader.readexactly(int.from_bytes(head[3:7], "big") + 1))[:-1]

    async def consume(
        self, queue: str, prefetch: int = 0, no_ack: bool = False, **arguments: Any
    ) -> None:
        """Consume a queue; the consumer tag is the queue's name. In names of arguments, `_` becomes
        `-`."""
        if prefetch:
            await self.call(spec.Basic.Qos(0, prefetch), (60, 11))
        await self.call(
            spec.Basic.Consume(
                queue=queue,
                consumer_tag=queue,
                no_ack=no_ack,
                arguments={name.replace("_", "-"): value for name, value in arguments.items()},
            ),
            (60, 21),
        )

    async def depth(self, queue: str) -> int:
        """Return the number of waiting messages in the queue."""
        data = await self.call(spec.Queue.Declare(queue=queue, passive=True), (50, 11))
        at = 1 + data[0]
        return int.from_bytes(data[at : at + 4], "big")

    async def leave(self) -> None:
        """Close the connection by connection.close, and wait for connection.close-ok."""
        await self.send(marshal(0, spec.Connection.Close(200, "bye", 0, 0)))
        while True:
            event = await self.event()
            if isinstance(event, Answered) and event.method == (10, 51):
                break
        self.writer.close()


class Mqtt(Socket):
    """An MQTT 3.1.1 connection. `present` is the session-present flag of its CONNACK."""

    present = False

    @classmethod
    async def connect(cls, port: int, client_id: str, clean: bool = False) -> Mqtt:
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        await client.send(connect_packet(client_id, clean))
        first, body = await client.packet()
        assert first == 0x20 and body[1] == 0, f"CONNACK {body.hex()}"
        client.present = bool(body[0])
        return client

    async def packet(self) -> tuple[int, bytes]:
        """Wait for the next packet; return its first byte, and its bytes after Remaining Length."""
        first, size_byte = await self.reader.readexactly(2)
        length, shift = size_byte & 127, 7
        while size_byte > 127:
            size_byte = (await self.reader.readexactly(1))[0]
            length |= (size_byte & 127) << shift
            shift += 7
        return first, await self.reader.readexactly(length) if length else b""

    async def subscribe(self, *filters: tuple[str, int]) -> None:
        await self.send(
            packet(0x82, b"\x00\x01" + b"".join(text(name) + bytes([qos]) for name, qos in filters))
        )
        answer = await self.packet()
        assert answer == (0x90, b"\x00\x01" + bytes([qos for _, qos in filters])), answer

    async def unsubscribe(self, *filters: str) -> None:
        await self.send(packet(0xA2, b"\x00\x01" + b"".join(map(text, filters))))
        assert await self.packet() == (0xB0, b"\x00\x01")

    async def leave(self) -> None:
        await self.send(b"\xe0\x00")
        assert await self.reader.read() == b""
        self.writer.close()


class Publication(NamedTuple):
    """The fields of an MQTT PUBLISH."""

    topic: str
    qos: int
    packet_id: int
    body: bytes
    duplicate: bool


def read_publish(first: int, data: bytes) -> Publication:
    end = 2 + int.from_bytes(data[:2], "big")
    qos = first >> 1 & 3
    start = end + 2 if qos else end
    return Publication(
        data[2:end].decode(),
        qos,
        int.from_bytes(data[end:start], "big"),
        data[start:],
        bool(first & 8),
    )


def short(first: int, packet_id: int) -> bytes:
    """Return an MQTT packet that consists of its first byte and a packet identifier, such as
    PUBACK."""
    return bytes([first, 2]) + packet_id.to_bytes(2, "big")


def mqtt_message(topic: str, body: bytes, qos: int, packet_id: int, flags: int = 0) -> bytes:
    return mqtt_publish(topic, body, qos, packet_id, flags)


def persistent(exchange: str, key: str, body: bytes) -> bytes:
    """Return the frames that publish a persistent message on channel 1."""
    return _head(exchange, key, len(body)) + body + b"\xce"


@functools.cache
def _head(exchange: str, key: str, size: int) -> bytes:
    return publication(exchange, key, bytes(size), delivery_mode=2)[: -size - 1]


def acknowledgement(tag: int, multiple: bool = False) -> bytes:
    return (
        b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"
        + tag.to_bytes(8, "big")
        + bytes([multiple])
        + b"\xce"
    )


async def until(truth: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait until a condition is true. Raises TimeoutError after `patience` seconds."""
    async with asyncio.timeout(patience):
        while True:
            if truth():
                return
            await asyncio.sleep(GLANCE)


async def listing(port: int, kind: str) -> list[dict[str, Any]]:
    """Return the rows of `trellis list KIND` for the broker with this HTTP port."""
    sock = Socket(*await asyncio.open_connection("127.0.0.1", port))
    login = base64.b64encode(b"guest:guest").decode()
    await sock.send(
        f"GET /api/trellis/{kind} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Authorization: Basic {login}\r\n\r\n".encode()
    )
    head, _, body = (await sock.reader.read(-1)).partition(b"\r\n\r\n")
    sock.writer.close()
    assert head.startswith(b"HTTP/1.1 200"), head
    rows: list[dict[str, Any]] = json.loads(body)
    return rows
