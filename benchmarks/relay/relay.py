"""A blind relay: sends received bytes to every subscriber without parsing them. The relay's cost is
a lower bound of a broker's cost.

    relay.py [--writer] [PORT]        serves on loopback, prints `ready PORT`; needs uvloop

There are two lower bounds:

    relay    each chunk from a publisher goes to every subscriber through uvloop's transports, as in
             a broker
    writer   the same chunk goes to the same sockets by one write(2) each, past the event loop: the
             kernel's cost alone

The relay answers only handshakes, so that a load tool accepts the relay as a broker. A connection
has two states:

    greeting   MQTT 3.1.1 and 5: CONNECT -> CONNACK, SUBSCRIBE -> SUBACK (the connection becomes a
               subscriber), PINGREQ -> PINGRESP; the relay waits for the rest of a packet
    blind      from the client's first PUBLISH on: chunks are forwarded as they arrive, to all
               subscribers except the sender

The relay can replace a broker if every message goes to every subscriber with QoS 0 and every chunk
ends at the end of a message (which is so while no publisher's socket is full). The measuring
program must check the received messages.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import select
from typing import cast

import uvloop

CONNECT, PUBLISH, SUBSCRIBE, PINGREQ, DISCONNECT = 1, 3, 8, 12, 14
#: DISCONNECT and PINGREQ. A blind connection does not forward a chunk that is one of them.
_FAREWELLS = (b"\xe0\x00", b"\xc0\x00")


class RelayConnection(asyncio.Protocol):
    """A connection of the relay to one client."""

    def __init__(self, subscribers: list[RelayConnection]) -> None:
        self._subscribers = subscribers
        self._greeting: bytes | None = (
            b""  # the part of the handshake not yet parsed; None when blind
        )
        self._level = 4

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport of the new connection."""
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        """Remove the connection from the subscribers."""
        if self in self._subscribers:
            self._subscribers.remove(self)

    def data_received(self, data: bytes) -> None:
        """Answer the handshake, or forward the data."""
        if self._greeting is not None:
            data = self._greet(self._greeting + data)
        if data and data not in _FAREWELLS:
            self.relay(data)

    def relay(self, data: bytes) -> None:
        """Forward the data to all other subscribers."""
        for subscriber in self._subscribers:
            if subscriber is not self:
                subscriber.transport.write(data)

    def _greet(self, data: bytes) -> bytes:
        """Answer the packets of a handshake; return the data after them, to be forwarded."""
        while len(data) >= 2:
            kind = data[0] >> 4
            if kind == PUBLISH:
                self._greeting = None
                return data
            length, start = _length(data)
            if start == 0 or len(data) < start + length:
                break
            self._answer(kind, data[start : start + length])
            data = data[start + length :]
        self._greeting = data
        return b""

    def _answer(self, kind: int, body: bytes) -> None:
        if kind == CONNECT:
            self._level = body[2 + int.from_bytes(body[:2])]
            self.transport.write(
                b"\x20\x03\x00\x00\x00" if self._level == 5 else b"\x20\x02\x00\x00"
            )
        elif kind == SUBSCRIBE:
            granted = bytes(_requested(body, self._level))
            rest = body[:2] + (b"\x00" if self._level == 5 else b"") + granted
            self.transport.write(bytes((0x90, len(rest))) + rest)
            if self not in self._subscribers:
                self._subscribers.append(self)
        elif kind == PINGREQ:
            self.transport.write(b"\xd0\x00")
        elif kind == DISCONNECT:
            self.transport.close()


class WritingConnection(RelayConnection):
    """A connection that writes chunks to its client by write(2), past the event loop."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # This object writes with the transport's own descriptor: a duplicate for each socket would
        # halve the number of possible clients.
        self._descriptor: int = transport.get_extra_info("socket").fileno()

    def relay(self, data: bytes) -> None:
        for subscriber in self._subscribers:
            if subscriber is not self:
                cast(WritingConnection, subscriber).send(data)

    def send(self, data: bytes) -> None:
        """Write all data, blocking while the socket is full."""
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:
                writable = select.poll()
                writable.register(self._descriptor, select.POLLOUT)
                writable.poll()
            except OSError:
                return  # The client has disconnected; connection_lost follows.


def _length(data: bytes) -> tuple[int, int]:
    """Return a packet's remaining length ([MQTT-1.5.5]), and the index of the byte after it.

    Return 0, 0 if the remaining length is incomplete.
    """
    length = 0
    for index in range(1, min(5, len(data))):
        length |= (data[index] & 127) << 7 * (index - 1)
        if data[index] < 128:
            return length, index + 1
    return 0, 0


def _requested(body: bytes, level: int) -> list[int]:
    """Return the QoS of every filter in a SUBSCRIBE."""
    # The length of the properties is one byte, because no load tool sends 128 bytes of properties.
    at = 3 + body[2] if level == 5 else 2
    qos_levels = []
    while at < len(body):
        at += 2 + int.from_bytes(body[at : at + 2])
        qos_levels.append(body[at] & 3)
        at += 1
    return qos_levels


async def serve(port: int, kind: type[RelayConnection]) -> None:
    """Accept connections of this kind on this port until the task is cancelled."""
    subscribers: list[RelayConnection] = []
    server = await asyncio.get_running_loop().create_server(
        lambda: kind(subscribers), "127.0.0.1", port, backlog=4096
    )
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Parse the command line, and serve as relay or as writer."""
    parser = argparse.ArgumentParser(
        description="A blind relay: the lower bound of a broker's cost."
    )
    parser.add_argument(
        "--writer", action="store_true", help="write to the sockets directly, past the event loop"
    )
    parser.add_argument(
        "port",
        nargs="?",
        type=int,
        default=0,
        help="the port to listen on [a free port]",
    )
    arguments = parser.parse_args()
    uvloop.run(serve(arguments.port, WritingConnection if arguments.writer else RelayConnection))


if __name__ == "__main__":
    main()
