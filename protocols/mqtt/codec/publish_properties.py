"""Reads the properties of a PUBLISH of level 5, and separates the properties that are relayed from
the properties that only the broker uses.

Most publishers send the same properties many times. So the properties of a connection's
publications are parsed once for each distinct encoding, and cached.
"""

from __future__ import annotations

from typing import Final

from broker.errors import BrokerError
from broker.routing.deduplication import NUMBER_HEADERS, NumberedPublication, numbered
from protocols.mqtt.codec.connect import topic_name
from protocols.mqtt.codec.packets import PUBLISH, MalformedPacket, PacketReader
from protocols.mqtt.codec.properties import (
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    RESPONSE_TOPIC,
    TOPIC_ALIAS,
    read_properties,
)
from protocols.mqtt.codec.reasons import PROTOCOL_ERROR

#: Largest number of encodings whose parsed properties are cached for one connection.
KNOWN_MAX: Final = 64


class PublishProperties:
    """The parsed properties of a PUBLISH of level 5."""

    __slots__ = ("alias", "expiry", "misnumbered", "publication", "relayed", "text")

    def __init__(self, relayed: bytes, alias: int, expiry: int, text: bool) -> None:
        #: The encoded properties that subscribers receive, preceded by their length: without the
        #: topic alias, and with the message expiry first. Empty if no property is relayed.
        self.relayed = relayed
        #: The topic alias; 0 for none.
        self.alias = alias
        #: The message expiry interval in seconds; -1 for none.
        self.expiry = expiry
        #: True if the payload is declared to be UTF-8.
        self.text = text
        #: The producer and its sequence number for this message, for deduplication; None if the
        #: message has no sequence number.
        self.publication: NumberedPublication | None = None
        #: True if the User Properties for deduplication are invalid.
        self.misnumbered = False


NO_PROPERTIES: Final = PublishProperties(b"", 0, -1, False)


class PublishPropertiesReader:
    """A reader of the properties of one connection's publications.

    Parsed properties are cached by their encoded bytes, unless they have a sequence number.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, PublishProperties] | None = None

    def read(self, reader: PacketReader) -> PublishProperties:
        """Read and return the properties of a PUBLISH. Raises MalformedPacket if one is invalid."""
        encoded = reader.block()
        if encoded == b"\0":
            return NO_PROPERTIES
        known = self._known
        if known is None:
            known = self._known = {}
        properties = known.get(encoded)
        if properties is None:
            properties = _parsed(encoded)
            # A sequence number does not occur again, so properties that contain one are not cached.
            if properties.publication is None:
                if len(known) >= KNOWN_MAX:
                    known.clear()
                known[encoded] = properties
        return properties


def _parsed(encoded: bytes) -> PublishProperties:
    properties = read_properties(PacketReader(encoded), PUBLISH)
    if properties.identifiers:
        raise MalformedPacket(
            "a client must not send a subscription identifier in PUBLISH", code=PROTOCOL_ERROR
        )  # [MQTT-3.3.4-6]
    response = properties.text(RESPONSE_TOPIC)
    if response is not None:
        topic_name(response)  # [MQTT-3.3.2-14]
    alias = properties.numbers.pop(TOPIC_ALIAS, 0)
    relayed = properties.encoded()
    parsed = PublishProperties(
        b"" if relayed == b"\0" else relayed,
        alias,
        properties.number(MESSAGE_EXPIRY, -1),
        properties.number(PAYLOAD_FORMAT, 0) == 1,
    )
    if properties.user:
        try:
            parsed.publication = numbered(
                {name: value for name, value in properties.user if name in NUMBER_HEADERS}
            )
        except BrokerError:
            parsed.misnumbered = True
    return parsed
