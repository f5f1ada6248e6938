"""Delivers the messages of a session to its client, with credit and packet identifiers.

    inbox --------------> InboxConsumer --> PublishWriter --> client
    shared subscription ------^                   InflightWindow <-- acknowledgements

A message gets its packet identifier from its sequence number in the inbox; a message of a shared
subscription uses up the inbox's next sequence number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.errors import AccessRefused
from broker.messages.fates import PURGED
from broker.messages.message import EXACTLY_ONCE, Message
from broker.messages.outlet import Outlet
from broker.messages.tracing import report_delivery
from broker.queues.consumer import Consumer, Delivery
from broker.queues.private import Inbox
from broker.queues.queue import Queue
from broker.store.contract import Ticket, Waiter
from protocols.mqtt.codec.packets import DUP
from protocols.mqtt.codec.topics import EXCHANGE
from protocols.mqtt.session.inflight import InflightWindow, packet_identifier
from protocols.mqtt.session.publish_writer import Level4Writer, PublishWriter
from protocols.mqtt.session.subscription_options import Addressed
from protocols.mqtt.session.subscriptions import SessionSubscriptions
from protocols.tally import FrontCounters

#: Amount that is subtracted from the credit of a consumer while it waits for the store. The amount
#: is larger than the credit that acknowledgements can return meanwhile.
HOLD: Final[i64] = 1 << 40
#: The outlet and the writer of a consumer whose connection has ended. Nothing is ever written to
#: them.
NOWHERE: Final = Outlet()
NO_WRITER: Final = Level4Writer(NOWHERE)


class InboxConsumer(Consumer):
    """The consumer that delivers the messages of a session's inbox to its client.

    A message of QoS 2 is not sent before it is durable, and later messages wait for it. If the
    message were sent and then lost in a crash, the client would hold its packet identifier forever.
    """

    def __init__(
        self,
        inbox: Inbox,
        outlet: Outlet,
        credit: i64,
        writer: PublishWriter,
        window: InflightWindow,
        subscriptions: SessionSubscriptions,
        tally: FrontCounters,
        span_max: i64,
    ) -> None:
        """Create the consumer of an inbox for one connection.

        `span_max` is the largest distance from the oldest to the newest sequence number in flight.
        Above this distance no message is sent, so that no packet identifier is used twice.
        """
        super().__init__(inbox, outlet, credit, None)
        self._inbox = inbox
        self._writer = writer
        self._window = window
        self._subscriptions = subscriptions
        self._tally = tally
        self._span_max: i64 = span_max
        #: Credit that is withheld while the span is above its maximum.
        self._withheld: i64 = 0
        #: The delivery that waits until its message is durable; None if no delivery waits.
        self._held: Delivery | None = None
        if window.span() > span_max:
            self._check_span()

    # -- messages of the inbox

    def deliver(self, message: Message, sequence: i64) -> None:
        """Send a message of the inbox to the client; hold a QoS 2 message until it is durable. Hot
        path.

        `sequence` is the message's sequence number in the inbox, which gives the packet identifier.
        """
        self._send(Delivery(message, self, sequence), 0)

    def redeliver(self, delivery: Delivery) -> None:
        self._send(delivery, DUP)

    def _send(self, delivery: Delivery, flags: i64) -> None:
        self.credit -= 1
        self.queue.unacked += 1
        self._tally.delivered_manual += 1
        message = delivery.message
        sequence: i64 = delivery.sequence
        window = self._window
        if window.next != sequence:
            window.skip_to(sequence)
        window.add(delivery)
        if message.qos == EXACTLY_ONCE and message.position > self.queue.store.durable:
            self._hold(delivery)
        elif not self._writer.write(message, message.qos, packet_identifier(sequence), flags):
            self._skip(sequence)
        elif message.address.traced:
            self._report(message, "again (DUP)" if flags else "")

    def _skip(self, sequence: i64) -> None:
        self.credit += 1
        skip(self._window, sequence)

    def _hold(self, delivery: Delivery) -> None:
        """Hold a QoS 2 message until it is durable. No other message is sent before it."""
        self._held = delivery
        self.credit -= HOLD
        self.queue.store.wait_for(
            delivery.message.position, Ticket(DurableWaiter(self.release_held))
        )

    def release_held(self) -> None:
        """Send the held message, which has become durable; continue with the later messages."""
        delivery, self._held = self._held, None
        self.credit += HOLD
        if delivery is not None and self.outlet is not NOWHERE:
            message, sequence = delivery.message, delivery.sequence
            if not self._writer.write(message, message.qos, packet_identifier(sequence), 0):
                self._skip(sequence)
            elif message.address.traced:
                self._report(message, "")
            if self._window.span() > self._span_max:
                self._check_span()
            self._schedule_drains()

    # -- messages of shared subscriptions

    def has_room(self) -> bool:
        """True if the client accepts another message in flight, and the session's inbox is empty.

        A shared subscription may then deliver; messages in the inbox have precedence.
        """
        return self.credit > 0 and self._inbox.depth == 0

    @property
    def only_inbox_waits(self) -> bool:
        """True if messages wait in the inbox, and the client has none to acknowledge.

        The inbox may then become empty without an acknowledgement: the messages can expire, or be
        too large for the client.
        """
        return self.credit > 0 and self._inbox.depth > 0 and self._window.count == 0

    def send_shared(self, delivery: Delivery) -> None:
        """Send a QoS 1 message of a shared subscription. Call this only if `has_room` is True."""
        self.credit -= 1
        delivery.consumer.queue.unacked += 1
        self._tally.delivered_manual += 1
        sequence = self._inbox.reserve()
        window = self._window
        if window.next != sequence:
            window.skip_to(sequence)
        window.add(delivery)
        message = delivery.message
        if not self._writer.write(message, message.qos, packet_identifier(sequence), 0):
            self._skip(sequence)
        elif message.address.traced:
            self._report(message, f"from '{delivery.consumer.queue.name}'")

    def _report(self, message: Message, detail: str) -> None:
        """Report the delivery of a traced message to this consumer's client."""
        text = f"with QoS {int(message.qos)} {detail}".rstrip()
        report_delivery(message, self._inbox.name, self.outlet, text)

    # -- credit

    def return_credit(self) -> None:
        """Give back the credit of a message that the client has acknowledged. Hot path."""
        self.credit += 1
        if self._withheld or self._window.span() > self._span_max:
            self._check_span()

    def _check_span(self) -> None:
        """Withhold all credit if the next packet identifier could still be in use; otherwise give
        the withheld credit back.
        """
        if self._window.span() > self._span_max:
            if self.credit > 0:
                self._withheld += self.credit
                self.credit = 0
        else:
            self.credit += self._withheld
            self._withheld = 0
            self._schedule_drains()

    def _schedule_drains(self) -> None:
        """Schedule a drain of the inbox.

        If the session had no room for a message of a shared subscription before, drain its shared
        subscriptions too.
        """
        self._inbox.schedule_drain()
        self._subscriptions.drain_refused()

    def disconnect(self) -> None:
        """Drop the connection, which has ended.

        Deliveries in flight still refer to this consumer, and would keep the connection in memory.
        """
        self.outlet = NOWHERE
        self._writer = NO_WRITER


class ScreeningConsumer(InboxConsumer):
    """The consumer of a session whose permissions have changed while messages waited in its inbox.

    A message with a sequence number below `below` was routed under earlier permissions. Such a
    message is purged instead of sent if the user may no longer read its topic.
    """

    below: i64 = 0
    identity: Identity | None = None

    def deliver(self, message: Message, sequence: i64) -> None:
        if self._may_send(message, sequence):
            super().deliver(message, sequence)

    def redeliver(self, delivery: Delivery) -> None:
        if self._may_send(delivery.message, delivery.sequence):
            super().redeliver(delivery)

    def _may_send(self, message: Message, sequence: i64) -> bool:
        """Return True if the user may read the message; otherwise purge it."""
        identity = self.identity
        if sequence >= self.below or identity is None:
            return True
        if may_read(identity, message, self._inbox.vhost):
            return True
        self._inbox.discard(message, PURGED)
        return False


def may_read(identity: Identity, message: Message, vhost: str) -> bool:
    """True if an identity may read a message of an MQTT topic at present."""
    try:
        identity.may("read", "exchange", EXCHANGE, vhost)
    except AccessRefused:
        return False
    return identity.may_read(message.address.topic)


class DurableWaiter(Waiter):
    """Resumes a session's deliveries once a message or PUBREC, for which they wait, is durable."""

    def __init__(self, resume: Callable[[], None]) -> None:
        self._resume = resume

    def settled(self) -> None:
        self._resume()


def skip(window: InflightWindow, sequence: i64) -> None:
    """Drop a message that is too large for the client, and remove it from the window.

    The session continues as if the message had been delivered [MQTT-3.1.2-25].
    """
    delivery = window.take(sequence)
    if delivery is not None:
        queue = delivery.consumer.queue
        if not queue.dead:
            queue.unrepresentable(delivery.message)


def requeue_shared(window: InflightWindow, inbox: Queue) -> None:
    """Return unacknowledged messages of shared subscriptions to their groups [MQTT-4.8.2-4]."""
    for sequence, delivery in window.outstanding():
        queue = delivery.consumer.queue
        if queue is not inbox:
            window.take(sequence)
            message = delivery.message
            origin = message.origin if isinstance(message, Addressed) else None
            queue.requeue(delivery if origin is None else delivery.with_message(origin))
