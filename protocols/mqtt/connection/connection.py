"""The MQTT connection: one client over one transport, from its CONNECT to the end.

    MqttConnection --handler--> Login             until the CONNACK
                           `--> Level3Handler     MQTT 3.1
                           `--> Level4Handler     MQTT 3.1.1
                           `--> Level5Handler     MQTT 5
                   --session--> Session           outlives the connection
                   --context--> PublishContext    the client's publish permissions, and its routes
                   --replies--> PublishReplies    acknowledgements that wait for the store

The connection has the state of the client; its handler reads the packets. closing.py has the ways
in which a connection closes.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.definitions.session_restorer import Definition
from broker.errors import BrokerError
from broker.messages.fates import DENIED
from broker.messages.message import Message
from broker.routing.deduplication import NumberedPublication
from broker.routing.plan import Plan
from broker.routing.plan_search import SearchSlot
from broker.routing.publish_context import PublishContext
from broker.routing.route import Route
from broker.store.contract import Ticket
from broker.vhost.publishing import publish_once, publish_will
from broker.vhost.vhost import VirtualHost
from matching.grammar import swap
from protocols.credential_expiry import expiry_of
from protocols.end_reasons import EXPELLED, SHUTDOWN
from protocols.listing import row_of
from protocols.login_input import LOGIN_INPUT_MAX
from protocols.mqtt.codec.packets import MalformedPacket
from protocols.mqtt.codec.reasons import KEEP_ALIVE_TIMEOUT, MAXIMUM_CONNECT_TIME, NOT_AUTHORISED
from protocols.mqtt.codec.topics import EXCHANGE, SHARE
from protocols.mqtt.connection.closing import (
    AWAITING_CONNECT,
    CLOSE_CODES,
    CLOSED,
    CLOSING,
    CONNECTED,
    OPENING,
    RELEASE_NOTHING,
    RELEASE_SESSION,
    last_packet,
)
from protocols.mqtt.connection.reauthorization import apply_identity
from protocols.mqtt.connection.refused_publications import TOPIC_MAX
from protocols.mqtt.connection.replies import PublishReplies
from protocols.mqtt.connection.service import NAMES, MqttService
from protocols.mqtt.session.interfaces import SessionConnection
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.wills import DelayedWill, StoredWill
from protocols.peer import Peer
from protocols.refusal_fields import CAUSE, cause_of

#: Reasons of `MqttConnection.reject` that the login has logged with more details.
_LOGGED: Final = frozenset(("login_refused", "identifier_taken"))
#: The note of the log line for each reason of `MqttConnection.reject` that has no text for clients.
_NOTES: Final = {
    "unacceptable_version": "CONNECT has an unknown protocol level: use MQTT 3.1, 3.1.1 or 5",
    "identifier_rejected": "the client identifier is invalid: it is empty, which this MQTT version "
    f"or Clean Session 0 does not allow, or it begins with {SHARE}",
    "too_many_sessions": "the broker has as many sessions as mqtt.sessions allows: delete some "
    "sessions, or raise the setting",
    "bad_authentication_method": "the authentication method of CONNECT is not supported",
}


class InputHandler:
    """A reader of the packets that a connection receives, before the login or after it."""

    @abstractmethod
    def parse(self, data: bytes, position: i64) -> i64:
        """Handle the complete packets in `data` from `position` on; return the position after the
        last of them.

        Raises MalformedPacket.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Drop references that would keep the connection in memory, because the connection has
        ended.
        """


class IgnoredInput(InputHandler):
    """The handler of a closed connection, which ignores all input."""

    def parse(self, data: bytes, position: i64) -> i64:
        return len(data)


_IGNORED: Final = IgnoredInput()


class MqttConnection(SessionConnection):
    """The connection of one MQTT client."""

    def __init__(self, front: MqttService, peer: Peer) -> None:
        super().__init__(front, peer)
        self.service = front
        #: The handler of the client's packets. The front end gives each new connection a Login.
        self.handler: InputHandler = _IGNORED
        #: AWAITING_CONNECT, AUTHENTICATING, OPENING, CONNECTED or CLOSED.
        self.state = AWAITING_CONNECT
        #: The protocol level; 0 before the CONNECT.
        self.level = 0
        #: True for a bridge of level 3 or 4 (codec/connect.py).
        self.bridge = False
        self.replies = PublishReplies(self)
        #: The client's identity for all virtual hosts; `context.identity` is its identity in
        #: `vhost`.
        self.identity: Identity | None = None
        self.session: Session | None = None
        self.will: StoredWill | None = None
        self.user = ""
        self.client_id = ""
        #: Keep-alive interval in seconds; 0 for no limit.
        self.keep_alive: i64 = 0
        #: Size in bytes of the largest packet that the client may send, and of the largest packet
        #: that the client accepts (0: any size).
        self.packet_max: i64 = LOGIN_INPUT_MAX
        self.send_max: i64 = 0
        self.deadline = self.agenda.now + front.options.handshake_ms
        #: The virtual host of the session.
        self.vhost: VirtualHost = front.broker.vhosts["/"]

    @property
    def owner(self) -> tuple[str, str]:
        return ("", "") if self.identity is None else (self.identity.name, self.vhost.name)

    # -- input

    def consume(self, data: bytes) -> i64:
        handler = self.handler
        try:
            used: i64 = handler.parse(data, 0)
            if self.handler is not handler and not self.finished and not self.stalled:
                used = self.handler.parse(data, used)  # Login complete: the new handler reads on.
            return used
        except MalformedPacket as error:
            self.reject(0, error.code, error.reason, str(error))
            return len(data)

    def plan_of(self, context: PublishContext, route: Route, message: Message) -> Plan | None:
        """Return the present plan of a message; None if the search for the plan pauses.

        If a plan is returned, the caller must call `end_search`.
        """
        vhost = self.vhost
        vhost.publishing_session = self.session
        plan = vhost.plan_of(context, route, message, self.search_slot())
        vhost.publishing_session = None
        return plan

    def publish(
        self,
        context: PublishContext,
        route: Route,
        plan: Plan,
        message: Message,
        ticket: Ticket | None,
        publication: NumberedPublication | None = None,
    ) -> i64:
        """Publish a message on the slow path, and return its fate.

        `publication` has the producer and the sequence number for deduplication; None for a message
        without a sequence number. A message that the user may not publish is dropped and counted
        [MQTT-3.3.5-2].
        """
        vhost = self.vhost
        fate: i64
        if vhost.traces.active:
            vhost.traces.publisher = self
        try:
            if publication is None:
                fate = vhost.publish(context, route, plan, message, ticket)
            else:
                heard = ticket if message.qos else None  # With QoS 0, no answer is sent.
                fate = publish_once(vhost, context, route, plan, message, heard, publication)
        except BrokerError as error:
            fate = plan.fate
            topic = swap(route.key)[:TOPIC_MAX]
            self.service.log_refused_publication(
                "publication_refused",
                self,
                topic,
                str(error),
                {"client_id": self.client_id, "topic": topic, CAUSE: cause_of(error)},
            )
        if vhost.alarmed:
            self.block()
        elif plan.behind:
            self.wait_for_dead_letters(vhost)
        return fate

    def resume_input(self) -> None:
        super().resume_input()
        session = self.session
        if session is not None:
            if self.state == OPENING:
                self.state = CONNECTED
                session.start_deliveries()  # The CONNACK is written [MQTT-3.2.0-1].
            session.suback_pending = False
            session.resume_retained()

    def resume_deliveries(self) -> None:
        if self.session is not None:
            self.session.resume_deliveries()

    # -- permissions

    def reauthorize(self) -> None:
        session, known = self.session, self.identity
        if session is None or known is None:
            return
        vhost = self.vhost
        renewed = self.service.broker.authenticator.renew(known)
        identity = (
            None
            if renewed is None or vhost.closing
            else renewed.for_vhost(vhost.name, self.client_id)
        )
        if identity is None:
            self.will = None
            code = NOT_AUTHORISED
            why = (
                f"user '{self.user}' is deleted, or has no permission on virtual host "
                f"'{vhost.name}' any more"
            )
            if renewed is None and known.expires:
                code, why = MAXIMUM_CONNECT_TIME, "the token has expired"
            fields: dict[str, object] = {"client_id": self.client_id}
            self.service.log_refusal("connection_closed", self, why, fields)
            self.close_with(code, EXPELLED, why)
            if not session.dead and (vhost.closing or session.named):
                self.service.sessions.end(session, None)
        else:
            self.apply_identity(renewed, identity)

    def apply_identity(self, identity: Identity | None, local: Identity) -> None:
        """Use changed permissions for the connection and its session.

        `identity` is the client's identity for all virtual hosts, `local` its identity in the
        virtual host of the session.
        """
        old, session = self.context, self.session
        self.identity = identity
        self.set_expiry(expiry_of(identity, self.agenda))
        if old is not None and session is not None and old.identity is not local:
            self.use_context(self.vhost.contexts.enter(local, NAMES[self.level]))
            self.end_search()
            self.vhost.contexts.leave(old)
            apply_identity(session, local)

    # -- time

    def advance(self, now: int) -> None:
        """Close the connection if there was no input for one and a half keep-alive intervals
        [MQTT-3.1.2-22], or if the login was not complete in time.
        """
        limit: i64 = self.keep_alive * 1500
        if self.session is None:
            self.abort("handshake_timeout")
            self.touch()
        elif self.stalled:
            self.deadline = now + limit  # The broker does not read, so the client may be silent.
        elif now - self.last_input_at >= limit:
            self.close_with(KEEP_ALIVE_TIMEOUT, "keep_alive_timeout")
        else:
            self.deadline = self.last_input_at + limit

    # -- the end

    def close(self, reason: str, text: str = "") -> None:
        if reason == SHUTDOWN:
            self._keep_will()
        self.close_with(CLOSE_CODES[reason], reason, text)

    def close_with(self, code: int, reason: str, text: str = "") -> None:
        self._end_with(CLOSING[self.state].close, 0, code, reason, text)

    def reject(self, return_code: int, code: int, reason: str, text: str = "") -> None:
        """Refuse the client's last packet, and end the connection.

        `return_code` is for a CONNACK of level 3 or 4 (0: none fits). `code` and `text` are the
        reason code and the Reason String of level 5. The metrics count `reason`.
        """
        if reason not in _LOGGED:
            fields: dict[str, object] = {"client_id": self.client_id} if self.client_id else {}
            note = text or _NOTES.get(reason, reason)
            self.service.log_refusal("connection_closed", self, f"0x{code:02X} - {note}", fields)
        self._end_with(CLOSING[self.state].reject, return_code, code, reason, text)

    def _end_with(self, packet: int, return_code: int, code: int, reason: str, text: str) -> None:
        self.out.write(last_packet(packet, self.level, return_code, code, text, int(self.send_max)))
        self.abort(reason)
        self.touch()

    def _release(self) -> None:
        """Detach the session, and publish the will unless a DISCONNECT has removed it
        [MQTT-3.1.2-8].
        """
        release = CLOSING[self.state].release
        self.state = CLOSED
        if release == RELEASE_NOTHING:
            return
        handler, self.handler = self.handler, _IGNORED
        handler.close()
        self.replies.close()
        if release == RELEASE_SESSION:
            self._release_session()

    def _release_session(self) -> None:
        session, self.session = self.session, None
        context = self.context
        self.use_context(None)
        will, self.will = self.will, None
        assert session is not None and context is not None
        if will is not None:
            self._leave_will(session, context, will)
        if session.delayed_will is None:
            session.stored_will = None
        self.service.sessions.leave(session)
        self.vhost.contexts.leave(context)

    def _keep_will(self) -> None:
        """Leave the will of a persistent session in the store, because the broker shuts down.

        A will without a delay is removed from the connection, so that the end of the connection
        does not publish it. A will with a delay needs no such step: its delay begins now, and goes
        on after the restart.
        """
        if (
            self.session is not None
            and self.session.persistent
            and self.will is not None
            and not self.will.delay
        ):
            self.will = None

    def _leave_will(self, session: Session, context: PublishContext, will: StoredWill) -> None:
        """Publish the will now or after its delay.

        If no client may publish to the will's topic (`MqttTopics.serves`), only count the will as
        denied.
        """
        if not self.service.topics.serves(swap(will.message.address.key)):
            context.received += 1
            context.count_fate(DENIED)
        elif will.delay and session.expiry:
            session.delayed_will = DelayedWill(
                self.vhost,
                context,
                self.service.broker.authenticator,
                will,
                session,
                self.service.sessions.deadlines,
                self.agenda.now + will.delay,
            )
        else:
            publish_will(self.vhost, context, will.message, will.lifetime, session)

    def stored_will(self, context: PublishContext) -> Definition | None:
        """Return the will as the definition that the store keeps with a persistent session.

        Return None if the CONNECT had no will, or if the broker would refuse to publish it now.
        """
        will = self.will
        if will is None or not self.service.topics.serves(swap(will.message.address.key)):
            return None
        # If the search for destinations pauses, the result of the search is not needed: a refusal
        # is known without the search, and the will is routed again when it is published.
        route = self.vhost.route(context, EXCHANGE, will.message.address.key, SearchSlot())
        refused = route is not None and route.plan.refusal is not None
        return None if refused else will.definition()

    def describe(self) -> dict[str, object]:
        row = row_of(self)
        row["protocol"] = NAMES[self.level]
        row["user"] = self.user
        row["client"] = self.client_id
        row["vhost"] = "" if self.session is None else self.vhost.name
        row["keep_alive"] = int(self.keep_alive)
        return row
