"""Publications on their way to one client: written at its level, in flight under packet
identifiers, held until they may go.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from mypy_extensions import i64

from broker.messages.message import EXACTLY_ONCE, PLAIN, Message
from broker.messages.outlet import LARGE_BODY, Outlet
from broker.queues.consumer import Consumer, Delivery
from broker.queues.queue import Queue
from broker.routing.route import Subscriber
from broker.store.contract import PacketIdHeld, PacketIdReleased, Ticket, Waiter
from broker.vhost.vhost import VirtualHost
from protocols.mqtt.codec.content import MqttEncoding
from protocols.mqtt.codec.packets import DUP, RETAIN, write_publish_head
from protocols.mqtt.codec.relay_formats import RECODED_4, VERSION_4
from protocols.mqtt.session.publish_writer import PublishWriter
from protocols.mqtt.session.subscription_options import SessionOptions
from protocols.tally import FrontCounters
from protocols.window import Window

#: Packet identifiers that there are.
IDENTIFIERS: Final[i64] = 65_535
#: Taken from the credit of a consumer that holds a message back: acknowledgements alone never make
#: up for it.
HELD: Final[i64] = 1 << 40
#: What a session has whose client is away and owes nothing, in one copy; nothing is ever put into
#: these.
_NOTHING: Final = Window()
_NONE_HELD: Final[dict[int, Ticket | None]] = {}
#: Where a consumer writes whose connection is gone: nowhere, and it is never asked to.
NOWHERE: Final = Outlet()


class InflightSubscriber(Subscriber):
    """The part of a session that its consumers know."""

    def __init__(
        self,
        vhost: VirtualHost,
        client_id: str,
        inbox: Queue,
        persistent: bool,
        tally: FrontCounters,
    ) -> None:
        super().__init__(client_id, inbox, VERSION_4)
        self.vhost = vhost
        self.tally = tally
        self.persistent = persistent
        self.in_flight = _NOTHING
        #: Packet identifiers of theirs that await their PUBREL, with what their PUBREC waits for,
        #: if anything.
        self.received: dict[int, Ticket | None] = _NONE_HELD
        #: Writes for its client, if that is one of level 5.
        self.writer: PublishWriter | None = None
        #: What its subscriptions want to see; None if they want nothing special.
        self.views: SessionOptions | None = None

    @abstractmethod
    def skip(self, number: i64) -> None:
        """What is in flight under this number is too large for its client."""

    @abstractmethod
    def resume_input(self) -> None:
        """What its consumer held back has left."""

    def window(self) -> Window:
        """What is in flight, to put more into it."""
        if self.in_flight is _NOTHING:
            self.in_flight = Window()
        return self.in_flight

    def tidy(self) -> None:
        """Its client is gone: keep no room for what is not there."""
        if self.in_flight.count == 0:
            self.in_flight = _NOTHING
        if not self.received:
            self.received = _NONE_HELD

    # -- what it sends with QoS 2

    def hold_packet_id(self, packet_id: i64, ticket: Ticket) -> None:
        """A message came under this identifier, and its copies are dropped until the PUBREL."""
        self.restore_held_packet_id(packet_id, ticket)
        if self.persistent:
            self.vhost.store.append(PacketIdHeld(self.number, packet_id), ticket)

    def restore_held_packet_id(self, packet_id: int, ticket: Ticket | None) -> None:
        """It is held, and the store knows."""
        if self.received is _NONE_HELD:
            self.received = {}
        self.received[packet_id] = ticket

    def release_packet_id(self, packet_id: i64, ticket: Ticket) -> None:
        """PUBREL: the identifier may be used again. The ticket is what the PUBCOMP waits for."""
        if packet_id in self.received:
            del self.received[packet_id]
            if self.persistent:
                self.vhost.store.append(PacketIdReleased(self.number, packet_id), ticket)
        elif self.persistent:
            # It was let go before, perhaps just now: its owner uses it again, and must not find it
            # held after a crash.
            self.vhost.store.wait_for_all(ticket)


class InboxConsumer(Consumer):
    """Takes messages out of the inbox while the session is connected.

    The how manieth message of the inbox it is gives a message its packet identifier, so it has the
    same one after a crash. A QoS 2 message leaves when it is durable: a lost one would leave its
    identifier behind at the client.
    """

    def __init__(self, session: InflightSubscriber, outlet: Outlet, credit: i64) -> None:
        super().__init__(session.inbox, outlet, credit, None)
        self.session = session
        self._pen = session.writer
        #: A message that is not durable yet: nothing leaves until it is, whatever is acknowledged
        #: meanwhile.
        self._held: Delivery | None = None

    def deliver(self, message: Message, sequence: i64) -> None:
        """Hot path."""
        self._send(Delivery(message, self, sequence), 0)

    def redeliver(self, delivery: Delivery) -> None:
        self._send(delivery, DUP)

    def _send(self, delivery: Delivery, flags: i64) -> None:
        self.credit -= 1
        self.queue.unacked += 1
        session = self.session
        session.tally.delivered_manual += 1
        message = delivery.message
        window = session.in_flight
        if window.next != delivery.sequence:
            window.skip_to(delivery.sequence)
        window.add(delivery)
        if message.qos == EXACTLY_ONCE and message.position > self.queue.store.durable:
            self._hold(delivery)
        elif self._pen is None:
            write(self.outlet, message, message.qos, identifier(delivery.sequence), flags)
        else:
            self._write(self._pen, delivery, flags)

    def _write(self, pen: PublishWriter, delivery: Delivery, flags: i64) -> None:
        """At level 5."""
        message = delivery.message
        if not pen.write(
            message, message.qos, identifier(delivery.sequence), flags, self.session.views
        ):
            self.session.skip(delivery.sequence)

    def _hold(self, delivery: Delivery) -> None:
        """Send it when it is durable, and nothing before."""
        self._held = delivery
        self.credit -= HELD
        self.queue.store.wait_for(delivery.message.position, Ticket(HeldRelease(self)))

    def go_on(self) -> None:
        """The message is durable."""
        delivery, self._held = self._held, None
        self.credit += HELD
        if delivery is not None and self.outlet is not NOWHERE:
            if self._pen is None:
                write(
                    self.outlet,
                    delivery.message,
                    delivery.message.qos,
                    identifier(delivery.sequence),
                    0,
                )
            else:
                self._write(self._pen, delivery, 0)
            self.session.resume_input()


class HeldRelease(Waiter):
    """What a consumer held back is durable."""

    def __init__(self, consumer: InboxConsumer) -> None:
        self._consumer = consumer

    def settled(self) -> None:
        self._consumer.go_on()


def identifier(sequence: i64) -> i64:
    """The packet identifier of a message, by its place in the inbox."""
    return (sequence - 1) % IDENTIFIERS + 1


def write(outlet: Outlet, message: Message, qos: i64, packet_id: i64, flags: i64) -> None:
    """A PUBLISH packet. Hot path."""
    if message.retained:
        flags |= RETAIN
    body = plain_body(message)
    write_publish_head(outlet.out, message.address.topic, len(body), qos, packet_id, flags)
    if len(body) < LARGE_BODY:
        outlet.out.write(body)
    else:
        outlet.attach(body)
    if not outlet.dirty:
        outlet.touch()


def plain_body(message: Message) -> bytes:
    """The payload; taken out of another front end's encoding once per message."""
    encoding = message.encoding
    if encoding is PLAIN or isinstance(encoding, MqttEncoding) and not encoding.described:
        return message.content
    if message.recoding is RECODED_4:
        return message.recoded
    return message.cache_recoded(RECODED_4, message.body)
