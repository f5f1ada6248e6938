"""The session: what outlives the network connection.

publication --at most once---> outlet of the connection, if there is one
            --otherwise------> inbox (a queue) --> InboxConsumer --> connection
                                                    credit = receive maximum - in flight
"""

from __future__ import annotations

from typing import ClassVar, Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.definitions.restore import Definition
from broker.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, Message
from broker.messages.outlet import Outlet
from broker.queues.consumer import Delivery
from broker.store.contract import PubrecReceived, Ticket, Waiter
from broker.vhost.vhost import VirtualHost
from protocols.mqtt.codec.packets import DUP, PUBREL, write_answer
from protocols.mqtt.codec.topics import valid_topic_name
from protocols.mqtt.session.deadlines import Deadline
from protocols.mqtt.session.inflight import IDENTIFIERS, NOWHERE, InboxConsumer, identifier, write
from protocols.mqtt.session.interfaces import (
    DelayedWillTask,
    SessionConnection,
    SessionRegistry,
    SharedSubscription,
)
from protocols.mqtt.session.publish_writer import PublishWriter
from protocols.mqtt.session.subscription_options import Addressed
from protocols.mqtt.session.subscriptions import BACKLOGGED, NO_MEMBERSHIPS, SessionSubscriptions
from protocols.tally import FrontCounters

#: What most sessions have, in one copy; nothing is ever put into these.
_NONE_RELEASED: Final[dict[int, int]] = {}
_ALL_SENT: Final[list[tuple[i64, Delivery]]] = []


class Resend(Waiter):
    """What a session has to send again is durable."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def settled(self) -> None:
        self._session.resend()


class Session(SessionSubscriptions):
    """One client identifier's subscriptions, inbox and packets in flight.

    `receive_maximum` bounds those.
    """

    hash_kind: ClassVar[str] = "Session"

    def __init__(
        self,
        vhost: VirtualHost,
        client_id: str,
        persistent: bool,
        backlog: int,
        receive_maximum: int,
        tally: FrontCounters,
    ) -> None:
        inbox = vhost.new_inbox(f"mqtt-subscription-{client_id}qos1", persistent, backlog)
        super().__init__(vhost, client_id, inbox, persistent, tally)
        #: How many may be in flight; what its client allows, if that is less.
        self.receive_maximum: i64 = receive_maximum
        #: Whose it is: the name that its client logged in by, whether names alone say who that is,
        #: and its rights.
        self.user = ""
        self.named = False
        self.identity: Identity | None = None
        #: Its client's connection, before and after the CONNACK. The `outlet` is there after it.
        self.connection: SessionConnection | None = None
        #: Seconds that it outlives its connection.
        self.expiry = 0
        #: Where it is listed, while it lives.
        self.register: SessionRegistry | None = None
        #: Its end, while its client is away.
        self.alarm: Deadline | None = None
        #: Whether it had shared subscriptions since it is connected, and whether they were refused.
        self._sharing = False
        self._wants_shared = False
        #: Its client's will, while that waits for the client to come back.
        self.delayed_will: DelayedWillTask | None = None
        #: What the store knows of the will, while there is one that shall survive a crash.
        self.stored_will: Definition | None = None
        #: When its last connection went, in ms.
        self.away_since: i64 = 0
        #: Packet identifiers of ours that got their PUBREC, and the position of that in the store
        #: (0: nowhere).
        self.released: dict[int, int] = _NONE_RELEASED
        self._consumer: InboxConsumer | None = None
        #: What is in flight and not resent yet over this connection, oldest last.
        self._unsent = _ALL_SENT
        #: How many of them its client takes now.
        self._resendable: i64 = 0
        self._withheld: i64 = 0
        #: From the oldest packet identifier in flight to the newest, so that none is used twice.
        self._span_max: i64 = IDENTIFIERS - receive_maximum
        vhost.add_subscriber(self)

    # -- Listener

    def run(self) -> None:
        """Its client stayed away for too long."""
        if self.register is not None:
            self.register.expire(self)

    def can_represent(self, topic: bytes) -> bool:
        return valid_topic_name(topic)

    def may_read(self, topic: bytes) -> bool:
        return self.identity is not None and self.identity.may_read(topic)

    def offer(self, message: Message) -> None:
        outlet = self.outlet
        if outlet is None:
            self.missed += 1
        elif outlet.paused:
            self.dropped += 1
        else:
            self.tell(outlet, message, 0)

    def tell(self, outlet: Outlet, message: Message, flags: i64) -> None:
        """At most once."""
        pen = self.writer
        if pen is None:
            write(outlet, message, AT_MOST_ONCE, 0, flags)
        elif not pen.write(message, AT_MOST_ONCE, 0, flags, self.views):
            self.dropped += 1
            return
        self.relayed += 1

    # -- its connection comes and goes

    def attach(self, connection: SessionConnection, writer: PublishWriter | None) -> None:
        """Take a new connection, which receives nothing before `start_deliveries`."""
        self.connection = connection
        self.writer = writer
        self._choose_relay_format()

    def start_deliveries(self) -> None:
        """Resend the messages in flight, in order, then deliver those of the inbox [MQTT-4.4.0-1]."""
        outlet = self.outlet = self.connection
        assert outlet is not None
        self._resendable = self.receive_maximum
        for membership in self.memberships.values():
            self._sharing = True
            membership.attach(outlet)
        self._unsent = self.window().outstanding()
        self._unsent.reverse()
        self._resend(outlet)

    def resend(self) -> None:
        """What was waited for has come."""
        if self._unsent and self.outlet is not None:
            self._resend(self.outlet)

    def _resend(self, outlet: Outlet) -> None:
        """As much as the connection takes now, and the store has; `resend` goes on."""
        store = self.vhost.store
        while self._unsent:
            if not outlet.open() or self._resendable == 0:
                return
            number, delivery = self._unsent[-1]
            packet_id = identifier(number)
            needed: i64 = self.released.get(packet_id, 0)
            if delivery.message.qos == EXACTLY_ONCE:
                needed = max(needed, delivery.message.position)
            if needed > store.durable:
                store.wait_for(needed, Ticket(Resend(self)))
                return
            self._unsent.pop()
            if self.in_flight.get(number) is not delivery:
                continue  # It was acknowledged meanwhile.
            if packet_id in self.released:
                write_answer(outlet.out, PUBREL << 4 | 2, packet_id)
                outlet.touch()
                continue
            self.tally.redelivered += 1
            pen = self.writer
            if pen is None:
                write(outlet, delivery.message, delivery.message.qos, packet_id, DUP)
            elif not pen.write(delivery.message, delivery.message.qos, packet_id, DUP, self.views):
                self.skip(number)
                continue
            self._resendable -= 1
        credit: i64 = self.receive_maximum - self.in_flight.count
        consumer = self._consumer = InboxConsumer(self, outlet, credit)
        self._wants_shared = False
        self._withheld = 0
        if self.in_flight.span() > self._span_max:
            self._withhold(consumer)
        self.inbox.subscribe(consumer)
        for membership in self.memberships.values():
            membership.schedule_drain()

    def skip(self, number: i64) -> None:
        """What is in flight under this number is too large for its client: as if it had been
        delivered [MQTT-3.1.2-25].
        """
        delivery = self.in_flight.take(number)
        if delivery is not None:
            if self._consumer is not None:
                self._consumer.credit += 1
            queue = delivery.consumer.queue
            if not queue.dead:
                queue.unrepresentable(delivery.message)

    def resume_deliveries(self) -> None:
        """Its connection has room again."""
        self.resend()
        self._wants_shared = self._sharing
        self.schedule_shared_drain()
        self.resume_retained()

    def detach(self) -> None:
        """The connection is gone, the session stays."""
        self.connection = None
        self.outlet = None
        self.writer = None
        if self._consumer is not None:
            self.inbox.unsubscribe(self._consumer)
            self._consumer.outlet = (
                NOWHERE  # What is in flight keeps the consumer, which must not keep the connection.
            )
            self._consumer = None
        self._unsent = _ALL_SENT
        if self._sharing:
            self._sharing = False
            for membership in self.memberships.values():
                membership.detach()
            self._give_back()
        self.suback_pending = False
        self.resume_retained()
        self.tidy()
        if not self.released:
            self.released = _NONE_RELEASED

    def end(self) -> None:
        """Forget the session."""
        self.detach()
        if self.delayed_will is not None:
            self.delayed_will.run()  # [MQTT-3.1.2-8]
        memberships, self.memberships = self.memberships, NO_MEMBERSHIPS
        for membership in memberships.values():
            membership.leave(None)
        self.vhost.delete_subscriber(self)
        self._drop_all()
        for delivery in self.in_flight.take_all():
            delivery.consumer.queue.settle(delivery.message)

    # -- shared subscriptions

    def join(self, membership: SharedSubscription) -> None:
        """A new one."""
        if self.memberships is NO_MEMBERSHIPS:
            self.memberships = {}
        self.memberships[membership.name] = membership
        if self.outlet is not None:
            self._sharing = True
            membership.attach(self.outlet)

    def leave_group(self, name: str, ticket: Ticket | None) -> bool:
        """One ends; whether it was there."""
        membership = self.memberships.pop(name, None)
        if membership is None:
            return False
        membership.leave(ticket)
        self.rename(membership, 0)
        return True

    def has_room(self) -> bool:
        """Whether a shared subscription may give it a message now, before all that waits here.

        A refusal is remembered.
        """
        consumer = self._consumer
        if consumer is not None and consumer.credit > 0 and self.inbox.depth == 0:
            return True
        self._wants_shared = True
        return False

    def schedule_shared_drain(self) -> None:
        """There is room again."""
        self.inbox.schedule_drain()
        if self._wants_shared:
            self._open_door()

    def _open_door(self) -> None:
        self._wants_shared = False
        for membership in self.memberships.values():
            membership.schedule_drain()

    def send_shared(self, delivery: Delivery) -> None:
        """A QoS 1 message of a shared subscription. The session has room, and nothing waits: it
        takes the next place of the inbox, for the packet identifier."""
        consumer, outlet = self._consumer, self.outlet
        assert consumer is not None and outlet is not None
        consumer.credit -= 1
        delivery.consumer.queue.unacked += 1
        self.tally.delivered_manual += 1
        number = self.inbox.reserve()
        window = self.in_flight
        if window.next != number:
            window.skip_to(number)
        window.add(delivery)
        message = delivery.message
        pen = self.writer
        if pen is None:
            write(outlet, message, message.qos, identifier(number), 0)
        elif not pen.write(message, message.qos, identifier(number), 0, self.views):
            self.skip(number)

    def write_now(self, message: Message) -> None:
        """At most once, uncounted.

        The session is connected; what is too large for its client is dropped.
        """
        outlet = self.outlet
        assert outlet is not None
        if self.writer is None:
            write(outlet, message, AT_MOST_ONCE, 0, 0)
        else:
            self.writer.write(message, AT_MOST_ONCE, 0, 0, self.views)

    def _give_back(self) -> None:
        """What shared subscriptions gave, and the client did not acknowledge, others may have
        [MQTT-4.8.2-4].
        """
        for number, delivery in self.in_flight.outstanding():
            queue = delivery.consumer.queue
            if queue is not self.inbox:
                self.in_flight.take(number)
                message = delivery.message
                origin = message.origin if isinstance(message, Addressed) else None
                queue.requeue(delivery if origin is None else delivery.with_message(origin))

    # -- what the client answers

    def acknowledge(self, packet_id: i64) -> None:
        """PUBACK or PUBCOMP. Unknown identifiers are ignored. Hot path."""
        delivery = self.in_flight.take(self._number(packet_id))
        if delivery is None:
            return
        self.tally.acknowledged += 1
        consumer = self._consumer
        if consumer is not None:
            consumer.credit += 1
            if self._withheld or self.in_flight.span() > self._span_max:
                self._withhold(consumer)
        elif self._unsent:
            self._resendable += 1
            self.resend()
        if not self._sharing:
            self.inbox.settle(delivery.message)
        else:
            # It may be of a shared subscription; and they may want the room.
            delivery.consumer.queue.settle(delivery.message)
            if self._wants_shared:
                self._open_door()
        if self._waiting_retained and self.inbox.depth < BACKLOGGED:
            self.resume_retained()

    def puback(self, packet_id: i64) -> bool:
        """PUBACK; False when no QoS 1 publication is in flight under this identifier. Hot path."""
        delivery = self.in_flight.get(self._number(packet_id))
        if delivery is None or delivery.message.qos == EXACTLY_ONCE:
            return False
        self.acknowledge(packet_id)
        return True

    def release(self, packet_id: i64, ticket: Ticket) -> bool:
        """PUBREC; False when the identifier belongs to a QoS 1 publication. The ticket is what the
        PUBREL waits for.

        One of which we know nothing is answered too: its owner waits for that [MQTT-4.3.3-1].
        """
        delivery = self.in_flight.get(self._number(packet_id))
        if delivery is None:
            return True
        if delivery.message.qos != EXACTLY_ONCE:
            return False
        store, position = self.vhost.store, delivery.message.position
        if packet_id in self.released:
            store.wait_for(self.released[packet_id], ticket)
        else:
            if self.released is _NONE_RELEASED:
                self.released = {}
            self.released[packet_id] = (
                store.append(PubrecReceived(self.inbox.number, position), ticket)
                if position > 0 and self.persistent
                else 0
            )
        return True

    def step(self, packet_id: i64) -> None:
        """It had its PUBREC before the broker stopped."""
        if self.released is _NONE_RELEASED:
            self.released = {}
        self.released[packet_id] = 0

    def holds(self, packet_id: i64) -> bool:
        """Whether a publication is in flight under this identifier."""
        return self.in_flight.get(self._number(packet_id)) is not None

    def refuse(self, packet_id: i64) -> None:
        """The client wants to hear no more of a publication."""
        self.released.pop(packet_id, None)
        self.acknowledge(packet_id)

    def complete(self, packet_id: i64) -> None:
        """PUBCOMP."""
        if self.released.pop(packet_id, -1) >= 0:
            self.acknowledge(packet_id)

    def _number(self, packet_id: i64) -> i64:
        """The sequence number that has this packet identifier now."""
        first: i64 = self.in_flight.first
        return first + (packet_id - 1 - (first - 1) % IDENTIFIERS + IDENTIFIERS) % IDENTIFIERS

    def _withhold(self, consumer: InboxConsumer) -> None:
        """Give no credit back while a packet identifier could come round again."""
        if self.in_flight.span() > self._span_max:
            if consumer.credit > 0:
                self._withheld += consumer.credit
                consumer.credit = 0
        else:
            consumer.credit += self._withheld
            self._withheld = 0
            self.schedule_shared_drain()

    def resume_input(self) -> None:
        """What its consumer held back has left."""
        consumer = self._consumer
        if consumer is not None and self.in_flight.span() > self._span_max:
            self._withhold(consumer)
        self.schedule_shared_drain()

    def describe(self) -> dict[str, object]:
        """A row for operators."""
        return {
            "client_id": self.name,
            "vhost": self.vhost.name,
            "connected": self.connection is not None,
            "persistent": self.persistent,
            "subscriptions": self.subscription_count,
            "inbox": self.inbox.name,
            "queued": int(self.inbox.depth),
            "in_flight": int(self.in_flight.count),
            "dropped": int(self.dropped),
            "missed": int(self.missed),
        }
