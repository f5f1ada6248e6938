"""The methods on a channel: METHODS maps the name of each method to its handler.

A handler checks permissions, calls the virtual host or a part of the channel, and replies. It
raises AmqpError, or BrokerError from the core; AmqpConnection then closes the channel or the
connection.
AmqpConnection handles basic.publish, and nearly every basic.ack, without this table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pamqp.base
import pamqp.commands as spec

from broker.errors import AccessRefused, NotAllowed, NotFound, PreconditionFailed
from broker.queues.queue import Queue
from broker.routing.authorization import DeclarationRights
from broker.routing.binding import Binding
from broker.routing.exchanges.base import ExchangeOptions
from broker.stream.queue import StreamQueue
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.channel.streaming import AmqpStreamConsumer, check_stream_consumer, first_offset
from protocols.amqp.codec.contents import DIRECT
from protocols.amqp.errors import AmqpError

Handler = Callable[[Channel, Any], None]

#: Client libraries, by their product name, whose basic.qos also changes the prefetch count of
#: running consumers.
RETUNING_CLIENTS: Final = ("py-amqp",)
#: Highest priority of a consumer; the lowest is its negative.
PRIORITY_MAX: Final = 1 << 31
#: The number of queues and exchanges that the check of a declaration visits at the cost of one unit
#: of BUDGET.
WALKED_PER_UNIT: Final = 5
#: Cost of the messages of a history that a new binding gets at once, in units of BUDGET, and the
#: number of further messages that cost one unit.
FIRST_MESSAGES: Final = 100
LISTED_PER_UNIT: Final = 10
_REPLY_QUEUE: Final = DIRECT.decode()


# -- exchanges


def exchange_declare(channel: Channel, method: spec.Exchange.Declare) -> None:
    """Declare an exchange, or check that it exists (passive)."""
    name, vhost = _stripped(method.exchange), channel.vhost
    _refuse_default_exchange(name)
    if method.passive:
        vhost.reply_when_durable(vhost.exchange(name), channel.ticket)
    else:
        arguments = method.arguments or {}
        if name not in vhost.exchanges and name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        known = name in vhost.exchanges
        rights = _rights(channel)
        try:
            rights.check_exchange(name, method.exchange_type, arguments, known)
        finally:
            channel.connection.extra_cost += rights.walked // WALKED_PER_UNIT
        options = ExchangeOptions(method.durable, method.auto_delete, method.internal, arguments)
        vhost.declare_exchange(name, method.exchange_type, options, channel.ticket)
    _reply(channel, method, spec.Exchange.DeclareOk())


def exchange_delete(channel: Channel, method: spec.Exchange.Delete) -> None:
    """Delete an exchange."""
    name = _stripped(method.exchange)
    _refuse_default_exchange(name)
    if name.startswith("amq."):
        raise AccessRefused(
            f"deletion of system exchange '{name}' in vhost '{channel.vhost.name}' not allowed"
        )
    _require(channel, "configure", "exchange", name)
    channel.vhost.delete_exchange(name, method.if_unused, channel.ticket)
    _reply(channel, method, spec.Exchange.DeleteOk())


def exchange_bind(channel: Channel, method: spec.Exchange.Bind) -> None:
    """Bind an exchange to another exchange."""
    vhost = channel.vhost
    destination_name, source_name = _stripped(method.destination), _stripped(method.source)
    _refuse_default_exchange(destination_name)
    _refuse_default_exchange(source_name)
    _require(channel, "write", "exchange", destination_name)
    _require(channel, "read", "exchange", source_name)
    destination = vhost.exchange(destination_name)
    source = vhost.exchange(source_name)
    _rights(channel).check_binding(source, method.routing_key, destination)
    binding = Binding(method.routing_key, destination, arguments=method.arguments)
    _bind(channel, method, spec.Exchange.BindOk(), source_name, binding)


def exchange_unbind(channel: Channel, method: spec.Exchange.Unbind) -> None:
    """Remove a binding between exchanges. A binding that does not exist is no error."""
    vhost = channel.vhost
    destination_name, source_name = _stripped(method.destination), _stripped(method.source)
    _refuse_default_exchange(destination_name)
    _refuse_default_exchange(source_name)
    _require(channel, "write", "exchange", destination_name)
    _require(channel, "read", "exchange", source_name)
    destination = vhost.exchanges.get(destination_name)
    if destination is not None:
        vhost.unbind(
            source_name,
            Binding(method.routing_key, destination, arguments=method.arguments),
            channel.ticket,
        )
    else:
        vhost.reply_when_all_durable(channel.ticket)
    _reply(channel, method, spec.Exchange.UnbindOk())


# -- queues


def queue_declare(channel: Channel, method: spec.Queue.Declare) -> None:
    """Declare a queue, or check that it exists (passive)."""
    vhost = channel.vhost
    owner = channel.connection
    given = _stripped(method.queue)
    if _is_reply_queue(given):
        if given != _REPLY_QUEUE and given not in vhost.replies:
            raise NotFound(f"no queue '{given}' in vhost '{vhost.name}'")
        _reply(channel, method, spec.Queue.DeclareOk(given, 0, 1))
        return
    if method.passive:
        queue = vhost.queue(given or _last_queue(channel), owner)
        queue.touch()
        vhost.reply_when_durable(queue, channel.ticket)
    else:
        if given.startswith("amq."):
            raise AccessRefused(f"queue name '{given}' contains reserved prefix 'amq.*'")
        name = given or f"amq.gen-{owner.front.broker.new_id()}"
        arguments: Mapping[str, object] = method.arguments or {}
        if given:
            arguments = vhost.with_default_type(
                name, arguments, method.durable, method.exclusive, method.auto_delete
            )
        # A stream outlives its clients, and later clients would not know a generated name.
        if not given and arguments.get("x-queue-type") == "stream":
            raise PreconditionFailed(
                "Cannot declare a server-named queue for type rabbit_stream_queue"
            )
        _rights(channel).check_queue(name, arguments, name in vhost.queues)
        queue = vhost.declare_queue(
            name,
            method.durable,
            arguments,
            owner,
            method.exclusive,
            method.auto_delete,
            channel.ticket,
        )
        if queue.exclusive_to is owner:
            owner.exclusive_queues.add(queue)
    channel.last_queue = queue.name
    _reply(
        channel, method, spec.Queue.DeclareOk(queue.name, int(queue.depth), queue.consumer_count)
    )


def queue_bind(channel: Channel, method: spec.Queue.Bind) -> None:
    """Bind a queue to an exchange."""
    exchange, name, key = _binding(channel, method)
    queue = channel.vhost.queue(name, channel.connection)
    _rights(channel).check_binding(channel.vhost.exchange(exchange), key, None)
    binding = Binding(key, queue, arguments=method.arguments)
    _bind(channel, method, spec.Queue.BindOk(), exchange, binding)


def queue_unbind(channel: Channel, method: spec.Queue.Unbind) -> None:
    """Remove a binding of a queue. A binding that does not exist is no error."""
    exchange, name, key = _binding(channel, method)
    if name in channel.vhost.queues:
        queue = channel.vhost.queue(name, channel.connection)
        channel.vhost.unbind(
            exchange, Binding(key, queue, arguments=method.arguments), channel.ticket
        )
    else:
        channel.vhost.reply_when_all_durable(channel.ticket)
    _reply(channel, method, spec.Queue.UnbindOk())


def _bind(
    channel: Channel, method: Any, answer: pamqp.base.Frame, source: str, binding: Binding
) -> None:
    """Add a binding and reply. Delivering a history to the destination counts as a publication.

    The reply and the connection's later methods wait until the history is delivered; during an
    alarm, the later methods wait until the alarm ends. So a client cannot fill the memory by
    binding again and again.
    """
    connection = channel.connection
    replay = channel.vhost.bind(source, binding, channel.ticket)
    if replay is None or replay.size == 0:
        _reply(channel, method, answer)
        return
    connection.extra_cost += FIRST_MESSAGES + replay.size // LISTED_PER_UNIT
    if replay.has_work():
        connection.stall()
        replay.on_end = lambda: _end_binding(channel, method, answer)
        return
    _reply(channel, method, answer)
    if connection.stalled:
        connection.blocks_after_stall = True
    elif channel.vhost.alarmed:
        connection.block()


def _end_binding(channel: Channel, method: Any, answer: pamqp.base.Frame) -> None:
    """Reply to a client whose binding has got its history, and go on with the client's input."""
    connection = channel.connection
    if connection.finished:
        return
    connection.blocks_after_stall = True
    connection.stalled = False
    if not channel.receiver.closed:
        _reply(channel, method, answer)
    if not connection.stalled:
        connection.resume_input()


def _binding(channel: Channel, method: spec.Queue.Bind | spec.Queue.Unbind) -> tuple[str, str, str]:
    """Return the exchange, the queue and the routing key of a binding that a client changes.

    Raises AccessRefused if the user may not change the binding, NotFound if the client names no
    queue and the channel has declared none.
    """
    exchange, given = _stripped(method.exchange), _stripped(method.queue)
    _refuse_default_exchange(exchange)
    name = given or _last_queue(channel)
    _require(channel, "write", "queue", name)
    _require(channel, "read", "exchange", exchange)
    # If the client names neither queue nor key, the queue declared last is bound under its own name
    # (section 1.7.2.3).
    return exchange, name, method.routing_key or ("" if given else name)


def queue_purge(channel: Channel, method: spec.Queue.Purge) -> None:
    """Remove all ready messages of a queue."""
    queue = _permitted_queue(channel, method.queue, "read")
    if isinstance(queue, StreamQueue):
        raise AmqpError(
            540,
            f"queue.purge not supported by stream queue '{queue.name}' in vhost "
            f"'{channel.vhost.name}': retention (x-max-age, x-max-length-bytes) removes old rows",
        )
    _reply(channel, method, spec.Queue.PurgeOk(queue.purge()))


def queue_delete(channel: Channel, method: spec.Queue.Delete) -> None:
    """Delete a queue. A queue that does not exist is no error."""
    name = _stripped(method.queue) or _last_queue(channel)
    _require(channel, "configure", "queue", name)
    purged = 0
    if name in channel.vhost.queues or name in channel.vhost.inboxes:
        queue = channel.vhost.queue(name, channel.connection)
        purged = channel.vhost.delete_queue(
            queue, method.if_unused, method.if_empty, channel.ticket
        )
        channel.connection.exclusive_queues.discard(queue)
        channel.receiver.deletion = channel.ticket
    else:
        channel.vhost.reply_when_all_durable(channel.ticket)
    _reply(channel, method, spec.Queue.DeleteOk(purged))


# -- consuming


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
    _reply(channel, method, spec.Basic.QosOk())


def _is_reply_queue(name: str) -> bool:
    """True if the name stands for direct replies, or is the name of a channel's reply queue."""
    return name == _REPLY_QUEUE or name.startswith(_REPLY_QUEUE + ".")


def _consume_replies(channel: Channel, method: spec.Basic.Consume, tag: str) -> None:
    """Start the channel's consumer of direct replies. Raises PreconditionFailed."""
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if channel.receiver.replies is not None:
        raise PreconditionFailed("reply consumer already set")
    _reply(channel, method, spec.Basic.ConsumeOk(tag))
    channel.receiver.consume_replies(tag)


def basic_consume(channel: Channel, method: spec.Basic.Consume) -> None:
    """Start a consumer."""
    if method.queue == _REPLY_QUEUE:
        _consume_replies(channel, method, _new_consumer_tag(channel, method))
        return
    receiver = channel.receiver
    queue = _permitted_queue(channel, method.queue, "read")
    tag = _new_consumer_tag(channel, method)
    if isinstance(queue, StreamQueue):
        check_stream_consumer(
            queue, channel.vhost, method.no_ack, receiver.prefetch > 0 or receiver.pool is not None
        )
    # An exclusive consumer is the only consumer of its queue.
    in_exclusive_use = any(
        isinstance(consumer, AmqpConsumer) and consumer.exclusive
        for consumer in queue.consumers[:1] + queue.standby[:1]
    )
    if in_exclusive_use or method.exclusive and queue.consumer_count:
        raise AccessRefused(
            f"queue '{queue.name}' in vhost '{channel.vhost.name}' in exclusive use"
        )
    priority = (method.arguments or {}).get("x-priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > PRIORITY_MAX:
        raise PreconditionFailed(
            f"invalid arg 'x-priority' for queue '{queue.name}' in vhost '{channel.vhost.name}': "
            f"{priority!r} is not an integer from -{PRIORITY_MAX} to {PRIORITY_MAX}"
        )
    if method.exclusive and queue.arguments.single_active_consumer:
        raise AccessRefused(
            f"queue '{queue.name}' in vhost '{channel.vhost.name}' in exclusive use: "
            "it has a single active consumer"
        )
    offset = (
        first_offset(queue, channel.vhost, (method.arguments or {}).get("x-stream-offset"))
        if isinstance(queue, StreamQueue)
        else 0
    )
    _reply(channel, method, spec.Basic.ConsumeOk(tag))
    consumer = receiver.consume(queue, tag, method.no_ack, method.exclusive, priority)
    if method.arguments:
        consumer.keep_arguments(method.arguments)
    if isinstance(queue, StreamQueue):
        queue.attach(AmqpStreamConsumer(consumer, offset, channel.connection, receiver.unacked))


def _new_consumer_tag(channel: Channel, method: spec.Basic.Consume) -> str:
    """Return the tag of a new consumer, generated if the client gives none. Raises NotAllowed."""
    limit = channel.vhost.limits.channel_consumers
    if 0 < limit <= len(channel.receiver.consumers):
        raise NotAllowed(f"reached maximum ({limit}) of consumers per channel")
    tag = method.consumer_tag or f"amq.ctag-{channel.connection.front.broker.new_id()}"
    if not channel.receiver.is_free(tag):
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    return tag


def basic_cancel(channel: Channel, method: spec.Basic.Cancel) -> None:
    """End a consumer."""
    channel.receiver.cancel(method.consumer_tag or "")
    _reply(channel, method, spec.Basic.CancelOk(method.consumer_tag))


def basic_get(channel: Channel, method: spec.Basic.Get) -> None:
    """Fetch one message from a queue."""
    queue = _permitted_queue(channel, method.queue, "read")
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
    _reply(channel, method, spec.Basic.RecoverOk())


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
    _reply(channel, method, spec.Confirm.SelectOk())


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


METHODS: Final[dict[str, Handler]] = {
    "Exchange.Declare": exchange_declare,
    "Exchange.Delete": exchange_delete,
    "Exchange.Bind": exchange_bind,
    "Exchange.Unbind": exchange_unbind,
    "Queue.Declare": queue_declare,
    "Queue.Bind": queue_bind,
    "Queue.Unbind": queue_unbind,
    "Queue.Purge": queue_purge,
    "Queue.Delete": queue_delete,
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


def _reply(channel: Channel, method: Any, reply: Any) -> None:
    """Send the reply to a method, unless the client wants none (nowait)."""
    if not getattr(method, "nowait", False):
        channel.reply(reply)


def _last_queue(channel: Channel) -> str:
    """Return the name of the queue declared last, to which a method without a queue name refers.

    Raises NotFound if the channel has declared none.
    """
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue


def _permitted_queue(channel: Channel, name: str, operation: str) -> Queue:
    """Return a queue by name, or the queue declared last if the name is empty.

    Raises AccessRefused unless the user has the permission `operation`. The permission is checked
    first, so that a user without it does not learn which queues exist. Raises NotFound if the queue
    does not exist.
    """
    name = name or _last_queue(channel)
    _require(channel, operation, "queue", name)
    return channel.vhost.queue(name, channel.connection)


def _stripped(name: str) -> str:
    """Return the name of a queue or exchange without line breaks.

    RabbitMQ removes CR and LF in declare, delete, bind and unbind, and in no other method.
    """
    return name.replace("\n", "").replace("\r", "")


def _refuse_default_exchange(exchange: str) -> None:
    """Raise AccessRefused for the default exchange, whose name is empty."""
    if not exchange:
        raise AccessRefused("operation not permitted on the default exchange")


def _require(channel: Channel, operation: str, kind: str, name: str) -> None:
    """Raise AccessRefused unless the user may do `operation` (configure, write or read).

    `kind` is "queue" or "exchange", `name` the name of the queue or exchange.
    """
    channel.identity.may(operation, kind, name, channel.vhost.name)


def _rights(channel: Channel) -> DeclarationRights:
    """Return the rights of the channel's user: what the user may declare in the virtual host."""
    return channel.vhost.rights_of(channel.identity, channel.connection.administrator)
