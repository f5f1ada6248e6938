"""Delivers retained messages to a new subscription, in slices."""

from __future__ import annotations

from mypy_extensions import i64

from broker.agenda import Task
from broker.messages.message import AT_MOST_ONCE, Message
from broker.routing.binding import PARTLY, Binding
from broker.store.entries import MessageStored
from broker.vhost.retained import RetainedReceiver
from matching.grammar import MQTT
from protocols.mqtt.codec.packets import RETAIN
from protocols.mqtt.session.session import BACKLOGGED, NONE_WAITING, Session
from protocols.mqtt.session.subscription_options import Addressed, identifier_of


def send_retained(session: Session, topic_filter: str) -> None:
    """Send a session the retained messages that match one of its subscriptions [MQTT-3.3.1-9]."""
    binding = session.subscriptions.get(topic_filter)
    if binding is not None:
        session.vhost.retained.deliver(topic_filter, MQTT, RetainedDelivery(session, binding))


class RetainedDelivery(RetainedReceiver):
    """Sends a session the retained messages that match one new subscription of this session."""

    def __init__(self, session: Session, binding: Binding) -> None:
        self._session = session
        self._binding = binding

    @property
    def _obsolete(self) -> bool:
        """True if the subscription has ended or is replaced."""
        return (
            self._session.dead
            or self._session.subscriptions.get(self._binding.key) is not self._binding
        )

    def backlogged(self, task: Task) -> bool:
        return not self._obsolete and _waits_for_room(self._session, self._binding.key, task)

    def receive_retained(self, message: Message) -> bool:
        if self._obsolete:
            return False
        session, binding = self._session, self._binding
        if PARTLY in binding.arguments and not session.may_read(message.address.topic):
            return True
        session.vhost.internal.count_copies(1, 0)
        granted: i64 = min(message.qos, binding.qos)
        copy = message
        if session.subscriptions.options is not None:
            copy = Addressed(message, int(granted), True, identifier_of(binding), message.encoding)
        elif granted > AT_MOST_ONCE:
            copy = message.copy(granted, True)
        if granted > AT_MOST_ONCE:
            inbox = session.inbox
            if session.persistent:
                copy.position = inbox.store.append(
                    MessageStored(inbox.vhost, copy, [inbox.number], [inbox.next_sequence()]), None
                )
            inbox.put(copy)
            return True
        session.send(copy, RETAIN)
        return True


def _waits_for_room(session: Session, topic_filter: str, task: Task) -> bool:
    """Check if the session has room for retained messages now.

    If there is no room, return True and keep `task`, which delivers the retained messages of the
    topic filter: the session runs the task when there is room. Return False if there is room, or if
    the client is not connected.
    """
    outlet = session.outlet
    if (
        outlet is None
        or not session.suback_pending
        and session.inbox.depth < BACKLOGGED
        and outlet.open()
    ):
        return False
    if session.waiting_retained is NONE_WAITING:
        session.waiting_retained = {}
    session.waiting_retained[topic_filter] = task
    return True
