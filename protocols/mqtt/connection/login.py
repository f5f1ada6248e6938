"""Logs a client in, from its CONNECT to the CONNACK: credentials, verdict, session.

CONNECT --> verdict on the credentials --> session --> CONNACK --> PacketHandler of the level
        `-> AUTH <-> AUTH ... (level 5) -^
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.access.identity import Credentials, Identity, Verdict
from broker.routing.publish_context import PublishContext
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from protocols.credential_expiry import expiry_of
from protocols.end_reasons import STANDBY
from protocols.mqtt.codec.connect import (
    LEVEL_5,
    LEVEL_31,
    Connect,
    UnacceptableVersion,
    read_connect,
    read_level,
)
from protocols.mqtt.codec.packets import (
    ACCEPTED,
    AUTH,
    BAD_CREDENTIALS,
    CONNECT,
    DISCONNECT,
    IDENTIFIER_REJECTED,
    NOT_AUTHORISED,
    UNACCEPTABLE_VERSION,
    UNAVAILABLE,
    MalformedPacket,
    PacketReader,
    connack,
)
from protocols.mqtt.codec.packets5 import connack5, read_auth, read_disconnect
from protocols.mqtt.codec.properties import NO_PROPERTIES, SERVER_REFERENCE, Properties5
from protocols.mqtt.codec.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    PACKET_TOO_LARGE,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
    SESSION_TAKEN_OVER,
    SUCCESS,
    UNSUPPORTED_VERSION,
    USE_ANOTHER_SERVER,
)
from protocols.mqtt.codec.reasons import NOT_AUTHORISED as NOT_AUTHORISED_5
from protocols.mqtt.codec.remaining_length import read_remaining_length
from protocols.mqtt.codec.topics import SHARE
from protocols.mqtt.connection.authentication import EnhancedAuthentication
from protocols.mqtt.connection.closing import AUTHENTICATING, OPENING
from protocols.mqtt.connection.connection import InputHandler, MqttConnection
from protocols.mqtt.connection.granting import granted
from protocols.mqtt.connection.identifiers import identifier_refusal
from protocols.mqtt.connection.level4 import Level3Handler, Level4Handler
from protocols.mqtt.connection.level5 import Level5Handler
from protocols.mqtt.connection.reauthorization import apply_identity
from protocols.mqtt.connection.service import NAMES
from protocols.mqtt.session.publish_writer import (
    BridgeWriter,
    Level4Writer,
    Level5Writer,
    PublishWriter,
)
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.wills import will_of
from protocols.refusal_fields import ACCESS, CAUSE, other_protocol

#: Size in bytes of the largest packet that MQTT permits. A Maximum Packet Size of at least this
#: size is no limit.
PACKET_MAX: Final = 268_435_460


class Login(InputHandler):
    """The handler of the packets of a client that has no session yet."""

    def __init__(self, connection: MqttConnection) -> None:
        self._connection = connection
        self._service = connection.service
        #: The client's CONNECT; None before the CONNECT is read, and after it is answered.
        self._connect: Connect | None = None
        self._credentials: Credentials | None = None
        self._authentication: EnhancedAuthentication | None = None

    def close(self) -> None:
        self._connect = None
        if self._authentication is not None:
            self._authentication.close()
            self._authentication = None

    # -- packets

    def parse(self, data: bytes, position: i64) -> i64:
        connection = self._connection
        size: i64 = len(data)
        while size - position >= 2:
            first: i64 = data[position]
            length, start = read_remaining_length(data, position + 1)
            if start == 0:
                break
            end = start + length
            awaiting_connect = connection.level == 0
            # At level 5, the limit (Maximum Packet Size) is for the whole packet. At the older
            # levels, it is for the bytes after the remaining length.
            if length > connection.packet_max or (
                not awaiting_connect and end - position > connection.packet_max
            ):
                raise MalformedPacket(
                    f"the packet is larger than the limit of {connection.packet_max} bytes",
                    "too_large",
                    PACKET_TOO_LARGE,
                )
            if awaiting_connect and first != CONNECT << 4:
                # [MQTT-3.1.0-1]. This check does not wait for the other bytes of the packet.
                raise MalformedPacket(
                    other_protocol(data[position:], "MQTT, whose first packet is a CONNECT")
                )
            if end > size:
                connection.need = end - position
                break
            self._on_packet(first, data[start:end])
            if connection.finished:
                return size
            position = end
            if connection.stalled or connection.handler is not self:
                break
        return position

    def _on_packet(self, first: i64, body: bytes) -> None:
        if self._credentials is None:
            self._on_connect(body)
        elif first == AUTH << 4 and self._authentication is not None:
            self._authentication.on_auth(read_auth(PacketReader(body)), False, self._decide)
        elif first == AUTH << 4:
            raise MalformedPacket(
                "AUTH is not allowed: CONNECT named no authentication method", code=PROTOCOL_ERROR
            )  # [MQTT-4.12.0-5]
        elif first == DISCONNECT << 4:
            read_disconnect(PacketReader(body))
            self._connection.on_closed("client")
        else:
            raise MalformedPacket(
                "only AUTH and DISCONNECT are allowed before the CONNACK", code=PROTOCOL_ERROR
            )  # [MQTT-3.1.2-30]

    def _on_connect(self, body: bytes) -> None:
        connection = self._connection
        if read_level(body) == LEVEL_5:
            connection.level = LEVEL_5
        try:
            connect = read_connect(PacketReader(body))
        except UnacceptableVersion as error:
            connection.level = error.level
            connection.reject(UNACCEPTABLE_VERSION, UNSUPPORTED_VERSION, "unacceptable_version")
            return
        connection.state = AUTHENTICATING
        connection.level = connect.level
        connection.bridge = connect.bridge
        largest = connect.maximum_packet_size
        connection.send_max = largest if largest < PACKET_MAX else 0
        connection.keep_alive = connect.keep_alive
        if (
            connect.level < LEVEL_5
            and not connect.client_id
            and (not connect.clean or connect.level == LEVEL_31)
            or connect.client_id.startswith(SHARE)
        ):
            connection.reject(
                IDENTIFIER_REJECTED, CLIENT_IDENTIFIER_NOT_VALID, "identifier_rejected"
            )  # [MQTT-3.1.3-8 of 3.1.1]
            return
        if self._service.redirect is not None:
            self._redirect(self._service.redirect.server(connection.peer.listener))
            return
        self._connect = connect
        credentials = self._credentials = self._service.credentials(
            connect.user, connect.password or b"", connect.client_id, connection.peer
        )
        connection.user = credentials.user or ""
        authenticator = self._service.broker.authenticator
        method = connect.method
        if method is None:
            connection.stall()
            authenticator.authenticate(credentials, self._on_verdict)
            return
        self._authentication = EnhancedAuthentication(
            connection, authenticator, method, credentials
        )
        if not self._authentication.start(connect.method_data, self._decide):
            connection.reject(0, BAD_AUTHENTICATION_METHOD, "bad_authentication_method")

    def _redirect(self, server: str) -> None:
        """Refuse the client, because this node is a standby.

        `server` is the HOST:PORT of the active node; "" if it is not known.
        """
        connection, properties = self._connection, Properties5()
        code = SERVER_UNAVAILABLE
        if server:
            code = USE_ANOTHER_SERVER
            properties.texts[SERVER_REFERENCE] = server
        refusal = connack5(False, code, properties)
        if connection.level < LEVEL_5:
            refusal = connack(False, UNAVAILABLE)
        elif 0 < connection.send_max < len(refusal):
            refusal = b""  # [MQTT-3.1.2-24]
        connection.out.write(refusal)
        connection.abort(STANDBY)
        connection.touch()

    # -- the verdict

    def _on_verdict(self, verdict: Verdict) -> None:
        """Accept or refuse the client after the check of its user name and password."""
        if not self._connection.finished:
            self._decide(verdict, b"")

    def _decide(self, verdict: Verdict, data: bytes) -> None:
        """Accept or refuse the client, by the authenticator's verdict on its credentials.

        `data` is the authenticator's last data for the client; it becomes a part of the CONNACK.
        """
        connection, service = self._connection, self._service
        connect, credentials = self._connect, self._credentials
        assert connect is not None and credentials is not None
        connection.stalled = False
        vhost = service.broker.vhosts.get(credentials.vhost)
        identity = (
            None
            if verdict.identity is None
            else verdict.identity.for_vhost(credentials.vhost, connect.client_id)
        )
        if verdict.identity is None or identity is None or vhost is None or vhost.closing:
            self._refuse(verdict, credentials)
            return
        sessions = service.sessions
        session = sessions.find(vhost, connect.client_id)
        # The connection that this login takes over does not count.
        replaced = None if session is None or session.connection is None else session.user
        full = service.broker.connection_refusal(identity.name, vhost, replaced)
        if full:
            connection.reject(UNAVAILABLE, QUOTA_EXCEEDED, "too_many_connections", full)
            return
        refusal = identifier_refusal(service, vhost, connect.client_id, identity, verdict.identity)
        if refusal:
            self._log_refusal(identity.name, refusal)
            service.count_login("refused")
            connection.reject(
                IDENTIFIER_REJECTED,
                CLIENT_IDENTIFIER_NOT_VALID,
                "identifier_taken",
                "the client identifier belongs to another user",
            )
            return
        if sessions.full and session is None:
            connection.reject(UNAVAILABLE, QUOTA_EXCEEDED, "too_many_sessions")
            return
        service.count_login("accepted")
        connection.admit(verdict.record)
        connection.vhost = vhost
        connection.packet_max = service.options.max_packet
        connection.identity = verdict.identity
        connection.set_expiry(expiry_of(verdict.identity, connection.agenda))
        named = credentials.user is not None or self._authentication is not None
        connection.user = identity.name if named else ""
        if connect.will is not None:
            connection.will = will_of(connect.will)
        context = vhost.contexts.enter(identity, NAMES[connection.level])
        self._open(connect, context, verdict.identity, data)
        if not connection.stalled:
            connection.resume_input()

    def _refuse(self, verdict: Verdict, credentials: Credentials) -> None:
        """Refuse a client without valid credentials, or without access to its virtual host."""
        connection, user = self._connection, verdict.identity
        self._service.count_login("busy" if verdict.busy else "refused")
        if user is not None:
            vhost = self._service.broker.vhosts.get(credentials.vhost)
            closing = vhost is not None and vhost.closing
            self._log_refusal(
                user.name,
                f"the vhost '{credentials.vhost}' is being deleted: connect to another vhost, or "
                "create this vhost again after its deletion"
                if closing
                else f"user '{user.name}' has no permissions in the vhost '{credentials.vhost}': "
                "grant them with `trellis permissions set`",
                "" if closing else ACCESS,
            )
            connection.reject(NOT_AUTHORISED, NOT_AUTHORISED_5, "login_refused")
            return
        self._log_refusal(credentials.user or "", verdict.details)
        if verdict.busy:
            connection.reject(UNAVAILABLE, SERVER_BUSY, "login_refused")
        elif credentials.user is not None:
            connection.reject(BAD_CREDENTIALS, BAD_USER_OR_PASSWORD, "login_refused")
        else:
            connection.reject(NOT_AUTHORISED, NOT_AUTHORISED_5, "login_refused")

    def _log_refusal(self, user: str, reason: str, cause: str = "") -> None:
        """Log the reason for refusing a client; `user` is its user name, "" if it has none."""
        connect = self._connect
        fields: dict[str, object] = {"user": user} if user else {}
        if connect is not None and connect.client_id:
            fields["client_id"] = connect.client_id
        fields[CAUSE] = cause
        self._service.log_refusal("login_refused", self._connection, reason, fields)

    def _log_take_over(self, session: Session) -> None:
        """Log that this login ends an older connection of the same client identifier."""
        former = session.connection
        assert isinstance(former, MqttConnection)
        self._service.log_refusal(
            "session_taken_over",
            former,
            "a client with the same client identifier has connected; if this repeats, two devices "
            "use one client identifier: give each device its own",
            {"client_id": session.name, "new_address": self._connection.peer.address},
        )

    # -- the session

    def _open(
        self, connect: Connect, context: PublishContext, identity: Identity, data: bytes
    ) -> None:
        """Give the connection its session and its packet handler, and answer with a CONNACK."""
        connection, service = self._connection, self._service
        client_id = connect.client_id or f"auto-{service.broker.new_id()}"
        expiry = service.sessions.granted(connect.expiry)
        properties = NO_PROPERTIES
        if connection.level == LEVEL_5:
            properties = granted(connection, connect, client_id, expiry, self._authentication, data)
            if 0 < connection.send_max < len(connack5(True, SUCCESS, properties)):
                text = "the CONNACK is larger than the client's Maximum Packet Size"
                service.log_refusal("connection_closed", connection, text, {"client_id": client_id})
                connection.vhost.contexts.leave(context)
                connection.abort("too_large")  # [MQTT-3.1.2-24]
                connection.touch()
                return
        session: Session | None = None
        ticket: Ticket | None = None
        if expiry or service.sessions.find(connection.vhost, client_id) is not None:
            # The CONNACK waits for the changes of the store. Without a session that outlives its
            # connection, there are no such changes.
            ticket = connection.ticket()
            session = self._take_over(connect, client_id, expiry, context, identity, ticket)
        present = session is not None
        if session is None:
            user = context.identity.name
            session = service.sessions.make(
                connection.vhost,
                client_id,
                expiry,
                connection.stored_will(context) if expiry else None,
                ticket,
                user,
                service.broker.authenticator.identity_of(user) is identity,
                identity.anonymous,
            )
        connection.client_id = client_id
        connection.use_context(context)
        connection.session = session
        connection.state = OPENING
        if connection.level == LEVEL_5:
            connection.handler = Level5Handler(connection, connect.expiry, self._authentication)
            answer = connack5(present, SUCCESS, properties)
            writer: PublishWriter = Level5Writer(
                connection, connection.agenda, connection.send_max, connect.topic_alias_maximum
            )
            session.receive_maximum = min(service.options.receive_maximum, connect.receive_maximum)
        else:
            old = connection.level == LEVEL_31
            connection.handler = Level3Handler(connection) if old else Level4Handler(connection)
            writer = BridgeWriter(connection) if connection.bridge else Level4Writer(connection)
            # The byte is reserved in MQTT 3.1.
            answer = connack(present and not old, ACCEPTED)
            session.receive_maximum = service.options.receive_maximum
        self._connect = None
        self._authentication = None
        keep_alive = connection.keep_alive
        connection.set_deadline(connection.agenda.now + keep_alive * 1500 if keep_alive else 0)
        apply_identity(session, context.identity)
        session.attach(connection, writer)
        if ticket is None:
            connection.out.write(answer)
        else:
            connection.reply_when_durable(ticket, answer)

    def _take_over(
        self,
        connect: Connect,
        client_id: str,
        expiry: int,
        context: PublishContext,
        identity: Identity,
        ticket: Ticket,
    ) -> Session | None:
        """Close an older connection of the client [MQTT-3.1.4-3]; return the session to resume.

        Return None if the client has no session, or if its session could not be resumed and was
        ended. The caller then creates a session.
        """
        connection = self._connection
        vhost: VirtualHost = connection.vhost
        sessions = self._service.sessions
        session = sessions.find(vhost, client_id)
        if session is None:
            return None
        if session.connection is not None:
            self._log_take_over(session)
            session.connection.close_with(SESSION_TAKEN_OVER, "taken_over")
            session = sessions.find(vhost, client_id)
            if session is None:
                return None
        user = context.identity.name
        if (
            connect.clean
            or expiry
            and not session.persistent
            or not session.belongs_to(user, identity.anonymous)
        ):
            sessions.end(session, ticket)
            return None
        session.user, session.anonymous = user, identity.anonymous
        session.named = self._service.broker.authenticator.identity_of(user) is identity
        vhost.reply_when_durable(session, ticket)
        if session.delayed_will is not None:
            session.delayed_will.cancel()
        sessions.reclaim(
            session, expiry, connection.stored_will(context) if session.persistent else None, ticket
        )
        return session
