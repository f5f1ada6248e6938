"""The methods on a channel: METHODS maps the name of each method to its handler.

A handler checks permissions, calls the virtual host or a part of the channel, and replies. It
raises AmqpError, or BrokerError from the core; AmqpConnection then closes the channel or the
connection.
AmqpConnection handles basic.publish, and nearly every basic.ack, without this table.

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
    """Set the prefetch count of consumers that start from now on.

    With global=true, set the prefetch count that all consumers of the channel share.
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
    """End a consumer."""
    channel.receiver.cancel(method.consumer_tag or "")
    reply(channel, method, spec.Basic.CancelOk(method.consumer_tag))


def basic_get(channel: Channel, method: spec.Basic.Get) -> None:
    """Fetch one message from a queue."""
    queue = permitted_queue(channel, method.queue, "read")
    if isinstance(queue, StreamQueue):
        raise AmqpError(
            540,
            f"basic.get not supported by stream queues queue '{queue.name}' in vhost "
            f"'{channel.vhost.name}'",
        )
    channel.receiver.get(queue, method.no_ack)


def basic_ack(channel: Channel, method: spec.Basic.Ack) -> None:
    """Acknowledge deliveries."""
    channel.receiver.ack(method.delivery_tag, method.multiple)


def basic_nack(channel: Channel, method: spec.Basic.Nack) -> None:
    """Requeue or reject deliveries."""
    channel.receiver.nack(method.delivery_tag, method.multiple, method.requeue, False)


def basic_reject(channel: Channel, method: spec.Basic.Reject) -> None:
    """Requeue or reject one delivery."""
    channel.receiver.nack(method.delivery_tag or 0, False, method.requeue, True)


def basic_recover(channel: Channel, method: spec.Basic.Recover) -> None:
    """Requeue all outstanding deliveries."""
    basic_recover_async(channel, method)
    reply(channel, method, spec.Basic.RecoverOk())


def basic_recover_async(
    channel: Channel, method: spec.Basic.Recover | spec.Basic.RecoverAsync
) -> None:
    """Requeue all outstanding deliveries, without a reply."""
    if not method.requeue:
        raise AmqpError(540, "requeue=false is not supported")
    channel.receiver.recover()


def confirm_select(channel: Channel, method: spec.Confirm.Select) -> None:
    """Enter confirm mode."""
    channel.select_confirms()
    reply(channel, method, spec.Confirm.SelectOk())


def tx_select(channel: Channel, method: spec.Tx.Select) -> None:
    """Enter transaction mode."""
    channel.select()
    channel.reply(spec.Tx.SelectOk())


def tx_commit(channel: Channel, method: spec.Tx.Commit) -> None:
    """Commit the transaction; the channel replies when the commit is done."""
    channel.commit()


def tx_rollback(channel: Channel, method: spec.Tx.Rollback) -> None:
    """Roll the transaction back."""
    channel.rollback()
    channel.reply(spec.Tx.RollbackOk())


def channel_flow(channel: Channel, method: spec.Channel.Flow) -> None:
    """Accept channel.flow with active=true, which changes nothing."""
    if not method.active:
        raise AmqpError(540, "active=false is not supported")
    channel.reply(spec.Channel.FlowOk(True))


def audited(handler: Handler) -> Handler:
    """Return a handler that calls `handler`. If there is an audit trail, it names the client."""

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
