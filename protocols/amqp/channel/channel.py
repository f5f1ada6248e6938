"""A channel: a publisher side and a receiver side that share a channel number and a transaction.

    Channel -- publisher: ChannelPublisher      basic.publish, confirms           (publisher.py)
            `- receiver: ChannelReceiver        basic.consume, get, ack, nack     (receiver.py)

The channel itself handles the work that concerns both sides: replies to methods, transactions,
closing. For the methods of a client, connection/methods.py calls the channel or one of its sides.
"""

from __future__ import annotations

import pamqp.base
from mypy_extensions import i64

from broker.access.identity import Identity
from broker.routing.publish_context import PublishContext
from broker.store.contract import Ticket
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.commit import Commit
from protocols.amqp.channel.confirms import Confirms
from protocols.amqp.channel.connection_interface import ConnectionInterface
from protocols.amqp.channel.publisher import ChannelPublisher
from protocols.amqp.channel.receiver import ChannelReceiver
from protocols.amqp.channel.transaction import Transaction
from protocols.amqp.codec.contents import frames_of
from protocols.amqp.codec.frames import encode
from protocols.amqp.errors import AmqpError


class Channel:
    """An open AMQP channel of a connection: its publisher side, its receiver side, its
    transactions.
    """

    def __init__(
        self,
        vhost: VirtualHost,
        context: PublishContext,
        connection: ConnectionInterface,
        number: i64,
        frame_max: i64,
        cancel_notify: bool,
        client_product: str,
    ) -> None:
        frames = frames_of(number, frame_max)
        self.vhost = vhost
        self.connection = connection
        self.number: i64 = number
        self.receiver = ChannelReceiver(vhost, connection, number, frames, cancel_notify)
        self.publisher = ChannelPublisher(vhost, context, connection, number, frames, self.receiver)
        #: Product name of the client. For the clients in RETUNING_CLIENTS, basic.qos also changes
        #: running consumers.
        self.client_product = client_product
        #: Name of the queue that was declared last on this channel. A method with an empty queue
        #: name refers to this queue.
        self.last_queue = ""
        #: The ticket of the present method. The ticket counts the records that the method appends
        #: to the store; the reply to the method waits until all of them are durable.
        self.ticket: Ticket = connection.ticket()
        #: The last commit. While it is carried out, the connection is stalled.
        self._commit: Commit | None = None
        connection.front.tally.channels_opened += 1

    @property
    def identity(self) -> Identity:
        """The identity with whose permissions the channel publishes and consumes."""
        return self.publisher.context.identity

    def reply(self, method: pamqp.base.Frame) -> None:
        """Send the reply to the present method, once the changes of this method are durable."""
        self.connection.reply_when_durable(self.ticket, encode(self.number, method))

    def select_confirms(self) -> None:
        """Enter confirm mode (confirm.select). Raises AmqpError in transaction mode."""
        if self.transactional:
            raise AmqpError(406, "cannot switch from tx to confirm mode")
        if self.publisher.confirms is None:
            self.publisher.confirms = Confirms(
                self.connection, self.connection.front.tally, self.number
            )

    def statistics(self) -> dict[str, int]:
        """Return the channel's counts of messages, under the names of RabbitMQ's API."""
        publisher, receiver = self.publisher, self.receiver
        unacked = receiver.unacked
        manual = int(unacked.next - 1 - unacked.skipped)
        return {
            "publish": int(publisher.published),
            "confirm": 0 if publisher.confirms is None else publisher.confirms.confirmed,
            "return_unroutable": int(publisher.returned),
            "deliver": manual - int(receiver.fetched),
            "deliver_no_ack": int(unacked.skipped - receiver.fetched_auto),
            "get": int(receiver.fetched),
            "get_no_ack": int(receiver.fetched_auto),
            "redeliver": int(receiver.redelivered),
            "ack": max(0, manual - int(unacked.count + receiver.returned)),
        }

    # -- transactions

    @property
    def transactional(self) -> bool:
        """True if the channel is in transaction mode."""
        return self.publisher.transaction is not None

    def select(self) -> None:
        """Enter transaction mode (tx.select). Raises AmqpError in confirm mode."""
        if self.publisher.confirms is not None:
            raise AmqpError(406, "cannot switch from confirm to tx mode")
        if not self.transactional:
            transaction = Transaction(
                self.vhost.limits.transaction, self.vhost.limits.transaction_parts
            )
            self.publisher.transaction = self.receiver.transaction = transaction
            self.connection.require_slow_path()

    def commit(self) -> None:
        """Deliver the publications and carry out the settlements of the transaction (tx.commit).

        tx.commit-ok is sent when the commit is complete. Raises AmqpError if the channel is not in
        transaction mode.
        """
        transaction = self._transaction()
        commit = self._commit = Commit(
            self.connection,
            self.publisher,
            self.receiver,
            self.vhost.store,
            self.ticket,
            transaction.publications,
            transaction.settlements,
        )
        transaction.clear()
        commit.start()

    def rollback(self) -> None:
        """Drop the publications and settlements of the transaction (tx.rollback).

        Deliveries that the client settled in the transaction stay outstanding. Raises AmqpError if
        the channel is not in transaction mode.
        """
        self._transaction().clear()

    def _transaction(self) -> Transaction:
        transaction = self.publisher.transaction
        if transaction is None:
            raise AmqpError(406, "channel is not transactional")
        return transaction

    def on_closed(self) -> None:
        """Release all resources of the channel, because the channel or its connection has ended."""
        if self._commit is not None:
            self._commit.abandon()
            self._commit = None
        self.receiver.on_closed()
        self.publisher.on_closed()
        self.connection.front.tally.channels_closed += 1
