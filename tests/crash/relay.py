"""A TCP proxy between MQTT clients and a broker, which records all packets of both directions.

    client --> Relay --> broker        a packet is recorded before it is forwarded
    client <-- Relay <-- broker

Clients keep one address while the broker behind the proxy is killed and started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, NamedTuple

from tests.crash.wire import GONE

(CONNECT, CONNACK, PUBLISH, PUBREC, PUBREL, PUBCOMP) = (1, 2, 3, 5, 6, 7)
_NAMES: Final = {1: "CONNECT", 2: "CONNACK", 3: "PUBLISH", 5: "PUBREC", 6: "PUBREL", 7: "PUBCOMP"}
#: Kinds of packets that have a packet identifier at the start of their body.
_ANSWERS: Final = (PUBREC, PUBREL, PUBCOMP)
#: Bytes that the relay reads at once.
_CHUNK: Final = 1 << 16
#: Seconds between two attempts to reach the broker.
_RETRY: Final = 0.01


class Recorded(NamedTuple):
    """A packet that passed the network proxy.

    `moment` is in seconds since the start of the proxy. `connection` is the number of the
    connection; the proxy numbers the connections of all clients.
    """

    moment: float
    connection: int
    client: str
    from_client: bool
    kind: int
    packet_id: int
    duplicate: bool
    body: bytes

    def __str__(self) -> str:
        sender, receiver = (self.client, "broker") if self.from_client else ("broker", self.client)
        what = f" {self.body[:24].decode(errors='replace')}" if self.body else ""
        return (
            f"{self.moment:9.4f} s, connection {self.connection}: {sender} -> {receiver}"
            f" {_NAMES.get(self.kind, self.kind)} {self.packet_id}"
            f"{' DUP' if self.duplicate else ''}{what}"
        )


class Relay:
    """A network proxy that listens on one port for the whole test.

    For each connection of a client, it connects to the present port of the broker.
    """

    def __init__(self, patient: bool, level: int) -> None:
        """Create a proxy for clients of one protocol level: 4 or 5.

        While the broker is down, the proxy keeps new connections waiting if `patient` is True, and
        closes them if `patient` is False.
        """
        self.records: list[Recorded] = []
        #: The port of the broker; 0 while it is down.
        self.upstream = 0
        #: Called with each packet after it is recorded. If the result is False, the packet and all
        #: later packets of its connection are lost.
        self.trap: Callable[[Recorded], bool] | None = None
        self.port = 0
        self._patient = patient
        self._level = level
        self._connections = 0
        #: Time of the relay's start in seconds, by the clock of the event loop.
        self.started = 0.0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.started = asyncio.get_running_loop().time()
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Stop listening, and end all connections."""
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._connections += 1
        try:
            await self._connect(reader, writer, self._connections)
        except (*GONE, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _connect(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int
    ) -> None:
        """Connect a client to the broker, and forward packets until one side disconnects."""
        while True:
            try:
                if self.upstream:
                    broker = await asyncio.open_connection("127.0.0.1", self.upstream)
                    break
            except ConnectionError:
                pass
            if not self._patient:
                return
            await asyncio.sleep(_RETRY)
        connection = Connection(self, number, self._level)
        forward = asyncio.create_task(connection.pump(reader, broker[1], True))
        try:
            await connection.pump(broker[0], writer, False)
            if not connection.lost:
                # Let the client read everything that the broker has sent, and only then the end of
                # the stream.
                writer.write_eof()
                await forward
        finally:
            forward.cancel()
            await asyncio.gather(forward, return_exceptions=True)
            broker[1].close()


class Connection:
    """One connection of a client, through the relay."""

    def __init__(self, relay: Relay, number: int, level: int) -> None:
        #: True if a packet was lost, so that both directions end here.
        self.lost = False
        self._relay = relay
        self._number = number
        self._level = level
        self._client = ""

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, from_client: bool
    ) -> None:
        """Record and forward the packets of one direction until the sender disconnects."""
        data = b""
        while not self.lost:
            chunk = await reader.read(_CHUNK)
            data += chunk
            start = 0
            while not self.lost and (end := _end_of_packet(data, start)):
                if self._record(data[start:end], from_client):
                    if not writer.is_closing():
                        writer.write(data[start:end])
                    start = end
                else:
                    self.lost = True
            data = data[start:]
            if self.lost or not chunk:
                break
            if not writer.is_closing():
                await writer.drain()
        if from_client or self.lost:
            writer.close()

    def _record(self, packet: bytes, from_client: bool) -> bool:
        """Record a packet; return False if the relay must drop this packet and all later ones."""
        recorded = self._read(packet, from_client)
        relay = self._relay
        relay.records.append(recorded)
        return relay.trap is None or relay.trap(recorded)

    def _read(self, packet: bytes, from_client: bool) -> Recorded:
        kind = packet[0] >> 4
        at = 2
        while packet[at - 1] > 127:
            at += 1
        packet_id, body = 0, b""
        if kind == CONNECT:
            # Protocol name, level, flags and keep-alive, and the properties of level 5
            at += 10
            if self._level == 5:
                at = _end_of_properties(packet, at)
            size = int.from_bytes(packet[at : at + 2], "big")
            self._client = packet[at + 2 : at + 2 + size].decode()
        elif kind == PUBLISH:
            at += 2 + int.from_bytes(packet[at : at + 2], "big")
            if packet[0] & 6:
                packet_id = int.from_bytes(packet[at : at + 2], "big")
                at += 2
            body = packet[_end_of_properties(packet, at) if self._level == 5 else at :]
        elif kind in _ANSWERS:
            packet_id = int.from_bytes(packet[at : at + 2], "big")
        return Recorded(
            asyncio.get_running_loop().time() - self._relay.started,
            self._number,
            self._client,
            from_client,
            kind,
            packet_id,
            kind == PUBLISH and bool(packet[0] & 8),
            body,
        )


def _end_of_packet(data: bytes, start: int) -> int:
    """Return the position after the packet that begins at `start`; 0 for an incomplete packet."""
    length, shift, at = 0, 0, start + 1
    while at < len(data):
        length |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return at + length if at + length <= len(data) else 0
    return 0


def _end_of_properties(data: bytes, at: int) -> int:
    """Return the position after the properties; their length is at position `at`."""
    length = shift = 0
    while True:
        length |= (data[at] & 127) << shift
        shift += 7
        at += 1
        if data[at - 1] < 128:
            return at + length
