"""The MQTT 5 clients of device_day.py, and their packets.

Each client checks what the broker sends: a packet that its state does not allow ends the program
with `DayFailed`. The packets are encoded and decoded here, so that the program finds mistakes of
the broker's codec.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import Counter
from typing import Final, cast

from trellis.bench.mqtt import packet, string

#: Properties of CONNECT: session expiry interval and receive maximum; of a will: delay interval.
SESSION_EXPIRY: Final = 0x11
RECEIVE_MAXIMUM: Final = 0x21
WILL_DELAY: Final = 0x18
CONNACK, PUBLISH, PUBACK, SUBACK, PINGRESP, DISCONNECT = 0x20, 0x30, 0x40, 0x90, 0xD0, 0xE0
#: The value of SO_LINGER with which `close` sends a reset, as when a device loses its power.
ABORT: Final = struct.pack("ii", 1, 0)
KEEP_ALIVE: Final = 60


class DayFailed(Exception):
    """Raised if the broker sent what it must not send, or lacks what it must have."""


def encoded_connect(
    name: str, expiry: int, will: tuple[str, bytes, int] | None = None, clean: bool = False
) -> bytes:
    """Encode CONNECT of the client `name`, whose session expires `expiry` seconds after its end.

    `will` is the topic, the body and the delay in seconds of a retained will with QoS 1.
    """
    flags = 2 * clean | (0x2C if will else 0)
    properties = struct.pack(">BIBH", SESSION_EXPIRY, expiry, RECEIVE_MAXIMUM, 100)
    rest = string("MQTT") + bytes([5, flags]) + KEEP_ALIVE.to_bytes(2, "big")
    rest += bytes([len(properties)]) + properties + string(name)
    if will:
        topic, body, delay = will
        rest += b"\x05" + struct.pack(">BI", WILL_DELAY, delay)
        rest += string(topic) + len(body).to_bytes(2, "big") + body
    return packet(0x10, rest)


def encoded_publish(topic: str, body: bytes, packet_id: int = 0, retain: bool = False) -> bytes:
    """Encode PUBLISH: with QoS 1 if `packet_id` is not 0, otherwise with QoS 0."""
    first = PUBLISH | (2 if packet_id else 0) | retain
    number = packet_id.to_bytes(2, "big") if packet_id else b""
    return packet(first, string(topic) + number + b"\0" + body)


def encoded_subscribe(topic_filter: str, packet_id: int) -> bytes:
    """Encode SUBSCRIBE with one topic filter and QoS 1."""
    return packet(0x82, packet_id.to_bytes(2, "big") + b"\0" + string(topic_filter) + b"\x01")


class Client(asyncio.Protocol):
    """A connection with one of the program's sessions.

    `connected` is set by CONNACK, and `closed` at the end of the connection.
    """

    def __init__(self, name: str, connect: bytes) -> None:
        self.name = name
        self.session_present = False
        self.connected: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.closed = asyncio.Event()
        #: True once this program has ended the connection.
        self.ending = False
        #: The answers that are awaited, by packet identifier.
        self.awaited: dict[int, asyncio.Future[None]] = {}
        self._connect = connect
        self._transport: asyncio.Transport | None = None
        self._input = b""
        self._last_id = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT."""
        # A transport of uvloop is no subclass of asyncio.Transport, but has its methods.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(self._connect)

    def connection_lost(self, error: Exception | None) -> None:
        """End all waits for answers: with an error, unless this program ended the connection."""
        self.closed.set()
        failure = DayFailed(f"client {self.name}: the broker ended the connection: {error}")
        for future in (self.connected, *self.awaited.values()):
            if not future.done():
                if self.ending:
                    future.cancel()
                else:
                    future.set_exception(failure)
        if not self.ending:
            self.on_wrong(failure)

    def data_received(self, data: bytes) -> None:
        """Handle the packets that are complete, and keep the rest of the input."""
        data = self._input + data
        at = 0
        try:
            while True:
                body_at, size, shift = at + 1, 0, 0
                while body_at < len(data):
                    size |= (data[body_at] & 127) << shift
                    shift += 7
                    body_at += 1
                    if data[body_at - 1] < 128:
                        break
                else:
                    break
                if body_at + size > len(data):
                    break
                self._on_packet(data[at], data[body_at : body_at + size])
                at = body_at + size
        except DayFailed as error:
            self.on_wrong(error)
        self._input = data[at:]

    def _on_packet(self, first: int, body: bytes) -> None:
        kind = first & 0xF0
        if kind == PUBLISH:
            size = int.from_bytes(body[:2], "big")
            topic, at = body[2 : 2 + size].decode(), 2 + size
            packet_id = 0
            if first & 6:
                packet_id = int.from_bytes(body[at : at + 2], "big")
                at += 2
            at += 1 + body[at]
            self.on_publish(topic, body[at:], bool(first & 1), bool(first & 8))
            if packet_id:
                self.send(packet(PUBACK, packet_id.to_bytes(2, "big")))
        elif kind in (PUBACK, SUBACK):
            future = self.awaited.pop(int.from_bytes(body[:2], "big"), None)
            if future is None:
                raise DayFailed(f"client {self.name}: an unknown packet identifier in {body!r}")
            reason = body[2] if kind == PUBACK and len(body) > 2 else 0
            reason = body[-1] if kind == SUBACK else reason
            if reason >= 128:
                raise DayFailed(f"client {self.name}: refused with reason code {reason:#x}")
            if not future.done():
                future.set_result(None)
        elif kind == CONNACK and not self.connected.done():
            if body[1]:
                raise DayFailed(f"client {self.name}: CONNACK has reason code {body[1]:#x}")
            self.session_present = bool(body[0] & 1)
            self.connected.set_result(None)
        elif kind != PINGRESP:
            raise DayFailed(f"client {self.name}: packet {first:#x} {body!r}")

    def on_wrong(self, error: DayFailed) -> None:
        """Handle a wrong answer, or the end of the connection by the broker."""
        raise NotImplementedError

    def on_publish(self, topic: str, body: bytes, retained: bool, again: bool) -> None:
        """Handle a message; `again` is its DUP flag."""
        raise NotImplementedError

    def send(self, data: bytes) -> None:
        """Write encoded packets, unless the connection has ended."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def ping(self) -> None:
        """Send PINGREQ."""
        self.send(b"\xc0\0")

    def publish(self, topic: str, body: bytes, retain: bool = False) -> asyncio.Future[None]:
        """Publish with QoS 1; the result is set by PUBACK."""
        packet_id, future = self._await_answer()
        self.send(encoded_publish(topic, body, packet_id, retain))
        return future

    def subscribe(self, topic_filter: str) -> asyncio.Future[None]:
        """Subscribe with QoS 1; the result is set by SUBACK."""
        packet_id, future = self._await_answer()
        self.send(encoded_subscribe(topic_filter, packet_id))
        return future

    def _await_answer(self) -> tuple[int, asyncio.Future[None]]:
        self._last_id = self._last_id % 65_535 + 1
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.awaited[self._last_id] = future
        return self._last_id, future

    def disconnect(self) -> None:
        """End the connection with DISCONNECT, which removes the will."""
        self.ending = True
        self.send(b"\xe0\0")
        if self._transport is not None:
            self._transport.close()

    def vanish(self) -> None:
        """End the connection with a reset, as a device without power does; its will stays."""
        self.ending = True
        if self._transport is not None:
            sock: socket.socket = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, ABORT)
            self._transport.abort()


class DayTally:
    """The counts of all clients, and the first wrong answer."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.wrong: DayFailed | None = None

    def stop(self, error: DayFailed) -> None:
        """Remember the first wrong answer, which ends the program."""
        self.wrong = self.wrong or error
