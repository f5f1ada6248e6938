"""An AMQP consumer: writes the messages of a queue as basic.deliver on its channel.

The credit of a consumer is its prefetch count minus its outstanding deliveries. The queue delivers
only to consumers that have credit (broker/queues/consumer.py).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Final

from librt.strings import write_i64_be
from mypy_extensions import i64, u8

from broker.agenda import Task
from broker.messages.message import Message
from broker.messages.outlet import LARGE_BODY, Outlet
from broker.messages.tracing import report_delivery
from broker.queues.consumer import Consumer, CreditPool, Delivery, MessageSource
from broker.queues.queue import Queue
from broker.queues.statistics import REDELIVERED, RETURNED
from protocols.amqp.codec.contents import Frames, content_for
from protocols.amqp.codec.frames import FRAME_END, METHOD
from protocols.tally import FrontCounters
from protocols.window import Window

#: Credit of a consumer without a prefetch count.
UNLIMITED: Final[i64] = 1 << 40

#: Largest length, in characters, of a consumer's arguments as text. Longer arguments are not
#: stored, because arguments are needed for listings only.
ARGUMENTS_MAX: Final = 1_024
_NO_ARGUMENTS: Final[Mapping[str, object]] = {}

_DELIVER: Final = b"\x00\x3c\x00\x3c"


class ConsumerOwner(Task):
    """The interface through which consumers call the ChannelReceiver of their channel."""

    def __init__(self) -> None:
        #: True once the channel has closed.
        self.closed = False
        #: Numbers of messages that basic.get fetched with manual acknowledgement (`fetched`) and
        #: with automatic acknowledgement, of messages that were delivered again, and of deliveries
        #: that were requeued or rejected (`returned`).
        self.fetched: i64 = 0
        self.fetched_auto: i64 = 0
        self.redelivered: i64 = 0
        self.returned: i64 = 0

    @abstractmethod
    def queue_deleted(self, consumer: AmqpConsumer) -> None:
        """End the consumer, because its queue is deleted."""
        raise NotImplementedError

    @abstractmethod
    def does_not_fit(self, delivery: Delivery) -> None:
        """Handle a delivery whose message's properties do not fit into a frame of the client.

        The channel closes at the end of this turn of the event loop, and the message returns to its
        queue.
        """
        raise NotImplementedError


class AmqpConsumer(Consumer):
    """A consumer of one queue: writes the queue's messages as basic.deliver.

    A consumer with an empty tag represents a basic.get. The parts of basic.deliver that are equal
    in all deliveries of a consumer are encoded once, when the consumer is created.
    """

    def __init__(
        self,
        queue: Queue,
        outlet: Outlet,
        owner: ConsumerOwner,
        unacked: Window,
        frames: Frames,
        tally: FrontCounters,
        tag: str,
        no_ack: bool,
        prefetch: i64,
        pool: CreditPool | None,
    ) -> None:
        super().__init__(
            queue,
            outlet,
            UNLIMITED if no_ack or prefetch == 0 else prefetch,
            None if no_ack else pool,
        )
        self.tag = tag
        self.no_ack = no_ack
        self.exclusive = False
        #: The arguments of basic.consume, for listings; empty if longer than ARGUMENTS_MAX.
        self.arguments = _NO_ARGUMENTS
        self.prefetch: i64 = prefetch
        self.frames = frames
        self.owner = owner
        self._unacked = unacked
        self._tally = tally
        #: The part of basic.deliver that all deliveries to this consumer share: the class id
        #: (without its first byte, which is 0), the method id and the consumer tag.
        self._method = _DELIVER[1:] + bytes([len(tag.encode())]) + tag.encode()
        #: The first 8 bytes of a basic.deliver frame as a number; its field for the size is 0.
        self._frame_header: i64 = (METHOD << 56) | (frames.channel << 40)

    def deliver(self, message: Message, sequence: i64) -> None:
        """Write a message that is delivered for the first time. Hot path.

        `sequence` is the message's sequence number in the queue. If the message's properties do not
        fit into one frame of the client, write nothing and stop the consumer.
        """
        number: i64
        content = message.content
        if message.encoding is not self.frames:
            content = content_for(message, self.frames)
            if not content:
                self._set_aside(Delivery(message, self, sequence))
                return
        if self.no_ack:
            number = self._unacked.skip()
            self._tally.delivered_auto += 1
            self.queue.auto_acknowledge(message)
        else:
            number = self._hold(Delivery(message, self, sequence))
        self._write(message, content, number, 0)

    def redeliver(self, delivery: Delivery) -> None:
        number: i64
        message = delivery.message
        content = content_for(message, self.frames)
        if not content:
            self._set_aside(delivery)
            return
        self._tally.redelivered += 1
        self.owner.redelivered += 1
        self.queue.note(REDELIVERED)
        if self.no_ack:
            number = self._unacked.skip()
            self._tally.delivered_auto += 1
            self.queue.auto_acknowledge(message)
        else:
            number = self._hold(delivery)
        self._write(message, content, number, 1)

    def _hold(self, delivery: Delivery) -> i64:
        """Store the delivery until it is settled; return its delivery tag."""
        self.credit -= 1
        if self.pool is not None:
            self.pool.take(self)
        self.queue.unacked += 1
        self._tally.delivered_manual += 1
        return self._unacked.add(delivery)

    def _set_aside(self, delivery: Delivery) -> None:
        """Stop the consumer, because the properties of a message do not fit into a frame.

        The channel closes at the end of this turn of the event loop.
        """
        self.credit -= 2 * UNLIMITED
        self.queue.unacked += 1
        self.owner.does_not_fit(delivery)

    def _write(self, message: Message, content: bytes, number: i64, redelivered: i64) -> None:
        outlet = self.outlet
        out = outlet.out
        method = self._method
        route = message.address
        if route.traced:
            self.report(message, redelivered)
        address = route.short_strings
        size: i64 = len(method) + len(address) + 10
        write_i64_be(out, self._frame_header | (size << 8))
        out.write(method)
        write_i64_be(out, number)
        out.append(u8(redelivered))
        out.write(address)
        out.append(u8(FRAME_END))
        if len(content) < LARGE_BODY:
            out.write(content)
        else:
            outlet.attach(content)
        if not outlet.dirty:
            outlet.touch()

    def report(self, message: Message, redelivered: i64) -> None:
        """Report the delivery of a traced message to the trace.

        `redelivered` is 0 for the first delivery of the message, 1 for a later delivery.
        """
        detail = f"by consumer '{self.tag}'" if self.tag else "by basic.get"
        if redelivered:
            detail += ", redelivered"
        if self.no_ack:
            detail += ", acknowledged automatically"
        report_delivery(message, self.queue.name, self.outlet, detail)

    def keep_arguments(self, arguments: Mapping[str, object]) -> None:
        """Store the arguments of basic.consume for listings, if they are not longer than
        ARGUMENTS_MAX.
        """
        if len(repr(arguments)) <= ARGUMENTS_MAX:
            self.arguments = arguments

    @property
    def outstanding(self) -> int:
        """Number of deliveries that the client has not settled yet."""
        return 0 if self.no_ack else int((self.prefetch or UNLIMITED) - self.credit)

    def retune(self, prefetch: i64) -> None:
        """Change the prefetch count of a running consumer."""
        if not self.no_ack:
            self.credit += (prefetch or UNLIMITED) - (self.prefetch or UNLIMITED)
            self.prefetch = prefetch
            self.queue.schedule_drain()

    def cancelled(self) -> None:
        self.owner.queue_deleted(self)


def settle(delivery: Delivery) -> None:
    """Settle a delivery that the client has acknowledged. Hot path."""
    consumer = delivery.consumer
    consumer.credit += 1
    if consumer.pool is not None:
        consumer.pool.give_back()
    consumer.queue.settle(delivery.message)


def requeue(delivery: Delivery, failed: bool) -> None:
    """Requeue an unacknowledged message: return it to its old position in its queue.

    If `failed`, the delivery counts as a failure: a queue with delayed retry waits before it
    delivers the message again. `failed` is True after basic.reject outside a transaction, and when
    the channel ends. If an acknowledgement timeout closes the channel, `failed` is False.
    """
    queue = _release_credit(delivery.consumer)
    if failed:
        queue.requeue_failed(delivery)
    else:
        queue.requeue(delivery)


def reject(delivery: Delivery) -> None:
    """Dead-letter or drop a message that the client has rejected without requeue."""
    _release_credit(delivery.consumer).reject(delivery.message)


def _release_credit(consumer: Consumer) -> MessageSource:
    """Give the credit of a requeued or rejected delivery back to its consumer; return the queue.

    Also give the credit back to the pool that the consumer shares, and count the delivery in the
    statistics of its channel and queue.
    """
    consumer.queue.note(RETURNED)
    if isinstance(consumer, AmqpConsumer):
        consumer.owner.returned += 1
    consumer.credit += 1
    if consumer.pool is not None:
        consumer.pool.give_back()
    return consumer.queue
