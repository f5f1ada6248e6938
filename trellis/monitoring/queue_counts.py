"""Counts of one queue: how many messages came, were delivered, and how each of them ended."""

from __future__ import annotations

from broker.messages.fates import COPY_FATES
from broker.queues.queue import Queue
from broker.queues.statistics import DEAD_EXPIRED, DEATH_REASONS, STATISTICS


def ended_of(queue: Queue) -> dict[str, int]:
    """Return the number of ended messages of a queue by fate, without counts of 0.

    The names of fates are the values of the label `fate` in the metrics. Dead letters are divided
    by their reason: `dead_lettered_expired`, `dead_lettered_maxlen`, `dead_lettered_rejected` and
    `dead_lettered_delivery_limit`.
    """
    found = dict(zip(COPY_FATES, queue.fates(), strict=True))
    del found["dead_lettered"]
    events = queue.events()
    for at, reason in enumerate(DEATH_REASONS):
        found[f"dead_lettered_{reason}"] = events[int(DEAD_EXPIRED) + at]
    return {name: count for name, count in found.items() if count}


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
    }
