"""Codecs of the front ends, with which a stream makes rows of messages.

HeaderCodec    a message's content header, and its properties
PacketParser   splits a run of packets into publications
"""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64, mypyc_attr

from broker.messages.message import Message, PropertyCodec

#: Properties that have a column, in their order, with the width of numbers in bytes (texts: 0).
PROPERTIES: Final[dict[str, int]] = {
    "content_type": 0,
    "content_encoding": 0,
    "delivery_mode": 1,
    "priority": 1,
    "correlation_id": 0,
    "reply_to": 0,
    "expiration": 0,
    "message_id": 0,
    "timestamp": 8,
    "type": 0,
    "user_id": 0,
    "app_id": 0,
    "cluster_id": 0,
    "headers": 0,
}
PROPERTY_COLUMNS: Final = {name: place for place, name in enumerate(PROPERTIES)}


@mypyc_attr(acyclic=True)
class PublishRun:
    """Consecutive publications of one client, unparsed, which were routed to the same subscribers.

    `level` is the MQTT protocol level of the packets, 3 to 5. Packets of level 5 have properties.
    """

    def __init__(self, data: bytes, count: i64, publisher: bytes, routed: i64, level: i64) -> None:
        self.packets = data
        self.count: i64 = count
        self.publisher = publisher
        self.routed: i64 = routed
        self.level: i64 = level


class HeaderCodec:
    """Encoder of a message's properties for streams, implemented by a front end.

    Called in the writer's thread.
    """

    def header(self, message: Message) -> bytes:
        """Return the AMQP content header: class, weight, size, flags, properties."""
        raise NotImplementedError

    def properties(self, header: bytes) -> list[tuple[int, bytes]]:
        """Return (index in PROPERTIES, value) of the properties in a header, by ascending index.

        Texts are UTF-8; numbers are little-endian, with the width in PROPERTIES. Never raises.
        """
        raise NotImplementedError


@final
class RowName:
    """The exchange and the topic of a publication, in UTF-8.

    `raw_key` has the bytes of a routing key that is not UTF-8; else it is empty.
    """

    def __init__(self, exchange: bytes, key: bytes) -> None:
        self.exchange = exchange
        self.topic, self.raw_key = as_utf8(key)


class StreamRows:
    """A receiver of parsed publications that have no properties."""

    def add_plain(self, name: RowName, body: bytes) -> None:
        """Add a row for a publication with this name and body, without properties."""
        raise NotImplementedError


class PacketParser:
    """Parser of runs of publications, implemented by a front end.

    Called in the writer's thread.
    """

    def parse(self, packets: PublishRun, rows: StreamRows) -> None:
        """Call `rows.add_plain` for each publication in a run, in order.

        If possible at low cost, publications to the same topic should get the same RowName object,
        so that the writer need not compare the names.
        """
        raise NotImplementedError

    def protocol(self, packets: PublishRun) -> bytes:
        """Return the name of the protocol of the publications in a run, for their rows."""
        raise NotImplementedError


class RowCodecs:
    """The codecs of a broker, set by its front ends.

    The header codec and the packet parser are for streams, the property codec for dead letters.
    """

    def __init__(self) -> None:
        self.property_codec = PropertyCodec()
        self.header_codec = HeaderCodec()
        self.packet_parser = PacketParser()


def as_utf8(data: bytes) -> tuple[bytes, bytes]:
    """Return two values: `data` as valid UTF-8, and the raw bytes if they differ, else empty bytes.

    Sequences that are not UTF-8 are replaced by U+FFFD.
    """
    try:
        data.decode()
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace").encode(), data
    return data, b""
