"""Writes PUBLISH packets to a client, at its protocol level.

    level 3, 4   topic name                          packet identifier   payload
    level 5      topic name, or empty if the client  packet identifier   properties: topic alias,
                 knows its alias                                         subscription identifiers,
                                                                         the message's properties;
                                                                         payload

A packet of QoS 0 has no packet identifier.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.message import PLAIN, Message
from broker.messages.outlet import LARGE_BODY, Outlet
from broker.routing.subscriber import RelayFormat
from protocols.crossing import wants_retain
from protocols.mqtt.codec.content import MqttEncoding, described_by, properties_end
from protocols.mqtt.codec.packets import PUBLISH, RETAIN, remaining_length, write_publish_head
from protocols.mqtt.codec.properties import MESSAGE_EXPIRY, TOPIC_ALIAS
from protocols.mqtt.codec.relay_formats import (
    RECODED_4,
    RECODED_5,
    UNSHARED_5,
    VERSION_4,
    VERSION_5,
)
from protocols.mqtt.session.subscription_options import Addressed, SessionOptions

#: Size in bytes up to which a topic name gets no alias.
SHORT: Final = 3


class PublishWriter:
    """The writer of the PUBLISH packets that the broker sends over one connection."""

    def __init__(self, outlet: Outlet) -> None:
        self.outlet = outlet
        #: The options of the session's subscriptions, for level 5 and bridges; None if there are
        #: none.
        self.options: SessionOptions | None = None

    @property
    def relay_format(self) -> RelayFormat:
        """The format in which the client receives packets.

        A plan relays a packet unchanged only to clients with the packet's format.
        """
        return VERSION_4

    @abstractmethod
    def write(self, message: Message, qos: i64, packet_id: i64, flags: i64) -> bool:
        """Write the PUBLISH packet of a message to the client. Hot path.

        `flags` has the bits DUP and RETAIN; `packet_id` is not used with QoS 0. Return False, and
        write nothing, if the client accepts no packet of this size.
        """
        raise NotImplementedError


class Level4Writer(PublishWriter):
    """The writer of PUBLISH packets for clients of protocol levels 3 and 4."""

    def write(self, message: Message, qos: i64, packet_id: i64, flags: i64) -> bool:
        outlet = self.outlet
        if message.retained:
            flags |= RETAIN
        body = _plain_body(message)
        write_publish_head(outlet.out, message.address.topic, len(body), qos, packet_id, flags)
        if len(body) < LARGE_BODY:
            outlet.out.write(body)
        else:
            outlet.attach(body)
        if not outlet.dirty:
            outlet.touch()
        return True


class BridgeWriter(Level4Writer):
    """The writer of PUBLISH packets for bridges of protocol levels 3 and 4, whose subscriptions
    have Retain As Published.
    """

    def write(self, message: Message, qos: i64, packet_id: i64, flags: i64) -> bool:
        options, encoding = self.options, message.encoding
        if options is not None and not isinstance(message, Addressed) and encoding is not PLAIN:
            retained_by_publisher = (
                encoding.retain
                if isinstance(encoding, MqttEncoding)
                else wants_retain(message.properties)
            )
            if retained_by_publisher and options.of(message.address.topic).as_published:
                flags |= RETAIN
        return super().write(message, qos, packet_id, flags)


class Level5Writer(PublishWriter):
    """The writer of PUBLISH packets for clients of protocol level 5.

    `packet_max` is the client's Maximum Packet Size in bytes (0: no limit), `aliases` its Topic
    Alias Maximum.
    """

    def __init__(self, outlet: Outlet, agenda: Agenda, packet_max: i64, aliases: i64) -> None:
        super().__init__(outlet)
        self._agenda = agenda
        self._packet_max: i64 = packet_max
        self._aliases_max: i64 = aliases
        self._is_limited = bool(packet_max or aliases)
        self._aliases: dict[bytes, bytes] = {}

    @property
    def relay_format(self) -> RelayFormat:
        options = self.options
        shared = not self._is_limited and (options is None or not options.identified)
        return VERSION_5 if shared else UNSHARED_5

    def write(self, message: Message, qos: i64, packet_id: i64, flags: i64) -> bool:
        options = self.options
        if message.encoding is PLAIN and options is None and not self._is_limited:
            outlet = self.outlet
            if message.retained:
                flags |= RETAIN
            plain = message.content
            write_publish_head(
                outlet.out, message.address.topic, len(plain) + 1, qos, packet_id, flags
            )
            outlet.out.append(0)
            if len(plain) < LARGE_BODY:
                outlet.out.write(plain)
            else:
                outlet.attach(plain)
            if not outlet.dirty:
                outlet.touch()
            return True
        return self._write_described(message, qos, packet_id, flags, options)

    def _write_described(
        self,
        message: Message,
        qos: i64,
        packet_id: i64,
        flags: i64,
        options: SessionOptions | None,
    ) -> bool:
        """Write a packet that may need properties or a topic alias, or may be too large.

        Return False, and write nothing, if the packet is too large for the client.
        """
        topic = message.address.topic
        encoding = message.encoding
        outlet = self.outlet
        properties, body, identifiers = b"", message.content, b""
        if encoding is not PLAIN:
            retained_by_publisher = False
            if isinstance(encoding, MqttEncoding):
                retained_by_publisher = encoding.retain
                content, described = message.content, encoding.described
            else:
                content, described = _described_content(message), True
                retained_by_publisher = options is not None and wants_retain(message.properties)
            if described:
                end = properties_end(content)
                start = end
                if end:
                    start = 1
                    while content[start - 1] >= 128:
                        start += 1
                properties, body = content[start:end], content[end:]
                if message.expires > 0 and properties and properties[0] == MESSAGE_EXPIRY:
                    properties = bytes([MESSAGE_EXPIRY]) + self._left(message) + properties[5:]
            if (
                retained_by_publisher
                and options is not None
                and not isinstance(message, Addressed)
                and options.of(topic).as_published
            ):
                flags |= RETAIN
        if message.retained:
            flags |= RETAIN
        if options is not None:
            identifiers = (
                message.identifier
                if isinstance(message, Addressed)
                else options.of(topic).identifiers
            )
        alias = b""
        known = False
        if self._aliases_max:
            known_alias = self._aliases.get(topic)
            known = known_alias is not None
            alias = self._new_alias(topic) if known_alias is None else known_alias
        name = b"" if known else topic
        properties = alias + identifiers + properties
        head = (
            len(name).to_bytes(2, "big")
            + name
            + (int(packet_id).to_bytes(2, "big") if qos else b"")
            + remaining_length(len(properties))
            + properties
        )
        rest = remaining_length(len(head) + len(body))
        if self._packet_max and 1 + len(rest) + len(head) + len(body) > self._packet_max:
            return False  # [MQTT-3.1.2-24]
        if alias and not known:
            self._aliases[topic] = alias
        outlet.out.write(bytes([int(PUBLISH << 4 | qos << 1 | flags)]) + rest + head)
        if len(body) < LARGE_BODY:
            outlet.out.write(body)
        else:
            outlet.attach(body)
        if not outlet.dirty:
            outlet.touch()
        return True

    def _left(self, message: Message) -> bytes:
        """Return the seconds until the message expires, as a four-byte integer [MQTT-3.3.2-6]."""
        left = max(0, int(message.expires - self._agenda.now) + 999) // 1000
        return min(left, 0xFFFFFFFF).to_bytes(4, "big")

    def _new_alias(self, topic: bytes) -> bytes:
        """Return the property that sets a new alias for the topic name.

        Return b"" if all aliases are in use, or if the name is too short to need an alias.
        """
        number = len(self._aliases) + 1
        if number > self._aliases_max or len(topic) <= SHORT:
            return b""
        return bytes([TOPIC_ALIAS]) + number.to_bytes(2, "big")


def _plain_body(message: Message) -> bytes:
    """Return the payload of a message.

    If the content also has properties, the message caches the extracted payload.
    """
    encoding = message.encoding
    if encoding is PLAIN or isinstance(encoding, MqttEncoding) and not encoding.described:
        return message.content
    if message.recoding is RECODED_4:
        return message.recoded
    return message.cache_recoded(RECODED_4, message.body)


def _described_content(message: Message) -> bytes:
    """Return properties and payload of a message from AMQP, encoded for level 5.

    The result is cached in the message.
    """
    if message.recoding is RECODED_5:
        return message.recoded
    return message.cache_recoded(
        RECODED_5, described_by(message.properties, message.expires > 0).encoded() + message.body
    )
