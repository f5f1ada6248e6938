"""Clients of the attacks in attacks.py and resource_attacks.py."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from typing import Any

import pamqp.commands as spec
from amqp_socket import PATIENCE, AmqpSocket, marshal, publication

#: Class and method identifiers of the broker's replies, 2 bytes each, and of basic.deliver.
DECLARED, BOUND = b"\x00\x32\x00\x0b", b"\x00\x32\x00\x15"
EXCHANGE_DECLARED, EXCHANGE_BOUND = b"\x00\x28\x00\x0b", b"\x00\x28\x00\x1f"
QOS_OK, CONFIRMED, SELECTED = b"\x00\x3c\x00\x0b", b"\x00\x3c\x00\x50", b"\x00\x55\x00\x0b"
DELIVERED, CONSUMING = b"\x00\x3c\x00\x3c", b"\x00\x3c\x00\x15"
TX_SELECTED, COMMITTED = b"\x00\x5a\x00\x0b", b"\x00\x5a\x00\x15"
DELETED, PURGED = b"\x00\x32\x00\x29", b"\x00\x32\x00\x1f"


class MqttSocket:
    """An MQTT 3.1.1 client over a bare socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int, name: str, keep_alive: int = 0) -> MqttSocket:
        """Return a client connected as guest, with the client identifier `name`.

        `keep_alive` is in seconds.
        """
        client = cls(*await asyncio.open_connection("127.0.0.1", port))
        body = b"\x00\x04MQTT\x04\xc2" + keep_alive.to_bytes(2, "big")
        body += _text(name) + _text("guest") + _text("guest")
        client.write(b"\x10" + bytes([len(body)]) + body)
        await client.packet()
        return client

    def write(self, data: bytes) -> None:
        """Write encoded packets to the broker."""
        self._writer.write(data)

    async def packet(self) -> bytes:
        """Wait for the broker's next packet, and return its bytes."""
        async with asyncio.timeout(PATIENCE):
            first = await self._reader.readexactly(1)
            size = shift = 0
            while True:
                digit = (await self._reader.readexactly(1))[0]
                size |= (digit & 127) << shift
                shift += 7
                if digit < 128:
                    return first + await self._reader.readexactly(size)

    async def subscribe(self, names: Iterable[str]) -> int:
        """Subscribe to the filters, 100 in a packet; return the number of refused filters."""
        left = iter(names)
        refused = 0
        while some := list(islice(left, 100)):
            body = b"\x00\x01" + b"".join(_text(name) + b"\x00" for name in some)
            self.write(b"\x82" + _length(len(body)) + body)
            refused += (await self.packet()).count(b"\x80")
        return refused

    async def publish(self, topics: Iterable[str]) -> None:
        """Publish a message with QoS 1 to each topic, and wait for all acknowledgements."""
        count = 0
        for count, topic in enumerate(topics, 1):
            body = _text(topic) + (count & 0x7FFF).to_bytes(2, "big") + b"x"
            self.write(b"\x32" + _length(len(body)) + body)
        while count:
            count -= (await self.packet())[0] == 0x40


def _text(value: str) -> bytes:
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def _length(size: int) -> bytes:
    digits = b""
    while size > 127:
        digits += bytes([size & 127 | 128])
        size >>= 7
    return digits + bytes([size])


class Attack:
    """The clients and the results of one attack."""

    def __init__(self, ports: dict[str, int], pid: int, directory: str) -> None:
        self.ports = ports
        #: The broker's process id, and the path of its data directory.
        self.pid = pid
        self.directory = directory
        #: Seconds from the end of the attack's cause (for example, from the purge of a full queue)
        #: until the broker serves its clients again.
        self.recovery = 0.0
        #: Seconds between the end of the attack and the measurement of the memory.
        self.rest = 2.0
        #: Further figures of the attack, as text.
        self.notes = ""
        #: True if `recovery` is the time that the broker needs to stop.
        self.measures_stop = False
        #: The client that prepares the attack. The time of the preparation is not counted.
        self.client: AmqpSocket

    async def amqp(self, channels: int = 1) -> AmqpSocket:
        """Connect and return a new AMQP client with this number of channels."""
        return await AmqpSocket.connect(self.ports["amqp"], channels)

    async def declare(self, names: Iterable[str], **arguments: Any) -> None:
        """Declare queues with these arguments, by the client that prepares the attack."""
        given = {name.replace("_", "-"): value for name, value in arguments.items()}
        await self.client.ask(
            (marshal(1, spec.Queue.Declare(queue=name, arguments=given)) for name in names),
            DECLARED,
        )

    async def fill(self, queue: str, count: int) -> None:
        """Publish `count` messages to a queue, and wait until the queue has them ready."""
        client = await self.amqp()
        client.write(marshal(1, spec.Confirm.Select()))
        await client.wait_for(SELECTED, 1)
        client.write(publication("", queue) * count)
        await self.depth(queue, count)
        client.abort()

    async def depth(self, queue: str, least: int, most: int = 1 << 60) -> None:
        """Wait until a queue holds at least `least` and at most `most` ready messages."""
        reader = await self.amqp()
        async with asyncio.timeout(PATIENCE):
            while True:
                declared = await ready_messages(reader, queue)
                if least <= declared <= most:
                    break
                await asyncio.sleep(0.05)
        reader.abort()


async def ready_messages(client: AmqpSocket, queue: str) -> int:
    """Return the number of ready messages of a queue."""
    client.write(marshal(1, spec.Queue.Declare(queue=queue, passive=True)))
    payload = await client.payload(DECLARED)
    at = 5 + payload[4]
    return int.from_bytes(payload[at : at + 4], "big")


async def answered(client: AmqpSocket) -> None:
    """Wait until the broker has handled all input of this client."""
    client.write(marshal(1, spec.Basic.Qos()))
    await client.wait_for(QOS_OK, 1)


#: A function that carries out a prepared attack.
Prepared = Callable[[], Awaitable[None]]
