"""The methods that declare, purge and delete exchanges and queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import pamqp.commands as spec

from broker.errors import AccessRefused, PreconditionFailed, no_queue
from broker.routing.exchanges.base import ExchangeOptions
from broker.stream.queue import StreamQueue
from broker.vhost.client_declarations import purge_queue, with_default_type
from protocols.amqp.channel.channel import Channel
from protocols.amqp.connection.method_checks import (
    REPLY_QUEUE,
    is_reply_queue,
    last_queue,
    permitted_queue,
    refuse_default_exchange,
    reply,
    require,
    rights_of,
    stripped,
)
from protocols.amqp.errors import AmqpError

#: The number of queues and exchanges that the check of a declaration visits at the cost of one unit
#: of BUDGET.
WALKED_PER_UNIT: Final = 5


# -- exchanges


#: The exchange type of RabbitMQ's federation plugin at an upstream. If the upstream lacks the type,
#: the plugin uses a fanout exchange, but only after the error 503.
FEDERATION_TYPE: Final = "x-federation-upstream"


def exchange_declare(channel: Channel, method: spec.Exchange.Declare) -> None:
    """Handle exchange.declare: declare an exchange or (passive) check that it exists, and reply.

    Raises AccessRefused for a missing permission or a reserved name, PreconditionFailed for an
    option that is invalid or differs from the existing exchange, NotFound (passive) if the exchange
    does not exist, and AmqpError or NotAllowed for other refusals.
    """
    name, vhost = stripped(method.exchange), channel.vhost
    refuse_default_exchange(name)
    if method.passive:
        vhost.reply_when_durable(vhost.exchange(name), channel.ticket)
    else:
        arguments = method.arguments or {}
        if name not in vhost.exchanges and name.startswith("amq."):
            raise AccessRefused(f"exchange name '{name}' contains reserved prefix 'amq.*'")
        if method.exchange_type == FEDERATION_TYPE:
            raise AmqpError(503, f"unknown exchange type '{FEDERATION_TYPE}'")
        known = name in vhost.exchanges
        rights = rights_of(channel)
        try:
            rights.check_exchange(name, method.exchange_type, arguments, known)
        finally:
            channel.connection.extra_cost += rights.walked // WALKED_PER_UNIT
        options = ExchangeOptions(method.durable, method.auto_delete, method.internal, arguments)
        vhost.declare_exchange(name, method.exchange_type, options, channel.ticket)
    reply(channel, method, spec.Exchange.DeclareOk())


def exchange_delete(channel: Channel, method: spec.Exchange.Delete) -> None:
    """Handle exchange.delete: delete an exchange, and reply.

    Raises AccessRefused if the user may not delete the exchange, or if its name is empty or begins
    with `amq.`.
    """
    name = stripped(method.exchange)
    refuse_default_exchange(name)
    if name.startswith("amq."):
        raise AccessRefused(
            f"deletion of system exchange '{name}' in vhost '{channel.vhost.name}' not allowed"
        )
    require(channel, "configure", "exchange", name)
    channel.vhost.delete_exchange(name, method.if_unused, channel.ticket)
    reply(channel, method, spec.Exchange.DeleteOk())


# -- queues


def queue_declare(channel: Channel, method: spec.Queue.Declare) -> None:
    """Handle queue.declare: declare a queue, or check that it exists (passive).

    The reply has the queue's name, its number of ready messages and its number of consumers. If the
    client sends no name, the broker generates the name. Raises AccessRefused for a missing
    permission or a reserved name, PreconditionFailed for an option that is invalid or differs from
    the existing queue, ResourceLocked for a queue of another connection or of a session, NotFound
    (passive) if the queue does not exist, and NotAllowed above a limit of queues.
    """
    vhost = channel.vhost
    owner = channel.connection
    given = stripped(method.queue)
    if is_reply_queue(given):
        if given != REPLY_QUEUE and given not in vhost.replies:
            raise no_queue(given, vhost.name)
        reply(channel, method, spec.Queue.DeclareOk(given, 0, 1))
        return
    if method.passive:
        queue = vhost.queue(given or last_queue(channel), owner)
        queue.touch()
        vhost.reply_when_durable(queue, channel.ticket)
    else:
        if given.startswith("amq."):
            raise AccessRefused(f"queue name '{given}' contains reserved prefix 'amq.*'")
        name = given or f"amq.gen-{owner.front.broker.new_id()}"
        arguments: Mapping[str, object] = method.arguments or {}
        if given:
            arguments = with_default_type(
                vhost, name, arguments, method.durable, method.exclusive, method.auto_delete
            )
        # A stream outlives its clients, and later clients would not know a generated name.
        if not given and arguments.get("x-queue-type") == "stream":
            raise PreconditionFailed(
                "Cannot declare a server-named queue for type rabbit_stream_queue"
            )
        rights_of(channel).check_queue(name, arguments, name in vhost.queues)
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
    reply(channel, method, spec.Queue.DeclareOk(queue.name, int(queue.depth), queue.consumer_count))


def queue_purge(channel: Channel, method: spec.Queue.Purge) -> None:
    """Handle queue.purge: remove all ready messages of a queue, and reply with their number.

    Raises AccessRefused if the user may not read the queue, AmqpError 540 for a stream.
    """
    queue = permitted_queue(channel, method.queue, "read")
    if isinstance(queue, StreamQueue):
        raise AmqpError(
            540,
            f"queue.purge not supported by stream queue '{queue.name}' in vhost "
            f"'{channel.vhost.name}': retention (x-max-age, x-max-length-bytes) removes old rows",
        )
    purged = purge_queue(channel.vhost, queue)
    reply(channel, method, spec.Queue.PurgeOk(purged))


def queue_delete(channel: Channel, method: spec.Queue.Delete) -> None:
    """Handle queue.delete: delete a queue, and reply with the number of its messages.

    If the queue does not exist, reply with 0. Raises AccessRefused if the user may not delete the
    queue.
    """
    name = stripped(method.queue) or last_queue(channel)
    require(channel, "configure", "queue", name)
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
    reply(channel, method, spec.Queue.DeleteOk(purged))
