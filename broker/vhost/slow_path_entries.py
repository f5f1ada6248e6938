"""The slow path of publishing: stores a message for its queues, or delays the message."""

from __future__ import annotations

from broker.messages.cc_headers import BCC
from broker.messages.message import AT_MOST_ONCE, EXACTLY_ONCE, Message, amend
from broker.queues.delay import DelayQueue
from broker.queues.limited import LimitedQueue
from broker.routing.exchanges.delayed import delay_of
from broker.routing.plan import Plan
from broker.store.contract import Store, Ticket
from broker.store.entries import MessageStored


def store_message(
    vhost: str,
    store: Store,
    message: Message,
    plan: Plan,
    refusing: list[LimitedQueue],
    ticket: Ticket | None,
) -> None:
    """Store the message for the plan's durable queues, except the `refusing` queues."""
    numbers = plan.numbers
    if refusing:
        numbers = [int(queue.number) for queue in plan.durable if queue not in refusing]
    if numbers:
        annotations: list[int] | None = None
        if plan.annotated:
            qos1_inboxes = plan.qos1_inboxes if message.qos == EXACTLY_ONCE else []
            annotations = [
                queue.annotate(queue in qos1_inboxes)
                for queue in plan.durable
                if queue not in refusing
            ]
        message.position = store.append(MessageStored(vhost, message, numbers, annotations), ticket)


def delay(
    vhost: str,
    store: Store,
    waiting: DelayQueue,
    message: Message,
    blind: list[str],
    ticket: Ticket | None,
) -> None:
    """Put a copy of the message into the queue of a delayed exchange.

    The copy keeps the `blind` routing keys (BCC) in its headers until the delay is over.
    """
    copy = message.copy(message.qos, False)
    if blind:
        copy.encoding = amend(copy.encoding, {BCC: blind}, {})
    copy.position = 0
    copy.expires = waiting.agenda.now + delay_of(message.properties)
    if copy.qos > AT_MOST_ONCE and waiting.durable:
        copy.position = store.append(MessageStored(vhost, copy, [int(waiting.number)]), ticket)
    waiting.put(copy)
