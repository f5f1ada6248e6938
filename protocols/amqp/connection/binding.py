"""The methods that bind exchanges and queues to exchanges, and remove these bindings."""

from __future__ import annotations

from typing import Any, Final

import pamqp.base
import pamqp.commands as spec

from broker.routing.binding import Binding
from protocols.amqp.channel.channel import Channel
from protocols.amqp.connection.method_checks import (
    last_queue,
    refuse_default_exchange,
    reply,
    require,
    rights_of,
    stripped,
)

#: An exchange of type x-recent-history delivers its history to a new binding at once. Such a bind
#: costs FIRST_MESSAGES units of BUDGET, and one more unit for each LISTED_PER_UNIT messages of the
#: history.
FIRST_MESSAGES: Final = 100
LISTED_PER_UNIT: Final = 10


def exchange_bind(channel: Channel, method: spec.Exchange.Bind) -> None:
    """Handle exchange.bind: bind an exchange to another exchange, and reply.

    Raises AccessRefused if the user lacks a permission, NotFound if one of the exchanges does not
    exist.
    """
    vhost = channel.vhost
    destination_name, source_name = stripped(method.destination), stripped(method.source)
    refuse_default_exchange(destination_name)
    refuse_default_exchange(source_name)
    require(channel, "write", "exchange", destination_name)
    require(channel, "read", "exchange", source_name)
    destination = vhost.exchange(destination_name)
    source = vhost.exchange(source_name)
    rights_of(channel).check_binding(source, method.routing_key, destination)
    binding = Binding(method.routing_key, destination, arguments=method.arguments)
    _bind(channel, method, spec.Exchange.BindOk(), source_name, binding)


def exchange_unbind(channel: Channel, method: spec.Exchange.Unbind) -> None:
    """Handle exchange.unbind: remove a binding between exchanges, and reply.

    Also reply if the binding does not exist. Raises AccessRefused if the user may not remove it.
    """
    vhost = channel.vhost
    destination_name, source_name = stripped(method.destination), stripped(method.source)
    refuse_default_exchange(destination_name)
    refuse_default_exchange(source_name)
    require(channel, "write", "exchange", destination_name)
    require(channel, "read", "exchange", source_name)
    destination = vhost.exchanges.get(destination_name)
    if destination is not None:
        vhost.unbind(
            source_name,
            Binding(method.routing_key, destination, arguments=method.arguments),
            channel.ticket,
        )
    else:
        vhost.reply_when_all_durable(channel.ticket)
    reply(channel, method, spec.Exchange.UnbindOk())


def queue_bind(channel: Channel, method: spec.Queue.Bind) -> None:
    """Handle queue.bind: bind a queue to an exchange, and reply.

    Raises AccessRefused if the user lacks a permission, NotFound if the queue or exchange does not
    exist.
    """
    exchange, name, key = _binding(channel, method)
    queue = channel.vhost.queue(name, channel.connection)
    rights_of(channel).check_binding(channel.vhost.exchange(exchange), key, None)
    binding = Binding(key, queue, arguments=method.arguments)
    _bind(channel, method, spec.Queue.BindOk(), exchange, binding)


def queue_unbind(channel: Channel, method: spec.Queue.Unbind) -> None:
    """Handle queue.unbind: remove a binding of a queue, and reply.

    Also reply if the binding does not exist. Raises AccessRefused if the user may not remove it.
    """
    exchange, name, key = _binding(channel, method)
    if name in channel.vhost.queues:
        queue = channel.vhost.queue(name, channel.connection)
        channel.vhost.unbind(
            exchange, Binding(key, queue, arguments=method.arguments), channel.ticket
        )
    else:
        channel.vhost.reply_when_all_durable(channel.ticket)
    reply(channel, method, spec.Queue.UnbindOk())


def _bind(
    channel: Channel, method: Any, answer: pamqp.base.Frame, source: str, binding: Binding
) -> None:
    """Add a binding to an exchange, and reply.

    An exchange of type x-recent-history first delivers its last messages, the history, to the
    destination of the binding. The reply and the connection's later methods wait until these
    messages are delivered. During an alarm, the later methods also wait until the alarm ends, as
    they do after a publication. So a client cannot fill the memory by binding again and again.
    """
    connection = channel.connection
    replay = channel.vhost.bind(source, binding, channel.ticket)
    if replay is None or replay.size == 0:
        reply(channel, method, answer)
        return
    connection.extra_cost += FIRST_MESSAGES + replay.size // LISTED_PER_UNIT
    if replay.has_work():
        connection.stall()
        replay.on_end = lambda: _end_binding(channel, method, answer)
        return
    reply(channel, method, answer)
    if connection.stalled:
        connection.blocks_after_stall = True
    elif channel.vhost.alarmed:
        connection.block()


def _end_binding(channel: Channel, method: Any, answer: pamqp.base.Frame) -> None:
    """Reply to a queue.bind or exchange.bind, and handle the client's further input.

    Called when the last messages of the exchange (x-recent-history) were delivered to the
    destination of the binding.
    """
    connection = channel.connection
    if connection.finished:
        return
    connection.blocks_after_stall = True
    connection.stalled = False
    if not channel.receiver.closed:
        reply(channel, method, answer)
    if not connection.stalled:
        connection.resume_input()


def _binding(channel: Channel, method: spec.Queue.Bind | spec.Queue.Unbind) -> tuple[str, str, str]:
    """Return the exchange, queue and routing key of the binding that a client adds or removes.

    Raises AccessRefused if the user may not change the binding, NotFound if the client names no
    queue and the channel has declared none.
    """
    exchange, given = stripped(method.exchange), stripped(method.queue)
    refuse_default_exchange(exchange)
    name = given or last_queue(channel)
    require(channel, "write", "queue", name)
    require(channel, "read", "exchange", exchange)
    # If the client names neither queue nor key, the queue declared last is bound under its own name
    # (section 1.7.2.3).
    return exchange, name, method.routing_key or ("" if given else name)
