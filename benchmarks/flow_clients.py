"""Bodies, acknowledgements, packets and frames that the clients of flows.py send."""

from __future__ import annotations

import struct

BODY = bytes(range(100))
#: Publications in one received chunk.
BATCH = 100
#: Formats that pack all acknowledgements of a client for one chunk in one step, because the work of
#: the clients must stay small beside the work of the broker.
PUBACKS = struct.Struct(">" + "2sH" * BATCH)
ACKS = struct.Struct(">" + "11sQ2s" * BATCH)
ACK_HEAD = b"\x01\x00\x01\x00\x00\x00\x0d\x00\x3c\x00\x50"
#: The number of MQTT packet identifiers; and all identifiers in order, 2 bytes each, followed by
#: the first BATCH identifiers again, so that the identifiers of every chunk are one slice.
IDENTIFIERS = 65_535
PACKED_IDENTIFIERS = b"".join(
    (number % IDENTIFIERS + 1).to_bytes(2, "big") for number in range(IDENTIFIERS + BATCH)
)
#: Topic rules; the last rule allows every topic.
RULES = [*[f"deny all forbidden/+/{number}/#" for number in range(99)], "allow all #"]


def text(value: str) -> bytes:
    """Encode an MQTT string."""
    return len(value.encode()).to_bytes(2, "big") + value.encode()


def packet(first: int, body: bytes) -> bytes:
    """Encode an MQTT packet from its first byte, and from its part after the remaining length."""
    size = len(body)
    assert size < 16_384
    length = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([first]) + length + body


def short(value: str) -> bytes:
    """Encode an AMQP short string."""
    return bytes([len(value)]) + value.encode()


def long(value: bytes) -> bytes:
    """Encode an AMQP long string, or a table whose encoded fields are `value`."""
    return len(value).to_bytes(4, "big") + value


def table() -> bytes:
    """Encode an empty AMQP table."""
    return b"\0\0\0\0"


def frame(kind: int, channel: int, payload: bytes) -> bytes:
    """Encode an AMQP frame."""
    size = len(payload).to_bytes(4, "big")
    return bytes([kind]) + channel.to_bytes(2, "big") + size + payload + b"\xce"


def method(channel: int, kind: int, number: int, arguments: bytes) -> bytes:
    """Encode an AMQP method frame; `kind` and `number` are the class and method identifiers."""
    return frame(1, channel, kind.to_bytes(2, "big") + number.to_bytes(2, "big") + arguments)


def content_of(properties: bytes) -> bytes:
    """Encode BODY as an AMQP content on channel 1: a content header and a body frame.

    `properties` are the encoded property flags and properties.
    """
    size = len(BODY).to_bytes(8, "big")
    return frame(2, 1, b"\x00\x3c\x00\x00" + size + properties) + frame(3, 1, BODY)
