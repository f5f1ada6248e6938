"""MQTT 3.1.1 packets as tests write and read them, and a client that sends and receives bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

from protocols.connection import Connection
from protocols.peer import Peer
from tests.clients import World, packet, text

PINGREQ: Final = b"\xc0\x00"
PINGRESP: Final = b"\xd0\x00"
DISCONNECT: Final = b"\xe0\x00"
#: CONNACK of a successful login: with session present 0, and with session present 1.
ACCEPTED: Final = b"\x20\x02\x00\x00"
RESUMED: Final = b"\x20\x02\x01\x00"

#: Flags of a PUBLISH.
RETAIN: Final = 1
DUP: Final = 8


class Will(NamedTuple):
    """The will in a CONNECT: topic, message, QoS and retain flag."""

    topic: str
    body: bytes
    qos: int = 0
    retain: bool = False


class Publication(NamedTuple):
    """The fields of a PUBLISH."""

    topic: str
    body: bytes
    qos: int = 0
    packet_id: int = 0
    retain: bool = False
    dup: bool = False


def binary(data: bytes) -> bytes:
    """Return the size of the data in two bytes, and the data."""
    return len(data).to_bytes(2, "big") + data


def connect(
    client_id: str = "c",
    *,
    clean: bool = True,
    will: Will | None = None,
    user: str | None = None,
    password: bytes | None = None,
    keep_alive: int = 60,
    name: bytes = b"MQTT",
    level: int = 4,
) -> bytes:
    flags = 2 if clean else 0
    payload = text(client_id)
    if will is not None:
        flags |= 4 | will.qos << 3 | will.retain << 5
        payload += text(will.topic) + binary(will.body)
    if user is not None:
        flags |= 0x80
        payload += text(user)
    if password is not None:
        flags |= 0x40
        payload += binary(password)
    return packet(
        0x10, binary(name) + bytes([level, flags]) + keep_alive.to_bytes(2, "big") + payload
    )


def short(first: int, packet_id: int) -> bytes:
    """Return a packet that consists of a fixed header and a packet identifier."""
    return bytes([first, 2]) + packet_id.to_bytes(2, "big")


def puback(packet_id: int) -> bytes:
    return short(0x40, packet_id)


def pubrec(packet_id: int) -> bytes:
    return short(0x50, packet_id)


def pubrel(packet_id: int) -> bytes:
    return short(0x62, packet_id)


def pubcomp(packet_id: int) -> bytes:
    return short(0x70, packet_id)


def unsuback(packet_id: int) -> bytes:
    return short(0xB0, packet_id)


def subscribe(packet_id: int, *filters: tuple[str, int]) -> bytes:
    return packet(
        0x82,
        packet_id.to_bytes(2, "big") + b"".join(text(name) + bytes([qos]) for name, qos in filters),
    )


def suback(packet_id: int, *codes: int) -> bytes:
    return packet(0x90, packet_id.to_bytes(2, "big") + bytes(codes))


def unsubscribe(packet_id: int, *filters: str) -> bytes:
    return packet(0xA2, packet_id.to_bytes(2, "big") + b"".join(text(name) for name in filters))


def packets(data: bytes) -> list[bytes]:
    """Return packets one by one; the data must be whole packets."""
    parts = []
    start = 0
    while start < len(data):
        length, shift, at = 0, 0, start + 1
        while True:
            length |= (data[at] & 127) << shift
            shift += 7
            at += 1
            if data[at - 1] < 128:
                break
        assert at + length <= len(data), "the data ends within a packet"
        parts.append(data[start : at + length])
        start = at + length
    return parts


def publications(data: bytes) -> list[Publication]:
    """Return the PUBLISH packets in the data."""
    return [_publication(one) for one in packets(data) if one[0] >> 4 == 3]


def _publication(data: bytes) -> Publication:
    flags, at = data[0] & 15, 2
    while data[at - 1] >= 128:
        at += 1
    mark = at + 2 + int.from_bytes(data[at : at + 2], "big")
    topic, qos = data[at + 2 : mark].decode(), flags >> 1 & 3
    packet_id = int.from_bytes(data[mark : mark + 2], "big") if qos else 0
    return Publication(
        topic, data[mark + (2 if qos else 0) :], qos, packet_id, bool(flags & 1), bool(flags & 8)
    )


class Client:
    """An MQTT 3.1.1 client that has sent a CONNECT; `greeting` is the broker's output after it."""

    def __init__(self, world: World, first: bytes, peer: Peer | None = None) -> None:
        self.world = world
        self.connection: Connection = world.mqtt_front.connect(peer or Peer())
        self.greeting = self.send(first)

    def send(self, *data: bytes) -> bytes:
        """Send all data as one chunk, and return the output."""
        self.connection.receive_data(b"".join(data))
        return self.read()

    def read(self) -> bytes:
        self.world.turn()
        data = self.connection.data_to_send()
        while (
            self.connection.behind and not self.connection.stalled and not self.connection.finished
        ):
            self.connection.resume()
            self.world.turn()
            data += self.connection.data_to_send()
        return data

    def all(self) -> bytes:
        """Run turns until the broker has no work left, and return the whole output."""
        data = self.read()
        while not self.world.broker.agenda.idle or self.connection.dirty:
            data += self.read()
        return data

    def vanish(self) -> None:
        """End the connection without a DISCONNECT, as if the network was lost."""
        self.connection.on_closed()
        self.world.turn()

    @property
    def closed(self) -> str:
        """The reason for which the connection was closed; empty while it is open."""
        return self.connection.reason if self.connection.finished else ""


def here(world: World, client_id: str = "c", clean: bool = True) -> Client:
    """Return a client of this world that is logged in."""
    client = Client(world, connect(client_id, clean=clean))
    assert client.greeting[:1] == b"\x20" and client.greeting[3] == 0
    return client
