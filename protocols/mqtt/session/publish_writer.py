"""Writes publications at level 5: properties, what is left of their time, identifiers, topic
aliases, the client's limit.

PUBLISH   topic, or empty if its alias is known   packet identifier   alias  identifiers  properties
of the content   body
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.message import PLAIN, Message
from broker.messages.outlet import LARGE_BODY, Outlet
from broker.routing.route import RelayFormat
from protocols.crossing import wants_retain
from protocols.mqtt.codec.content import MqttEncoding, described_by, properties_end
from protocols.mqtt.codec.packets import PUBLISH, RETAIN, remaining_length, write_publish_head
from protocols.mqtt.codec.properties import MESSAGE_EXPIRY, TOPIC_ALIAS
from protocols.mqtt.codec.relay_formats import RECODED_5, UNSHARED_5, VERSION_5
from protocols.mqtt.session.subscription_options import Addressed, SessionOptions

#: Octets of the longest topic that is not worth an alias.
SHORT: Final = 3


class PublishWriter:
    """For one connection.

    `packet_max` is the largest packet that its client takes (0: any), `aliases` how many it knows.
    """

    def __init__(self, outlet: Outlet, agenda: Agenda, packet_max: i64, aliases: i64) -> None:
        self._outlet = outlet
        self._agenda = agenda
        self._packet_max: i64 = packet_max
        self._aliases_max: i64 = aliases
        self._careful = bool(packet_max or aliases)
        self._aliases: dict[bytes, bytes] = {}

    def relay_format(self, views: SessionOptions | None) -> RelayFormat:
        """Whether others may relay their octets here."""
        return UNSHARED_5 if self._careful or views is not None and views.identified else VERSION_5

    def write(
        self,
        message: Message,
        qos: i64,
        packet_id: i64,
        flags: i64,
        views: SessionOptions | None,
    ) -> bool:
        """False when the packet would be too large [MQTT-3.1.2-24]: then nothing was written."""
        topic = message.address.topic
        encoding = message.encoding
        outlet = self._outlet
        if encoding is PLAIN and views is None and not self._careful:
            if message.retained:
                flags |= RETAIN
            plain = message.content
            write_publish_head(outlet.out, topic, len(plain) + 1, qos, packet_id, flags)
            outlet.out.append(0)
            if len(plain) < LARGE_BODY:
                outlet.out.write(plain)
            else:
                outlet.attach(plain)
            if not outlet.dirty:
                outlet.touch()
            return True
        properties, body, extra = b"", message.content, b""
        if encoding is not PLAIN:
            retained_by_publisher = False
            if isinstance(encoding, MqttEncoding):
                retained_by_publisher = encoding.retain
                content, described = message.content, encoding.described
            else:
                content, described = _content_for(message), True
                retained_by_publisher = views is not None and wants_retain(message.properties)
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
                and views is not None
                and not isinstance(message, Addressed)
                and views.of(topic).as_published
            ):
                flags |= RETAIN
        if message.retained:
            flags |= RETAIN
        if views is not None:
            extra = (
                message.identifier
                if isinstance(message, Addressed)
                else views.of(topic).identifiers
            )
        alias = b""
        known = False
        if self._aliases_max:
            found = self._aliases.get(topic)
            known = found is not None
            alias = self._new_alias(topic) if found is None else found
        name = b"" if known else topic
        told = alias + extra + properties
        head = (
            len(name).to_bytes(2, "big")
            + name
            + (int(packet_id).to_bytes(2, "big") if qos else b"")
        )
        size = remaining_length(len(told))
        rest = remaining_length(len(head) + len(size) + len(told) + len(body))
        if (
            self._packet_max
            and 1 + len(rest) + len(head) + len(size) + len(told) + len(body) > self._packet_max
        ):
            return False
        if alias and not known:
            self._aliases[topic] = alias
        outlet.out.write(bytes([int(PUBLISH << 4 | qos << 1 | flags)]) + rest + head + size + told)
        if len(body) < LARGE_BODY:
            outlet.out.write(body)
        else:
            outlet.attach(body)
        if not outlet.dirty:
            outlet.touch()
        return True

    def _left(self, message: Message) -> bytes:
        """Seconds until the message expires [MQTT-3.3.2-6]."""
        left = max(0, int(message.expires - self._agenda.now) + 999) // 1000
        return min(left, 0xFFFFFFFF).to_bytes(4, "big")

    def _new_alias(self, topic: bytes) -> bytes:
        """The alias that this packet introduces, as a property; nothing when there is none left."""
        number = len(self._aliases) + 1
        if number > self._aliases_max or len(topic) <= SHORT:
            return b""
        return bytes([TOPIC_ALIAS]) + number.to_bytes(2, "big")


def _content_for(message: Message) -> bytes:
    """Properties and body of a message from elsewhere; made once per message."""
    if message.recoding is RECODED_5:
        return message.recoded
    return message.cache_recoded(
        RECODED_5, described_by(message.properties, message.expires > 0).encoded() + message.body
    )
