"""Helpers of the AMQP tests, which write frames and read the frames of the broker."""

from __future__ import annotations

from typing import Any, NamedTuple

import pamqp.body
import pamqp.commands as spec
import pamqp.header

from tests.clients import Amqp, World, marshal, unmarshal

METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8


class Frame(NamedTuple):
    """An AMQP frame: its type, channel and payload. `data` are its bytes on the wire."""

    kind: int
    channel: int
    payload: bytes

    @property
    def data(self) -> bytes:
        return frame(self.kind, self.channel, self.payload)


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    return (
        bytes([kind])
        + channel.to_bytes(2, "big")
        + len(payload).to_bytes(4, "big")
        + payload
        + b"\xce"
    )


def split(data: bytes) -> list[Frame]:
    """Return the frames in `data`, which must be complete."""
    frames = []
    while data:
        end = 8 + int.from_bytes(data[3:7], "big")
        assert data[end - 1 : end] == b"\xce"
        frames.append(Frame(data[0], int.from_bytes(data[1:3], "big"), data[7 : end - 1]))
        data = data[end:]
    return frames


def short(text: str | bytes) -> bytes:
    """Return the text as an AMQP short string: one byte with its length, then the text."""
    data = text if isinstance(text, bytes) else text.encode()
    return bytes([len(data)]) + data


def long(data: bytes) -> bytes:
    """Return the data with its length in four bytes before it.

    This is the encoding of a long string, and of a table or array with these entries.
    """
    return len(data).to_bytes(4, "big") + data


def method(channel: int, class_id: int, method_id: int, arguments: bytes = b"") -> bytes:
    """Return a method frame with these class and method ids, and with the encoded arguments."""
    return frame(
        METHOD, channel, class_id.to_bytes(2, "big") + method_id.to_bytes(2, "big") + arguments
    )


def publish(exchange: str | bytes, key: str | bytes, flags: int = 0, channel: int = 1) -> bytes:
    """Return the method frame of a basic.publish, without the content that must follow."""
    return method(channel, 60, 40, b"\0\0" + short(exchange) + short(key) + bytes([flags]))


def header(
    size: int, properties: bytes = b"\0\0", channel: int = 1, class_id: int = 60, weight: int = 0
) -> bytes:
    """Return a content header frame; `properties` are the property flags and the encoded
    properties."""
    return frame(
        HEADER,
        channel,
        class_id.to_bytes(2, "big")
        + weight.to_bytes(2, "big")
        + size.to_bytes(8, "big")
        + properties,
    )


def body(data: bytes, channel: int = 1) -> bytes:
    return frame(BODY, channel, data)


def content(data: bytes, properties: bytes = b"\0\0", channel: int = 1) -> bytes:
    """Return a header frame, and one body frame if the body is not empty."""
    return header(len(data), properties, channel) + (body(data, channel) if data else b"")


def names(frames: list[Any]) -> list[str]:
    return [one.name for one in frames]


class Refusal(NamedTuple):
    """The error in a channel.close or connection.close: code, text, and ids of the refused
    method."""

    scope: str
    code: int
    text: str
    class_id: int
    method_id: int


def refusal(frames: list[Any]) -> Refusal:
    """Return the channel.close or connection.close in the replies; there must be exactly one."""
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
    """A message as its consumer sees it. `tag` is the consumer tag, empty for basic.get."""

    tag: str
    number: int
    redelivered: bool
    exchange: str
    key: str
    body: bytes


def deliveries(frames: list[Any]) -> list[Delivered]:
    """Return the delivered or fetched messages in these frames, in order."""
    messages: list[Delivered] = []
    returned = False
    for one in frames:
        if one.name in ("Basic.Return", "Basic.Deliver", "Basic.GetOk"):
            returned = one.name == "Basic.Return"
        if one.name in ("Basic.Deliver", "Basic.GetOk"):
            tag = one.consumer_tag if one.name == "Basic.Deliver" else ""
            messages.append(
                Delivered(
                    tag, one.delivery_tag, one.redelivered, one.exchange, one.routing_key, b""
                )
            )
        elif isinstance(one, pamqp.body.ContentBody) and not returned:
            messages[-1] = messages[-1]._replace(body=messages[-1].body + one.value)
    return messages


def properties(frames: list[Any]) -> Any:
    """Return the properties of the only message in these frames."""
    [one] = [one for one in frames if isinstance(one, pamqp.header.ContentHeader)]
    return one.properties


def read(client: Amqp, queue: str) -> list[bytes]:
    """Get and return all messages of a queue with basic.get."""
    bodies = []
    while (frames := client.send(spec.Basic.Get(queue=queue, no_ack=True)))[
        0
    ].name == "Basic.GetOk":
        bodies.append(b"".join(client.bodies(frames)))
    return bodies


def open_channel(client: Amqp, number: int) -> None:
    assert names(client.send(spec.Channel.Open(), channel=number)) == ["Channel.OpenOk"]


def reopen(client: Amqp, number: int = 1) -> None:
    """Answer a channel.close with close-ok, and open the channel again."""
    assert names(client.send(spec.Channel.CloseOk(), spec.Channel.Open(), channel=number)) == [
        "Channel.OpenOk"
    ]


class Raw:
    """An AMQP connection that has not sent its protocol header yet."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.connection: Any = world.raw_amqp()

    def say(self, data: bytes) -> bytes:
        """Send the data as one chunk; return the output of the broker."""
        self.connection.receive_data(data)
        return self.hear()

    def hear(self) -> bytes:
        self.world.turn()
        data: bytes = self.connection.data_to_send()
        while (
            self.connection.behind and not self.connection.stalled and not self.connection.finished
        ):
            self.connection.resume()
            self.world.turn()
            data += self.connection.data_to_send()
        return data

    def call(self, *methods: Any, channel: int = 0) -> list[Any]:
        return unmarshal(self.say(b"".join(marshal(channel, one) for one in methods)))
