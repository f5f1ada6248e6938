"""What each rare method does.

A table from method name to handler; the hot ones are in `connection`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import pamqp.commands as spec

from broker.errors import AccessRefused, NotAllowed, NotFound, PreconditionFailed
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.topic_rules import check_binding
from broker.stream.queue import StreamQueue
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.channel.streaming import AmqpStreamConsumer, check_stream_consumer, first_offset
from protocols.amqp.codec.contents import DIRECT
from protocols.amqp.errors import AmqpError

Handler = Callable[[Channel, Any], None]

#: Clients that set the prefetch count of consumers already at work (amqp.md, clients and their
#: habits).
RETUNING_CLIENTS: Final = ("py-amqp",)
#: The highest and, below 0, the lowest priority of a consumer.
PRIORITY_MAX: Final = 1 << 31
_DIRECT: Final = DIRECT.decode()


# -- exchanges


def exchange_declare(channel: Channel, method: spec.Exchange.Declare) -> None:
    name, vhost = method.exchange, channel.vhost
    _no_default(name)
    if method.passive:
        vhost.reply_when_durable(vhost.exchange(name), channel.ticket)
    else:
        arguments = method.arguments or {}
        if name not in vhost.exchanges and name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        _may(channel, "configure", "exchange", name)
        alternate = arguments.get("alternate-exchange")
        if isinstance(alternate, str):
            _may(channel, "read", "exchange", name)
            _may(channel, "write", "exchange", alternate)
        options = ExchangeOptions(method.durable, method.auto_delete, method.internal, arguments)
        vhost.declare_exchange(name, method.exchange_type, options, channel.ticket)
    _reply(channel, method, spec.Exchange.DeclareOk())


def exchange_delete(channel: Channel, method: spec.Exchange.Delete) -> None:
    _no_default(method.exchange)
    if method.exchange.startswith("amq."):
        raise AccessRefused(
            f"deletion of system exchange '{method.exchange}' in vhost '{channel.vhost.name}' not allowed"
        )
    _may(channel, "configure", "exchange", method.exchange)
    channel.vhost.delete_exchange(method.exchange, method.if_unused, channel.ticket)
    _reply(channel, method, spec.Exchange.DeleteOk())


def exchange_bind(channel: Channel, method: spec.Exchange.Bind) -> None:
    vhost = channel.vhost
    _no_default(method.destination)
    _no_default(method.source)
    _may(channel, "write", "exchange", method.destination)
    _may(channel, "read", "exchange", method.source)
    destination = vhost.exchange(method.destination)
    _may_hear(channel, method.source, method.routing_key)
    vhost.bind(
        method.source,
        Binding(method.routing_key, destination, arguments=method.arguments),
        channel.ticket,
    )
    _reply(channel, method, spec.Exchange.BindOk())


def exchange_unbind(channel: Channel, method: spec.Exchange.Unbind) -> None:
    vhost = channel.vhost
    _no_default(method.destination)
    _no_default(method.source)
    _may(channel, "write", "exchange", method.destination)
    _may(channel, "read", "exchange", method.source)
    destination = vhost.exchanges.get(method.destination)
    if destination is not None:
        vhost.unbind(
            method.source,
            Binding(method.routing_key, destination, arguments=method.arguments),
            channel.ticket,
        )
    else:
        vhost.reply_when_all_durable(channel.ticket)
    _reply(channel, method, spec.Exchange.UnbindOk())


# -- queues


def queue_declare(channel: Channel, method: spec.Queue.Declare) -> None:
    vhost = channel.vhost
    owner = channel.connection
    if _is_direct(method.queue):
        if method.queue != _DIRECT and method.queue not in vhost.replies:
            raise NotFound(f"no queue '{method.queue}' in vhost '{vhost.name}'")
        _reply(channel, method, spec.Queue.DeclareOk(method.queue, 0, 1))
        return
    if method.passive:
        queue = vhost.queue(method.queue or _last(channel), owner)
        queue.touch()
        vhost.reply_when_durable(queue, channel.ticket)
    else:
        if method.queue.startswith("amq."):
            raise AccessRefused(f"queue name '{method.queue}' contains reserved prefix 'amq.*'")
        name = method.queue or f"amq.gen-{owner.front.broker.new_id()}"
        arguments: Mapping[str, object] = method.arguments or {}
        if (
            not method.queue and arguments.get("x-queue-type") == "stream"
        ):  # It lasts, and nobody would find it again.
            raise PreconditionFailed(
                "Cannot declare a server-named queue for type rabbit_stream_queue"
            )
        _may(channel, "configure", "queue", name)
        dead_letter_exchange = arguments.get("x-dead-letter-exchange")
        if isinstance(dead_letter_exchange, str):
            _may(channel, "read", "queue", name)
            _may(channel, "write", "exchange", dead_letter_exchange)
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
    name, key = _binding(channel, method)
    queue = channel.vhost.queue(name, channel.connection)
    _may_hear(channel, method.exchange, key)
    channel.vhost.bind(
        method.exchange, Binding(key, queue, arguments=method.arguments), channel.ticket
    )
    _reply(channel, method, spec.Queue.BindOk())


def queue_unbind(channel: Channel, method: spec.Queue.Unbind) -> None:
    name, key = _binding(channel, method)
    if name in channel.vhost.queues:
        queue = channel.vhost.queue(name, channel.connection)
        channel.vhost.unbind(
            method.exchange, Binding(key, queue, arguments=method.arguments), channel.ticket
        )
    else:
        channel.vhost.reply_when_all_durable(channel.ticket)
    _reply(channel, method, spec.Queue.UnbindOk())


def _binding(channel: Channel, method: spec.Queue.Bind | spec.Queue.Unbind) -> tuple[str, str]:
    """The queue and the key that are meant, when the identity may touch both ends."""
    _no_default(method.exchange)
    name = method.queue or _last(channel)
    _may(channel, "write", "queue", name)
    _may(channel, "read", "exchange", method.exchange)
    # Section 1.7.2.3: no queue and no key means the last queue, under its own name.
    return name, method.routing_key or ("" if method.queue else name)


def queue_purge(channel: Channel, method: spec.Queue.Purge) -> None:
    queue = _queue(channel, method.queue, "read")
    if isinstance(queue, StreamQueue):
        raise AmqpError(
            540,
            f"queue.purge not supported by stream queue '{queue.name}' in vhost '{channel.vhost.name}': retention "
            "(x-max-age, x-max-length-bytes) removes what is old",
        )
    _reply(channel, method, spec.Queue.PurgeOk(queue.purge()))


def queue_delete(channel: Channel, method: spec.Queue.Delete) -> None:
    name = method.queue or _last(channel)
    _may(channel, "configure", "queue", name)
    purged = 0
    if name in channel.vhost.queues or name in channel.vhost.inboxes:
        queue = channel.vhost.queue(name, channel.connection)
        purged = channel.vhost.delete_queue(
            queue, method.if_unused, method.if_empty, channel.ticket
        )
        channel.connection.exclusive_queues.discard(queue)
    else:
        channel.vhost.reply_when_all_durable(channel.ticket)
    _reply(channel, method, spec.Queue.DeleteOk(purged))


# -- consuming


def basic_qos(channel: Channel, method: spec.Basic.Qos) -> None:
    receiver = channel.receiver
    if method.prefetch_size:
        raise AmqpError(540, f"prefetch_size!=0 ({method.prefetch_size})")
    if method.global_:
        receiver.share_prefetch(method.prefetch_count)
    else:
        receiver.prefetch = method.prefetch_count
        if channel.client_product in RETUNING_CLIENTS:
            for consumer in receiver.consumers.values():
                consumer.retune(method.prefetch_count)
    _reply(channel, method, spec.Basic.QosOk())


def _is_direct(name: str) -> bool:
    return name == _DIRECT or name.startswith(_DIRECT + ".")


def _consume_replies(channel: Channel, method: spec.Basic.Consume, tag: str) -> None:
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if channel.receiver.replies is not None:
        raise PreconditionFailed("reply consumer already set")
    _reply(channel, method, spec.Basic.ConsumeOk(tag))
    channel.receiver.consume_replies(tag)


def basic_consume(channel: Channel, method: spec.Basic.Consume) -> None:
    if method.queue == _DIRECT:
        _consume_replies(channel, method, _tag(channel, method))
        return
    receiver = channel.receiver
    queue = _queue(channel, method.queue, "read")
    tag = _tag(channel, method)
    if isinstance(queue, StreamQueue):
        check_stream_consumer(
            queue, channel.vhost, method.no_ack, receiver.prefetch > 0 or receiver.pool is not None
        )
    taken = any(
        isinstance(consumer, AmqpConsumer) and consumer.exclusive
        for consumer in queue.consumers + queue.standby
    )
    if taken or method.exclusive and queue.consumer_count:
        raise AccessRefused(
            f"queue '{queue.name}' in vhost '{channel.vhost.name}' in exclusive use"
        )
    priority = (method.arguments or {}).get("x-priority", 0)
    if not isinstance(priority, int) or isinstance(priority, bool) or abs(priority) > PRIORITY_MAX:
        raise PreconditionFailed(
            f"invalid arg 'x-priority' for queue '{queue.name}' in vhost '{channel.vhost.name}': "
            f"{priority!r} is no number up to {PRIORITY_MAX}"
        )
    if method.exclusive and queue.arguments.single_active_consumer:
        raise AccessRefused(
            f"queue '{queue.name}' in vhost '{channel.vhost.name}' in exclusive use: it has a single active consumer"
        )
    offset = (
        first_offset(queue, channel.vhost, (method.arguments or {}).get("x-stream-offset"))
        if isinstance(queue, StreamQueue)
        else 0
    )
    _reply(channel, method, spec.Basic.ConsumeOk(tag))
    consumer = receiver.consume(queue, tag, method.no_ack, method.exclusive, priority)
    if isinstance(queue, StreamQueue):
        queue.attach(AmqpStreamConsumer(consumer, offset, channel.connection, receiver.unacked))


def _tag(channel: Channel, method: spec.Basic.Consume) -> str:
    most = channel.vhost.limits.channel_consumers
    if 0 < most <= len(channel.receiver.consumers):
        raise NotAllowed(f"reached maximum ({most}) of consumers per channel")
    tag = method.consumer_tag or f"amq.ctag-{channel.connection.front.broker.new_id()}"
    if tag in channel.receiver.consumers:
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    return tag


def basic_cancel(channel: Channel, method: spec.Basic.Cancel) -> None:
    channel.receiver.cancel(method.consumer_tag or "")
    _reply(channel, method, spec.Basic.CancelOk(method.consumer_tag))


def basic_get(channel: Channel, method: spec.Basic.Get) -> None:
    queue = _queue(channel, method.queue, "read")
    if isinstance(queue, StreamQueue):
        raise AmqpError(
            540,
            f"basic.get not supported by stream queues queue '{queue.name}' in vhost '{channel.vhost.name}'",
        )
    channel.receiver.get(queue, method.no_ack)


def basic_ack(channel: Channel, method: spec.Basic.Ack) -> None:
    channel.receiver.ack(method.delivery_tag, method.multiple)


def basic_nack(channel: Channel, method: spec.Basic.Nack) -> None:
    channel.receiver.nack(method.delivery_tag, method.multiple, method.requeue)


def basic_reject(channel: Channel, method: spec.Basic.Reject) -> None:
    channel.receiver.nack(method.delivery_tag or 0, False, method.requeue)


def basic_recover(channel: Channel, method: spec.Basic.Recover) -> None:
    basic_recover_async(channel, method)
    _reply(channel, method, spec.Basic.RecoverOk())


def basic_recover_async(
    channel: Channel, method: spec.Basic.Recover | spec.Basic.RecoverAsync
) -> None:
    if not method.requeue:
        raise AmqpError(540, "requeue=false")
    channel.receiver.recover()


def confirm_select(channel: Channel, method: spec.Confirm.Select) -> None:
    channel.select_confirms()
    _reply(channel, method, spec.Confirm.SelectOk())


def tx_select(channel: Channel, method: spec.Tx.Select) -> None:
    channel.select()
    channel.reply(spec.Tx.SelectOk())


def tx_commit(channel: Channel, method: spec.Tx.Commit) -> None:
    channel.commit()
    channel.reply(spec.Tx.CommitOk())


def tx_rollback(channel: Channel, method: spec.Tx.Rollback) -> None:
    channel.rollback()
    channel.reply(spec.Tx.RollbackOk())


def channel_flow(channel: Channel, method: spec.Channel.Flow) -> None:
    if not method.active:
        raise AmqpError(540, "active=false")
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
    if not getattr(method, "nowait", False):
        channel.reply(reply)


def _last(channel: Channel) -> str:
    """The queue that a method means when it names none."""
    if not channel.last_queue:
        raise NotFound("no previously declared queue")
    return channel.last_queue


def _queue(channel: Channel, name: str, operation: str) -> Queue:
    """The queue that is meant, when the identity may do this with it: names are told to nobody
    else.
    """
    name = name or _last(channel)
    _may(channel, operation, "queue", name)
    return channel.vhost.queue(name, channel.connection)


def _no_default(exchange: str) -> None:
    if not exchange:
        raise AccessRefused("operation not permitted on the default exchange")


def _may(channel: Channel, operation: str, kind: str, name: str) -> None:
    channel.identity.may(operation, kind, name, channel.vhost.name)


def _may_hear(channel: Channel, source: str, key: str) -> None:
    check_binding(channel.identity, channel.vhost.exchange(source), key, channel.vhost.name)
