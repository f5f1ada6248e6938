"""Wills: what is published when a client disappears, at once or when it has not come back for a while."""

from __future__ import annotations

from mypy_extensions import i64

from broker.access import Identity
from broker.gate import Gate
from broker.message import Address, Message
from broker.vhost import VirtualHost
from matching.grammar import swap
from protocols.mqtt.connect import LeftWill
from protocols.mqtt.content import encoding_of
from protocols.mqtt.deadlines import Alarm
from protocols.mqtt.properties import MESSAGE_EXPIRY, WILL_DELAY
from protocols.mqtt.roles import LateWill
from protocols.mqtt.session import Session
from protocols.mqtt.topics import EXCHANGE


class Will:
    """Ready to be published. `lifetime` and `delay` are in ms; a lifetime below 0 is endless."""

    def __init__(self, left: LeftWill) -> None:
        properties = left.properties
        self.delay = properties.number(WILL_DELAY, 0) * 1000
        expiry = properties.number(MESSAGE_EXPIRY, -1)
        self.lifetime = expiry * 1000 if expiry >= 0 else -1
        properties.numbers.pop(WILL_DELAY, None)
        octets = properties.encoded()
        described = octets != b"\0"
        assurance: i64 = left.assurance
        encoding = encoding_of(described, left.retain, left.assurance == 2)
        message = Message(Address(EXCHANGE, swap(left.topic)), octets + left.body if described else left.body, encoding, assurance)
        self.message = message.copy(assurance, left.retain)


class Waiting(LateWill):
    """A will that waits for its client to come back. It keeps the gate that it will go through."""

    def __init__(self, vhost: VirtualHost, gate: Gate, will: Will, session: Session) -> None:
        vhost.gates.join(gate)
        self.alarm: Alarm | None = None
        self._vhost = vhost
        self._gate = gate
        self._will = will
        self._session: Session | None = session

    def run(self) -> None:
        """Its time has come: the client stayed away, or its session is over."""
        session, self._session = self._session, None
        if session is not None:
            session.late_will = None
            self._vhost.publish_will(self._gate, self._will.message, self._will.lifetime, session)
            self._vhost.leave(self._gate)

    def review(self, identity: Identity) -> None:
        if self._session is not None and identity is not self._gate.identity:
            old, self._gate = self._gate, self._vhost.gates.enter(identity, self._gate.front)
            self._vhost.leave(old)

    def forget(self) -> None:
        """The client is back [MQTT-3.1.3-9]."""
        session, self._session = self._session, None
        if session is not None:
            session.late_will = None
            self._vhost.leave(self._gate)
