"""Handles the packets of MQTT 5 from a client that has a session."""

from __future__ import annotations

from mypy_extensions import i64

from broker.access.identity import Verdict
from broker.routing.publish_context import PublishContext
from broker.store.contract import Ticket
from protocols.budget import COLD
from protocols.mqtt.codec.connect import topic_name
from protocols.mqtt.codec.packets import (
    AUTH,
    CONNECT,
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
    decoded,
)
from protocols.mqtt.codec.packets5 import auth5, read_acknowledgement, read_auth, read_disconnect
from protocols.mqtt.codec.properties import SESSION_EXPIRY
from protocols.mqtt.codec.publish_properties import PublishProperties, PublishPropertiesReader
from protocols.mqtt.codec.reasons import (
    DISCONNECT_WITH_WILL,
    NOT_AUTHORISED,
    PACKET_IDENTIFIER_NOT_FOUND,
    PROTOCOL_ERROR,
    SUCCESS,
    TOPIC_ALIAS_INVALID,
    UNSPECIFIED,
)
from protocols.mqtt.connection.authentication import EnhancedAuthentication
from protocols.mqtt.connection.connection import MqttConnection
from protocols.mqtt.connection.packet_handler import PacketHandler
from protocols.mqtt.connection.subscribing import subscribe, unsubscribe
from protocols.mqtt.session.exactly_once import pubcomp, pubrec, refuse, release_packet_id
from protocols.mqtt.session.session import Session


class Level5Handler(PacketHandler):
    """The packet handler for protocol level 5.

    `expiry` is the session expiry interval in the client's CONNECT, in seconds. `authentication` is
    None if the CONNECT named no authentication method.
    """

    def __init__(
        self,
        connection: MqttConnection,
        expiry: int,
        authentication: EnhancedAuthentication | None,
    ) -> None:
        super().__init__(connection, has_properties=True)
        self._expiry = expiry
        self._authentication = authentication
        self._properties = PublishPropertiesReader()
        #: Topic names by topic alias; None until the client uses an alias. Most clients use none.
        self._aliases: dict[int, bytes] | None = None

    def close(self) -> None:
        if self._authentication is not None:
            self._authentication.close()

    # -- publications

    def publish_properties(self, reader: PacketReader) -> PublishProperties:
        return self._properties.read(reader)

    def full_topic(self, topic: bytes, properties: PublishProperties) -> bytes:
        alias = properties.alias
        if alias == 0:
            if not topic:
                raise MalformedPacket(
                    "PUBLISH must have a topic name or a topic alias", code=PROTOCOL_ERROR
                )
            return topic
        if alias > self.service.options.topic_alias_maximum:
            raise MalformedPacket(
                f"topic alias {alias} is above the Topic Alias Maximum of the CONNACK",
                code=TOPIC_ALIAS_INVALID,
            )  # [MQTT-3.3.2-9]
        aliases = self._aliases
        if aliases is None:
            aliases = self._aliases = {}
        if topic:
            topic_name(decoded(topic))
            aliases[alias] = topic
            return topic
        known = aliases.get(alias)
        if known is None:
            raise MalformedPacket(
                f"topic alias {alias} is unknown: send it with a topic name first",
                code=PROTOCOL_ERROR,
            )
        return known

    # -- other packets

    def on_packet(self, session: Session, context: PublishContext, first: i64, body: bytes) -> i64:
        kind = first >> 4
        connection = self.connection
        reader = PacketReader(body)
        if kind == PUBLISH:
            return self.on_publish(session, context, first, reader)
        if first == SUBSCRIBE << 4 | 2:
            return COLD * subscribe(
                connection, session, context.identity, self.service, reader, connection.level
            )
        if first == UNSUBSCRIBE << 4 | 2:
            return COLD * unsubscribe(connection, session, self.service, reader, connection.level)
        if first == PUBACK << 4:
            answer = read_acknowledgement(reader, PUBACK)
            if not session.puback(answer.packet_id) and session.is_in_flight(answer.packet_id):
                raise MalformedPacket(
                    "the client answered a QoS 2 publication with PUBACK, not PUBREC",
                    code=PROTOCOL_ERROR,
                )
        elif first == PUBREC << 4:
            self._on_pubrec(session, reader)
        elif first == PUBREL << 4 | 2:
            answer = read_acknowledgement(reader, PUBREL)
            ticket = Ticket(self.replies)
            known = release_packet_id(session, answer.packet_id, ticket)
            self.replies.give_code(
                PUBCOMP << 4,
                answer.packet_id,
                ticket,
                SUCCESS if known else PACKET_IDENTIFIER_NOT_FOUND,
            )
        elif first == PUBCOMP << 4:
            pubcomp(session, read_acknowledgement(reader, PUBCOMP).packet_id)
        elif first == PINGREQ << 4:
            reader.end()
            connection.out.write(PINGRESP)
        elif first == DISCONNECT << 4:
            self._on_disconnect(session, reader)
        elif first == AUTH << 4:
            self._on_auth(reader)
        elif first == CONNECT << 4:
            raise MalformedPacket(
                "the client has sent a second CONNECT", code=PROTOCOL_ERROR
            )  # [MQTT-3.1.0-2]
        elif kind in (0, 2, 9, 11, 13):
            raise MalformedPacket("a client must not send this packet type", code=PROTOCOL_ERROR)
        else:
            raise MalformedPacket("the flags in the fixed header are invalid")  # [MQTT-2.1.3-1]
        return COLD

    def _on_pubrec(self, session: Session, reader: PacketReader) -> None:
        answer = read_acknowledgement(reader, PUBREC)
        if answer.code >= UNSPECIFIED:
            refuse(session, answer.packet_id)  # [MQTT-4.3.3-6]: the broker sends no PUBREL.
        elif not session.is_in_flight(answer.packet_id):
            self.replies.give_code(
                PUBREL << 4 | 2, answer.packet_id, None, PACKET_IDENTIFIER_NOT_FOUND
            )
        else:
            ticket = Ticket(self.replies)
            if not pubrec(session, answer.packet_id, ticket):
                raise MalformedPacket(
                    "the client answered a QoS 1 publication with PUBREC, not PUBACK",
                    code=PROTOCOL_ERROR,
                )
            self.replies.give(PUBREL << 4 | 2, answer.packet_id, ticket)

    def _on_disconnect(self, session: Session, reader: PacketReader) -> None:
        packet = read_disconnect(reader)
        expiry = packet.properties.number(SESSION_EXPIRY, -1)
        if expiry > 0 and self._expiry == 0:
            raise MalformedPacket(
                "DISCONNECT sets a session expiry, but CONNECT set none", code=PROTOCOL_ERROR
            )  # [MQTT-3.14.2-2]
        if expiry >= 0:
            session.expiry = self.service.sessions.granted(expiry)
        if packet.code == SUCCESS:
            self.connection.will = None  # [MQTT-3.14.4-3]
        self.connection.on_closed(
            "client" if packet.code in (SUCCESS, DISCONNECT_WITH_WILL) else "client_error"
        )

    # -- authentication while connected

    def _on_auth(self, reader: PacketReader) -> None:
        packet = read_auth(reader)
        if self._authentication is None:
            raise MalformedPacket(
                "AUTH is not allowed: CONNECT named no authentication method", code=PROTOCOL_ERROR
            )  # [MQTT-4.12.1-1]
        self._authentication.on_auth(packet, True, self._on_verdict)

    def _on_verdict(self, verdict: Verdict, data: bytes) -> None:
        """Continue with the permissions of the new identity after a re-authentication, or close the
        connection if the authenticator has refused the client.
        """
        connection, authentication = self.connection, self._authentication
        if authentication is None:
            return
        identity = (
            None
            if verdict.identity is None
            else verdict.identity.for_vhost(connection.vhost.name, connection.client_id)
        )
        known = connection.identity
        other = identity is not None and known is not None and identity.name != known.name
        if identity is None or other:
            self.service.count_login("refused")
            reason = (
                "the user has no permissions in the vhost any more: grant them with `trellis "
                "permissions set`"
            )
            if other:
                # The session and its messages belong to the user who opened it.
                reason = (
                    "the client re-authenticated as another user than the owner of the session: "
                    "connect again to change the user"
                )
            self.service.log_refusal(
                "login_refused",
                connection,
                verdict.details or reason,
                {"client_id": connection.client_id},
            )
            connection.close_with(NOT_AUTHORISED, "login_refused")  # [MQTT-4.12.1-2]
            return
        self.service.count_login("accepted")
        connection.apply_identity(verdict.identity, identity)
        connection.out.write(auth5(SUCCESS, authentication.method, data or None))
        connection.resume_input()
