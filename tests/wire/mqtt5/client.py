"""MQTT 5 clients of the broker's real front end.

They read and write packets with the package mqtt5, not with the broker's codec.
"""

from __future__ import annotations

from typing import Any

import mqtt5

from protocols.connection import Connection
from protocols.peer import Peer
from tests.clients import World, packet, text
from tests.wire.mqtt.client import packets

Q0, Q1, Q2 = mqtt5.QoS.AT_MOST_ONCE, mqtt5.QoS.AT_LEAST_ONCE, mqtt5.QoS.EXACTLY_ONCE
QUALITIES = (Q0, Q1, Q2)
HANDLINGS = (
    mqtt5.RetainHandling.SEND_ALWAYS,
    mqtt5.RetainHandling.SEND_IF_SUBSCRIPTION_NOT_EXISTS,
    mqtt5.RetainHandling.SEND_NEVER,
)


def members(enum: Any) -> list[Any]:
    """Return the members of an enumeration of the package mqtt5. Python cannot iterate over it."""
    return [getattr(enum, name) for name in dir(enum) if name.isupper()]


def read(data: bytes) -> list[Any]:
    """Return the decoded packets in these bytes, which the broker has sent."""
    decoded = []
    for one in packets(data):
        parsed, size = mqtt5.read(one)  # type: ignore[arg-type]  # it takes any buffer
        assert size == len(one)
        decoded.append(parsed)
    return decoded


def subscription(
    topic_filter: str,
    qos: int = 2,
    no_local: bool = False,
    as_published: bool = False,
    handling: int = 0,
) -> mqtt5.TopicFilter:
    """Return a subscription of a SUBSCRIBE packet; `handling` is Retain Handling: 0, 1 or 2."""
    return mqtt5.TopicFilter(
        topic_filter,
        max_qos=QUALITIES[qos],
        no_local=no_local,
        retain_as_published=as_published,
        retain_handling=HANDLINGS[handling],
    )


def publish(
    topic: str, body: bytes = b"", qos: int = 0, packet_id: int | None = None, **properties: Any
) -> bytes:
    """Return a PUBLISH packet."""
    packet_id = (packet_id or 1) if qos else None
    if topic:
        return mqtt5.PublishPacket(
            topic, body, qos=QUALITIES[qos], packet_id=packet_id, **properties
        ).write()
    # The package mqtt5 cannot write an empty topic name.
    data = mqtt5.PublishPacket(
        "x", body, qos=QUALITIES[qos], packet_id=packet_id, **properties
    ).write()
    at = 2 if data[1] < 128 else 3
    return packet(data[0], data[at:].replace(b"\x00\x01x", b"\x00\x00", 1))


def raw_connect(
    client_id: str = "c",
    flags: int = 2,
    properties: bytes = b"",
    payload: bytes = b"",
    keep_alive: int = 60,
) -> bytes:
    """Return a CONNECT of level 5 from its fields."""
    return packet(
        0x10,
        text("MQTT")
        + bytes([5, flags])
        + keep_alive.to_bytes(2, "big")
        + bytes([len(properties)])
        + properties
        + text(client_id)
        + payload,
    )


class Client5:
    """An MQTT 5 client that has sent a CONNECT; `greeting` has the packets of the answer."""

    def __init__(
        self,
        world: World,
        client_id: str = "c",
        *,
        clean: bool = True,
        peer: Peer | None = None,
        data: bytes | None = None,
        **options: Any,
    ) -> None:
        self.world = world
        self.connection: Connection = world.mqtt_front.connect(peer or Peer())
        first = (
            mqtt5.ConnectPacket(client_id, clean_start=clean, **options).write()
            if data is None
            else data
        )
        self.greeting = self.send(first)

    @property
    def connack(self) -> Any:
        assert isinstance(self.greeting[0], mqtt5.ConnAckPacket)
        return self.greeting[0]

    def send(self, *some: Any) -> list[Any]:
        """Send packets, or bytes, as one chunk, and return the packets that the broker has sent."""
        self.connection.receive_data(
            b"".join(one if isinstance(one, bytes) else one.write() for one in some)
        )
        return self.read()

    def read_bytes(self) -> bytes:
        data = self.world.answer(self.connection)
        while more := self.world.answer(self.connection):
            data += more
        return data

    def read(self) -> list[Any]:
        return read(self.read_bytes())

    def publications(self) -> list[Any]:
        """Return the PUBLISH packets that the broker has sent since the last read.

        Raises AssertionError if the broker has sent a packet of another type.
        """
        publications = self.read()
        assert all(isinstance(one, mqtt5.PublishPacket) for one in publications), publications
        return publications

    def bodies(self) -> list[bytes]:
        return [one.payload for one in self.publications()]

    def subscribe(
        self, *subscriptions: mqtt5.TopicFilter, identifier: int | None = None, packet_id: int = 1
    ) -> list[Any]:
        """Subscribe. Return a list of the reason codes, then the other packets from the broker."""
        rest = self.send(
            mqtt5.SubscribePacket(packet_id, list(subscriptions), subscription_id=identifier)
        )
        # Publications may come before the SUBACK (section 3.8.4).
        [answer] = [one for one in rest if isinstance(one, mqtt5.SubAckPacket)]
        rest.remove(answer)
        assert answer.packet_id == packet_id
        return [[int(code) for code in answer.reason_codes], *rest]

    def vanish(self) -> None:
        """End the connection without a DISCONNECT, as if the network was lost."""
        self.connection.on_closed()
        self.world.settle()

    @property
    def closed(self) -> str:
        """The reason for which the connection was closed; empty while it is open."""
        return self.connection.reason if self.connection.finished else ""


def disconnect_of(client: Client5, data: bytes) -> tuple[int, str]:
    """Send data that the broker answers with a DISCONNECT.

    Return the reason code of the DISCONNECT, and the reason for which the connection was closed.
    """
    last = client.send(data)[-1]
    assert isinstance(last, mqtt5.DisconnectPacket)
    return int(last.reason_code), client.closed
