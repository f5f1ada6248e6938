"""Reads the fields of MQTT packets, and writes packets of levels 3 and 4.

    packet    type and flags (1 byte)   remaining length (1 to 4 bytes, 7 bits in each)
              variable header   payload

Packets of level 5 are in packets5.py, CONNECT is in connect.py.
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, write_i16_be
from mypy_extensions import i16, i64, u8

from protocols.mqtt.codec.reasons import MALFORMED

#: Packet types.
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

#: The name of each packet type for error texts. The number 0 stands for a will.
PACKET_NAMES: Final = (
    "a will",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
    "PINGREQ",
    "PINGRESP",
    "DISCONNECT",
    "AUTH",
)

#: Flags of a PUBLISH.
RETAIN: Final[i64] = 1
DUP: Final[i64] = 8

PINGRESP: Final = b"\xd0\x00"

#: Return codes of a CONNACK (section 3.2.2.3 of 3.1.1). FAILURE is the return code of a refused
#: subscription in a SUBACK.
ACCEPTED: Final = 0
UNACCEPTABLE_VERSION: Final = 1
IDENTIFIER_REJECTED: Final = 2
UNAVAILABLE: Final = 3
BAD_CREDENTIALS: Final = 4
NOT_AUTHORISED: Final = 5
FAILURE: Final = 0x80


class MalformedPacket(Exception):
    """Raised if a client violates the protocol: the connection is closed [MQTT-4.8.0-1].

    Metrics count the error under `reason`. `code` is the reason code that the broker sends to a
    client of MQTT 5.
    """

    def __init__(self, text: str, reason: str = "protocol_error", code: int = MALFORMED) -> None:
        super().__init__(text)
        self.reason = reason
        self.code = code


class PacketReader:
    """A reader of the fields of a packet, one after another.

    Every method raises MalformedPacket if the packet is too short.
    """

    def __init__(self, packet: bytes) -> None:
        self._packet = packet
        self._at = 0

    def take(self, size: int) -> bytes:
        """Read the next `size` bytes of the packet, and return them."""
        self._at += size
        if self._at > len(self._packet):
            raise MalformedPacket("the packet ends within a field")
        return self._packet[self._at - size : self._at]

    def byte(self) -> int:
        """Read an integer of one byte."""
        return self.take(1)[0]

    def two_bytes(self) -> int:
        """Read an integer of two bytes."""
        return int.from_bytes(self.take(2), "big")

    def four_bytes(self) -> int:
        """Read an integer of four bytes."""
        return int.from_bytes(self.take(4), "big")

    def variable(self) -> int:
        """Read a variable byte integer, of one to four bytes.

        Raises MalformedPacket if a shorter encoding of the number exists [MQTT-1.5.5-1].
        """
        number, shift, digit = 0, 0, 128
        while digit >= 128:
            if shift > 21:
                raise MalformedPacket("a variable byte integer has more than four bytes")
            digit = self.byte()
            number |= (digit & 127) << shift
            shift += 7
        if digit == 0 and shift > 7:
            raise MalformedPacket("a variable byte integer has more bytes than necessary")
        return number

    def block(self) -> bytes:
        """Read a size (a variable byte integer) and a field of this size; return both as bytes."""
        start = self._at
        self.take(self.variable())
        return self._packet[start : self._at]

    def binary(self) -> bytes:
        """Read binary data: its size in two bytes, then the data."""
        return self.take(self.two_bytes())

    def text(self) -> str:
        """Read a UTF-8 string; also raises MalformedPacket for invalid UTF-8."""
        return decoded(self.binary())

    def packet_id(self) -> int:
        """Read a packet identifier. Raises MalformedPacket if it is 0 [MQTT-2.3.1-1]."""
        packet_id = self.two_bytes()
        if packet_id == 0:
            raise MalformedPacket("packet identifier must not be 0")
        return packet_id

    @property
    def more(self) -> bool:
        """True if the packet has bytes that are not read yet."""
        return self._at < len(self._packet)

    def end(self) -> None:
        """Raise MalformedPacket if the packet has bytes that are not read yet."""
        if self.more:
            raise MalformedPacket("the packet has bytes after its last field")

    def rest(self) -> bytes:
        """Return all bytes that are not read yet. The position of the reader does not change."""
        return self._packet[self._at :]


def decoded(data: bytes) -> str:
    """Decode a UTF-8 string. Raises MalformedPacket if the UTF-8 is invalid or contains NUL
    [MQTT-1.5.3-1], [MQTT-1.5.3-2].
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise MalformedPacket("a string is not valid UTF-8") from error
    if "\0" in text:
        raise MalformedPacket("a UTF-8 string contains NUL")
    return text


def remaining_length(length: int) -> bytes:
    """Return `length` encoded in one to four bytes of seven bits each, the low bits first."""
    encoded = b""
    while length >= 128:
        encoded += bytes([length & 127 | 128])
        length >>= 7
    return encoded + bytes([length])


def write_short(out: BytesWriter, number: i64) -> None:
    """Write an unsigned integer of two bytes."""
    write_i16_be(out, i16(number - 65_536 if number > 32_767 else number))


def write_publish_head(
    out: BytesWriter, topic: bytes, size: i64, qos: i64, packet_id: i64, flags: i64
) -> None:
    """Write a PUBLISH packet up to its payload of `size` bytes. Hot path.

    At level 5, `size` includes the properties, which the caller writes. `flags` has the bits DUP
    and RETAIN. `packet_id` is not written with QoS 0.
    """
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
    """Write a packet that consists of a packet identifier, such as a PUBACK. Hot path.

    `first` is the packet's first byte: type and flags.
    """
    out.append(u8(first))
    out.append(2)
    write_short(out, packet_id)


def connack(present: bool, code: int) -> bytes:
    """Return a CONNACK of level 3 or 4 with the return code `code`.

    `present` is the flag Session Present: True if the broker resumes an existing session.
    """
    return bytes([CONNACK << 4, 2, 1 if present else 0, code])


def suback(packet_id: int, codes: bytes) -> bytes:
    """Return a SUBACK of level 3 or 4, with a return code for each topic filter."""
    return (
        bytes([SUBACK << 4])
        + remaining_length(2 + len(codes))
        + packet_id.to_bytes(2, "big")
        + codes
    )
