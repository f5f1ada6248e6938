"""The session of a client identifier: it outlives the client's connection.

    publication --QoS 0-------> connection, if there is one
                --QoS 1, 2----> inbox (a queue) --> InboxConsumer --> connection
                                                    credit = receive maximum - in flight

A session has subscriptions (SessionSubscriptions), an inbox (Queue), and a window of the messages
and packet identifiers that wait for an acknowledgement (InflightWindow). A session that is not
stored gets its inbox with its first subscription: many clients only publish.
"""

from __future__ import annotations

from typing import ClassVar, Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.agenda import Task
from broker.definitions.session_restorer import Definition
from broker.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, Message
from broker.messages.outlet import Outlet
from broker.queues.private import Inbox
from broker.routing.binding import Arguments, Binding
from broker.routing.subscriber import Subscriber
from broker.store.contract import Ticket
from broker.vhost.private_queues import NO_INBOX, add_subscriber, delete_subscriber, new_inbox
from broker.vhost.vhost import VirtualHost
from matching.grammar import MQTT
from protocols.mqtt.codec.relay_formats import VERSION_4
from protocols.mqtt.codec.topics import EXCHANGE, valid_topic_name
from protocols.mqtt.session.deadlines import Deadline
from protocols.mqtt.session.early_outlet import EarlyOutlet
from protocols.mqtt.session.inbox_consumer import (
    NO_WRITER,
    NOWHERE,
    InboxConsumer,
    ScreeningConsumer,
    requeue_shared,
)
from protocols.mqtt.session.inflight import EMPTY_WINDOW, InflightWindow
from protocols.mqtt.session.interfaces import (
    DelayedWillTask,
    SessionConnection,
    SessionRegistry,
    SharedSubscription,
)
from protocols.mqtt.session.packet_id_set import IDENTIFIERS
from protocols.mqtt.session.publish_writer import PublishWriter
from protocols.mqtt.session.resending import Resending
from protocols.mqtt.session.shared_deliveries import SharedDeliveries
from protocols.mqtt.session.subscriptions import (
    EMPTY_SUBSCRIPTIONS,
    MembershipRemoval,
    SessionSubscriptions,
)
from protocols.tally import FrontCounters

#: While the inbox has this many messages or more, retained messages are not put into the inbox:
#: they could fill it, and it would then drop other messages.
BACKLOGGED: Final[i64] = 500
#: An empty container that all sessions share, and that never changes.
NONE_WAITING: Final[dict[str, Task]] = {}


class Session(Subscriber):
    """The session of one client identifier: its subscriptions, inbox and messages in flight."""

    hash_kind: ClassVar[str] = "Session"

    def __init__(
        self,
        vhost: VirtualHost,
        client_id: str,
        persistent: bool,
        registry: SessionRegistry,
        receive_maximum: int,
        tally: FrontCounters,
    ) -> None:
        """Create a session without subscriptions.

        `receive_maximum` limits the messages in flight.
        """
        super().__init__(client_id, NO_INBOX, VERSION_4)
        self.vhost = vhost
        self.tally = tally
        #: True if the session is in the store.
        self.persistent = persistent
        self.subscriptions = EMPTY_SUBSCRIPTIONS
        self.in_flight = EMPTY_WINDOW
        #: Largest number of messages in flight: the lower of the broker's and the client's limit.
        self.receive_maximum: i64 = receive_maximum
        #: The name of the user that the client logged in as. `named` is True if this name alone
        #: determines the permissions. `identity` has the permissions.
        self.user = ""
        self.named = False
        #: True if the client logged in without a user name. All such clients count as one user,
        #: which differs from a user that logs in by name, even if the names are equal.
        self.anonymous = False
        #: True if the permissions have changed while messages waited in the inbox. Each connection
        #: then checks the messages that are in the inbox when the connection begins.
        self.screened = False
        #: The client's connection; None while the client is away. `outlet` is an EarlyOutlet until
        #: the CONNACK is sent, then the connection.
        self.connection: SessionConnection | None = None
        self.writer: PublishWriter | None = None
        #: Seconds for which the session outlives its connection.
        self.expiry = 0
        #: Time at which the last connection ended, in ms of the agenda's clock. `expiry_deadline`
        #: is the timer that ends the session.
        self.away_since: i64 = 0
        self.expiry_deadline: Deadline | None = None
        #: The registry that lists the session, until it ends.
        self.registry: SessionRegistry | None = registry
        #: The client's will, while it waits for its delay.
        self.delayed_will: DelayedWillTask | None = None
        #: The stored form of a will that shall survive a crash; None if there is none.
        self.stored_will: Definition | None = None
        #: True while a SUBACK waits for the store. Retained messages are sent after the SUBACK.
        self.suback_pending = False
        #: Topic filter -> delivery of retained messages that waits for the SUBACK or inbox room.
        self.waiting_retained = NONE_WAITING
        self._consumer: InboxConsumer | None = None
        #: The messages in flight to resend over this connection; None if all are resent.
        self._resending: Resending | None = None
        if persistent:
            self.own_inbox()
        add_subscriber(vhost, self)

    def belongs_to(self, user: str, anonymous: bool) -> bool:
        """True if a user may take the session over. A session without a user, stored by an old
        version of the broker, may be taken over by any user.
        """
        return not self.user or (self.user, self.anonymous) == (user, anonymous)

    # -- the methods of a subscriber

    def run(self) -> None:
        """End the session: its client stayed away longer than the session expiry interval."""
        if self.registry is not None:
            self.registry.expire(self)

    def can_represent(self, topic: bytes) -> bool:
        return valid_topic_name(topic)

    def may_read(self, topic: bytes) -> bool:
        return self.identity is not None and self.identity.may_read(topic)

    def offer(self, message: Message) -> None:
        self.send(message, 0)

    def send(self, message: Message, flags: i64) -> None:
        """Send a message to the client with QoS 0 and these PUBLISH flags, and count its fate."""
        outlet, writer = self.outlet, self.writer
        if outlet is None or writer is None:
            self.missed += 1
        elif not outlet.paused and writer.write(message, AT_MOST_ONCE, 0, flags):
            self.relayed += 1
        else:
            self.dropped += 1

    # -- subscriptions

    def subscribe(
        self,
        topic_filter: str,
        qos: i64,
        ticket: Ticket | None,
        arguments: Arguments | None = None,
    ) -> None:
        """Add or replace a subscription [MQTT-3.8.4-3].

        Raises LimitExceeded if lookups of topics would take too long because of this session's
        subscriptions.
        """
        self.own_inbox()
        binding = Binding(topic_filter, self, qos, arguments, MQTT)
        self.vhost.bind(EXCHANGE, binding, ticket)
        replaced = self.subscriptions.put(binding)
        if replaced is not None and replaced.identity != binding.identity:
            self.vhost.unbind(EXCHANGE, replaced, ticket)
        self._apply_options()

    def restore_subscription(self, binding: Binding) -> None:
        """Add a subscription after a restart. Its binding is restored already."""
        self.subscriptions.put(binding)
        self._apply_options()

    def unsubscribe(self, topic_filter: str, ticket: Ticket | None) -> bool:
        """Remove a subscription; return False if there is none."""
        binding = self.subscriptions.remove(topic_filter)
        if binding is not None:
            self._apply_options()
            self.vhost.unbind(EXCHANGE, binding, ticket)
        elif self.persistent:
            self.vhost.reply_when_all_durable(ticket)
        return binding is not None

    def set_identifier(self, membership: SharedSubscription, identifier: int) -> None:
        """Set the subscription identifier of a shared subscription; 0 removes it."""
        self.own_inbox()
        self.subscriptions.set_identifier(membership, identifier)
        self._apply_options()

    def _apply_options(self) -> None:
        """Give the writer the options of the subscriptions, and update the relay format.

        With subscription identifiers, no packet can be relayed unchanged to the client.
        """
        writer = self.writer
        if writer is not None:
            writer.options = self.subscriptions.options
        relay_format = VERSION_4 if writer is None else writer.relay_format
        if relay_format is not self.relay_format:
            self.relay_format = relay_format
            if len(self.subscriptions) > 0:
                self.vhost.retire_plans_to(self)

    # -- connections come and go

    def attach(self, connection: SessionConnection, writer: PublishWriter) -> None:
        """Use a new connection of the client, which receives nothing before `start_deliveries`.

        Messages of QoS 0 that are published until then are collected.
        """
        self.connection = connection
        self.writer = writer
        self.outlet = writer.outlet = EarlyOutlet()
        self._apply_options()

    def start_deliveries(self) -> None:
        """Resend messages in flight in order, then deliver the inbox's messages [MQTT-4.4.0-1]."""
        outlet, writer = self.connection, self.writer
        assert outlet is not None and writer is not None
        early = self.outlet
        self.outlet = writer.outlet = outlet
        if isinstance(early, EarlyOutlet):
            early.move_to(outlet)
        if self.subscriptions.memberships:
            memberships = list(self.subscriptions.memberships.values())
            self._shared_deliveries().attach(outlet, memberships)
        if self.in_flight.count > 0:
            self._resending = Resending(
                self.in_flight,
                outlet,
                writer,
                self.vhost.store,
                self.tally,
                self.receive_maximum,
                self.resend,
            )
            self.resend()
        elif self.inbox is not NO_INBOX:
            self._deliver_inbox()

    def own_inbox(self) -> Inbox:
        """Return the inbox; create it if the session has none yet, and deliver its messages."""
        if self.inbox is NO_INBOX:
            registry = self.registry
            assert registry is not None, "a session that has ended gets no inbox"
            self.subscriptions = SessionSubscriptions()
            name = f"mqtt-subscription-{self.name}qos1"
            self.inbox = new_inbox(self.vhost, name, self.persistent, registry.backlog)
            if self.outlet is not None and self.outlet is self.connection:
                self._deliver_inbox()
        return self.inbox

    def own_window(self) -> InflightWindow:
        """Return the in-flight window, which the caller may change: not the shared empty window."""
        if self.in_flight is EMPTY_WINDOW:
            self.in_flight = InflightWindow()
        return self.in_flight

    def resend(self) -> None:
        """Resend the messages in flight that were not resent over this connection yet."""
        resending = self._resending
        if resending is not None and resending.advance():
            self._resending = None
            self._deliver_inbox()

    def _deliver_inbox(self) -> None:
        """Start to deliver the messages of the inbox and of the shared subscriptions."""
        outlet, writer = self.outlet, self.writer
        assert outlet is not None and writer is not None
        room: i64 = self.receive_maximum - self.in_flight.count
        self._consumer = self._new_consumer(outlet, room, writer)
        self.inbox.subscribe(self._consumer)
        if self.subscriptions.has_shared:
            self.subscriptions.drain_shared()

    def absent_consumer(self) -> InboxConsumer:
        """Return a consumer that sends nothing and holds the deliveries of an absent client."""
        return self._new_consumer(NOWHERE, 0, NO_WRITER)

    def _new_consumer(self, outlet: Outlet, credit: i64, writer: PublishWriter) -> InboxConsumer:
        kind = ScreeningConsumer if self.screened else InboxConsumer
        registry = self.registry
        assert registry is not None, "a session that has ended delivers nothing"
        consumer = kind(
            self.inbox,
            outlet,
            credit,
            writer,
            self.own_window(),
            self.subscriptions,
            self.tally,
            # The largest distance between two sequence numbers in flight (InboxConsumer).
            IDENTIFIERS - registry.receive_maximum,
        )
        if isinstance(consumer, ScreeningConsumer):
            consumer.identity = self.identity
            consumer.below = self.inbox.next_sequence()
        return consumer

    def change_identity(self, identity: Identity) -> None:
        """Use the permissions of `identity` from now on, also for the messages in the inbox."""
        self.identity = identity
        if identity.may_read_everything():
            self.screened = False
        elif self.inbox.depth > 0:
            self.screened = True

    def resume_deliveries(self) -> None:
        """Resume deliveries, because the connection accepts output again."""
        self.resend()
        self.inbox.schedule_drain()
        if self.subscriptions.has_shared:
            self.subscriptions.drain_shared()
        self.resume_retained()

    def detach(self) -> None:
        """Drop the connection, which has ended; messages in flight wait for the next connection."""
        self.connection = None
        self.outlet = None
        self.writer = None
        if self._consumer is not None:
            self.inbox.unsubscribe(self._consumer)
            self._consumer.disconnect()
            self._consumer = None
        self._resending = None
        if self.subscriptions.has_shared:
            self.subscriptions.detach_shared()
            requeue_shared(self.in_flight, self.inbox)
        self.suback_pending = False
        self.resume_retained()
        if self.in_flight.idle:
            self.in_flight = EMPTY_WINDOW

    def end(self, ticket: Ticket | None) -> None:
        """End the session: publish its delayed will, and remove its subscriptions and messages."""
        self.detach()
        if self.delayed_will is not None:
            self.delayed_will.run()  # [MQTT-3.1.2-8]
        memberships = self.subscriptions.take_memberships()
        if memberships:
            MembershipRemoval(self.vhost.agenda, memberships).run_first_slice()
        delete_subscriber(self.vhost, self, ticket)
        self.subscriptions.clear()
        for delivery in self.in_flight.take_all():
            delivery.consumer.queue.settle(delivery.message)

    # -- retained messages

    def resume_retained(self) -> None:
        """Resume the delivery of retained messages, because the client may accept more."""
        if self.waiting_retained:
            waiting, self.waiting_retained = self.waiting_retained, NONE_WAITING
            for task in waiting.values():
                self.vhost.agenda.add(task)

    # -- shared subscriptions

    def add_membership(self, membership: SharedSubscription) -> None:
        """Add a shared subscription, which delivers at once if the client is connected."""
        self.own_inbox()
        self.subscriptions.add_membership(membership)
        if self.outlet is not None:
            self._shared_deliveries().attach_new(self.outlet, membership)

    def _shared_deliveries(self) -> SharedDeliveries:
        """Return the deliveries of the shared subscriptions over the present connection."""
        subscriptions = self.subscriptions
        subscriptions.has_shared = True
        if subscriptions.deliveries is None:
            subscriptions.deliveries = SharedDeliveries(self.vhost.agenda, self.has_room_for_shared)
        return subscriptions.deliveries

    def has_room_for_shared(self) -> bool:
        """True if the session accepts a message of a shared subscription now."""
        return self._consumer is not None and self._consumer.has_room()

    def room_for_shared(self, membership: SharedSubscription) -> InboxConsumer | None:
        """Return the consumer that sends a message of a shared subscription.

        Return None if the session accepts no message now. The shared subscription is then drained
        as soon as the session accepts messages again.
        """
        consumer = self._consumer
        if consumer is not None and consumer.has_room():
            return consumer
        deliveries = self.subscriptions.deliveries
        if deliveries is not None:
            deliveries.refuse(membership, consumer is not None and consumer.only_inbox_waits)
        return None

    def send_uncounted(self, message: Message) -> None:
        """Send a QoS 0 message of a shared subscription; its group counts the message's fate."""
        if self.writer is not None:
            self.writer.write(message, AT_MOST_ONCE, 0, 0)

    # -- acknowledgements of the client

    def puback(self, packet_id: i64) -> bool:
        """Handle a PUBACK; return False if no QoS 1 message has its packet identifier. Hot path."""
        window = self.in_flight
        sequence: i64 = window.number_of(packet_id)
        delivery = window.get(sequence)
        if delivery is None or delivery.message.qos == EXACTLY_ONCE or packet_id == 0:
            return False
        self.settle(sequence)
        return True

    def is_in_flight(self, packet_id: i64) -> bool:
        """True if a message to the client has this packet identifier."""
        return self.in_flight.delivery(packet_id) is not None

    def settle(self, sequence: i64) -> None:
        """Settle a message that the client has acknowledged, and send the next message that
        waited for this acknowledgement. Hot path.
        """
        window = self.in_flight
        delivery = window.take(sequence)
        if delivery is None:
            return
        self.tally.acknowledged += 1
        consumer = self._consumer
        if consumer is not None:
            consumer.return_credit()
        elif self._resending is not None:
            self._resending.on_settled(sequence)
            self.resend()
        if not self.subscriptions.has_shared:
            self.inbox.settle(delivery.message)
        else:
            # The message may be from a shared subscription, but the inbox can use its credit, too.
            self.inbox.schedule_drain()
            delivery.consumer.queue.settle(delivery.message)
            self.subscriptions.drain_refused()
        if self.waiting_retained and self.inbox.depth < BACKLOGGED:
            self.resume_retained()
