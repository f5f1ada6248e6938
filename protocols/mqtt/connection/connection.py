"""The connection: CONNECT, login, take-over; after that it speaks the level that its client chose.

CONNECT --> verdict on the credentials --> session --> CONNACK --> packets of level 3, 4 or 5
        `-> AUTH <-> AUTH ... (level 5) -^
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.access.identity import AuthConversation, AuthStep, Credentials, Identity, Verdict
from broker.definitions.restore import Definition
from matching.grammar import swap
from protocols.connection import EXPELLED, Peer
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
    UNAVAILABLE,
    MalformedPacket,
    PacketReader,
    connack,
)
from protocols.mqtt.codec.packets5 import auth5, connack5, read_auth, read_disconnect
from protocols.mqtt.codec.properties import (
    ASSIGNED_CLIENT_IDENTIFIER,
    AUTHENTICATION_DATA,
    AUTHENTICATION_METHOD,
    MAXIMUM_PACKET_SIZE,
    RECEIVE_MAXIMUM,
    RESPONSE_INFORMATION,
    SERVER_KEEP_ALIVE,
    SESSION_EXPIRY,
    TOPIC_ALIAS_MAXIMUM,
    Properties5,
)
from protocols.mqtt.codec.reasons import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_OR_PASSWORD,
    CLIENT_IDENTIFIER_NOT_VALID,
    CONTINUE_AUTHENTICATION,
    PROTOCOL_ERROR,
    QUOTA_EXCEEDED,
    REAUTHENTICATE,
    SERVER_BUSY,
    SESSION_TAKEN_OVER,
    SUCCESS,
)
from protocols.mqtt.codec.reasons import NOT_AUTHORISED as NOT_AUTHORISED_5
from protocols.mqtt.codec.topics import EXCHANGE, SHARE
from protocols.mqtt.connection.level5 import Level5
from protocols.mqtt.connection.login import MqttClient
from protocols.mqtt.connection.reauthorization import assume
from protocols.mqtt.connection.service import NAMES, MqttService
from protocols.mqtt.session.publish_writer import PublishWriter
from protocols.mqtt.session.wills import will_of

#: The largest packet that MQTT knows: with a Maximum Packet Size above it a client sets no limit.
PACKET_MAX: Final = 268_435_460


class MqttConnection(Level5):
    """One MQTT client."""

    def __init__(self, front: MqttService, peer: Peer) -> None:
        super().__init__(front, peer)
        #: What the client said in its CONNECT, until it has its CONNACK.
        self._connect: Connect | None = None
        self._login: Credentials | None = None
        #: An enhanced authentication, as long as it goes on; and the method of the one that the
        #: CONNECT began.
        self._conversation: AuthConversation | None = None
        self._method: str | None = None

    def consume(self, data: bytes) -> i64:
        try:
            if self.level == LEVEL_5:
                return self._parse5(data, 0)
            used: i64 = self._parse(data)
            if (
                self.level == LEVEL_5
                and used < len(data)
                and not self.finished
                and not self.stalled
            ):
                used = self._parse5(data, used)
            return used
        except MalformedPacket as error:
            if self.session is None and self.level == LEVEL_5:
                self.out.write(connack5(False, error.code, Properties5()))
            self.disconnect(error.code, error.reason, str(error))
            return len(data)

    # -- before there is a session

    def on_first(self, first: i64, body: bytes) -> None:
        """A packet before the session is there."""
        if self._login is not None and self.level == LEVEL_5:
            if first == AUTH << 4:
                self.on_auth(PacketReader(body))
            elif first == DISCONNECT << 4:
                read_disconnect(PacketReader(body))
                self.on_closed("client")
            else:
                raise MalformedPacket("expected AUTH", code=PROTOCOL_ERROR)  # [MQTT-3.1.2-30]
            return
        if first != CONNECT << 4:
            raise MalformedPacket("expected CONNECT")  # [MQTT-3.1.0-1]
        if read_level(body) == LEVEL_5:
            self.level = LEVEL_5
        try:
            connect = read_connect(PacketReader(body))
        except UnacceptableVersion as error:
            self.out.write(error.answer)
            self.abort("unacceptable_version")
            return
        self.level = connect.level
        self.keep_alive = connect.keep_alive
        if (
            connect.level < LEVEL_5
            and not connect.client_id
            and (not connect.clean or connect.level == LEVEL_31)
            or connect.client_id.startswith(SHARE)
        ):
            self._reject(
                IDENTIFIER_REJECTED, CLIENT_IDENTIFIER_NOT_VALID, "identifier_rejected"
            )  # [MQTT-3.1.3-8 of 3.1.1]
            return
        self._connect = connect
        login = self._login = self.mqtt.credentials(
            connect.user, connect.password or b"", connect.client_id, self.peer
        )
        self.user = login.user or ""
        authenticator = self.mqtt.broker.authenticator
        method = connect.method
        if method is None:
            self.stall()
            authenticator.authenticate(login, self.judge)
            return
        conversation = authenticator.start_conversation(method, login)
        if conversation is None:
            self._reject(0, BAD_AUTHENTICATION_METHOD, "bad_authentication_method")
            return
        self._method = method
        self._conversation = conversation
        self.stall()
        conversation.respond(connect.method_data, self.on_step)

    def _reject(self, code: int, code5: int, reason: str) -> None:
        """No CONNACK says yes."""
        self.out.write(
            connack5(False, code5, Properties5()) if self.level == LEVEL_5 else connack(False, code)
        )
        self._connect = None
        self.abort(reason)
        self.touch()

    # -- enhanced authentication

    def on_auth(self, reader: PacketReader) -> None:
        farewell = read_auth(reader)
        method = farewell.properties.text(AUTHENTICATION_METHOD)
        if method is None or method != self._method:
            raise MalformedPacket(
                "authentication method", code=PROTOCOL_ERROR
            )  # [MQTT-4.12.0-5], [MQTT-4.12.1-1]
        if (
            farewell.code == REAUTHENTICATE
            and self.session is not None
            and self._conversation is None
        ):
            login = self._login
            assert login is not None
            self._conversation = self.mqtt.broker.authenticator.start_conversation(method, login)
        elif farewell.code != CONTINUE_AUTHENTICATION:
            raise MalformedPacket("AUTH out of place", code=PROTOCOL_ERROR)
        conversation = self._conversation
        if conversation is None:
            raise MalformedPacket("AUTH out of place", code=PROTOCOL_ERROR)
        self.stall()
        conversation.respond(farewell.properties.binary(AUTHENTICATION_DATA) or b"", self.on_step)

    def on_step(self, step: AuthStep) -> None:
        """The authenticator has heard what the client said."""
        method = self._method
        if self.finished or method is None:
            return
        if step.verdict is None:
            self.out.write(auth5(CONTINUE_AUTHENTICATION, method, step.data))
            self.resume_input()
            return
        self._conversation = None
        if self.session is None:
            self._decide(step.verdict, step.data)
            return
        identity = (
            None
            if step.verdict.identity is None
            else step.verdict.identity.for_vhost(self._vhost.name, self.client_id)
        )
        if identity is None:
            self.mqtt.count_login("refused")
            self.disconnect(NOT_AUTHORISED_5, "login_refused")  # [MQTT-4.12.1-2]
            return
        self.mqtt.count_login("accepted")
        self._assume(step.verdict.identity, identity)
        self.out.write(auth5(SUCCESS, method, step.data or None))
        self.resume_input()

    # -- other rights than before

    def review(self) -> None:
        session, known = self.session, self.identity
        if session is None or known is None:
            return
        vhost = self._vhost
        renewed = self.mqtt.broker.authenticator.renew(known)
        identity = (
            None
            if renewed is None or vhost.closing
            else renewed.for_vhost(vhost.name, self.client_id)
        )
        if identity is None:
            self.will = None
            why = f"user '{self.user}' is deleted, or may not enter vhost '{vhost.name}' any more"
            self.disconnect(
                NOT_AUTHORISED_5,
                EXPELLED,
                "the token has expired" if renewed is None and known.expires else why,
            )
            if not session.dead and (vhost.closing or session.named):
                self.mqtt.sessions.end(session, None)
        else:
            self._assume(renewed, identity)

    def _assume(self, who: Identity | None, identity: Identity) -> None:
        """Go on with these rights."""
        old, session = self.context, self.session
        self.identity = who
        self.remember(who)
        if old is not None and session is not None and old.identity is not identity:
            self.context = self._vhost.contexts.enter(identity, NAMES[self.level])
            self._vhost.contexts.leave(old)
            assume(session, identity)

    # -- the verdict

    def judge(self, verdict: Verdict) -> None:
        """The verdict on the credentials came."""
        if not self.finished:
            self._decide(verdict, b"")

    def _decide(self, verdict: Verdict, data: bytes) -> None:
        connect, login = self._connect, self._login
        assert connect is not None and login is not None
        self.stalled = False
        vhost = self.mqtt.broker.vhosts.get(login.vhost)
        identity = (
            None
            if verdict.identity is None
            else verdict.identity.for_vhost(login.vhost, connect.client_id)
        )
        if identity is None or vhost is None or vhost.closing:
            self.mqtt.count_login("busy" if verdict.busy else "refused")
            if verdict.busy:
                self._reject(UNAVAILABLE, SERVER_BUSY, "login_refused")
            elif login.user is not None:
                self._reject(BAD_CREDENTIALS, BAD_USER_OR_PASSWORD, "login_refused")
            else:
                self._reject(NOT_AUTHORISED, NOT_AUTHORISED_5, "login_refused")
            return
        if self.mqtt.broker.connection_refusal(identity.name, vhost):
            self._reject(UNAVAILABLE, QUOTA_EXCEEDED, "too_many_connections")
            return
        sessions = self.mqtt.sessions
        if sessions.full and sessions.find(vhost, connect.client_id) is None:
            self._reject(UNAVAILABLE, QUOTA_EXCEEDED, "too_many_sessions")
            return
        self.mqtt.count_login("accepted")
        self.admitted = True
        self._vhost = vhost
        self.packet_max = self.mqtt.options.max_packet
        self.identity = verdict.identity
        self.remember(verdict.identity)
        self.user = identity.name if login.user is not None or self._method is not None else ""
        self.context = vhost.contexts.enter(identity, NAMES[self.level])
        if connect.will is not None:
            self.will = will_of(connect.will)
        self._connect = None
        if self._method is None:
            self._login = None
        self._take_over(connect, data)
        if not self.stalled:
            self.resume_input()

    def _take_over(self, connect: Connect, data: bytes) -> None:
        """Find or make the session; an older connection of the client ends [MQTT-3.1.4-3]."""
        sessions = self.mqtt.sessions
        client_id = connect.client_id or f"auto-{self.mqtt.broker.new_id()}"
        expiry = sessions.granted(connect.expiry)
        ticket = self.ticket()
        session = sessions.find(self._vhost, client_id)
        if session is not None:
            other = session.outlet
            if isinstance(other, MqttClient):
                other.disconnect(SESSION_TAKEN_OVER, "taken_over")
            session = sessions.find(self._vhost, client_id)
        context, who = self.context, self.identity
        assert context is not None and who is not None
        user = context.identity.name
        named = self.mqtt.broker.authenticator.identity_of(user) is who
        if session is not None and (
            connect.clean or expiry and not session.persistent or session.user not in ("", user)
        ):
            # Somebody else's session, who chose the same identifier, is nobody's business.
            sessions.end(session, ticket)
            session = None
        present = session is not None
        if session is None:
            testament = self._stored_will() if expiry else None
            session = sessions.make(self._vhost, client_id, expiry, testament, ticket, user, named)
        else:
            session.user, session.named = user, named
            self._vhost.reply_when_durable(session, ticket)
            if session.delayed_will is not None:
                session.delayed_will.cancel()
            sessions.reclaim(
                session, expiry, self._stored_will() if session.persistent else None, ticket
            )
        self.client_id = client_id
        self.session = session
        self.expiry = connect.expiry
        pen: PublishWriter | None = None
        if self.level == LEVEL_5:
            answer = connack5(present, SUCCESS, self._granted(connect, client_id, expiry, data))
            largest = connect.maximum_packet_size
            self.send_max = largest if largest < PACKET_MAX else 0
            pen = PublishWriter(self, self.agenda, self.send_max, connect.topic_alias_maximum)
            session.receive_maximum = min(
                self.mqtt.options.receive_maximum, connect.receive_maximum
            )
        else:
            answer = connack(present, ACCEPTED)
            session.receive_maximum = self.mqtt.options.receive_maximum
        self.deadline = self.agenda.now + self.keep_alive * 1500 if self.keep_alive else 0
        assume(session, context.identity)
        self.reply_when_durable(ticket, answer)
        session.attach(self, pen)

    def _stored_will(self) -> Definition | None:
        """What a store keeps of the will of a session that persists; only of one that could be
        published now.
        """
        will, context = self.will, self.context
        if (
            will is None
            or context is None
            or not self.mqtt.topics.serves(swap(will.message.address.key))
        ):
            return None
        route = self._vhost.route(context, EXCHANGE, will.message.address.key)
        return will.definition() if route.plan.refusal is None else None

    def _granted(self, connect: Connect, client_id: str, expiry: int, data: bytes) -> Properties5:
        """What the client may do, and what it gets other than it asked for (section 3.2.2.3)."""
        options = self.mqtt.options
        granted = Properties5()
        if expiry != connect.expiry:
            granted.numbers[SESSION_EXPIRY] = expiry
        granted.numbers[RECEIVE_MAXIMUM] = options.receive_maximum
        granted.numbers[MAXIMUM_PACKET_SIZE] = options.max_packet
        if options.topic_alias_maximum:
            granted.numbers[TOPIC_ALIAS_MAXIMUM] = options.topic_alias_maximum
        cap = options.keep_alive_max
        if cap and (self.keep_alive == 0 or self.keep_alive > cap):
            self.keep_alive = cap
            granted.numbers[SERVER_KEEP_ALIVE] = cap
        if not connect.client_id:
            granted.texts[ASSIGNED_CLIENT_IDENTIFIER] = client_id
        if connect.wants_response_information and options.response_prefix:
            granted.texts[RESPONSE_INFORMATION] = options.response_prefix + client_id
        if self._method is not None:
            granted.texts[AUTHENTICATION_METHOD] = self._method
            if data:
                granted.octets[AUTHENTICATION_DATA] = data
        return granted

    def _release(self) -> None:
        self._connect = None
        self._conversation = None
        super()._release()
