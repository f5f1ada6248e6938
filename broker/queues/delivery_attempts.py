"""The number of times that a message was returned, as stored and as a header for consumers."""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.message import Message, amend
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import ReturnedMessage
from broker.queues.queue import Queue
from broker.store.entries import DeliveryCounted


def store_attempts(queue: Queue, position: i64, attempts: i64) -> None:
    """Store how often a message was returned, if an argument of the queue uses this number.

    The caller does not call this for the first return: the log's delivery mark (delivery_window.py)
    already says that the message was delivered.
    """
    arguments = queue.arguments
    if (
        position > 0
        and queue.durable
        and queue.store.keeps_deliveries
        and (arguments.delivery_limit >= 0 or arguments.quorum or arguments.retry_min > 0)
    ):
        queue.store.append(DeliveryCounted(queue.number, position, attempts), None)


def with_delivery_count(returned: ReturnedMessage, arguments: QueueArguments) -> None:
    """Add the header `x-delivery-count` to the message, if its queue counts deliveries."""
    if arguments.delivery_limit >= 0 or arguments.quorum:
        message = returned.message
        counted = Message(
            message.address,
            message.content,
            amend(message.encoding, {"x-delivery-count": int(returned.attempts)}, {}),
            message.qos,
        )
        counted.expires = message.expires
        counted.position = message.position
        returned.message = counted
