"""The session: what outlives the network connection.

    publication --at most once---> outlet of the connection, if there is one
                --otherwise------> inbox (a queue) --> InboxConsumer --> connection
                                                        credit = receive maximum - in flight
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Task
from broker.binding import Binding
from broker.message import AT_MOST_ONCE, EXACTLY_ONCE, PLAIN, Encoding, Message
from broker.outlet import LARGE, Outlet
from broker.queue import Consumer, Delivery
from broker.retained import Receiver
from broker.route import Listener
from broker.store.contract import Kept, Received, Released, Stepped, Ticket, Waiter
from broker.vhost import VirtualHost
from matching.grammar import MQTT
from protocols.mqtt.packets import DUP, PUBREL, RETAIN, write_answer, write_publish_head
from protocols.mqtt.topics import EXCHANGE, speakable
from protocols.tally import Tally
from protocols.window import Window

#: Packet identifiers that there are.
IDENTIFIERS: Final[i64] = 65_535
#: Messages in the inbox from which on retained ones wait outside, and do not push others out of it.
CROWDED: Final[i64] = 500


class Dialect(Encoding):
    """Whole QoS 0 packets of one protocol version: what its sessions relay to each other."""


VERSION_4: Final = Dialect()
#: Where a consumer writes whose connection is gone: nowhere, and it is never asked to.
NOWHERE: Final = Outlet()


class InboxConsumer(Consumer):
    """Takes messages out of the inbox while the session is connected.

    The how manieth message of the inbox it is gives a message its packet identifier, so it has the same one after a
    crash. A QoS 2 message leaves when it is durable: a lost one would leave its identifier behind at the client.
    """

    def __init__(self, session: Session, outlet: Outlet, credit: i64) -> None:
        super().__init__(session.inbox, outlet, credit, None)
        self.session = session
        #: A message that is not durable yet, and the credit that is withheld until it is.
        self._held: Delivery | None = None
        self._withheld: i64 = 0

    def deliver(self, message: Message, order: i64) -> None:
        """Hot path."""
        self._send(Delivery(message, self, order), 0)

    def redeliver(self, delivery: Delivery) -> None:
        self._send(delivery, DUP)

    def _send(self, delivery: Delivery, flags: i64) -> None:
        self.credit -= 1
        self.queue.unacked += 1
        session = self.session
        session.tally.delivered_manual += 1
        message = delivery.message
        window = session.in_flight
        if window.next != delivery.order:
            window.skip_to(delivery.order)
        window.add(delivery)
        if message.assurance == EXACTLY_ONCE and message.position > self.queue.store.durable:
            self._hold(delivery)
        else:
            write(self.outlet, message, message.assurance, identifier(delivery.order), flags)

    def _hold(self, delivery: Delivery) -> None:
        self._held = delivery
        self._withheld += self.credit
        self.credit = 0
        self.queue.store.wait(delivery.message.position, Ticket(Release(self)))

    def go_on(self) -> None:
        """The message is durable."""
        delivery, self._held = self._held, None
        self.credit += self._withheld
        self._withheld = 0
        if delivery is not None and self.outlet is not NOWHERE:
            write(self.outlet, delivery.message, delivery.message.assurance, identifier(delivery.order), 0)
            self.queue.stir()


class Release(Waiter):
    """What a consumer held back is durable."""

    def __init__(self, consumer: InboxConsumer) -> None:
        self._consumer = consumer

    def settled(self) -> None:
        self._consumer.go_on()


class Resend(Waiter):
    """What a session has to send again is durable."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def settled(self) -> None:
        self._session.resend()


def identifier(order: i64) -> i64:
    """The packet identifier of a message, by its place in the inbox."""
    return (order - 1) % IDENTIFIERS + 1


class Session(Listener):
    """One client identifier's subscriptions, inbox and packets in flight. `receive_maximum` bounds those."""

    def __init__(self, vhost: VirtualHost, client_id: str, persistent: bool, backlog: int, receive_maximum: int, tally: Tally) -> None:
        inbox = vhost.new_inbox(f"mqtt-subscription-{client_id}qos1", persistent, backlog)
        super().__init__(client_id, inbox, VERSION_4)
        self.vhost = vhost
        self.tally = tally
        self.persistent = persistent
        self.receive_maximum: i64 = receive_maximum
        #: When its last connection went, in ms.
        self.away_since: i64 = 0
        self.subscriptions: dict[str, Binding] = {}
        self.in_flight = Window()
        #: Packet identifiers of ours that got their PUBREC, and the position of that in the store (0: nowhere).
        self.released: dict[int, int] = {}
        #: Packet identifiers of theirs that await their PUBREL, with what their PUBREC waits for, if anything.
        self.received: dict[int, Ticket | None] = {}
        self._consumer: InboxConsumer | None = None
        #: What is in flight and not resent yet over this connection, oldest last.
        self._unsent: list[tuple[i64, Delivery]] = []
        self._withheld: i64 = 0
        #: From the oldest packet identifier in flight to the newest, so that none is used twice.
        self._span_max: i64 = IDENTIFIERS - receive_maximum
        #: Whether a SUBACK waits for the store: retained messages come after it.
        self.unheard = False
        #: Retained messages on their way that wait for that or for room, by topic filter.
        self._parked: dict[str, Task] = {}
        vhost.welcome(self)

    # -- Listener

    def hears(self, topic: bytes) -> bool:
        return speakable(topic)

    def offer(self, message: Message) -> None:
        outlet = self.outlet
        if outlet is None:
            self.missed += 1
        elif outlet.paused:
            self.dropped += 1
        else:
            self.relayed += 1
            write(outlet, message, AT_MOST_ONCE, 0, 0)

    # -- its connection comes and goes

    def attach(self, outlet: Outlet) -> None:
        """Resend what is in flight, in order, then go on with the inbox [MQTT-4.4.0-1]."""
        self.outlet = outlet
        self._unsent = self.in_flight.outstanding()
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
            if not outlet.open():
                return
            number, delivery = self._unsent[-1]
            packet_id = identifier(number)
            needed: i64 = self.released.get(packet_id, 0)
            if delivery.message.assurance == EXACTLY_ONCE:
                needed = max(needed, delivery.message.position)
            if needed > store.durable:
                store.wait(needed, Ticket(Resend(self)))
                return
            self._unsent.pop()
            if self.in_flight.get(number) is not delivery:
                continue  # It was acknowledged meanwhile.
            if packet_id in self.released:
                write_answer(outlet.out, PUBREL << 4 | 2, packet_id)
                outlet.touch()
            else:
                self.tally.redelivered += 1
                write(outlet, delivery.message, delivery.message.assurance, packet_id, DUP)
        consumer = self._consumer = InboxConsumer(self, outlet, self.receive_maximum - self.in_flight.count)
        self._withheld = 0
        if self.in_flight.span() > self._span_max:
            self._withhold(consumer)
        self.inbox.subscribe(consumer)

    def unchoke(self) -> None:
        """Its connection has room again."""
        self.resend()
        self.inbox.stir()
        self.unpark()

    def detach(self) -> None:
        """The connection is gone, the session stays."""
        self.outlet = None
        if self._consumer is not None:
            self.inbox.unsubscribe(self._consumer)
            self._consumer.outlet = NOWHERE  # What is in flight keeps the consumer, which must not keep the connection.
            self._consumer = None
        self._unsent = []
        self.unheard = False
        self.unpark()

    def end(self) -> None:
        """Forget the session."""
        self.detach()
        self.vhost.delete_listener(self)
        self.subscriptions.clear()
        for delivery in self.in_flight.take_all():
            self.inbox.settle(delivery.message)

    # -- subscriptions

    def subscribe(self, topic_filter: str, assurance: i64, ticket: Ticket) -> None:
        """Add or replace a subscription [MQTT-3.8.4-3]."""
        binding = self.subscriptions[topic_filter] = Binding(topic_filter, self, assurance, None, MQTT)
        self.vhost.bind(EXCHANGE, binding, ticket)

    def send_retained(self, topic_filter: str) -> None:
        """Send the retained messages that a subscription matches [MQTT-3.3.1-6]."""
        binding = self.subscriptions.get(topic_filter)
        if binding is not None:
            self.vhost.retained.deliver(topic_filter, MQTT, Latecomer(self, binding))

    def unsubscribe(self, topic_filter: str, ticket: Ticket) -> None:
        binding = self.subscriptions.pop(topic_filter, None)
        if binding is not None:
            self.vhost.unbind(EXCHANGE, binding, ticket)

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
        self.inbox.settle(delivery.message)
        if self._parked and self.inbox.depth < CROWDED:
            self.unpark()

    def puback(self, packet_id: i64) -> bool:
        """PUBACK; False when no QoS 1 publication is in flight under this identifier. Hot path."""
        delivery = self.in_flight.get(self._number(packet_id))
        if delivery is None or delivery.message.assurance == EXACTLY_ONCE:
            return False
        self.acknowledge(packet_id)
        return True

    def release(self, packet_id: i64, ticket: Ticket) -> bool:
        """PUBREC; False when the identifier belongs to a QoS 1 publication. The ticket is what the PUBREL waits for.

        One of which we know nothing is answered too: its owner waits for that [MQTT-4.3.3-1].
        """
        delivery = self.in_flight.get(self._number(packet_id))
        if delivery is None:
            return True
        if delivery.message.assurance != EXACTLY_ONCE:
            return False
        store, position = self.vhost.store, delivery.message.position
        if packet_id in self.released:
            store.wait(self.released[packet_id], ticket)
        else:
            self.released[packet_id] = store.append(Stepped(self.inbox.number, position), ticket) if position > 0 and self.persistent else 0
        return True

    def complete(self, packet_id: i64) -> None:
        """PUBCOMP."""
        if self.released.pop(packet_id, -1) >= 0:
            self.acknowledge(packet_id)

    # -- what it sends with QoS 2

    def hold(self, packet_id: i64, ticket: Ticket) -> None:
        """A message came under this identifier, and its copies are dropped until the PUBREL."""
        self.received[packet_id] = ticket
        if self.persistent:
            self.vhost.store.append(Received(self.number, packet_id), ticket)

    def let_go(self, packet_id: i64, ticket: Ticket) -> None:
        """PUBREL: the identifier may be used again. The ticket is what the PUBCOMP waits for."""
        if packet_id in self.received:
            del self.received[packet_id]
            if self.persistent:
                self.vhost.store.append(Released(self.number, packet_id), ticket)

    def _number(self, packet_id: i64) -> i64:
        """The sequence number that has this packet identifier now."""
        first: i64 = self.in_flight.first
        return first + (packet_id - 1 - (first - 1) % IDENTIFIERS + IDENTIFIERS) % IDENTIFIERS

    def _withhold(self, consumer: InboxConsumer) -> None:
        """Give no credit back while a packet identifier could come round again."""
        if self.in_flight.span() > self._span_max:
            self._withheld += consumer.credit
            consumer.credit = 0
        else:
            consumer.credit += self._withheld
            self._withheld = 0
            self.inbox.stir()

    # -- retained messages

    def crowded(self, topic_filter: str, task: Task) -> bool:
        """Whether more of them must wait; then the task runs again when there is room."""
        outlet = self.outlet
        if outlet is None or not self.unheard and self.inbox.depth < CROWDED and outlet.open():
            return False
        self._parked[topic_filter] = task
        return True

    def unpark(self) -> None:
        """There may be room for what waited for it."""
        if self._parked:
            parked, self._parked = self._parked, {}
            for task in parked.values():
                self.vhost.agenda.add(task)

    def describe(self) -> dict[str, object]:
        """A row for operators."""
        return {"client_id": self.name, "vhost": self.vhost.name, "connected": self.outlet is not None, "persistent": self.persistent,
                "subscriptions": len(self.subscriptions), "inbox": self.inbox.name, "queued": int(self.inbox.depth),
                "in_flight": int(self.in_flight.count), "dropped": int(self.dropped), "missed": int(self.missed)}


class Latecomer(Receiver):
    """A new subscription, for the retained messages it matches."""

    def __init__(self, session: Session, binding: Binding) -> None:
        self._session = session
        self._binding = binding

    @property
    def _obsolete(self) -> bool:
        """Whether the subscription ended, or another one took its place."""
        return self._session.dead or self._session.subscriptions.get(self._binding.key) is not self._binding

    def crowded(self, task: Task) -> bool:
        return not self._obsolete and self._session.crowded(self._binding.key, task)

    def receive_retained(self, message: Message) -> bool:
        if self._obsolete:
            return False
        session, binding = self._session, self._binding
        session.vhost.internal.count_copies(1, 0)
        granted: i64 = min(message.assurance, binding.assurance)
        if granted > AT_MOST_ONCE:
            copy = message.copy(granted, True)
            inbox = session.inbox
            if session.persistent:
                copy.position = inbox.store.append(Kept(inbox.vhost, copy, [inbox.number], [inbox.coming()]), None)
            inbox.put(copy)
            return True
        outlet = session.outlet
        if outlet is None:
            session.missed += 1
        elif outlet.paused:
            session.dropped += 1
        else:
            session.relayed += 1
            write(outlet, message, AT_MOST_ONCE, 0, RETAIN)
        return True


def write(outlet: Outlet, message: Message, assurance: i64, packet_id: i64, flags: i64) -> None:
    """A PUBLISH packet. Hot path."""
    if message.retained:
        flags |= RETAIN
    body = plain_body(message)
    write_publish_head(outlet.out, message.address.topic, len(body), assurance, packet_id, flags)
    if len(body) < LARGE:
        outlet.out.write(body)
    else:
        outlet.attach(body)
    if not outlet.dirty:
        outlet.touch()


def plain_body(message: Message) -> bytes:
    """The payload; taken out of another front end's encoding once per message."""
    if message.encoding is PLAIN:
        return message.content
    if message.recoding is VERSION_4:
        return message.recoded
    return message.remember(VERSION_4, message.body)
