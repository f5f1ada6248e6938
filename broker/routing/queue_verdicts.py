"""Predicts what a destination would do with a message that is routed to it now: its verdict.

Nothing is published: the verdict is read from the destination's arguments and its present length.
The size and the expiration of the message are not considered: a limit in bytes is compared with the
size of the messages that wait already.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import AT_MOST_ONCE
from broker.queues.arguments import UNLIMITED
from broker.queues.delay import DelayQueue
from broker.queues.duplicate_filter import DuplicateFilter
from broker.queues.limited import LimitedQueue
from broker.queues.queue import Queue
from broker.queues.recent import RecentQueue
from broker.routing.subscriber import Subscriber
from broker.stream.queue import StreamQueue

#: Kinds of verdicts: the destination takes the message; takes it and drops its oldest message;
#: drops it unless a consumer is ready for it; drops it; keeps it until its delay is over; refuses
#: it, and the publisher gets a negative confirm; cannot represent the routing key.
TAKES: Final = "takes"
DROPS_OLDEST: Final = "drops_oldest"
NEEDS_CONSUMER: Final = "needs_consumer"
DROPS: Final = "drops"
DELAYS: Final = "delays"
REFUSES: Final = "refuses"
UNREPRESENTABLE: Final = "cannot_represent"


class QueueVerdict:
    """A verdict about a message: what a destination would do, as a kind and a text."""

    def __init__(self, kind: str, text: str) -> None:
        self.kind = kind
        self.text = text


def verdict_of(target: Queue | Subscriber, qos: i64) -> QueueVerdict:
    """Return what a destination would do with a message that is routed to it now.

    `qos` is the highest QoS of the bindings to this destination.
    """
    if isinstance(target, Subscriber):
        return _of_subscriber(target, qos)
    if isinstance(target, DelayQueue):
        return QueueVerdict(DELAYS, "the exchange keeps the message until its delay is over")
    if isinstance(target, RecentQueue):
        return QueueVerdict(TAKES, "the message joins the history of the exchange")
    if isinstance(target, DuplicateFilter):
        return QueueVerdict(TAKES, "the exchange remembers the message's x-deduplication-header")
    if isinstance(target, StreamQueue):
        return QueueVerdict(TAKES, "the stream appends the message")
    return _of_limited(target) if isinstance(target, LimitedQueue) else QueueVerdict(TAKES, "")


def _of_subscriber(target: Subscriber, qos: i64) -> QueueVerdict:
    if target.is_connected:
        return QueueVerdict(
            TAKES, f"a client is connected, and receives the message with QoS {qos} at most"
        )
    if qos == AT_MOST_ONCE:
        return QueueVerdict(
            DROPS, "no client is connected, and a subscription with QoS 0 keeps no messages"
        )
    full = _full(target.inbox.depth, target.inbox.max_length)
    if full:
        return QueueVerdict(
            DROPS_OLDEST, f"the session is full ({full}): its oldest message is dropped"
        )
    return QueueVerdict(
        TAKES,
        "no client is connected: messages with QoS 1 or 2 wait, and are delivered with QoS "
        f"{qos} at most; messages with QoS 0 are lost",
    )


def _full(depth: i64, most: i64) -> str:
    """Return "DEPTH of MOST messages" if `depth` reaches the limit `most`; else an empty text."""
    return f"{depth} of {most} messages" if most != UNLIMITED and depth >= most else ""


def _of_limited(queue: LimitedQueue) -> QueueVerdict:
    arguments = queue.arguments
    full = _full(queue.depth, arguments.max_length)
    if not full and arguments.max_bytes != UNLIMITED and queue.waiting_bytes >= arguments.max_bytes:
        full = f"{queue.waiting_bytes} of {arguments.max_bytes} bytes"
    if full and arguments.reject_publish:
        dead = ", and dead-letters them" if arguments.dead_letter_refused else ""
        return QueueVerdict(
            REFUSES, f"the queue is full ({full}), and x-overflow refuses new messages{dead}"
        )
    if full and (arguments.max_length == 0 or arguments.max_bytes == 0):
        return QueueVerdict(
            NEEDS_CONSUMER,
            f"the length limit is 0: without a ready consumer, the message is {_end(queue)}",
        )
    if full:
        return QueueVerdict(
            DROPS_OLDEST, f"the queue is full ({full}): the oldest message is {_end(queue)}"
        )
    if arguments.ttl == 0:
        return QueueVerdict(
            NEEDS_CONSUMER,
            f"the time to live is 0 ms: without a ready consumer, the message is {_end(queue)}",
        )
    if queue.behind:
        return QueueVerdict(
            TAKES, "publishers wait, because many dead letters of the queue are not published yet"
        )
    if arguments.ttl > 0:
        return QueueVerdict(TAKES, f"after {arguments.ttl} ms the message is {_end(queue)}")
    return QueueVerdict(TAKES, "")


def _end(queue: LimitedQueue) -> str:
    """Return what happens to a message that the queue discards: dropped, or dead-lettered."""
    target = queue.arguments.dead_letter_exchange
    return "dropped" if target is None else f"dead-lettered to exchange '{target}'"
