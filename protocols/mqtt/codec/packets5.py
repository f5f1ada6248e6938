"""Reads and writes the packets of MQTT 5. PUBLISH and CONNECT have modules of their own.

A `read_` function checks only the packet itself; its caller checks if the packet is allowed in the
present state of the session.
"""

from __future__ import annotations

from typing import Final

from protocols.mqtt.codec.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PACKET_NAMES,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    MalformedPacket,
    PacketReader,
    remaining_length,
)
from protocols.mqtt.codec.properties import (
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    Properties5,
    read_properties,
)
from protocols.mqtt.codec.reasons import (
    CONTINUE_AUTHENTICATION,
    NO_MATCHING_SUBSCRIBERS,
    PACKET_IDENTIFIER_NOT_FOUND,
    PROTOCOL_ERROR,
    REAUTHENTICATE,
    SUCCESS,
)

_REFUSALS: Final = (0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99)
#: Reason codes that a client may give, by packet type.
_CODES: Final[dict[int, tuple[int, ...]]] = {
    int(PUBACK): (SUCCESS, NO_MATCHING_SUBSCRIBERS, *_REFUSALS),
    int(PUBREC): (SUCCESS, NO_MATCHING_SUBSCRIBERS, *_REFUSALS),
    int(PUBREL): (SUCCESS, PACKET_IDENTIFIER_NOT_FOUND),
    int(PUBCOMP): (SUCCESS, PACKET_IDENTIFIER_NOT_FOUND),
    int(DISCONNECT): (
        0x00,
        0x04,
        0x80,
        0x81,
        0x82,
        0x83,
        0x90,
        0x93,
        0x94,
        0x95,
        0x96,
        0x97,
        0x98,
        0x99,
    ),
    int(AUTH): (CONTINUE_AUTHENTICATION, REAUTHENTICATE),
}

#: The properties of a packet without properties. All such packets share this object, which is never
#: changed.
_NO_PROPERTIES: Final = Properties5()


class Acknowledgement:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP."""

    def __init__(self, packet_id: int, code: int, properties: Properties5) -> None:
        self.packet_id = packet_id
        self.code = code
        self.properties = properties


class ReasonPacket:
    """A DISCONNECT or AUTH, which consists of a reason code and properties."""

    def __init__(self, code: int, properties: Properties5) -> None:
        self.code = code
        self.properties = properties


class SubscribeRequest:
    """One topic filter of a SUBSCRIBE or UNSUBSCRIBE, with the options of a SUBSCRIBE."""

    def __init__(
        self,
        topic_filter: str,
        qos: int,
        no_local: bool = False,
        retain_as_published: bool = False,
        retain_handling: int = 0,
    ) -> None:
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.retain_as_published = retain_as_published
        #: The Retain Handling option: 0 sends retained messages, 1 sends them if the subscription
        #: is new, 2 sends none.
        self.retain_handling = retain_handling


class SubscriptionHead:
    """A SUBSCRIBE or UNSUBSCRIBE without its topic filters, which may be very many."""

    def __init__(self, packet_id: int, properties: Properties5) -> None:
        self.packet_id = packet_id
        self.properties = properties

    @property
    def identifier(self) -> int:
        """The subscription identifier; 0 if there is none."""
        return self.properties.identifiers[0] if self.properties.identifiers else 0


# -- packets from a client


def read_acknowledgement(reader: PacketReader, kind: int) -> Acknowledgement:
    """Read a PUBACK, PUBREC, PUBREL or PUBCOMP; `kind` says which.

    Reason code and properties may be absent: the result then has code 0 and no properties. Raises
    MalformedPacket.
    """
    packet_id = reader.packet_id()
    code = _code(reader, kind) if reader.more else SUCCESS
    properties = read_properties(reader, kind) if reader.more else _NO_PROPERTIES
    reader.end()
    return Acknowledgement(packet_id, code, properties)


def read_disconnect(reader: PacketReader) -> ReasonPacket:
    """Read a DISCONNECT; reason code and properties may be absent. Raises MalformedPacket."""
    code = _code(reader, DISCONNECT) if reader.more else SUCCESS
    properties = read_properties(reader, DISCONNECT) if reader.more else _NO_PROPERTIES
    reader.end()
    return ReasonPacket(code, properties)


def read_auth(reader: PacketReader) -> ReasonPacket:
    """Read an AUTH. Raises MalformedPacket.

    An AUTH without a reason code is an error too: its code is 0 (success), which only the broker
    may send [MQTT-3.15.2-1].
    """
    if not reader.more:
        raise MalformedPacket("a client must not send AUTH with reason code 0", code=PROTOCOL_ERROR)
    code = _code(reader, AUTH)
    properties = read_properties(reader, AUTH)
    reader.end()
    return ReasonPacket(code, properties)


def read_subscription_head(reader: PacketReader, kind: int) -> SubscriptionHead:
    """Read a SUBSCRIBE or UNSUBSCRIBE (`kind` says which) up to its first topic filter.

    Raises MalformedPacket, also if the packet has no topic filter.
    """
    packet_id = reader.packet_id()
    properties = read_properties(reader, kind)
    if not reader.more:
        raise MalformedPacket(
            f"{'SUBSCRIBE' if kind == SUBSCRIBE else 'UNSUBSCRIBE'} has no topic filter",
            code=PROTOCOL_ERROR,
        )  # [MQTT-3.8.3-2], [MQTT-3.10.3-2]
    return SubscriptionHead(packet_id, properties)


def read_subscribe_request(reader: PacketReader) -> SubscribeRequest:
    """Read the next topic filter of a SUBSCRIBE, with its options. Raises MalformedPacket."""
    topic_filter, options = reader.text(), reader.byte()
    qos, retain_handling = options & 3, options >> 4 & 3
    if options & 0xC0:
        raise MalformedPacket("reserved subscription options are set")  # [MQTT-3.8.3-5]
    if qos == 3 or retain_handling == 3:
        raise MalformedPacket("QoS or Retain Handling is 3; the maximum is 2", code=PROTOCOL_ERROR)
    if options & 4 and topic_filter.startswith("$share/"):
        raise MalformedPacket(
            "a shared subscription must not set No Local", code=PROTOCOL_ERROR
        )  # [MQTT-3.8.3-4]
    return SubscribeRequest(
        topic_filter, qos, bool(options & 4), bool(options & 8), retain_handling
    )


def _code(reader: PacketReader, kind: int) -> int:
    code = reader.byte()
    if code not in _CODES[kind]:
        raise MalformedPacket(
            f"reason code {code:#04x} is not allowed in {PACKET_NAMES[kind]}", code=PROTOCOL_ERROR
        )
    return code


# -- packets to a client


def connack5(present: bool, code: int, properties: Properties5) -> bytes:
    """Return a CONNACK of level 5 with the reason code `code`.

    `present` is the flag Session Present: True if the broker resumes an existing session.
    """
    body = bytes([1 if present else 0, code]) + properties.encoded()
    return bytes([CONNACK << 4]) + remaining_length(len(body)) + body


def acknowledgement5(
    first: int, packet_id: int, code: int, properties: Properties5 | None = None
) -> bytes:
    """Return a PUBACK, PUBREC, PUBREL or PUBCOMP. `first` is the packet's first byte."""
    body = packet_id.to_bytes(2, "big")
    if code or properties is not None:
        body += bytes([code])
    if properties is not None:
        body += properties.encoded()
    return (
        bytes([first, len(body)]) + body
        if len(body) < 128
        else bytes([first]) + remaining_length(len(body)) + body
    )


def reason_codes5(
    first: int, packet_id: int, codes: bytes, properties: Properties5 | None = None
) -> bytes:
    """Return a SUBACK or UNSUBACK with a reason code for each topic filter.

    `first` is the packet's first byte.
    """
    body = packet_id.to_bytes(2, "big") + (properties or _NO_PROPERTIES).encoded() + codes
    return bytes([first]) + remaining_length(len(body)) + body


def disconnect5(code: int, properties: Properties5 | None = None) -> bytes:
    """Return a DISCONNECT packet with the reason code `code`."""
    body = bytes([code]) + (b"" if properties is None else properties.encoded())
    return bytes([DISCONNECT << 4]) + remaining_length(len(body)) + body


def auth5(code: int, method: str, data: bytes | None) -> bytes:
    """Return an AUTH packet with a reason code, an authentication method and its data."""
    properties = Properties5()
    properties.texts[AUTHENTICATION_METHOD] = method
    if data is not None:
        properties.binaries[AUTHENTICATION_DATA] = data
    body = bytes([code]) + properties.encoded()
    return bytes([AUTH << 4]) + remaining_length(len(body)) + body
