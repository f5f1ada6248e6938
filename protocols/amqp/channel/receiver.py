"""The receiver side of a channel: consumers, deliveries under delivery tags, and settlements.

    queue -- AmqpConsumer.deliver --> basic.deliver, delivery tag n     (consumer.py)
                                      `unacked` holds the delivery under n
    basic.ack, basic.nack, basic.reject, basic.recover --> ChannelReceiver takes the delivery
                                      from `unacked`, and settles, dead-letters or requeues it

All consumers of a channel and basic.get share one sequence of delivery tags. Deliveries that are
outstanding when the channel closes are requeued.
"""

from __future__ import annotations

from typing import Final

import pamqp.commands as spec
from mypy_extensions import i64

from broker.access.identity import Identity
from broker.queues.consumer import Consumer, CreditPool, Delivery, MessageSource
from broker.queues.queue import Queue
from broker.store.contract import Ticket
from broker.vhost.private_queues import close_reply, open_reply
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.ack_timeout import AckTimeout, timeout_of
from protocols.amqp.channel.cancelled import CancelledConsumers
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.consumer import AmqpConsumer, ConsumerOwner, reject, requeue, settle
from protocols.amqp.channel.exclusive_queues import AutoDeletion
from protocols.amqp.channel.fetching import Fetch
from protocols.amqp.channel.settlement import (
    SETTLED_PER_SLICE,
    Settlement,
    carry_out_all,
)
from protocols.amqp.channel.transaction import (
    ACKED,
    REJECTED,
    REQUEUED,
    Transaction,
    settle_at_commit,
)
from protocols.amqp.codec.contents import DIRECT, Frames
from protocols.amqp.codec.frames import encode
from protocols.amqp.errors import AmqpError, unknown_tag
from protocols.tally import FrontCounters
from protocols.window import Window

#: Number of a queue's consumers that basic.cancel searches at the cost of one unit of BUDGET.
CONSUMERS_PER_UNIT: Final = 50
#: Number of consumers that basic.qos changes at the cost of one unit of BUDGET.
CHANGED_PER_UNIT: Final = 8
#: Class and method id of basic.consume.
_CONSUME: Final[i64] = 60 << 16 | 20


class ChannelReceiver(ConsumerOwner):
    """The receiver side of one channel: its consumers, outstanding deliveries and settlements."""

    def __init__(
        self,
        vhost: VirtualHost,
        connection: ConnectionInterface,
        number: i64,
        frames: Frames,
        cancel_notify: bool,
    ) -> None:
        super().__init__()
        #: Deliveries that the client has not settled yet, by delivery tag.
        self.unacked = Window()
        #: Consumers by consumer tag.
        self.consumers: dict[str, AmqpConsumer] = {}
        self._cancelled = CancelledConsumers()
        #: Prefetch count of consumers that start from now on; 0 for no limit.
        self.prefetch: i64 = 0
        #: Prefetch count that all consumers of the channel share; 0 for no limit.
        self.shared_prefetch: i64 = 0
        #: The credit that all consumers of the channel share; None without `shared_prefetch`.
        self.pool: CreditPool | None = None
        #: Queue of direct replies to this channel; None while the channel has no consumer of direct
        #: replies.
        self.replies: Queue | None = None
        #: The transaction of a channel in transaction mode, otherwise None.
        self.transaction: Transaction | None = None
        #: Ticket of the last queue.delete on this channel. A basic.cancel to the client waits for
        #: this ticket, so that the client gets the queue.delete-ok first.
        self.deletion: Ticket | None = None
        #: True once all consumers are unsubscribed, because the channel ends.
        self._unsubscribed = False
        #: Deliveries whose messages do not fit into a frame of the client, until the channel closes
        #: because of them.
        self._set_aside: list[Delivery] = []
        #: The last settlement of many deliveries. While that settlement is carried out, the
        #: connection is stalled.
        self._settlement: Settlement | None = None
        #: The task that closes the channel if a delivery is not acknowledged in time; None if no
        #: queue has had a timeout.
        self._ack_timeout: AckTimeout | None = None
        self._vhost = vhost
        self._connection = connection
        self._number: i64 = number
        self._frames = frames
        self._tally: FrontCounters = connection.front.tally
        #: True if the client understands a basic.cancel from the broker.
        self._cancel_notify = cancel_notify

    # -- consuming

    def consume(
        self, queue: Queue, tag: str, no_ack: bool, exclusive: bool, priority: i64
    ) -> AmqpConsumer:
        """Start and return a consumer of a queue. The caller has checked that `tag` is free."""
        consumer = self._consumer(queue, tag, no_ack, self.prefetch)
        consumer.priority = priority
        consumer.exclusive = exclusive
        self.consumers[tag] = consumer
        if consumer.pool is not None:
            consumer.pool.consumers[consumer] = None
        if not no_ack:
            self._watch(queue)
        queue.subscribe(consumer)
        return consumer

    def _watch(self, queue: Queue) -> None:
        """Apply the acknowledgement timeout of a queue, if any, to the channel's deliveries."""
        limits = self._vhost.limits
        if self._ack_timeout is None and timeout_of(queue, limits) > 0:
            self._ack_timeout = AckTimeout(
                self._connection, self._number, self.unacked, self.consumers, limits
            )
        if self._ack_timeout is not None:
            self._ack_timeout.watch(queue)

    def consume_replies(self, tag: str) -> None:
        """Start a consumer of direct replies, on a new queue with an unguessable name."""
        queue = self.replies = open_reply(
            self._vhost, f"{DIRECT.decode()}.{self._connection.front.broker.new_id()}"
        )
        self.consume(queue, tag, True, False, 0)

    def _consumer(self, queue: Queue, tag: str, no_ack: bool, prefetch: i64) -> AmqpConsumer:
        return AmqpConsumer(
            queue,
            self._connection,
            self,
            self.unacked,
            self._frames,
            self._tally,
            tag,
            no_ack,
            prefetch,
            self.pool,
        )

    def cancel(self, tag: str) -> None:
        """End the consumer with this tag, if it exists; its deliveries stay outstanding.

        An auto-delete queue is deleted with its last consumer.
        """
        consumer = self.consumers.pop(tag, None)
        if consumer is None:
            return
        self._leave_pool(consumer)
        self._cancelled.keep(consumer)
        self._connection.extra_cost += consumer.queue.consumer_count // CONSUMERS_PER_UNIT
        consumer.queue.unsubscribe(consumer)
        self._after_unsubscribe(consumer)

    def _after_unsubscribe(self, consumer: AmqpConsumer) -> None:
        """Delete the queue of an ended consumer if it has no further use.

        This is the case for a queue of direct replies, and for an auto-delete queue without
        consumers.
        """
        queue = consumer.queue
        if self.replies is not None and queue is self.replies:
            close_reply(self._vhost, self.replies)
            self.replies = None
        AutoDeletion(self._vhost, self._connection.exclusive_queues, [queue]).run_first_slice()

    def queue_deleted(self, consumer: AmqpConsumer) -> None:
        """End a consumer whose queue is deleted, with basic.cancel if the client understands it."""
        if self.consumers.get(consumer.tag) is consumer:
            del self.consumers[consumer.tag]
            self._leave_pool(consumer)
            self._cancelled.keep(consumer)
            if self._cancel_notify:
                self._send_cancel(consumer)

    def is_free(self, tag: str) -> bool:
        """True if no consumer of the channel has this tag.

        A consumer of a deleted queue does not count: this method ends it at once, so that the tag
        can be used again.
        """
        known = self.consumers.get(tag)
        if known is not None and known.queue.dead:
            self.queue_deleted(known)
            return True
        return known is None

    def cancel_unreadable(self, consumers: list[AmqpConsumer], identity: Identity) -> i64:
        """Cancel the consumers whose queues `identity` may no longer read.

        If a consumer must end and the client does not understand basic.cancel, close the channel.
        Return the cost of the call, in units of one checked consumer.
        """
        cost: i64 = len(consumers)
        readable: dict[str, bool] = {}
        ended: list[AmqpConsumer] = []
        by_queue: dict[MessageSource, list[Consumer]] = {}
        for consumer in consumers:
            queue = consumer.queue
            if queue is self.replies or self.consumers.get(consumer.tag) is not consumer:
                continue
            if queue.name not in readable:
                readable[queue.name] = identity.allows("read", "queue", queue.name, queue.vhost)
            if readable[queue.name]:
                continue
            if not self._cancel_notify:
                error = AmqpError(
                    403,
                    f"user '{identity.name}' may no longer read queue '{queue.name}' in vhost "
                    f"'{self._vhost.name}', which this channel consumes",
                )
                self._connection.close_channel(self._number, error, 0)
                return cost
            del self.consumers[consumer.tag]
            self._leave_pool(consumer)
            self._cancelled.keep(consumer)
            ended.append(consumer)
            leaving = by_queue.get(queue)
            if leaving is None:
                cost += queue.consumer_count // CONSUMERS_PER_UNIT
                leaving = by_queue[queue] = []
            leaving.append(consumer)
        for queue, leaving in by_queue.items():
            queue.unsubscribe_all(leaving)
        for consumer in ended:
            self._send_cancel(consumer)
        if by_queue:
            AutoDeletion(
                self._vhost, self._connection.exclusive_queues, list(by_queue)
            ).run_first_slice()
        return cost + 4 * len(ended)

    def _send_cancel(self, consumer: AmqpConsumer) -> None:
        cancel = encode(self._number, spec.Basic.Cancel(consumer.tag, True))
        if self.deletion is not None:
            self._connection.reply_when_durable(self.deletion, cancel)
        else:
            self._connection.out.write(cancel)
        self._connection.touch()

    def _leave_pool(self, consumer: AmqpConsumer) -> None:
        if consumer.pool is not None:
            consumer.pool.consumers.pop(consumer, None)

    def share_prefetch(self, prefetch: i64) -> None:
        """Let all consumers of the channel share one prefetch count (basic.qos global=true).

        The count applies to running consumers as well, and includes their outstanding deliveries. 0
        removes the limit.
        """
        self.shared_prefetch = prefetch
        self._charge(len(self.consumers) + len(self._cancelled.consumers))
        pool = self.pool = CreditPool(prefetch) if prefetch else None
        self._cancelled.drop_settled()
        for holder in [*self.consumers.values(), *self._cancelled.consumers]:
            if not holder.no_ack:
                holder.pool = pool
                if pool is not None:
                    pool.credit -= holder.outstanding
        for consumer in self.consumers.values():
            if not consumer.no_ack:
                if pool is not None:
                    pool.consumers[consumer] = None
                consumer.queue.schedule_drain()

    def retune(self, prefetch: i64) -> None:
        """Change the prefetch count of all running consumers."""
        self._charge(len(self.consumers))
        for consumer in self.consumers.values():
            consumer.retune(prefetch)

    def _charge(self, consumers: int) -> None:
        """Add the cost of changing `consumers` consumers to the work of this turn."""
        self._connection.extra_cost += consumers // CHANGED_PER_UNIT

    def get(self, queue: Queue, no_ack: bool) -> None:
        """Answer basic.get with a message or get-empty. Raises AmqpError (see `Fetch.start`)."""
        if not no_ack:
            self._watch(queue)
        consumer = self._consumer(queue, "", no_ack, 0)
        Fetch(
            self._connection, self, consumer, queue, self.unacked, self._frames, self._number
        ).start()

    # -- messages that do not fit into a frame of the client

    def does_not_fit(self, delivery: Delivery) -> None:
        self._set_aside.append(delivery)
        if len(self._set_aside) == 1:
            self._connection.agenda.add(self)

    def run(self) -> None:
        """Close the channel: the properties of a message do not fit into a frame of the client."""
        if self._set_aside:
            queue = self._set_aside[0].consumer.queue
            error = AmqpError(
                406,
                f"a message of queue '{queue.name}' in vhost '{queue.vhost}' has properties that "
                f"do not fit into frame_max {self._frames.frame_max}: "
                "connect with a larger frame_max",
            )
            self._connection.close_channel(self._number, error, _CONSUME)

    # -- settling

    def ack(self, number: i64, multiple: bool) -> None:
        """Acknowledge the delivery `number`, or (`multiple`) all deliveries up to this tag.

        Raises AmqpError for an unknown delivery tag.
        """
        if self.transaction is not None:
            settle_at_commit(self.transaction, self.unacked, number, multiple, ACKED)
            return
        if multiple:
            self._settle_many(number, ACKED)
            return
        one = self.unacked.take(number)
        if one is None:
            raise unknown_tag(number)
        self._tally.acknowledged += 1
        settle(one)

    def _settle_many(self, number: i64, how: int) -> None:
        """Settle all outstanding deliveries up to the delivery tag `number`; 0 means all of them.

        `how` is ACKED, REJECTED or REQUEUED. Fewer than SETTLED_PER_SLICE deliveries are settled at
        once, more of them in slices. Raises AmqpError if the tag is unknown.
        """
        unacked = self.unacked
        following: i64 = unacked.next
        if number and not 0 < number < following:
            raise unknown_tag(number)
        last: i64 = number if number else following - 1
        if unacked.most_up_to(last) < SETTLED_PER_SLICE:
            taken = unacked.take_up_to(last)
            if number and not taken:
                raise unknown_tag(number)
            self._connection.extra_cost += len(taken)
            if how == ACKED:
                self._tally.acknowledged += len(taken)
            carry_out_all(taken, how, self._tally)
            return
        if number and not unacked.numbers(0, number, 1):
            raise unknown_tag(number)
        self._settlement = Settlement(self._connection, self.unacked, last, how)
        self._settlement.start()

    def nack(self, number: i64, multiple: bool, requeued: bool, failed: bool) -> None:
        """Requeue or reject the delivery `number`, or (`multiple`) all deliveries up to this tag.

        `failed` is True for basic.reject. Outside a transaction, a requeued delivery then counts as
        a failure, and a queue with delayed retry waits before it delivers the message again.
        Raises AmqpError for an unknown delivery tag.
        """
        how = REQUEUED if requeued else REJECTED
        if self.transaction is not None:
            settle_at_commit(self.transaction, self.unacked, number, multiple, how)
            return
        if multiple:
            self._settle_many(number, how)
            return
        one = self.unacked.take(number)
        if one is None:
            raise unknown_tag(number)
        if requeued:
            requeue(one, failed)
        else:
            reject(one)

    def recover(self) -> None:
        """Requeue, in order, all outstanding deliveries that the present transaction does not
        settle.
        """
        self._settlement = self._recovery(False)
        self._settlement.start()

    def _recovery(self, failed: bool) -> Settlement:
        """Return the settlement that requeues all outstanding deliveries.

        If `failed`, the deliveries count as failures, so a queue with delayed retry waits before it
        delivers their messages again. After an acknowledgement timeout, `failed` is False.
        """
        transaction = self.transaction
        return Settlement(
            self._connection,
            self.unacked,
            self.unacked.next - 1,
            REQUEUED,
            transaction.settlements if transaction is not None else None,
            failed,
        )

    def on_closed(self) -> None:
        """End all consumers and requeue all deliveries, because the channel has ended."""
        self.closed = True
        self.transaction = None
        consumers = list(self.consumers.values())
        # All consumers are unsubscribed first, so that no requeued message is delivered to one of
        # them.
        if not self._unsubscribed:
            unsubscribe_receivers([self])
        self.consumers.clear()
        if self.pool is not None:
            self.pool.consumers.clear()
        if self._ack_timeout is not None:
            self._ack_timeout.end()
        set_aside, self._set_aside = self._set_aside, []
        for delivery in set_aside:
            delivery.consumer.queue.return_unseen(delivery)
        if self._settlement is not None and not self._settlement.finished:
            self._settlement.requeue_rest()
        else:
            timed_out = self._ack_timeout is not None and self._ack_timeout.expired
            self._recovery(not timed_out).start_at_close()
        if self.replies is not None:
            close_reply(self._vhost, self.replies)
            self.replies = None
        queues = list(dict.fromkeys(consumer.queue for consumer in consumers))
        if queues:
            AutoDeletion(self._vhost, self._connection.exclusive_queues, queues).run_first_slice()

    def take_consumers(self, by_queue: dict[MessageSource, list[Consumer]]) -> None:
        """Add this ending channel's consumers to `by_queue`, which maps queues to consumers."""
        self._unsubscribed = True
        for consumer in self.consumers.values():
            by_queue.setdefault(consumer.queue, []).append(consumer)


def unsubscribe_receivers(receivers: list[ChannelReceiver]) -> None:
    """Unsubscribe the consumers of channels that end, in one pass over each queue's consumers."""
    by_queue: dict[MessageSource, list[Consumer]] = {}
    for receiver in receivers:
        receiver.take_consumers(by_queue)
    for queue, consumers in by_queue.items():
        queue.unsubscribe_all(consumers)
