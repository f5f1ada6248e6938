"""The method basic.consume: checks the client's request, and starts a consumer."""

from __future__ import annotations

from typing import Final

import pamqp.commands as spec

from broker.errors import AccessRefused, NotAllowed, PreconditionFailed
from broker.stream.queue import StreamQueue
from protocols.amqp.channel.channel import Channel
from protocols.amqp.channel.consumer import AmqpConsumer
from protocols.amqp.channel.streaming import AmqpStreamConsumer, StreamStart, check_stream_consumer
from protocols.amqp.connection.method_checks import REPLY_QUEUE, permitted_queue, reply

#: Highest priority of a consumer; the lowest priority is the negative of this number.
PRIORITY_MAX: Final = 1 << 31


def _consume_replies(channel: Channel, method: spec.Basic.Consume, tag: str) -> None:
    """Start the channel's consumer of direct replies, with the consumer tag `tag`, and reply.

    Raises PreconditionFailed if the consumer requires acknowledgements or exists already.
    """
    if not method.no_ack:
        raise PreconditionFailed("reply consumer cannot acknowledge")
    if channel.receiver.replies is not None:
        raise PreconditionFailed("reply consumer already set")
    reply(channel, method, spec.Basic.ConsumeOk(tag))
    channel.receiver.consume_replies(tag)


def basic_consume(channel: Channel, method: spec.Basic.Consume) -> None:
    """Handle basic.consume: check the request, send consume-ok, and start a consumer of the queue.

    Raises AccessRefused for a missing permission or an exclusive queue, PreconditionFailed for an
    invalid argument, NotAllowed for a consumer tag in use or too many consumers, NotFound if the
    queue does not exist.
    """
    if method.queue == REPLY_QUEUE:
        _consume_replies(channel, method, _new_consumer_tag(channel, method))
        return
    receiver = channel.receiver
    queue = permitted_queue(channel, method.queue, "read")
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
            "a queue with x-single-active-consumer accepts no exclusive consumer"
        )
    start: StreamStart | None = None
    offset = 0
    if isinstance(queue, StreamQueue):
        wanted = (method.arguments or {}).get("x-stream-offset")
        start = StreamStart(queue, channel.vhost, wanted)
        offset = int(start.offset_now())
    reply(channel, method, spec.Basic.ConsumeOk(tag))
    consumer = receiver.consume(queue, tag, method.no_ack, method.exclusive, priority)
    if method.arguments:
        consumer.keep_arguments(method.arguments)
    if isinstance(queue, StreamQueue) and start is not None:
        queue.attach(
            AmqpStreamConsumer(consumer, start, offset, channel.connection, receiver.unacked)
        )


def _new_consumer_tag(channel: Channel, method: spec.Basic.Consume) -> str:
    """Return the client's tag for a new consumer, or a generated tag if the client gives none.

    Raises NotAllowed if the tag is in use, or the channel has too many consumers.
    """
    limit = channel.vhost.limits.channel_consumers
    if 0 < limit <= len(channel.receiver.consumers):
        raise NotAllowed(f"reached maximum ({limit}) of consumers per channel")
    tag = method.consumer_tag or f"amq.ctag-{channel.connection.front.broker.new_id()}"
    if not channel.receiver.is_free(tag):
        raise NotAllowed(f"attempt to reuse consumer tag '{tag}'")
    return tag
