"""Reads and writes the properties of MQTT 5 packets (section 2.2.2).

    properties   length (variable)   identifier (1 byte) value   identifier (1 byte) value   ...

_TABLE has the type of each property's value and the packets in which the property may occur. A User
Property may occur several times in any packet, and a Subscription Identifier several times in a
PUBLISH; every other property may occur once. An invalid value makes a packet malformed. A property
in a packet where it may not occur is a protocol error, and so is a property that may occur once and
is repeated.
"""

from __future__ import annotations

from typing import Final

from protocols.mqtt.codec.packets import (
    AUTH,
    CONNACK,
    CONNECT,
    DISCONNECT,
    PACKET_NAMES,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    MalformedPacket,
    PacketReader,
    remaining_length,
)
from protocols.mqtt.codec.reasons import PROTOCOL_ERROR, TOPIC_ALIAS_INVALID

#: Property identifiers.
PAYLOAD_FORMAT: Final = 0x01
MESSAGE_EXPIRY: Final = 0x02
CONTENT_TYPE: Final = 0x03
RESPONSE_TOPIC: Final = 0x08
CORRELATION_DATA: Final = 0x09
SUBSCRIPTION_IDENTIFIER: Final = 0x0B
SESSION_EXPIRY: Final = 0x11
ASSIGNED_CLIENT_IDENTIFIER: Final = 0x12
SERVER_KEEP_ALIVE: Final = 0x13
AUTHENTICATION_METHOD: Final = 0x15
AUTHENTICATION_DATA: Final = 0x16
REQUEST_PROBLEM: Final = 0x17
WILL_DELAY: Final = 0x18
REQUEST_RESPONSE: Final = 0x19
RESPONSE_INFORMATION: Final = 0x1A
SERVER_REFERENCE: Final = 0x1C
REASON: Final = 0x1F
RECEIVE_MAXIMUM: Final = 0x21
TOPIC_ALIAS_MAXIMUM: Final = 0x22
TOPIC_ALIAS: Final = 0x23
MAXIMUM_QOS: Final = 0x24
RETAIN_AVAILABLE: Final = 0x25
USER_PROPERTY: Final = 0x26
MAXIMUM_PACKET_SIZE: Final = 0x27
WILDCARDS_AVAILABLE: Final = 0x28
IDENTIFIERS_AVAILABLE: Final = 0x29
SHARED_AVAILABLE: Final = 0x2A

#: Types of values.
_BYTE: Final = 0
_TWO_BYTES: Final = 1
_FOUR_BYTES: Final = 2
_VARIABLE: Final = 3
_TEXT: Final = 4
_BINARY: Final = 5
_PAIR: Final = 6

#: Stands for the will in the lists of packet types, because a will in a CONNECT has properties of
#: its own.
WILL: Final = 0

_ANSWERS: Final = (int(PUBACK), int(PUBREC), int(PUBREL), int(PUBCOMP), int(SUBACK), int(UNSUBACK))
_EVERYWHERE: Final = (
    WILL,
    int(CONNECT),
    int(CONNACK),
    int(PUBLISH),
    *_ANSWERS,
    int(SUBSCRIBE),
    int(UNSUBSCRIBE),
    int(DISCONNECT),
    int(AUTH),
)


class Property:
    """The rules for one property, from the table in section 2.2.2.2.

    `kind` is the type of the property's value; `places` are the packet types in which the property
    may occur.
    """

    def __init__(
        self, kind: int, places: tuple[int, ...], least: int = 0, most: int = 1 << 32
    ) -> None:
        self.kind = kind
        self.places = places
        #: A number outside of these limits is a protocol error.
        self.least = least
        self.most = most


_TABLE: Final[dict[int, Property]] = {
    PAYLOAD_FORMAT: Property(_BYTE, (PUBLISH, WILL), most=1),
    MESSAGE_EXPIRY: Property(_FOUR_BYTES, (PUBLISH, WILL)),
    CONTENT_TYPE: Property(_TEXT, (PUBLISH, WILL)),
    RESPONSE_TOPIC: Property(_TEXT, (PUBLISH, WILL)),
    CORRELATION_DATA: Property(_BINARY, (PUBLISH, WILL)),
    SUBSCRIPTION_IDENTIFIER: Property(_VARIABLE, (PUBLISH, SUBSCRIBE), least=1),
    SESSION_EXPIRY: Property(_FOUR_BYTES, (CONNECT, CONNACK, DISCONNECT)),
    ASSIGNED_CLIENT_IDENTIFIER: Property(_TEXT, (CONNACK,)),
    SERVER_KEEP_ALIVE: Property(_TWO_BYTES, (CONNACK,)),
    AUTHENTICATION_METHOD: Property(_TEXT, (CONNECT, CONNACK, AUTH)),
    AUTHENTICATION_DATA: Property(_BINARY, (CONNECT, CONNACK, AUTH)),
    REQUEST_PROBLEM: Property(_BYTE, (CONNECT,), most=1),
    WILL_DELAY: Property(_FOUR_BYTES, (WILL,)),
    REQUEST_RESPONSE: Property(_BYTE, (CONNECT,), most=1),
    RESPONSE_INFORMATION: Property(_TEXT, (CONNACK,)),
    SERVER_REFERENCE: Property(_TEXT, (CONNACK, DISCONNECT)),
    REASON: Property(_TEXT, (CONNACK, *_ANSWERS, DISCONNECT, AUTH)),
    RECEIVE_MAXIMUM: Property(_TWO_BYTES, (CONNECT, CONNACK), least=1),
    TOPIC_ALIAS_MAXIMUM: Property(_TWO_BYTES, (CONNECT, CONNACK)),
    TOPIC_ALIAS: Property(_TWO_BYTES, (PUBLISH,), least=1),
    MAXIMUM_QOS: Property(_BYTE, (CONNACK,), most=1),
    RETAIN_AVAILABLE: Property(_BYTE, (CONNACK,), most=1),
    USER_PROPERTY: Property(_PAIR, _EVERYWHERE),
    MAXIMUM_PACKET_SIZE: Property(_FOUR_BYTES, (CONNECT, CONNACK), least=1),
    WILDCARDS_AVAILABLE: Property(_BYTE, (CONNACK,), most=1),
    IDENTIFIERS_AVAILABLE: Property(_BYTE, (CONNACK,), most=1),
    SHARED_AVAILABLE: Property(_BYTE, (CONNACK,), most=1),
}


class Properties5:
    """The properties of one packet.

    Numbers, texts and binary data are in dicts by property identifier. User Properties and
    Subscription Identifiers may be repeated, so they are in lists, in the order of the packet.
    """

    def __init__(self) -> None:
        self.numbers: dict[int, int] = {}
        self.texts: dict[int, str] = {}
        self.binaries: dict[int, bytes] = {}
        self.user: list[tuple[str, str]] = []
        #: Subscription identifiers, in the order of the packet.
        self.identifiers: list[int] = []

    def number(self, identifier: int, default: int) -> int:
        """Return the value of a numeric property, or `default` if the property is absent."""
        return self.numbers.get(identifier, default)

    def text(self, identifier: int) -> str | None:
        """Return the value of a text property; None if the property is absent."""
        return self.texts.get(identifier)

    def binary(self, identifier: int) -> bytes | None:
        """Return the value of a binary property; None if the property is absent."""
        return self.binaries.get(identifier)

    def has(self, identifier: int) -> bool:
        """True if a property is present.

        Always False for User Properties and Subscription Identifiers, which may be repeated.
        """
        return identifier in self.numbers or identifier in self.texts or identifier in self.binaries

    def encoded(self) -> bytes:
        """Return the encoded properties, preceded by their length.

        A message expiry comes first, so that a writer can replace it by the remaining time.
        """
        parts: list[bytes] = []
        expiry = self.numbers.get(MESSAGE_EXPIRY)
        if expiry is not None:
            parts.append(_number(MESSAGE_EXPIRY, expiry))
        for identifier, number in self.numbers.items():
            if identifier != MESSAGE_EXPIRY:
                parts.append(_number(identifier, number))
        for identifier, text in self.texts.items():
            parts.append(bytes([identifier]) + prefixed(text.encode()))
        for identifier, data in self.binaries.items():
            parts.append(bytes([identifier]) + prefixed(data))
        for identifier in self.identifiers:
            parts.append(bytes([SUBSCRIPTION_IDENTIFIER]) + remaining_length(identifier))
        for name, value in self.user:
            parts.append(
                bytes([USER_PROPERTY]) + prefixed(name.encode()) + prefixed(value.encode())
            )
        block = b"".join(parts)
        return remaining_length(len(block)) + block


#: The properties of each CONNECT of levels 3 and 4, which have none. They are never changed.
NO_PROPERTIES: Final = Properties5()


def read_properties(reader: PacketReader, place: int) -> Properties5:
    """Read the properties of a packet of type `place`, or of a will if `place` is WILL.

    Raises MalformedPacket for an invalid, repeated or misplaced property.
    """
    properties = Properties5()
    size = reader.variable()
    if size:
        _read(PacketReader(reader.take(size)), place, properties)
    return properties


def _read(reader: PacketReader, place: int, properties: Properties5) -> None:
    while reader.more:
        identifier = reader.byte()
        known = _TABLE.get(identifier)
        if known is None:
            raise MalformedPacket(f"unknown property identifier {identifier}")
        if place not in known.places:
            raise MalformedPacket(
                f"property identifier {identifier} is not allowed in {PACKET_NAMES[place]}",
                code=PROTOCOL_ERROR,
            )
        kind = known.kind
        if kind == _PAIR:
            name = reader.text()
            properties.user.append((name, reader.text()))
            continue
        if kind == _VARIABLE:
            number = reader.variable()
            if number == 0 or properties.identifiers and place != PUBLISH:
                raise MalformedPacket(
                    "subscription identifier is 0 or given twice", code=PROTOCOL_ERROR
                )  # [MQTT-3.8.2-1]
            properties.identifiers.append(number)
            continue
        if properties.has(identifier):
            raise MalformedPacket(
                f"property identifier {identifier} occurs twice", code=PROTOCOL_ERROR
            )
        if kind == _TEXT:
            properties.texts[identifier] = reader.text()
        elif kind == _BINARY:
            properties.binaries[identifier] = reader.binary()
        else:
            number = (
                reader.byte()
                if kind == _BYTE
                else reader.two_bytes()
                if kind == _TWO_BYTES
                else reader.four_bytes()
            )
            if number < known.least or number > known.most:
                raise MalformedPacket(
                    f"the property with identifier {identifier} is {number}, but must be "
                    f"{known.least} to {known.most}",
                    code=TOPIC_ALIAS_INVALID if identifier == TOPIC_ALIAS else PROTOCOL_ERROR,
                )
            properties.numbers[identifier] = number


def _number(identifier: int, number: int) -> bytes:
    kind = _TABLE[identifier].kind
    return bytes([identifier]) + number.to_bytes(
        1 if kind == _BYTE else 2 if kind == _TWO_BYTES else 4, "big"
    )


def prefixed(data: bytes) -> bytes:
    """Return data preceded by its size in two bytes."""
    return len(data).to_bytes(2, "big") + data


def reason_string(text: str) -> Properties5:
    """Return properties that consist of a Reason String only."""
    properties = Properties5()
    properties.texts[REASON] = text
    return properties
