"""Wills: messages that are published when the connection of a client breaks, at once or after a
delay.

WillMessage (CONNECT) --> StoredWill --> published at once
                                     `-> DelayedWill --> published, unless the client is back
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.access.identity import Authenticator
from broker.definitions.session_restorer import Definition
from broker.errors import PreconditionFailed
from broker.messages.message import Address, Message
from broker.routing.publish_context import PublishContext
from broker.vhost.publishing import publish_will
from broker.vhost.vhost import VirtualHost
from matching.grammar import swap
from protocols.mqtt.codec.connect import WillMessage
from protocols.mqtt.codec.content import encoding_of
from protocols.mqtt.codec.properties import MESSAGE_EXPIRY, WILL_DELAY
from protocols.mqtt.codec.topics import EXCHANGE
from protocols.mqtt.session.deadlines import Deadlines
from protocols.mqtt.session.interfaces import DelayedWillTask
from protocols.mqtt.session.session import Session


class StoredWill:
    """A will in the form in which it is published and stored.

    `lifetime` and `delay` are in ms. If the lifetime is negative, the message never expires.
    """

    def __init__(
        self,
        key: str,
        content: bytes,
        described: bool,
        qos: int,
        retain: bool,
        delay: int,
        lifetime: int,
    ) -> None:
        self.delay = delay
        self.lifetime = lifetime
        self.described = described
        message = Message(
            Address(EXCHANGE, key),
            content,
            encoding_of(described, retain, qos == 2),
            qos,
        )
        self.message = message.copy(qos, retain)

    def definition(self) -> Definition:
        """Return the will as a definition, which becomes a part of the session's definition in the
        store.
        """
        message = self.message
        return {
            "key": message.address.key,
            "content": message.content,
            "described": self.described,
            "assurance": int(message.qos),
            "retain": message.retained,
            "delay": self.delay,
            "lifetime": self.lifetime,
        }


def will_of(message: WillMessage) -> StoredWill:
    """Convert the will in a CONNECT to the form in which it is published and stored."""
    properties = message.properties
    delay = properties.number(WILL_DELAY, 0) * 1000
    expiry = properties.number(MESSAGE_EXPIRY, -1)
    properties.numbers.pop(WILL_DELAY, None)
    encoded = properties.encoded()
    described = encoded != b"\0"
    return StoredWill(
        swap(message.topic),
        encoded + message.body if described else message.body,
        described,
        message.qos,
        message.retain,
        delay,
        expiry * 1000 if expiry >= 0 else -1,
    )


def restored_will(definition: Definition) -> StoredWill:
    """Return the will in a session's stored definition.

    Raises PreconditionFailed if the definition of the will is invalid.
    """
    key, content = definition.get("key"), definition.get("content")
    qos, delay, lifetime = (
        definition.get("assurance"),
        definition.get("delay"),
        definition.get("lifetime"),
    )
    if not (
        isinstance(key, str)
        and isinstance(content, bytes)
        and isinstance(qos, int)
        and 0 <= qos <= 2
        and isinstance(delay, int)
        and isinstance(lifetime, int)
    ):
        raise PreconditionFailed(f"the field 'will' has the invalid value {definition!r}")
    return StoredWill(
        key,
        content,
        definition.get("described") is True,
        qos,
        definition.get("retain") is True,
        delay,
        lifetime,
    )


class DelayedWill(DelayedWillTask):
    """A will that waits until its delay has passed. `run` publishes the will in the publish context
    `context`.

    The will is published with the permissions that the user has at that time. Permissions that
    came with the login, for example in a token, are not looked up again.
    """

    def __init__(
        self,
        vhost: VirtualHost,
        context: PublishContext,
        authenticator: Authenticator,
        will: StoredWill,
        session: Session,
        deadlines: Deadlines,
        when: i64,
    ) -> None:
        vhost.contexts.hold(context)
        self._deadlines = deadlines
        self._deadline = deadlines.at(when, self)
        self._vhost = vhost
        self._context = context
        self._authenticator = authenticator
        self._will = will
        self._session: Session | None = session

    def run(self) -> None:
        """Publish the will, because its delay has passed or the session has ended."""
        session = self._finish()
        if session is not None:
            if not session.named or self._renew_permissions(session):
                publish_will(
                    self._vhost, self._context, self._will.message, self._will.lifetime, session
                )
            self._vhost.release(self._context)
            if session.registry is not None:
                session.registry.clear_will(session)

    def _renew_permissions(self, session: Session) -> bool:
        """Use the present permissions of the user.

        Return False if the user is deleted, or has no permission on the virtual host.
        """
        user = self._authenticator.identity_of(session.user)
        identity = None if user is None else user.for_vhost(self._vhost.name, session.name)
        if identity is None:
            return False
        old = self._context
        if identity is not old.identity:
            self._context = self._vhost.contexts.find(identity, old.front)
            self._vhost.contexts.hold(self._context)
            self._vhost.release(old)
        return True

    def cancel(self) -> None:
        """Drop the will, because the client has connected again [MQTT-3.1.3-9]."""
        if self._finish() is not None:
            self._vhost.release(self._context)

    def _finish(self) -> Session | None:
        """End the wait, and return the session to which the will belongs.

        Return None if the will is already published or cancelled.
        """
        session, self._session = self._session, None
        if session is not None:
            session.delayed_will = None
            self._deadlines.cancel(self._deadline)
        return session
