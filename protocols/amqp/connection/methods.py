"""The methods on a channel: METHODS maps the name of each method to its handler.

A handler checks permissions, calls the virtual host or a part of the channel, and replies. A
handler raises AmqpError, or BrokerError from the core; AmqpConnection then closes the channel or
the connection. AmqpConnection handles basic.publish, and nearly every basic.ack, without this
table.

    declaring.py   exchanges and queues: declare, delete, purge
    binding.py     bind and unbind
    consuming.py   basic.consume
    this module    the other methods: settlements, basic.get, confirm and tx
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pamqp.commands as spec

from broker.store.audit import Actor
from broker.stream.queue import StreamQueue
from protocols.amqp.channel.channel import Channel
from protocols.amqp.connection.binding import (
    exchange_bind,
    exchange_unbind,
    queue_bind,
    queue_unbind,
)
from protocols.amqp.connection.consuming import basic_consume
from protocols.amqp.connection.declaring import (
    exchange_declare,
    exchange_delete,
    queue_declare,
    queue_delete,
    queue_purge,
)
from protocols.amqp.connection.method_checks import permitted_queue, reply
from protocols.amqp.errors import AmqpError

Handler = Callable[[Channel, Any], None]

#: Client libraries, by their product name, whose basic.qos also changes the prefetch count of
#: running consumers.
RETUNING_CLIENTS: Final = ("py-amqp",)


def basic_qos(channel: Channel, method: spec.Basic.Qos) -> None:
    """Handle basic.qos: set the prefetch count of consumers that start from now on, and reply.

    With global=true, set the prefetch count that all consumers of the channel share. Raises
    AmqpError for a prefetch_size.
    """
    receiver = channel.receiver
    if method.prefetch_size:
        raise AmqpError(540, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        receiver.share_prefetch(method.prefetch_count)
    else:
        receiver.prefetch = method.prefetch_count
        if channel.client_product in RETUNING_CLIENTS:
            receiver.retune(method.prefetch_count)
    reply(channel, method, spec.Basic.QosOk())


def basic_cancel(channel: Channel, method: spec.Basic.Cancel) -> None:
    """Handle basic.cancel: end the consumer with the given tag, if it exists, and reply with
    cancel-ok.
    """
    channel.receiver.cancel(method.consumer_tag or "")
    reply(channel, method, spec.Basic.CancelOk(method.consumer_tag))


def basic_get(channel: Channel, method: spec.Basic.Get) -> None:
    """Handle basic.get: fetch one message from a queue, and reply with get-ok or get-empty.

    Raises AccessRefused if the user may not read the queue, AmqpError 540 for a stream.
    """
    queue = permitted_queue(channel, method.queue, "read")
    if isinstance(queue, StreamQueue):
        # The text is RabbitMQ's.
        raise AmqpError(
            540,
            f"basic.get not supported by stream queues queue '{queue.name}' in vhost "
            f"'{channel.vhost.name}'",
        )
    channel.receiver.get(queue, method.no_ack)


def basic_ack(channel: Channel, method: spec.Basic.Ack) -> None:
    """Handle basic.ack: acknowledge the delivery with a tag, or all deliveries up to the tag."""
    channel.receiver.ack(method.delivery_tag, method.multiple)


def basic_nack(channel: Channel, method: spec.Basic.Nack) -> None:
    """Handle basic.nack: requeue or reject a delivery, or all deliveries up to its tag."""
    channel.receiver.nack(method.delivery_tag, method.multiple, method.requeue, False)


def basic_reject(channel: Channel, method: spec.Basic.Reject) -> None:
    """Handle basic.reject: requeue or reject the delivery with the given tag."""
    channel.receiver.nack(method.delivery_tag or 0, False, method.requeue, True)


def basic_recover(channel: Channel, method: spec.Basic.Recover) -> None:
    """Handle basic.recover: requeue all outstanding deliveries of the channel, and reply."""
    basic_recover_async(channel, method)
    reply(channel, method, spec.Basic.RecoverOk())


def basic_recover_async(
    channel: Channel, method: spec.Basic.Recover | spec.Basic.RecoverAsync
) -> None:
    """Handle basic.recover-async: requeue all outstanding deliveries of the channel, without a
    reply.

    Raises AmqpError for requeue=false, by which a client asks for redelivery to the same consumer.
    """
    if not method.requeue:
        raise AmqpError(540, "basic.recover with requeue=false is not supported")
    channel.receiver.recover()


def confirm_select(channel: Channel, method: spec.Confirm.Select) -> None:
    """Handle confirm.select: enter confirm mode, in which the broker confirms publications, and
    reply.
    """
    channel.select_confirms()
    reply(channel, method, spec.Confirm.SelectOk())


def tx_select(channel: Channel, method: spec.Tx.Select) -> None:
    """Handle tx.select: enter transaction mode, and reply."""
    channel.select()
    channel.reply(spec.Tx.SelectOk())


def tx_commit(channel: Channel, method: spec.Tx.Commit) -> None:
    """Handle tx.commit: commit the transaction; the channel replies when the commit is complete."""
    channel.commit()


def tx_rollback(channel: Channel, method: spec.Tx.Rollback) -> None:
    """Handle tx.rollback: drop the publications and settlements of the transaction, and reply."""
    channel.rollback()
    channel.reply(spec.Tx.RollbackOk())


def channel_flow(channel: Channel, method: spec.Channel.Flow) -> None:
    """Handle channel.flow: accept active=true, which changes nothing. Raises AmqpError for
    active=false.
    """
    if not method.active:
        raise AmqpError(540, "channel.flow with active=false is not supported")
    channel.reply(spec.Channel.FlowOk(True))


def audited(handler: Handler) -> Handler:
    """Return a handler that calls `handler`, and records its changes in the audit trail.

    The audit trail names the client as the author of the changes. Without an audit trail, the
    handler only calls `handler`.
    """

    def handle(channel: Channel, method: Any) -> None:
        trail = channel.vhost.store.audit
        if trail is None:
            handler(channel, method)
            return
        connection = channel.connection
        with trail.by(Actor(connection.owner[0], str(connection.peer), "amqp")):
            handler(channel, method)

    return handle


METHODS: Final[dict[str, Handler]] = {
    "Exchange.Declare": audited(exchange_declare),
    "Exchange.Delete": audited(exchange_delete),
    "Exchange.Bind": audited(exchange_bind),
    "Exchange.Unbind": audited(exchange_unbind),
    "Queue.Declare": audited(queue_declare),
    "Queue.Bind": audited(queue_bind),
    "Queue.Unbind": audited(queue_unbind),
    "Queue.Purge": audited(queue_purge),
    "Queue.Delete": audited(queue_delete),
    "Basic.Qos": basic_qos,
    "Basic.Consume": basic_consume,
    "Basic.Cancel": basic_cancel,
    "Basic.Get": basic_get,
    "Basic.Ack": basic_ack,
    "Basic.Nack": basic_nack,
    "Basic.Reject": basic_reject,
    "Basic.Recover": basic_recover,
    "Basic.RecoverAsync": basic_recover_async,
    "Confirm.Select": confirm_select,
    "Channel.Flow": channel_flow,
    "Tx.Select": tx_select,
    "Tx.Commit": tx_commit,
    "Tx.Rollback": tx_rollback,
}
