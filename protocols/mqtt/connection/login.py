"""What every MQTT connection is, whatever its level: a session, a gate, a will; and how it ends."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.errors import BrokerError
from broker.messages.message import Message
from broker.routing.deduplication import NumberedPublication
from broker.routing.publish_context import PublishContext
from broker.routing.route import DENIED, TOO_LARGE, Relay, Route
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from matching.grammar import swap
from protocols.connection import EXPELLED, HELD_MAX, SHUTDOWN, TOO_FAST, Connection, Peer
from protocols.mqtt.codec.connect import LEVEL_5
from protocols.mqtt.codec.packets import PUBLISH, MalformedPacket
from protocols.mqtt.codec.packets5 import disconnect5
from protocols.mqtt.codec.properties import reason as reason_string
from protocols.mqtt.codec.reasons import (
    ADMINISTRATIVE_ACTION,
    KEEP_ALIVE_TIMEOUT,
    MESSAGE_RATE_TOO_HIGH,
    PACKET_TOO_LARGE,
    SERVER_SHUTTING_DOWN,
)
from protocols.mqtt.connection.answers import PublishReplies
from protocols.mqtt.connection.service import NAMES, MqttService
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.wills import DelayedWill, StoredWill

#: DISCONNECT reason codes of level 5 for the reasons of `close`.
_CLOSE_CODES: Final = {
    EXPELLED: ADMINISTRATIVE_ACTION,
    TOO_FAST: MESSAGE_RATE_TOO_HIGH,
    SHUTDOWN: SERVER_SHUTTING_DOWN,
}


class MqttClient(Connection):
    """One MQTT client, once its CONNECT has been read."""

    def __init__(self, front: MqttService, peer: Peer) -> None:
        super().__init__(front, peer)
        self.mqtt = front
        #: The protocol level; 0 before the CONNECT.
        self.level = 0
        #: Who the client is, wherever; its gate knows who it is here.
        self.identity: Identity | None = None
        self.context: PublishContext | None = None
        self.session: Session | None = None
        self.will: StoredWill | None = None
        self.user = ""
        self.client_id = ""
        self.keep_alive: i64 = 0
        self.packet_max: i64 = HELD_MAX
        #: The largest packet that the client takes; 0 for any.
        self.send_max: i64 = 0
        self.deadline = self.agenda.now + front.options.handshake_ms
        self._vhost: VirtualHost = front.broker.vhosts["/"]
        self._answers = PublishReplies(self)

    @property
    def published(self) -> int:
        return 0 if self.context is None else int(self.context.received)

    @property
    def owner(self) -> tuple[str, str]:
        return (
            (self.context.identity.name, self._vhost.name) if self.context is not None else ("", "")
        )

    @property
    def vhost(self) -> VirtualHost:
        """Where it is, once there is a session."""
        return self._vhost

    def _flush(self, count: i64, run: Relay, data: bytes, start: i64, end: i64) -> None:
        """What came before something wrong, or new, goes out first."""
        if count > 0 and self.level == LEVEL_5:
            run.send_described(data[start:end], count)
        elif count > 0:
            run.send(data[start:end], count)

    def _too_large(self, first: i64) -> None:
        """A packet above the limit. Raises MalformedPacket; a publication counts."""
        if self.context is not None and first >> 4 == PUBLISH:
            self.context.received += 1
            self.context.count_fate(TOO_LARGE)
        raise MalformedPacket("packet too large", "too_large", PACKET_TOO_LARGE)

    def _publish(
        self,
        context: PublishContext,
        route: Route,
        message: Message,
        ticket: Ticket | None,
        publication: NumberedPublication | None = None,
    ) -> i64:
        """Publish with care, once if its producer numbers what it publishes; what the identity may
        not publish is dropped and counted [MQTT-3.3.5-2]. Returns the fate."""
        vhost = self._vhost
        vhost.publishing_session = self.session
        fate: i64
        try:
            if publication is None:
                fate = vhost.publish(context, route, message, ticket)
            else:
                fate = vhost.publish_once(context, route, message, ticket, publication)
        except BrokerError:
            fate = route.plan.fate
        vhost.publishing_session = None
        if vhost.alarmed:
            self.block()
        return fate

    # -- time, and the end

    def disconnect(self, code: int, reason: str, text: str = "") -> None:
        """The connection ends because the broker wants it so.

        Level 5 has words for that [MQTT-4.13.1-1].
        """
        if not self.finished and self.level == LEVEL_5 and self.session is not None:
            octets = disconnect5(code, reason_string(text) if text else None)
            if 0 < self.send_max < len(octets):
                octets = disconnect5(code)  # [MQTT-3.14.2-3]
            if self.send_max == 0 or len(octets) <= self.send_max:
                self.out.write(octets)
        self.abort(reason)
        self.touch()

    def close(self, reason: str, text: str = "") -> None:
        if reason == SHUTDOWN:
            self._keep_session_will()
        self.disconnect(_CLOSE_CODES[reason], reason, text)

    def advance(self, now: int) -> None:
        """One and a half keep-alive intervals of silence, or no CONNECT in time [MQTT-3.1.2-22]."""
        limit: i64 = self.keep_alive * 1500
        if self.session is None:
            self.abort("handshake_timeout")
            self.touch()
        elif self.stalled:
            self.deadline = now + limit  # It is we who do not listen.
        elif now - self.heard_at >= limit:
            self.disconnect(KEEP_ALIVE_TIMEOUT, "keep_alive_timeout")
        else:
            self.deadline = self.heard_at + limit

    def _keep_session_will(self) -> None:
        """A clean stop publishes no will of a session that persists; one with a delay waits on when
        the broker is back.
        """
        if (
            self.session is not None
            and self.session.persistent
            and self.will is not None
            and not self.will.delay
        ):
            self.will = None

    def _release(self) -> None:
        """The will goes out unless DISCONNECT took it back [MQTT-3.1.2-8]; the session stays or
        ends.
        """
        session, self.session = self.session, None
        context, self.context = self.context, None
        will, self.will = self.will, None
        self._answers.close()
        if session is not None:
            if context is not None and will is not None:
                self._leave_will(session, context, will)
            if session.delayed_will is None:
                session.stored_will = None
            self.mqtt.sessions.leave(session)
        if context is not None:
            self._vhost.contexts.leave(context)

    def _leave_will(self, session: Session, context: PublishContext, will: StoredWill) -> None:
        """... if it may be published where it wants to, like any other publication."""
        if not self.mqtt.topics.serves(swap(will.message.address.key)):
            context.received += 1
            context.count_fate(DENIED)
        elif will.delay and session.expiry:
            session.delayed_will = DelayedWill(
                self._vhost,
                context,
                will,
                session,
                self.mqtt.sessions.deadlines,
                self.agenda.now + will.delay,
            )
        else:
            self._vhost.publish_will(context, will.message, will.lifetime, session)

    def resume_input(self) -> None:
        super().resume_input()
        if self.session is not None:
            self.session.suback_pending = False
            self.session.resume_retained()

    def resume_deliveries(self) -> None:
        if self.session is not None:
            self.session.resume_deliveries()

    def describe(self) -> dict[str, object]:
        row = super().describe()
        row["protocol"] = NAMES[self.level]
        row["user"] = self.user
        row["client"] = self.client_id
        row["vhost"] = "" if self.session is None else self._vhost.name
        row["keep_alive"] = int(self.keep_alive)
        return row
