"""Shared subscriptions: a group of sessions that receives each message once (section 4.8.2).

    publication --QoS 0----> a connected member, in turn
                --QoS 1----> queue of the group --> a GroupConsumer with room --> its client
                --QoS 2----> queue of the group --> a GroupConsumer with room --> session's inbox

A QoS 1 message returns to the group if the connection of a member ends before the member has
acknowledged the message. If the group has ended, or very many messages are in flight to sessions
that have left it, the message stays with the session, which sends it again. A QoS 2 message belongs
to the session to which it was delivered, and goes to no other session [MQTT-4.8.2-4],
[MQTT-4.8.2-5]. A group exists while it has members.
"""

from __future__ import annotations

from typing import ClassVar, Final

from mypy_extensions import i64

from broker.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, Message
from broker.messages.outlet import Outlet
from broker.messages.tracing import report_delivery
from broker.queues.arguments import UNLIMITED
from broker.queues.consumer import Consumer, CreditPool, Delivery, MessageSource
from broker.queues.private import GroupInbox
from broker.routing.binding import Binding
from broker.routing.subscriber import Subscriber
from broker.store.contract import Ticket
from broker.store.entries import Defined, MessageStored
from broker.vhost.private_queues import add_subscriber, delete_subscriber, new_group_inbox
from broker.vhost.vhost import VirtualHost
from matching.grammar import MQTT
from protocols.mqtt.codec.relay_formats import UNSHARED_5
from protocols.mqtt.codec.topics import EXCHANGE, SHARE, valid_topic_name
from protocols.mqtt.session.inbox_consumer import NOWHERE
from protocols.mqtt.session.interfaces import SharedSubscription
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.subscription_options import Addressed, identifier_property

#: Limits of the sessions that have left a group, and of the group's messages in flight to them. The
#: last member to leave moves these messages in one turn of the event loop.
LEAVERS_MAX: Final = 16
LEFT_MAX: Final = 512


class GroupConsumer(Consumer):
    """The consumer that delivers messages of a subscription group to one of its members.

    If the member's session has no room for a message, the message is requeued, and the consumer has
    no credit until the session has room.
    """

    def __init__(self, member: SharedMember, outlet: Outlet, gate: CreditPool) -> None:
        super().__init__(member.group.inbox, outlet, UNLIMITED, gate)
        self._member: SharedMember | None = member

    def deliver(self, message: Message, sequence: i64) -> None:
        self._give(Delivery(message, self, sequence))

    def redeliver(self, delivery: Delivery) -> None:
        """Deliver a message that was delivered to another member before. DUP is not set, because
        the message is new for this member.
        """
        self._give(delivery)

    def _give(self, delivery: Delivery) -> None:
        member = self._member
        assert member is not None, "a consumer that has left its group must not deliver"
        session, queue, message = member.session, self.queue, delivery.message
        granted: i64 = min(message.qos, member.qos)
        room = None
        if granted > AT_MOST_ONCE:
            room = session.room_for_shared(member)
            if room is None:
                self.credit = 0
                queue.unacked += 1
                queue.requeue(delivery)
                return
        if session.subscriptions.options is not None or granted < message.qos:
            copy = Addressed(
                message,
                int(granted),
                False,
                identifier_property(member.identifier),
                message.encoding,
            )
            copy.origin = message
            delivery = delivery.with_message(copy)
        if granted == EXACTLY_ONCE:
            _hand_over(session, queue, delivery.message)
            queue.auto_acknowledged += 1
        elif room is not None:
            room.send_shared(delivery)
        else:
            session.send_uncounted(delivery.message)
            if message.address.traced:
                report_delivery(message, queue.name, self.outlet, "with QoS 0")
            queue.auto_acknowledge(message)

    def leave(self) -> None:
        """Stop delivering to the member.

        Deliveries in flight still refer to this consumer. So the consumer drops its reference to
        the member, which would otherwise stay in memory.
        """
        self.queue.unsubscribe(self)
        self.outlet = NOWHERE
        self._member = None


def _hand_over(session: Session, queue: MessageSource, message: Message) -> None:
    """Move a QoS 2 message from its subscription group to the inbox of a session."""
    inbox = session.inbox
    inbox.put(_moved(session, queue, message, inbox.next_sequence()))


def _leave_to(session: Session, deliveries: list[Delivery]) -> None:
    """Move the QoS 1 messages in flight from their subscription group to their session's inbox.

    The group ends. The session completes the deliveries [MQTT-3.10.4-3]: it sends the messages
    again after a lost connection. The packet identifiers stay the same; after a crash of the broker
    they are new, because the sequence numbers of the stored messages of an inbox must ascend.

    If messages wait in the inbox, the moved messages are not stored: after a crash, the session
    does not send them. The moved messages precede the waiting messages, but no lower sequence
    number is free. The waiting messages must keep their numbers, because the packet identifiers of
    QoS 2 messages are computed from the numbers.
    """
    inbox, consumer = session.inbox, session.absent_consumer()
    numbered = inbox.depth == 0
    for delivery in deliveries:
        queue = delivery.consumer.queue
        sequence: i64 = inbox.reserve() if numbered else 0
        delivery.message = _moved(session, queue, delivery.message, sequence)
        delivery.consumer = consumer
        queue.unacked -= 1
        queue.auto_acknowledged += 1
        inbox.unacked += 1


def _moved(session: Session, queue: MessageSource, message: Message, sequence: i64) -> Message:
    """Return a copy of a group's message, for the inbox of the session to which the message moves.

    `sequence` is the sequence number of the copy in the inbox; 0 if the copy is not stored. The
    store records the move as one atomic change.
    """
    vhost = session.vhost
    inbox = session.inbox
    copy = _not_stored(message)
    if queue.durable and message.position > 0:
        vhost.store.begin()
        position: i64 = 0
        if inbox.durable and sequence > 0:
            stored = MessageStored(vhost.name, copy, [int(inbox.number)], [int(sequence)])
            position = vhost.store.append(stored, None)
        queue.release(message)
        vhost.store.commit()
        copy.position = position
    vhost.internal.count_copies(1, 0)
    return copy


class SharedMember(SharedSubscription):
    """A session that is a member of a subscription group, with its granted QoS."""

    def __init__(self, group: SubscriptionGroup, session: Session, qos: int) -> None:
        super().__init__(f"{SHARE}{group.label}/{group.topic_filter}", qos)
        self.group = group
        self.session = session
        self._consumer: GroupConsumer | None = None

    def attach(self, outlet: Outlet, gate: CreditPool) -> None:
        if self._consumer is not None:
            if self._consumer.pool is gate:
                return
            self.detach()
        consumer = self._consumer = GroupConsumer(self, outlet, gate)
        self.group.inbox.subscribe(consumer)

    def detach(self) -> None:
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.leave()

    def schedule_drain(self) -> None:
        if self._consumer is not None:
            self._consumer.credit = UNLIMITED
        self.group.inbox.schedule_drain()

    def leave(self, ticket: Ticket | None) -> None:
        self.ended = True
        self.detach()
        self.group.remove(self, ticket)


class SubscriptionGroup(Subscriber):
    """The sessions that share a topic filter under one group name."""

    hash_kind: ClassVar[str] = "Group"

    def __init__(
        self,
        groups: SubscriptionGroups,
        vhost: VirtualHost,
        label: str,
        topic_filter: str,
        backlog: int,
    ) -> None:
        inbox = new_group_inbox(vhost, f"mqtt-shared-{label}/{topic_filter}", backlog)
        super().__init__(f"{SHARE}{label}/{topic_filter}", inbox, UNSHARED_5)
        self.vhost = vhost
        self.label = label
        self.topic_filter = topic_filter
        self.members: list[SharedMember] = []
        self._groups: SubscriptionGroups | None = groups
        self._turn = 0
        #: Connected sessions that have left the group while messages of the group were in flight to
        #: them, and the numbers of these messages.
        self._leavers: dict[Session, int] = {}
        #: The QoS of the group's binding: the highest QoS that a member was granted; -1 if the
        #: group is not bound.
        self._qos = -1
        add_subscriber(vhost, self)

    # -- a subscriber of the topic

    @property
    def forwards(self) -> bool:
        return True

    def can_represent(self, topic: bytes) -> bool:
        return valid_topic_name(topic)

    def offer(self, message: Message) -> None:
        """Send a QoS 0 message to the next member that is connected and not paused."""
        members = self.members
        for _ in range(len(members)):
            self._turn = (self._turn + 1) % len(members)
            member = members[self._turn]
            outlet = member.session.outlet
            if outlet is not None and not outlet.paused:
                if member.session.subscriptions.options is not None:
                    message = Addressed(
                        message,
                        int(AT_MOST_ONCE),
                        False,
                        identifier_property(member.identifier),
                        message.encoding,
                    )
                member.session.offer(message)
                return
        self.missed += 1

    @property
    def is_connected(self) -> bool:
        return any(member.session.is_connected for member in self.members)

    # -- members

    def add(self, member: SharedMember, ticket: Ticket | None) -> None:
        """Add a member; the group becomes durable with its first persistent session."""
        if member.session.persistent and not self.inbox.durable:
            self._make_durable(ticket)
        self.members.append(member)
        self.bind(ticket)

    def _make_durable(self, ticket: Ticket | None) -> None:
        """Make the group durable, so that it survives a restart.

        Messages that the group holds already are still lost at a restart, because the store has not
        recorded them for this group.
        """
        if self._qos >= 0:
            self.vhost.unbind(
                EXCHANGE, Binding(self.topic_filter, self, self._qos, None, MQTT), ticket
            )
            self._qos = -1
        store = self.vhost.store
        number: i64 = store.append(
            Defined(self.vhost.name, "session", self.name, {"group": True, "away_since": 0}), ticket
        )
        self._set_durable(number, store.position)

    def restore(self, number: i64) -> None:
        """Make the new group durable: the group existed before the restart, under this number."""
        self._set_durable(number, 0)

    def _set_durable(self, number: i64, recorded_after: i64) -> None:
        inbox = self.inbox
        assert isinstance(inbox, GroupInbox), "the constructor makes a GroupInbox"
        self.number = number
        inbox.make_durable(number, recorded_after)

    def restore_binding(self, binding: Binding) -> None:
        """Set the QoS of the group to the QoS of its binding, which is restored already."""
        self._qos = int(binding.qos)

    def bind(self, ticket: Ticket | None) -> None:
        """Bind the group to its topic filter, with the highest QoS that a member was granted."""
        qos = max(member.qos for member in self.members)
        if qos != self._qos:
            self._qos = qos
            self.vhost.bind(EXCHANGE, Binding(self.topic_filter, self, qos, None, MQTT), ticket)

    def remove(self, member: SharedMember, ticket: Ticket | None) -> None:
        """Remove a member; the group ends with its last member."""
        self.members.remove(member)
        left = member.session
        if left.outlet is not None and self.inbox.unacked > 0:
            self._keep_or_leave(left)
        if self.members:
            self.bind(ticket)
        else:
            self.end(ticket)

    def _keep_or_leave(self, left: Session) -> None:
        """Handle the messages in flight to a connected session that has left the group.

        The messages stay with the group: if the connection ends, another member gets them. But if
        the messages of all such sessions exceed a limit (LEAVERS_MAX, LEFT_MAX), they belong to the
        session from now on, as at the end of the group.
        """
        deliveries = self._in_flight_to(left)
        # Sessions that were disconnected have returned their messages.
        self._leavers = {
            session: count
            for session, count in self._leavers.items()
            if session.outlet is not None and session is not left
        }
        if not deliveries:
            return
        if len(self._leavers) < LEAVERS_MAX and (
            sum(self._leavers.values()) + len(deliveries) <= LEFT_MAX
        ):
            self._leavers[left] = len(deliveries)
        else:
            _leave_to(left, deliveries)

    def end(self, ticket: Ticket | None) -> None:
        """End the group, and remove it from the store.

        Messages in flight are not lost: each belongs to its receiver's session from now on.
        """
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.remove(self)
            for session in self._receivers() if self.inbox.unacked > 0 else ():
                deliveries = self._in_flight_to(session)
                if deliveries:
                    _leave_to(session, deliveries)
            self._leavers = {}
            delete_subscriber(self.vhost, self, ticket)

    def _receivers(self) -> list[Session]:
        """Return the sessions to which messages of the group may be in flight."""
        return [member.session for member in self.members] + list(self._leavers)

    def _in_flight_to(self, session: Session) -> list[Delivery]:
        """Return the deliveries of the group's messages that a session has not acknowledged."""
        deliveries = session.in_flight.outstanding()
        return [delivery for _, delivery in deliveries if delivery.consumer.queue is self.inbox]


def _not_stored(message: Message) -> Message:
    """Return the message if it has no store position, otherwise a copy without a position."""
    if message.position == 0:
        return message
    if isinstance(message, Addressed):
        copy: Message = Addressed(
            message, int(message.qos), False, message.identifier, message.encoding
        )
    else:
        copy = message.copy(message.qos, False)
    copy.position = 0
    return copy


class SubscriptionGroups:
    """All subscription groups of a broker, by virtual host and name."""

    def __init__(self, backlog: int) -> None:
        self._backlog = backlog
        self._groups: dict[tuple[str, str], SubscriptionGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, vhost: VirtualHost, name: str) -> SubscriptionGroup | None:
        """Return the group of the shared subscription `name`; None if there is none."""
        return self._groups.get((vhost.name, name))

    def open(self, vhost: VirtualHost, name: str) -> SubscriptionGroup:
        """Return the group of a well-formed shared subscription; create it if there is none."""
        group = self._groups.get((vhost.name, name))
        if group is None:
            label, topic_filter = split_shared(name)
            group = self._groups[vhost.name, name] = SubscriptionGroup(
                self, vhost, label, topic_filter, self._backlog
            )
        return group

    def remove(self, group: SubscriptionGroup) -> None:
        """Remove a group that has ended."""
        self._groups.pop((group.vhost.name, group.name), None)

    def drop_empty(self) -> None:
        """End the groups without members, after a restart."""
        for group in [group for group in self._groups.values() if not group.members]:
            group.end(None)

    def join(
        self, session: Session, name: str, qos: int, identifier: int, ticket: Ticket | None
    ) -> bool:
        """Add or replace a session's shared subscription; return True if it is new.

        `qos` is the granted QoS, `identifier` the subscription identifier (0: none).
        """
        known = session.subscriptions.memberships.get(name)
        if known is not None:
            known.qos = qos
            session.set_identifier(known, identifier)
            self.open(session.vhost, name).bind(ticket)
            return False
        group = self.open(session.vhost, name)
        member = SharedMember(group, session, qos)
        session.set_identifier(member, identifier)
        session.add_membership(member)
        group.add(member, ticket)
        return True


def split_shared(name: str) -> tuple[str, str]:
    """Return the group name and the topic filter of a shared subscription."""
    label, _, topic_filter = name[len(SHARE) :].partition("/")
    return label, topic_filter


def leave_group(session: Session, name: str, ticket: Ticket | None) -> bool:
    """Remove a session's shared subscription; return False if there is none."""
    membership = session.subscriptions.memberships.pop(name, None)
    if membership is None:
        return False
    membership.leave(ticket)
    session.set_identifier(membership, 0)
    return True
