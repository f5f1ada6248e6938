"""What a channel receives: consumers, deliveries under tags, and how they are settled."""

from __future__ import annotations

import pamqp.base
import pamqp.commands as spec
from mypy_extensions import i64

from broker.errors import AccessRefused
from broker.messages.outlet import LARGE_BODY
from broker.queues.consumer import CreditPool, Delivery
from broker.queues.queue import Queue
from broker.routing.publish_context import PublishContext
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.connection_interface import AmqpClient
from protocols.amqp.channel.consumer import AmqpConsumer, Owner, put_back, refuse, settle
from protocols.amqp.channel.transaction import ACKED, GIVEN_UP, PUT_BACK, Transaction
from protocols.amqp.codec.contents import DIRECT, content_for, frames_of
from protocols.amqp.codec.frames import encode, got
from protocols.amqp.errors import AmqpError
from protocols.tally import FrontCounters
from protocols.window import Window


class ChannelReceiving(Owner):
    """The receiving side of a channel."""

    def __init__(
        self,
        vhost: VirtualHost,
        context: PublishContext,
        connection: AmqpClient,
        number: i64,
        frame_max: i64,
        cancel_notify: bool,
    ) -> None:
        self.vhost = vhost
        self.context = context
        self.connection = connection
        self.tally: FrontCounters = connection.front.tally
        self.number: i64 = number
        self.frames = frames_of(number, frame_max)
        self.unacked = Window()
        self.consumers: dict[str, AmqpConsumer] = {}
        self.prefetch: i64 = 0
        self.pool: CreditPool | None = None
        #: The limit that all its consumers share; 0 for none.
        self.shared_prefetch: i64 = 0
        #: Where direct replies come in, while a consumer waits for them.
        self.replies: Queue | None = None
        self.transaction: Transaction | None = None
        self._cancel_notify = cancel_notify
        #: What this method appends to the store, and its answer waits for.
        self.ticket: Ticket = connection.ticket()

    def send(self, method: pamqp.base.Frame) -> None:
        self.connection.out.write(encode(self.number, method))
        self.connection.touch()

    def reply(self, method: pamqp.base.Frame) -> None:
        """The answer to a method, once the store has what the method changed."""
        self.connection.reply_when_durable(self.ticket, encode(self.number, method))

    # -- consuming

    def consume(
        self, queue: Queue, tag: str, no_ack: bool, exclusive: bool, priority: i64
    ) -> AmqpConsumer:
        consumer = self._consumer(queue, tag, no_ack, self.prefetch)
        consumer.priority = priority
        consumer.exclusive = exclusive
        self.consumers[tag] = consumer
        if consumer.pool is not None:
            consumer.pool.consumers.append(consumer)
        queue.subscribe(consumer)
        return consumer

    def consume_replies(self, tag: str) -> None:
        """Consume from a name that only those know to whom this channel has sent it."""
        queue = self.replies = self.vhost.open_reply(
            f"{DIRECT.decode()}.{self.connection.front.broker.new_id()}"
        )
        self.consume(queue, tag, True, False, 0)

    def _consumer(self, queue: Queue, tag: str, no_ack: bool, prefetch: i64) -> AmqpConsumer:
        return AmqpConsumer(
            queue,
            self.connection,
            self,
            self.unacked,
            self.frames,
            self.tally,
            tag,
            no_ack,
            prefetch,
            self.pool,
        )

    def cancel(self, tag: str) -> None:
        """End a consumer; what it holds stays unsettled.

        An auto-delete queue goes with its last one.
        """
        consumer = self.consumers.pop(tag, None)
        if consumer is None:
            return
        self._leave_pool(consumer)
        queue = consumer.queue
        queue.unsubscribe(consumer)
        if self.replies is not None and queue is self.replies:
            self.vhost.close_reply(self.replies)
            self.replies = None
        known = self.vhost.queues.get(queue.name)
        if known is not None and known is queue and known.auto_delete and not known.consumer_count:
            self.vhost.delete_queue(known)
            self.connection.disown(known)

    def review(self, context: PublishContext) -> bool:
        """Its user has other rights now: consumers of queues that may not be read any more are
        cancelled. False when that cannot be said to the client, and the channel must end."""
        self.context = context
        for consumer in list(self.consumers.values()):
            if consumer.queue is self.replies:
                continue
            try:
                context.identity.may("read", "queue", consumer.queue.name, self.vhost.name)
            except AccessRefused:
                if not self._cancel_notify:
                    return False
                self.cancel(consumer.tag)
                self.send(spec.Basic.Cancel(consumer.tag, True))
                self.connection.touch()
        return True

    def lost(self, consumer: AmqpConsumer) -> None:
        if self.consumers.pop(consumer.tag, None) is not None:
            self._leave_pool(consumer)
            if self._cancel_notify:
                self.send(spec.Basic.Cancel(consumer.tag, True))

    def _leave_pool(self, consumer: AmqpConsumer) -> None:
        if consumer.pool is not None and consumer in consumer.pool.consumers:
            consumer.pool.consumers.remove(consumer)

    def share_prefetch(self, prefetch: i64) -> None:
        """basic.qos global=true: one limit for all consumers of the channel, those at work too, and
        for what they hold.
        """
        self.shared_prefetch = prefetch
        pool = self.pool = CreditPool(prefetch) if prefetch else None
        for _, delivery in self.unacked.outstanding():
            holder = delivery.consumer
            if isinstance(holder, AmqpConsumer) and holder.tag:  # basic.get has none.
                holder.pool = pool
                if pool is not None:
                    pool.credit -= 1
        for consumer in self.consumers.values():
            if not consumer.no_ack:
                consumer.pool = pool
                if pool is not None:
                    pool.consumers.append(consumer)
                consumer.queue.schedule_drain()

    def get(self, queue: Queue, no_ack: bool) -> None:
        """basic.get: get-ok with a content, or get-empty."""
        delivery = queue.take(self._consumer(queue, "", no_ack, 0))
        if delivery is None:
            self.tally.get_empty += 1
            self.send(spec.Basic.GetEmpty())
            return
        message = delivery.message
        content = (
            message.content
            if message.encoding is self.frames
            else content_for(message, self.frames)
        )
        if not content:  # This client's frames are too small for its properties.
            queue.unacked += 1
            queue.unrepresentable(message)
            self.get(queue, no_ack)
            return
        number: i64
        if no_ack:
            self.tally.get_auto += 1
            number = self.unacked.skip()
            queue.auto_acknowledge(message)
        else:
            self.tally.get_manual += 1
            queue.unacked += 1
            delivery.consumer.pool = None
            number = self.unacked.add(delivery)
        if delivery.attempts > 0:
            self.tally.redelivered += 1
        self.connection.out.write(
            got(
                self.number,
                number,
                delivery.attempts > 0,
                message.address.short_strings,
                queue.depth,
            )
        )
        self.write_content(content)
        self.connection.touch()

    def write_content(self, content: bytes) -> None:
        if len(content) < LARGE_BODY:
            self.connection.out.write(content)
        else:
            self.connection.attach(content)

    # -- settling

    def ack(self, number: i64, multiple: bool) -> None:
        """basic.ack. Raises AmqpError. Hot path."""
        if self.transaction is not None:
            self._settle_later(self.transaction, number, multiple, ACKED)
            return
        if multiple:
            for delivery in self._take_many(number):
                self.tally.acknowledged += 1
                settle(delivery)
            return
        one = self.unacked.take(number)
        if one is None:
            raise _unknown(number)
        self.tally.acknowledged += 1
        settle(one)

    def _take_many(self, number: i64) -> list[Delivery]:
        if number == 0:
            return self.unacked.take_all()
        taken = self.unacked.take_up_to(number) if number < self.unacked.next else []
        if not taken:
            raise _unknown(number)
        return taken

    def nack(self, number: i64, multiple: bool, requeue: bool) -> None:
        """basic.nack and basic.reject. Raises AmqpError."""
        if self.transaction is not None:
            self._settle_later(
                self.transaction, number, multiple, PUT_BACK if requeue else GIVEN_UP
            )
            return
        if multiple:
            taken = self._take_many(number)
        else:
            one = self.unacked.take(number)
            if one is None:
                raise _unknown(number)
            taken = [one]
        if requeue:
            for delivery in reversed(
                taken
            ):  # The newest first: each goes before those put back already, in one step.
                put_back(delivery)
            return
        for delivery in taken:
            refuse(delivery)

    def recover(self) -> None:
        """Give everything unsettled back to its queues, in order."""
        transaction = self.transaction
        if transaction is not None and transaction.settlements:
            self.give_back(
                [
                    number
                    for number, _ in self.unacked.outstanding()
                    if number not in transaction.settlements
                ]
            )
            return
        for delivery in reversed(self.unacked.take_all()):
            put_back(delivery)

    def give_back(self, numbers: list[i64]) -> None:
        """Give some of them back, the newest first."""
        for number in reversed(numbers):
            delivery = self.unacked.take(number)
            if delivery is not None:
                put_back(delivery)

    def _settle_later(
        self, transaction: Transaction, number: i64, multiple: bool, how: int
    ) -> None:
        """Settle at the commit.

        Raises AmqpError for what is not outstanding, or settled in this transaction already.
        """
        settlements = transaction.settlements
        if not multiple:
            if number in settlements or self.unacked.get(number) is None:
                raise _unknown(number)
            settlements[number] = how
            return
        numbers = [
            one
            for one, _ in self.unacked.outstanding()
            if (number == 0 or one <= number) and one not in settlements
        ]
        if number and (not numbers or number >= self.unacked.next):
            raise _unknown(number)
        for one in numbers:
            settlements[one] = how

    def unchoke(self) -> None:
        """Stir every queue that delivers here."""
        for consumer in self.consumers.values():
            consumer.queue.schedule_drain()


def _unknown(number: i64) -> AmqpError:
    return AmqpError(406, f"unknown delivery tag {int(number) & 0xFFFF_FFFF_FFFF_FFFF}")
