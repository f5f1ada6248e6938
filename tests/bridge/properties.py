"""Messages with all properties, and with headers of every type of AMQP 0-9-1, as bytes."""

from __future__ import annotations

import struct
from typing import Final

import pika.spec
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from protocols.amqp.codec.properties import split_properties
from protocols.amqp.codec.tables import without_entries
from trellis.bridge.shovel_message import PropertyBytes

#: A header of each type: the bytes after its name.
_VALUES: Final = {
    "bool": b"t\x01",
    "signed byte": b"b\xfd",
    "byte": b"B\xfd",
    "short": b"s" + struct.pack(">h", -300),
    "unsigned short": b"u" + struct.pack(">H", 60_000),
    "int": b"I" + struct.pack(">i", -70_000),
    "unsigned int": b"i" + struct.pack(">I", 4_000_000_000),
    "long": b"l" + struct.pack(">q", -(1 << 40)),
    "float": b"f" + struct.pack(">f", 0.5),
    "double": b"d" + struct.pack(">d", -1.25e300),
    "decimal": b"D\x02" + struct.pack(">i", 125),
    "text": b"S\0\0\0\x03\xe2\x82\xac",
    "invalid UTF-8": b"S\0\0\0\x02\xff\xfe",
    "bytes": b"x\0\0\0\x02\0\xff",
    "time": b"T" + struct.pack(">Q", 1_790_000_000),
    "time after the year 9999": b"T" + struct.pack(">Q", 1_790_000_000_000_000),
    "none": b"V",
    "list": b"A\0\0\0\x0ct\x01V" + b"d" + struct.pack(">d", 0.5),
    "table": b"F\0\0\0\x04\x01at\x01",
}


def _short(text: str) -> bytes:
    return bytes([len(text.encode())]) + text.encode()


_HEADERS: Final = b"".join(_short(name) + value for name, value in _VALUES.items())
#: Flags and properties: all but `user_id`, which must be the user of the publisher.
EVERY_PROPERTY: Final = b"".join(
    (
        b"\xff\xec",
        *(_short("text/plain"), _short("utf-8")),
        len(_HEADERS).to_bytes(4, "big") + _HEADERS,
        b"\x02\x03",
        *(_short("c-1"), _short("answers"), _short("3600000"), _short("m-1")),
        struct.pack(">Q", 1_790_000_000),
        *(_short("order"), _short("shop"), _short("cluster")),
    )
)


def publish(client: BlockingChannel, exchange: str, key: str, body: bytes) -> None:
    """Publish a message with the properties EVERY_PROPERTY."""
    client.basic_publish(exchange, key, body, PropertyBytes(EVERY_PROPERTY))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let pika's clients return the properties of received messages as PropertyBytes."""
    monkeypatch.setitem(pika.spec.props, pika.BasicProperties.INDEX, PropertyBytes)


def without_header(properties: bytes, header: str) -> list[tuple[str, bytes]]:
    """Return (name, bytes) of each encoded property; the bytes of the property `headers` lack the
    header `header`.
    """
    return [
        (
            name,
            without_entries(value[4:], {header.encode()}) if kind == "table" else value,
        )
        for name, kind, value in split_properties(properties)
    ]
