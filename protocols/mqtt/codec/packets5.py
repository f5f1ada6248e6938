"""Packets of MQTT 5 but PUBLISH and CONNECT: read from a client, written for one.

What is read is checked as far as one packet shows; what only a session knows is its affair.
"""

from __future__ import annotations

from typing import Final

from protocols.mqtt.codec.packets import (
    AUTH,
    CONNACK,
    DISCONNECT,
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
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

_EMPTY: Final = Properties5()


class Acknowledgement:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""

    def __init__(self, packet_id: int, code: int, properties: Properties5) -> None:
        self.packet_id = packet_id
        self.code = code
        self.properties = properties


class ReasonPacket:
    """DISCONNECT, or AUTH: a reason code with properties."""

    def __init__(self, code: int, properties: Properties5) -> None:
        self.code = code
        self.properties = properties


class SubscribeRequest:
    """One topic filter of a SUBSCRIBE, with its options."""

    def __init__(
        self,
        topic_filter: str,
        qos: int,
        no_local: bool = False,
        as_published: bool = False,
        handling: int = 0,
    ) -> None:
        self.topic_filter = topic_filter
        self.qos = qos
        self.no_local = no_local
        self.as_published = as_published
        #: Retained messages: 0 always, 1 if the subscription is new, 2 never.
        self.handling = handling


class SubscribePacket:
    """SUBSCRIBE. `identifier` is 0 where there is none."""

    def __init__(
        self, packet_id: int, properties: Properties5, wishes: list[SubscribeRequest]
    ) -> None:
        self.packet_id = packet_id
        self.properties = properties
        self.requests = wishes

    @property
    def identifier(self) -> int:
        return self.properties.identifiers[0] if self.properties.identifiers else 0


class UnsubscribePacket:
    """UNSUBSCRIBE."""

    def __init__(self, packet_id: int, properties: Properties5, filters: list[str]) -> None:
        self.packet_id = packet_id
        self.properties = properties
        self.filters = filters


# -- read


def read_acknowledgement(reader: PacketReader, kind: int) -> Acknowledgement:
    """Reason code and properties may be left out."""
    packet_id = reader.packet_id()
    code = _code(reader, kind) if reader.more else SUCCESS
    properties = read_properties(reader, kind) if reader.more else _EMPTY
    reader.end()
    return Acknowledgement(packet_id, code, properties)


def read_disconnect(reader: PacketReader) -> ReasonPacket:
    code = _code(reader, DISCONNECT) if reader.more else SUCCESS
    properties = read_properties(reader, DISCONNECT) if reader.more else _EMPTY
    reader.end()
    return ReasonPacket(code, properties)


def read_auth(reader: PacketReader) -> ReasonPacket:
    """Without a reason code and properties it means success, which is nothing that a client may say
    [MQTT-3.15.2-1].
    """
    if not reader.more:
        raise MalformedPacket("AUTH with success", code=PROTOCOL_ERROR)
    code = _code(reader, AUTH)
    properties = read_properties(reader, AUTH)
    reader.end()
    return ReasonPacket(code, properties)


def read_subscribe(reader: PacketReader) -> SubscribePacket:
    packet_id = reader.packet_id()
    properties = read_properties(reader, SUBSCRIBE)
    wishes: list[SubscribeRequest] = []
    while reader.more:
        topic_filter, options = reader.text(), reader.byte()
        qos, handling = options & 3, options >> 4 & 3
        if options & 0xC0:
            raise MalformedPacket("reserved subscription options")  # [MQTT-3.8.3-5]
        if qos == 3 or handling == 3:
            raise MalformedPacket("subscription options", code=PROTOCOL_ERROR)
        if options & 4 and topic_filter.startswith("$share/"):
            raise MalformedPacket("no local, but shared", code=PROTOCOL_ERROR)  # [MQTT-3.8.3-4]
        wishes.append(
            SubscribeRequest(topic_filter, qos, bool(options & 4), bool(options & 8), handling)
        )
    if not wishes:
        raise MalformedPacket("no topic filter", code=PROTOCOL_ERROR)  # [MQTT-3.8.3-2]
    return SubscribePacket(packet_id, properties, wishes)


def read_unsubscribe(reader: PacketReader) -> UnsubscribePacket:
    packet_id = reader.packet_id()
    properties = read_properties(reader, UNSUBSCRIBE)
    filters: list[str] = []
    while reader.more:
        filters.append(reader.text())
    if not filters:
        raise MalformedPacket("no topic filter", code=PROTOCOL_ERROR)  # [MQTT-3.10.3-2]
    return UnsubscribePacket(packet_id, properties, filters)


def _code(reader: PacketReader, kind: int) -> int:
    code = reader.byte()
    if code not in _CODES[kind]:
        raise MalformedPacket(
            f"reason code {code:#04x} in a packet of type {kind}", code=PROTOCOL_ERROR
        )
    return code


# -- written


def connack5(present: bool, code: int, properties: Properties5) -> bytes:
    body = bytes([1 if present else 0, code]) + properties.encoded()
    return bytes([CONNACK << 4]) + remaining_length(len(body)) + body


def answer5(first: int, packet_id: int, code: int, properties: Properties5 | None = None) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP."""
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


def codes5(
    first: int, packet_id: int, codes: bytes, properties: Properties5 | None = None
) -> bytes:
    """SUBACK or UNSUBACK."""
    body = packet_id.to_bytes(2, "big") + (properties or _EMPTY).encoded() + codes
    return bytes([first]) + remaining_length(len(body)) + body


def disconnect5(code: int, properties: Properties5 | None = None) -> bytes:
    body = bytes([code]) + (b"" if properties is None else properties.encoded())
    return bytes([DISCONNECT << 4]) + remaining_length(len(body)) + body


def auth5(code: int, method: str, data: bytes | None) -> bytes:
    properties = Properties5()
    properties.texts[AUTHENTICATION_METHOD] = method
    if data is not None:
        properties.octets[AUTHENTICATION_DATA] = data
    body = bytes([code]) + properties.encoded()
    return bytes([AUTH << 4]) + remaining_length(len(body)) + body
