"""Replacement of a queue by a queue of another class, because of a policy."""

from __future__ import annotations

from broker.queues.consumer import NO_CONSUMERS
from broker.queues.queue import Queue
from broker.queues.waiting import WaitingMessages


def replace_queue(old: Queue, new: Queue) -> None:
    """Move the messages, counters and consumers of a queue to a new queue of the same name."""
    new.number, new.declared_durable, new.exclusive_to = (
        old.number,
        old.declared_durable,
        old.exclusive_to,
    )
    new.auto_delete, new.depth, new.unacked = old.auto_delete, old.depth, old.unacked
    new.acknowledged, new.auto_acknowledged = old.acknowledged, old.auto_acknowledged
    new.consumers, new.standby = old.consumers, old.standby
    new._fates, new._events = old._fates, old._events
    new._waiting, old._waiting = old._waiting, WaitingMessages()
    new._gate, new._deliver_up_to = old._gate, old._deliver_up_to
    if new._gate is not None:
        new._gate.queue = new
    new._set_overflow_depth()
    new._holds, new.paused, old._holds = old._holds, old.paused, 0
    new._drain_scheduled = new._holds > 0
    for consumer in new.consumers + new.standby:
        consumer.queue = new
    old.dead = True
    old.replacement = new
    old.consumers, old.standby, old.depth = NO_CONSUMERS, NO_CONSUMERS, 0
    if old._upkeep is not None:
        old._upkeep.end()
    if new.depth > new._waiting.paged:
        new._schedule_expiry(new._head().expires)
    new.schedule_drain()
