"""The reasons why a queue grows, stands still or loses messages.

counts_of(queue)                 twice, some seconds apart
queue_findings(vhost, queue, ..) the problems, the most important first
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from broker.messages.fates import COPY_FATES, EXPIRED, OVER_LIMIT, OVERDELIVERED, REJECTED
from broker.queues.arguments import UNLIMITED
from broker.queues.consumer import Consumer
from broker.queues.limited import LimitedQueue
from broker.queues.queue import Queue
from broker.queues.statistics import REDELIVERED
from broker.stream.queue import StreamQueue
from broker.vhost.vhost import VirtualHost
from protocols.amqp.channel.consumer import AmqpConsumer
from trellis.diagnosis.findings import Problem, command, in_vhost, only, plural, waiting

#: Largest number of consumers of a queue that are examined.
CONSUMERS_MAX: Final = 1_000
#: A message at the head of a queue that was returned this number of times is called a poison
#: message.
POISON_RETURNS: Final = 3
#: States of a consumer.
READY, FULL, CHANNEL_FULL, SLOW = "ready", "full", "channel_full", "slow"


class QueueCounts(msgspec.Struct):
    """Counts of a queue at one time.

    Since the broker started, `published` messages have arrived, and `settled` ones have left the
    queue. `ready` messages wait, and `unacknowledged` ones are delivered but not acknowledged. `at`
    is a monotonic time in seconds.
    """

    at: float
    published: int
    settled: int
    ready: int
    unacknowledged: int


def counts_of(queue: Queue, at: float) -> QueueCounts:
    """Return the counts of a queue at the time `at`."""
    published, settled = queue.statistics()[0], sum(queue.fates())
    return QueueCounts(at, published, settled, int(queue.depth), int(queue.unacked))


def queue_findings(
    vhost: VirtualHost, queue: Queue, before: QueueCounts | None, now: QueueCounts
) -> list[Problem]:
    """Return the problems of a queue, the most important first.

    `now` are the present counts, and `before` the counts some seconds ago. If `before` is None, the
    growth of the queue is not examined.
    """
    problems: list[Problem] = []
    if not isinstance(queue, StreamQueue):
        problems += _consumers(vhost, queue)
    problems += _head(vhost, queue)
    problems += _growth(before, now, next_consumers(vhost, queue))
    problems += _limits(vhost, queue)
    problems += _dead_letters(vhost, queue)
    return problems


def next_consumers(vhost: VirtualHost, queue: Queue) -> str:
    """Return the command that lists the consumers of a queue, or the session of an inbox."""
    if queue.private:
        return command("list", "sessions", *only("inbox", queue.name), *in_vhost(vhost.name))
    return command("list", "consumers", *only("queue", queue.name), *in_vhost(vhost.name))


def watch_queue(vhost: VirtualHost, queue: Queue) -> str:
    """Return the command to type next if a queue, or the inbox of a session, has no problem."""
    if queue.private:
        return next_consumers(vhost, queue)
    return command("list", "queues", *only("name", queue.name), *in_vhost(vhost.name), "--watch")


# -- consumers


def state_of(consumer: Consumer) -> str:
    """Return why a consumer gets no message now; READY if nothing prevents a delivery."""
    pool = consumer.pool
    if consumer.credit <= 0:
        return FULL
    if pool is not None and pool.credit <= 0:
        return CHANNEL_FULL
    return SLOW if consumer.outlet.paused else READY


def _consumers(vhost: VirtualHost, queue: Queue) -> Iterator[Problem]:
    ready = int(queue.depth)
    if queue.paused:
        yield Problem(
            "paused",
            f"an operator has paused the queue, and {waiting(ready)}",
            command("resume", queue.name, *in_vhost(vhost.name)),
        )
    if queue.consumer_count == 0:
        if ready:
            kind = "client of the session" if queue.private else "consumer"
            yield Problem(
                "no_consumer",
                f"no {kind} is connected, and {waiting(ready)}",
                command("list", "sessions" if queue.private else "connections"),
            )
        return
    if queue.held and not queue.paused:
        yield Problem(
            "held",
            "a client returns very many messages at once; deliveries continue when all of them are "
            "in the queue again",
            next_consumers(vhost, queue),
        )
    active = queue.consumers[:CONSUMERS_MAX]
    states = [state_of(consumer) for consumer in active]
    if not ready or READY in states:
        return
    yield from _full(
        vhost, queue, [one for one, state in zip(active, states, strict=True) if state == FULL]
    )
    others = (
        (
            CHANNEL_FULL,
            "channel_prefetch_full",
            "wait, because the prefetch that all consumers of their channel share is used up",
        ),
        (
            SLOW,
            "slow_consumers",
            "do not read fast enough, so that their connections have unsent output",
        ),
    )
    for state, problem, text in others:
        count = states.count(state)
        if count:
            yield Problem(
                problem,
                f"consumers that {text}: {count:,} of {len(active):,}",
                command("list", "connections"),
            )
    if queue.standby and queue.arguments.single_active_consumer:
        yield Problem(
            "single_active_consumer",
            "only the first consumer is active (x-single-active-consumer); consumers that stand "
            f"by: {len(queue.standby):,}",
            next_consumers(vhost, queue),
        )


def _full(vhost: VirtualHost, queue: Queue, full: list[Consumer]) -> Iterator[Problem]:
    """Yield a finding about the consumers that hold as many messages as their prefetch allows."""
    if not full:
        return
    largest = ""
    named = [one for one in full if isinstance(one, AmqpConsumer)]
    if named:
        most = max(named, key=lambda one: int(one.prefetch))
        largest = f"; consumer '{most.tag}' holds {plural(int(most.prefetch), 'message')}"
    limit = "Receive Maximum" if queue.private else "prefetch"
    yield Problem(
        "prefetch_full",
        f"consumers that hold as many messages as their {limit} allows, and acknowledge none: "
        f"{len(full):,} of {queue.consumer_count:,}{largest}; unacknowledged messages: "
        f"{int(queue.unacked):,}",
        command("list", "sessions" if queue.private else "connections"),
    )


# -- messages


def _head(vhost: VirtualHost, queue: Queue) -> Iterator[Problem]:
    if queue.waits_for_mark:
        yield Problem(
            "disk",
            "deliveries wait until the disk has stored the queue's record of them (delivery mark)",
            command("health"),
        )
    if queue.depth > 0 and queue.depth == queue.paged:
        yield Problem(
            "descriptors",
            "the next messages are on disk, and the broker has no free file descriptor to read "
            "them: raise the limit (`ulimit -n`)",
            command("health"),
        )
    returns = queue.head_attempts
    if returns >= POISON_RETURNS:
        limit = int(queue.arguments.delivery_limit)
        bound = (
            f"; after {limit:,} returns, the queue drops or dead-letters the message"
            if limit >= 0
            else "; no delivery limit stops the returns (x-delivery-limit, or `delivery-limit` of "
            "a policy)"
        )
        yield Problem(
            "poison",
            f"the first message was returned {returns:,} times: consumers reject this message or "
            f"close their channel{bound}",
            command("list", "policies"),
        )
    redelivered, acknowledged = queue.events()[REDELIVERED], int(queue.acknowledged)
    if redelivered > max(10, acknowledged) and returns < POISON_RETURNS:
        yield Problem(
            "returned",
            f"consumers return most messages: {redelivered:,} repeated deliveries, and only "
            f"{plural(acknowledged, 'acknowledgement')}",
            command("peek", queue.name, *in_vhost(vhost.name)),
        )


def _growth(before: QueueCounts | None, now: QueueCounts, consumers: str) -> Iterator[Problem]:
    """Yield a finding if the queue grows or stands still.

    `consumers` is the command that lists the queue's consumers.
    """
    if before is None or now.at <= before.at:
        return
    seconds = now.at - before.at
    came = (now.published - before.published) / seconds
    ended = (now.settled - before.settled) / seconds
    grows = (now.ready + now.unacknowledged - before.ready - before.unacknowledged) / seconds
    if grows >= 1:
        yield Problem(
            "growing",
            f"the queue grows by {grows:,.0f} messages/s: {came:,.0f} arrive, {ended:,.0f} leave",
            consumers,
        )
    elif now.ready and came < 0.5 and ended < 0.5:
        text = f"no message arrived or was settled within {seconds:,.1f} s"
        yield Problem("still", text, consumers)


def _limits(vhost: VirtualHost, queue: Queue) -> Iterator[Problem]:
    arguments = queue.arguments
    fates = queue.fates()
    source = _source(vhost, queue)
    if isinstance(queue, LimitedQueue):
        limits = []
        if arguments.max_length != UNLIMITED and queue.depth >= arguments.max_length:
            limits.append(plural(int(arguments.max_length), "message"))
        if arguments.max_bytes != UNLIMITED and queue.waiting_bytes >= arguments.max_bytes:
            limits.append(plural(int(arguments.max_bytes), "byte"))
        if limits:
            drops = "drops its oldest messages"
            effect = "refuses new messages" if arguments.reject_publish else drops
            yield Problem(
                "full",
                f"the queue is full (limit{source}: {' and '.join(limits)}) and {effect}",
                command("list", "policies"),
            )
        if queue.behind:
            yield Problem(
                "dead_letters_wait",
                "very many dead letters of the queue wait to be published, so its publishers wait",
                _dead_letter_route(vhost, queue),
            )
    lost = (
        (EXPIRED, "expired", "their time to live was over"),
        (OVER_LIMIT, "over_limit", "the queue was full"),
        (
            REJECTED,
            "rejected",
            "consumers rejected them, and there is no dead letter exchange",
        ),
        (OVERDELIVERED, "delivery_limit", "they were returned too often"),
    )
    for fate, problem, reason in lost:
        if fates[fate]:
            yield Problem(
                problem,
                f"messages lost since the start because {reason}: {fates[fate]:,}"
                + (f" (limit{source})" if source and fate != REJECTED else ""),
                command("list", "policies"),
            )


def _source(vhost: VirtualHost, queue: Queue) -> str:
    """Return " of policy 'NAME'" for the policy that limits the queue; "" if there is none."""
    if queue.private:
        return ""
    policy = vhost.policies.for_queue(queue.name, queue.arguments.arguments.get("x-queue-type"))
    return "" if policy is None else f" of policy '{policy.name}'"


def _dead_letters(vhost: VirtualHost, queue: Queue) -> Iterator[Problem]:
    arguments = queue.arguments
    name = arguments.dead_letter_exchange
    if name is None:
        return
    if name not in vhost.exchanges:
        yield Problem(
            "dead_letter_exchange",
            f"dead letters are lost: their exchange '{name}' does not exist",
            command("list", "exchanges"),
        )
        return
    count = queue.fates()[COPY_FATES.index("dead_lettered")]
    if count:
        yield Problem(
            "dead_lettered",
            f"messages that went to the dead letter exchange '{name}': {count:,}",
            _dead_letter_route(vhost, queue),
        )


def _dead_letter_route(vhost: VirtualHost, queue: Queue) -> str:
    """Return the command that shows where the dead letters of a queue go."""
    arguments = queue.arguments
    exchange, key = arguments.dead_letter_exchange, arguments.dead_letter_key
    return command("route", exchange or "amq.default", key or "KEY", *in_vhost(vhost.name))
