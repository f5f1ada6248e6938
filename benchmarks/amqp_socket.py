"""An AMQP client over a bare socket, for the measuring programs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Final

import pamqp.body
import pamqp.commands as spec
import pamqp.frame
import pamqp.header

GREETING: Final = b"AMQP\x00\x00\x09\x01"
#: Seconds after which a request without an answer ends the measurement with an error.
PATIENCE: Final = 120.0
#: Requests in flight on each connection that declares queues or bindings.
FLIGHT: Final = 200


class AmqpSocket:
    """An AMQP client over a bare socket: writes bytes, counts the received frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.methods: dict[bytes, int] = {}
        #: The last delivery tag received on each channel.
        self.last: dict[int, int] = {}

    @classmethod
    async def connect(cls, port: int, channels: int, frame_max: int = 131_072) -> AmqpSocket:
        """Return a new client that has logged in and opened channels 1 to `channels`."""
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        client.write(GREETING + marshal(0, spec.Connection.StartOk({}, "PLAIN", "\0guest\0guest")))
        await client.wait_for(b"\x00\x0a\x00\x1e", 1)
        client.write(
            marshal(0, spec.Connection.TuneOk(2047, frame_max, 0))
            + marshal(0, spec.Connection.Open("/"))
        )
        client.write(
            b"".join(marshal(number, spec.Channel.Open()) for number in range(1, channels + 1))
        )
        await client.wait_for(b"\x00\x14\x00\x0b", channels)
        return client

    def write(self, data: bytes) -> None:
        """Write encoded frames to the broker."""
        self._writer.write(data)

    async def wait_for(self, method: bytes, count: int) -> None:
        """Wait for `count` frames of a method; `method` is its class id and method id, 4 bytes.

        Raises SystemExit if the broker closes the connection or a channel.
        """
        wanted = self.methods.get(method, 0) + count
        async with asyncio.timeout(PATIENCE):
            while self.methods.get(method, 0) < wanted:
                await self._frame()

    async def payload(self, method: bytes) -> bytes:
        """Wait for the next frame of a method, and return its payload."""
        async with asyncio.timeout(PATIENCE):
            while (payload := await self._frame())[:4] != method:
                pass
        return payload

    async def _frame(self) -> bytes:
        head = await self._reader.readexactly(7)
        payload = await self._reader.readexactly(int.from_bytes(head[3:], "big") + 1)
        if head[0] == 1:
            name = payload[:4]
            if name in (b"\x00\x0a\x00\x32", b"\x00\x14\x00\x28"):
                raise SystemExit(
                    f"the broker closed the connection or a channel, with the frame {payload!r}"
                )
            self.methods[name] = self.methods.get(name, 0) + 1
            if name == b"\x00\x3c\x00\x3c":
                tag = 5 + payload[4]
                self.last[int.from_bytes(head[1:3], "big")] = int.from_bytes(
                    payload[tag : tag + 8], "big"
                )
        return payload

    async def ask(self, requests: Iterable[bytes], answer: bytes) -> None:
        """Send the requests, at most FLIGHT at a time; wait until each is answered by the method
        `answer`.
        """
        flight: list[bytes] = []
        for request in requests:
            flight.append(request)
            if len(flight) == FLIGHT:
                self.write(b"".join(flight))
                await self.wait_for(answer, len(flight))
                flight.clear()
        if flight:
            self.write(b"".join(flight))
            await self.wait_for(answer, len(flight))

    def abort(self) -> None:
        """Close the socket without connection.close."""
        self._writer.transport.abort()


def marshal(channel: int, frame: Any) -> bytes:
    """Return the bytes of a frame, encoded by pamqp."""
    return pamqp.frame.marshal(frame, channel)


def publication(
    exchange: str,
    key: str,
    headers: dict[str, Any] | None = None,
    size: int = 100,
    delivery_mode: int = 1,
) -> bytes:
    """Return the bytes that publish a message on channel 1; by default a transient message.

    `size` is the size of the body in bytes.
    """
    properties = spec.Basic.Properties(headers=headers, delivery_mode=delivery_mode)
    return (
        marshal(1, spec.Basic.Publish(exchange=exchange, routing_key=key))
        + marshal(1, pamqp.header.ContentHeader(body_size=size, properties=properties))
        + marshal(1, pamqp.body.ContentBody(b"x" * size))
    )
