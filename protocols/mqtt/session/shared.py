"""Shared subscriptions: a group of sessions that takes publications in turns (section 4.8.2).

    publication --at most once--> a member who is here
                --otherwise-----> queue of the group --> Turn of a member with room --> that member's packets in flight
                                                                            QoS 2 --> that member's inbox, for good

A QoS 1 message goes back to the group when its member's connection breaks; a QoS 2 message belongs
to the session that it was given to, and is nobody else's [MQTT-4.8.2-4], [MQTT-4.8.2-5]. A group
exists while it has members.
"""

from __future__ import annotations

from typing import ClassVar

from mypy_extensions import i64

from broker.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, Message
from broker.messages.outlet import Outlet
from broker.queues.arguments import UNLIMITED
from broker.queues.consumer import Consumer, Delivery, MessageSource
from broker.routing.binding import Binding
from broker.routing.route import Subscriber
from broker.store.contract import Defined, MessageStored, Ticket, Undefined
from broker.vhost.vhost import VirtualHost
from matching.grammar import MQTT
from protocols.mqtt.codec.relay_formats import UNSHARED_5
from protocols.mqtt.codec.topics import EXCHANGE, SHARE, valid_topic_name
from protocols.mqtt.session.inbox_consumer import NOWHERE
from protocols.mqtt.session.interfaces import SharedSubscription
from protocols.mqtt.session.session import Session
from protocols.mqtt.session.subscription_options import Addressed, identifier_property


class GroupConsumer(Consumer):
    """Takes messages of the group for one member. One whose session has no room gives the message
    back, and takes none until it has."""

    def __init__(self, member: GroupMember, outlet: Outlet) -> None:
        super().__init__(member.group.inbox, outlet, UNLIMITED, None)
        self._member: GroupMember | None = member

    def deliver(self, message: Message, sequence: i64) -> None:
        self._give(Delivery(message, self, sequence))

    def redeliver(self, delivery: Delivery) -> None:
        """Another member had it. For this one it is new: no DUP."""
        self._give(delivery)

    def _give(self, delivery: Delivery) -> None:
        member = self._member
        assert member is not None, "a member who is gone has no turn"
        session, queue, message = member.session, self.queue, delivery.message
        granted: i64 = min(message.qos, member.qos)
        room = None
        if granted > AT_MOST_ONCE:
            room = session.room_for_shared()
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
            queue.auto_acknowledge(message)

    def leave(self) -> None:
        """What is in flight keeps its consumer, which must not keep the member."""
        self.queue.unsubscribe(self)
        self.outlet = NOWHERE
        self._member = None


def _hand_over(session: Session, queue: MessageSource, message: Message) -> None:
    """From now on the message is the session's, on the disk too: both or neither."""
    vhost = session.vhost
    inbox = session.inbox
    copy = _unkept(message)
    if queue.durable and message.position > 0:
        vhost.store.begin()
        position: i64 = 0
        if inbox.durable:
            position = vhost.store.append(
                MessageStored(vhost.name, copy, [int(inbox.number)], [int(inbox.next_sequence())]),
                None,
            )
        queue.release(message)
        vhost.store.commit()
        copy.position = position
    vhost.internal.count_copies(1, 0)
    inbox.put(copy)


class GroupMember(SharedSubscription):
    """A session in a group: with the QoS that it was granted, and the identifier of its
    subscription (0: none).
    """

    def __init__(self, group: SubscriptionGroup, session: Session, qos: int) -> None:
        super().__init__(f"{SHARE}{group.label}/{group.topic_filter}", qos)
        self.group = group
        self.session = session
        self._turn: GroupConsumer | None = None

    def attach(self, outlet: Outlet) -> None:
        turn = self._turn = GroupConsumer(self, outlet)
        self.group.inbox.subscribe(turn)

    def detach(self) -> None:
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.leave()

    def schedule_drain(self) -> None:
        if self._turn is not None:
            self._turn.credit = UNLIMITED
        self.group.inbox.schedule_drain()

    def leave(self, ticket: Ticket | None) -> None:
        self.detach()
        self.group.remove(self, ticket)


class SubscriptionGroup(Subscriber):
    """The sessions that share a topic filter under one name; a destination like any other."""

    hash_kind: ClassVar[str] = "Group"

    def __init__(
        self,
        groups: SubscriptionGroups,
        vhost: VirtualHost,
        label: str,
        topic_filter: str,
        backlog: int,
    ) -> None:
        inbox = vhost.new_inbox(f"mqtt-shared-{label}/{topic_filter}", False, backlog)
        super().__init__(f"{SHARE}{label}/{topic_filter}", inbox, UNSHARED_5)
        self.vhost = vhost
        self.label = label
        self.topic_filter = topic_filter
        self.members: list[GroupMember] = []
        self._groups: SubscriptionGroups | None = groups
        self._turn = 0
        #: The highest QoS that a member was granted.
        self._qos = -1
        vhost.add_subscriber(self)

    # -- Listener

    def can_represent(self, topic: bytes) -> bool:
        return valid_topic_name(topic)

    def offer(self, message: Message) -> None:
        """To the next member who is here and reads."""
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

    # -- members

    def add(self, member: GroupMember, ticket: Ticket | None) -> None:
        if member.session.persistent and not self.inbox.durable:
            self._last(ticket)
        self.members.append(member)
        self.bind(ticket)

    def _last(self, ticket: Ticket | None) -> None:
        """From now on the group survives a stop.

        What it holds already does not: others may have kept it, the group has not.
        """
        inbox = self.inbox
        if self._qos >= 0:
            self.vhost.unbind(
                EXCHANGE, Binding(self.topic_filter, self, self._qos, None, MQTT), ticket
            )
            self._qos = -1
        for member in self.members:
            for _, delivery in member.session.in_flight.outstanding():
                if delivery.consumer.queue is inbox:
                    delivery.message = _unkept(delivery.message)
        waiting: list[Message] = []
        nobody = self.members[0].session.absent_consumer() if self.members else None
        while nobody is not None and (taken := inbox.take(nobody)) is not None:
            waiting.append(_unkept(taken.message))
        for message in waiting:
            inbox.put(message)
        inbox.durable = True
        self.number = inbox.number = self.vhost.store.append(
            Defined(self.vhost.name, "session", self.name, {"group": True, "away_since": 0}), ticket
        )

    def restore_binding(self, binding: Binding) -> None:
        """It was bound like this before."""
        self._qos = int(binding.qos)

    def bind(self, ticket: Ticket | None) -> None:
        """As high as the most demanding member wants."""
        qos = max(member.qos for member in self.members)
        if qos != self._qos:
            self._qos = qos
            self.vhost.bind(EXCHANGE, Binding(self.topic_filter, self, qos, None, MQTT), ticket)

    def remove(self, member: GroupMember, ticket: Ticket | None) -> None:
        """The group ends with its last member."""
        self.members.remove(member)
        if self.members:
            self.bind(ticket)
        else:
            self.end(ticket)

    def end(self, ticket: Ticket | None) -> None:
        groups, self._groups = self._groups, None
        if groups is not None:
            groups.forget(self)
            self.vhost.delete_subscriber(self)
            if self.number:
                self.vhost.store.append(
                    Undefined(self.vhost.name, "session", self.name, self.number), ticket
                )


def _unkept(message: Message) -> Message:
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
    """All of a broker, by virtual host and name."""

    def __init__(self, backlog: int) -> None:
        self._backlog = backlog
        self._groups: dict[tuple[str, str], SubscriptionGroup] = {}

    def __len__(self) -> int:
        return len(self._groups)

    def find(self, vhost: VirtualHost, name: str) -> SubscriptionGroup | None:
        return self._groups.get((vhost.name, name))

    def open(self, vhost: VirtualHost, name: str) -> SubscriptionGroup:
        """Find or make the group of a shared subscription, which is well-formed."""
        group = self._groups.get((vhost.name, name))
        if group is None:
            label, topic_filter = split_shared(name)
            group = self._groups[vhost.name, name] = SubscriptionGroup(
                self, vhost, label, topic_filter, self._backlog
            )
        return group

    def forget(self, group: SubscriptionGroup) -> None:
        self._groups.pop((group.vhost.name, group.name), None)

    def drop_empty(self) -> None:
        """After a start: groups whose members are not back."""
        for group in [group for group in self._groups.values() if not group.members]:
            group.end(None)

    def join(
        self, session: Session, name: str, qos: int, identifier: int, ticket: Ticket | None
    ) -> bool:
        """Add or replace a session's shared subscription; whether it is new."""
        known = session.subscriptions.memberships.get(name)
        if known is not None:
            known.qos = qos
            session.set_identifier(known, identifier)
            self.open(session.vhost, name).bind(ticket)
            return False
        group = self.open(session.vhost, name)
        member = GroupMember(group, session, qos)
        session.set_identifier(member, identifier)
        session.join(member)
        group.add(member, ticket)
        return True


def split_shared(name: str) -> tuple[str, str]:
    """The group's label and the topic filter in the name of a shared subscription."""
    label, _, topic_filter = name[len(SHARE) :].partition("/")
    return label, topic_filter
