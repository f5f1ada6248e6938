"""Handles the packets of MQTT 3.1 and 3.1.1 from a client that has a session."""

from __future__ import annotations

from mypy_extensions import i64

from broker.routing.publish_context import PublishContext
from broker.routing.relay import Relay
from broker.store.contract import Ticket
from protocols.budget import COLD
from protocols.mqtt.codec.packets import (
    DISCONNECT,
    PINGREQ,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBSCRIBE,
    UNSUBSCRIBE,
    MalformedPacket,
    PacketReader,
)
from protocols.mqtt.codec.publish_properties import NO_PROPERTIES, PublishProperties
from protocols.mqtt.connection.connection import MqttConnection
from protocols.mqtt.connection.packet_handler import PacketHandler
from protocols.mqtt.connection.subscribing import subscribe, unsubscribe
from protocols.mqtt.session.exactly_once import pubcomp, pubrec, release_packet_id
from protocols.mqtt.session.session import Session


class Level4Handler(PacketHandler):
    """The packet handler for protocol level 4: MQTT 3.1.1."""

    def __init__(self, connection: MqttConnection) -> None:
        super().__init__(connection, has_properties=False)

    def publish_properties(self, reader: PacketReader) -> PublishProperties:
        return NO_PROPERTIES

    def full_topic(self, topic: bytes, properties: PublishProperties) -> bytes:
        return topic

    def on_packet(self, session: Session, context: PublishContext, first: i64, body: bytes) -> i64:
        connection, replies = self.connection, self.replies
        reader = PacketReader(body)
        if first >> 4 == PUBLISH:
            return self.on_publish(session, context, first, reader)
        if first == PUBACK << 4:
            # Ignore the PUBACK: no message in flight has its packet identifier.
            reader.packet_id()
            reader.end()
        elif first == PUBREC << 4:
            packet_id = reader.packet_id()
            reader.end()
            ticket = Ticket(replies)
            if pubrec(session, packet_id, ticket):
                replies.give(PUBREL << 4 | 2, packet_id, ticket)
        elif first == PUBREL << 4 | 2:
            packet_id = reader.packet_id()
            reader.end()
            ticket = Ticket(replies)
            release_packet_id(session, packet_id, ticket)
            replies.give(PUBCOMP << 4, packet_id, ticket)
        elif first == PUBCOMP << 4:
            packet_id = reader.packet_id()
            reader.end()
            pubcomp(session, packet_id)
        elif first == SUBSCRIBE << 4 | 2:
            return COLD * subscribe(
                connection, session, context.identity, self.service, reader, connection.level
            )
        elif first == UNSUBSCRIBE << 4 | 2:
            return COLD * unsubscribe(connection, session, self.service, reader, connection.level)
        elif first == PINGREQ << 4:
            reader.end()
            connection.out.write(PINGRESP)
        elif first == DISCONNECT << 4:
            reader.end()
            connection.will = None  # [MQTT-3.14.4-3]
            connection.on_closed("client")
        else:
            raise MalformedPacket(
                "packet type or flags are invalid"
            )  # [MQTT-2.2.2-2], [MQTT-3.1.0-2]
        return COLD


class Level3Handler(Level4Handler):
    """The packet handler for protocol level 3: MQTT 3.1."""

    def on_packet(self, session: Session, context: PublishContext, first: i64, body: bytes) -> i64:
        kind = first >> 4
        if kind != PUBLISH:
            # MQTT 3.1 has no rule for these flags; its clients set DUP when they send again.
            first = kind << 4 | (2 if kind in (PUBREL, SUBSCRIBE, UNSUBSCRIBE) else 0)
        return super().on_packet(session, context, first, body)

    def _send(self, run: Relay, count: i64, data: bytes, start: i64, end: i64) -> None:
        if count > 0:
            run.send_level_3(data[start:end], count)
