"""Counts of one queue or session: messages that came, that were delivered, and how each ended."""

from __future__ import annotations

from broker.messages.fates import COPY_FATES
from broker.queues.queue import Queue
from broker.queues.statistics import DEAD_EXPIRED, DEATH_REASONS, STATISTICS
from broker.routing.subscriber import Subscriber


def ended_of(queue: Queue) -> dict[str, int]:
    """Return the number of ended messages of a queue by fate, without counts of 0.

    The names of fates are the values of the label `fate` in the metrics. Dead letters are divided
    by their reason: `dead_lettered_expired`, `dead_lettered_maxlen`, `dead_lettered_rejected` and
    `dead_lettered_delivery_limit`.
    """
    counts = dict(zip(COPY_FATES, queue.fates(), strict=True))
    del counts["dead_lettered"]
    counts |= {f"dead_lettered_{reason}": count for reason, count in dead_letters_of(queue).items()}
    return {name: count for name, count in counts.items() if count}


def dead_letters_of(queue: Queue) -> dict[str, int]:
    """Return the number of dead letters of a queue by reason."""
    events = queue.events()
    return {reason: events[int(DEAD_EXPIRED) + at] for at, reason in enumerate(DEATH_REASONS)}


def counts_of_queue(queue: Queue) -> dict[str, int]:
    """Return the columns of counts that `trellis list queues` shows."""
    statistics = dict(zip(STATISTICS, queue.statistics(), strict=True))
    fates = dict(zip(COPY_FATES, queue.fates(), strict=True))
    delivered = ("deliver", "deliver_no_ack", "get", "get_no_ack", "redeliver")
    return {
        "published": statistics["publish"],
        "delivered": sum(statistics[name] for name in delivered),
        "redelivered": statistics["redeliver"],
        "acknowledged": statistics["ack"],
        "expired": fates["expired"],
        "over_limit": fates["over_limit"],
        "rejected": fates["rejected"],
        "dead_lettered": fates["dead_lettered"],
        **{f"dead_lettered_{reason}": count for reason, count in dead_letters_of(queue).items()},
    }


def counts_of_session(session: Subscriber) -> dict[str, int]:
    """Return the columns of counts that `trellis list sessions` shows.

    The columns count the messages of the session's inbox (QoS 1 and 2), and the messages with QoS
    0, which go to the client directly. Of the messages with QoS 0, `delivered_qos0` were written to
    the client's connection, and `dropped` and `missed` were lost. The messages of a shared
    subscription are counted for the inbox of its group.
    """
    counts = counts_of_queue(session.inbox)
    relayed = int(session.relayed)
    counts["published"] += relayed + int(session.dropped) + int(session.missed)
    counts["delivered"] += relayed
    return counts | {"delivered_qos0": relayed}
