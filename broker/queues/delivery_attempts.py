"""The number of times that a message was requeued: recorded in the store, sent in a header.

The header belongs to the deliveries of one queue: a message that the queue dead-letters, or that an
operator moves, leaves the queue without the header.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import AmendedEncoding, Encoding, Message, amend
from broker.queues.arguments import QueueArguments
from broker.queues.consumer import ReturnedMessage
from broker.queues.queue import Queue
from broker.store.entries import DeliveryCounted

#: The header that tells a consumer how many times a message was returned to its queue.
DELIVERY_COUNT: Final = "x-delivery-count"


def store_attempts(queue: Queue, position: i64, attempts: i64) -> None:
    """Store how many times a message was requeued, if the queue needs this number.

    `position` is the message's position in the store, and `attempts` is the number. A queue needs
    the number for a delivery limit or a delayed retry, or if its type is quorum. The function is
    not called for the first return: the queue's delivery mark in the log already says that the
    message was delivered.
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
    """Add the header `x-delivery-count` to a returned message before its next delivery.

    Do nothing if the queue has no delivery limit and is not a quorum queue. `arguments` are the
    arguments of the queue.
    """
    if arguments.delivery_limit >= 0 or arguments.quorum:
        message = returned.message
        counted = Message(
            message.address,
            message.content,
            amend(message.encoding, {DELIVERY_COUNT: int(returned.attempts)}, {}),
            message.qos,
        )
        counted.expires = message.expires
        counted.position = message.position
        returned.message = counted


def without_delivery_count(encoding: Encoding) -> Encoding:
    """Return the encoding of a message without the header `x-delivery-count` of its queue.

    A header of this name that the publisher has sent stays.
    """
    if isinstance(encoding, AmendedEncoding) and DELIVERY_COUNT in encoding.headers:
        headers = {name: it for name, it in encoding.headers.items() if name != DELIVERY_COUNT}
        return AmendedEncoding(encoding.source, headers, encoding.changed)
    return encoding
