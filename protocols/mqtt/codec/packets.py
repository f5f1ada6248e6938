"""MQTT packets as octets.

packet    type and flags(1) remaining length(1-4, seven bits an octet) variable header  payload
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i16_be
from mypy_extensions import i16, i64, u8

from protocols.mqtt.codec.reasons import MALFORMED

CONNECT: Final[i64] = 1
CONNACK: Final[i64] = 2
PUBLISH: Final[i64] = 3
PUBACK: Final[i64] = 4
PUBREC: Final[i64] = 5
PUBREL: Final[i64] = 6
PUBCOMP: Final[i64] = 7
SUBSCRIBE: Final[i64] = 8
SUBACK: Final[i64] = 9
UNSUBSCRIBE: Final[i64] = 10
UNSUBACK: Final[i64] = 11
PINGREQ: Final[i64] = 12
DISCONNECT: Final[i64] = 14
AUTH: Final[i64] = 15

RETAIN: Final[i64] = 1
DUP: Final[i64] = 8

PINGRESP: Final = b"\xd0\x00"

#: Return codes of CONNACK (section 3.2.2.3), and of a subscription that is refused.
ACCEPTED: Final = 0
UNACCEPTABLE_VERSION: Final = 1
IDENTIFIER_REJECTED: Final = 2
UNAVAILABLE: Final = 3
BAD_CREDENTIALS: Final = 4
NOT_AUTHORISED: Final = 5
FAILURE: Final = 0x80


class MalformedPacket(Exception):
    """The peer broke the protocol: close the connection [MQTT-4.8.0-1]. `reason` is for the
    metrics, `code` is what a client of level 5 is told."""

    def __init__(self, text: str, reason: str = "protocol_error", code: int = MALFORMED) -> None:
        super().__init__(text)
        self.reason = reason
        self.code = code


class PacketReader:
    """Fields of a packet, one after another. Raises MalformedPacket when there are too few."""

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self._at = 0

    def octets(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._packet):
            raise MalformedPacket("short packet")
        return self._packet[self._at - count : self._at]

    def byte(self) -> int:
        return self.octets(1)[0]

    def short(self) -> int:
        return int.from_bytes(self.octets(2), "big")

    def four(self) -> int:
        return int.from_bytes(self.octets(4), "big")

    def variable(self) -> int:
        """A number in one to four octets, as few as possible [MQTT-1.5.5-1]."""
        number, shift, octet = 0, 0, 128
        while octet >= 128:
            if shift > 21:
                raise MalformedPacket("variable byte integer")
            octet = self.byte()
            number |= (octet & 127) << shift
            shift += 7
        if octet == 0 and shift > 7:
            raise MalformedPacket("variable byte integer")
        return number

    def block(self) -> bytes:
        """As many octets as a number before them says, with that number."""
        start = self._at
        self.octets(self.variable())
        return self._packet[start : self._at]

    def binary(self) -> bytes:
        return self.octets(self.short())

    def text(self) -> str:
        return decoded(self.binary())

    def packet_id(self) -> int:
        """A packet identifier, which is never 0 [MQTT-2.3.1-1]."""
        packet_id = self.short()
        if packet_id == 0:
            raise MalformedPacket("packet identifier 0")
        return packet_id

    @property
    def more(self) -> bool:
        return self._at < len(self._packet)

    def end(self) -> None:
        """Nothing may follow."""
        if self.more:
            raise MalformedPacket("long packet")

    def rest(self) -> bytes:
        return self._packet[self._at :]


def decoded(octets: bytes) -> str:
    """UTF-8 without NUL [MQTT-1.5.3-1], [MQTT-1.5.3-2]. Raises MalformedPacket."""
    try:
        text = octets.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket("invalid UTF-8") from error
    if "\0" in text:
        raise MalformedPacket("NUL in a text")
    return text


def remaining_length(length: int) -> bytes:
    octets = b""
    while length >= 128:
        octets += bytes([length & 127 | 128])
        length >>= 7
    return octets + bytes([length])


def write_short(out: BytesWriter, number: i64) -> None:
    """Two octets, unsigned."""
    write_i16_be(out, i16(number - 65_536 if number > 32_767 else number))


def write_publish_head(
    out: BytesWriter, topic: bytes, size: i64, qos: i64, packet_id: i64, flags: i64
) -> None:
    """A PUBLISH packet up to its payload of `size` octets. Hot path."""
    length: i64 = len(topic) + size + 2
    if qos > 0:
        length += 2
    out.append(u8(PUBLISH << 4 | qos << 1 | flags))
    while length >= 128:
        out.append(u8(length & 127 | 128))
        length >>= 7
    out.append(u8(length))
    write_short(out, len(topic))
    out.write(topic)
    if qos > 0:
        write_short(out, packet_id)


def write_answer(out: BytesWriter, first: i64, packet_id: i64) -> None:
    """PUBACK, PUBREC, PUBREL, PUBCOMP or UNSUBACK. Hot path."""
    out.append(u8(first))
    out.append(2)
    write_short(out, packet_id)


def connack(present: bool, code: int) -> bytes:
    return bytes([CONNACK << 4, 2, 1 if present else 0, code])


def suback(packet_id: int, codes: bytes) -> bytes:
    return (
        bytes([SUBACK << 4])
        + remaining_length(2 + len(codes))
        + packet_id.to_bytes(2, "big")
        + codes
    )
