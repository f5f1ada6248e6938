"""What the AMQP tests say and hear."""

from __future__ import annotations

from typing import Any, NamedTuple

import pamqp.body
import pamqp.commands as spec
import pamqp.header

from tests.clients import Amqp, World, marshal, unmarshal

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8


class Frame(NamedTuple):
    """A frame as it stands on the wire."""

    kind: int
    channel: int
    payload: bytes

    @property
    def octets(self) -> bytes:
        return frame(self.kind, self.channel, self.payload)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return (
        bytes([kind])
        + channel.to_bytes(2, "big")
        + len(payload).to_bytes(4, "big")
        + payload
        + b"\xce"
    )


def split(octets: bytes) -> list[Frame]:
    """The frames in these octets, which are whole frames and nothing else."""
    found = []
    while octets:
        end = 8 + int.from_bytes(octets[3:7], "big")
        assert octets[end - 1 : end] == b"\xce"
        found.append(Frame(octets[0], int.from_bytes(octets[1:3], "big"), octets[7 : end - 1]))
        octets = octets[end:]
    return found


def short(text: str | bytes) -> bytes:
    """A short string."""
    octets = text if isinstance(text, bytes) else text.encode()
    return bytes([len(octets)]) + octets


def long(octets: bytes) -> bytes:
    """A long string, or a table or an array around its entries."""
    return len(octets).to_bytes(4, "big") + octets


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """A method frame, whatever stands in it."""
    return frame(
        METHOD, channel, class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + arguments
    )


def publish(exchange: str | bytes, key: str | bytes, flags: int = 0, channel: int = 1) -> bytes:
    """basic.publish without its content."""
    return method(channel, 60, 40, b"\0\0" + short(exchange) + short(key) + bytes([flags]))


def header(
    size: int, properties: bytes = b"\0\0", channel: int = 1, class_id: int = 60, weight: int = 0
) -> bytes:
    """A content header; `properties` begins with the flags."""
    return frame(
        HEADER,
        channel,
        class_id.to_bytes(2, "big")
        + weight.to_bytes(2, "big")
        + size.to_bytes(8, "big")
        + properties,
    )


def body(octets: bytes, channel: int = 1) -> bytes:
    return frame(BODY, channel, octets)


def content(octets: bytes, properties: bytes = b"\0\0", channel: int = 1) -> bytes:
    """A header, and one body frame if the body is not empty."""
    return header(len(octets), properties, channel) + (body(octets, channel) if octets else b"")


def names(frames: list[Any]) -> list[str]:
    return [one.name for one in frames]


class Refusal(NamedTuple):
    """A channel.close or connection.close."""

    scope: str
    code: int
    text: str
    class_id: int
    method_id: int


def refusal(frames: list[Any]) -> Refusal:
    """The close that is all we hear."""
    assert [one.name for one in frames] in (["Channel.Close"], ["Connection.Close"]), [
        one.name for one in frames
    ]
    [close] = frames
    return Refusal(
        close.name.split(".")[0].lower(),
        close.reply_code,
        close.reply_text,
        close.class_id,
        close.method_id,
    )


class Delivered(NamedTuple):
    """A message as its reader sees it. `tag` is the consumer's, empty for basic.get."""

    tag: str
    number: int
    redelivered: bool
    exchange: str
    key: str
    body: bytes


def deliveries(frames: list[Any]) -> list[Delivered]:
    """The messages among these frames."""
    found: list[Delivered] = []
    returned = False
    for one in frames:
        if one.name in ("Basic.Return", "Basic.Deliver", "Basic.GetOk"):
            returned = one.name == "Basic.Return"
        if one.name in ("Basic.Deliver", "Basic.GetOk"):
            tag = one.consumer_tag if one.name == "Basic.Deliver" else ""
            found.append(
                Delivered(
                    tag, one.delivery_tag, one.redelivered, one.exchange, one.routing_key, b""
                )
            )
        elif isinstance(one, pamqp.body.ContentBody) and not returned:
            found[-1] = found[-1]._replace(body=found[-1].body + one.value)
    return found


def properties(frames: list[Any]) -> Any:
    """The properties of the one message among these frames."""
    [one] = [one for one in frames if isinstance(one, pamqp.header.ContentHeader)]
    return one.properties


def read(client: Amqp, queue: str) -> list[bytes]:
    """Take everything out of a queue."""
    bodies = []
    while (frames := client.send(spec.Basic.Get(queue=queue, no_ack=True)))[
        0
    ].name == "Basic.GetOk":
        bodies.append(b"".join(client.bodies(frames)))
    return bodies


def open_channel(client: Amqp, number: int) -> None:
    assert names(client.send(spec.Channel.Open(), channel=number)) == ["Channel.OpenOk"]


def reopen(client: Amqp, number: int = 1) -> None:
    """After a channel.close: say close-ok, and open the channel again."""
    assert names(client.send(spec.Channel.CloseOk(), spec.Channel.Open(), channel=number)) == [
        "Channel.OpenOk"
    ]


class Raw:
    """A client that has said nothing yet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connection: Any = world.raw_amqp()

    def say(self, octets: bytes) -> bytes:
        """Send a chunk; returns what comes back."""
        self.connection.receive_data(octets)
        return self.hear()

    def hear(self) -> bytes:
        self.world.turn()
        octets: bytes = self.connection.data_to_send()
        while (
            self.connection.behind and not self.connection.stalled and not self.connection.finished
        ):
            self.connection.resume()
            self.world.turn()
            octets += self.connection.data_to_send()
        return octets

    def call(self, *methods: Any, channel: int = 0) -> list[Any]:
        return unmarshal(self.say(b"".join(marshal(channel, one) for one in methods)))
