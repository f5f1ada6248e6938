"""Pauses a queue: the queue takes messages and delivers none until an operator resumes it.

A pause is one hold of the queue (`Queue.hold`). A consumer keeps the messages that it has; it may
settle and return them. A client that polls (basic.get) gets no message. Messages expire, and limits
drop messages, as in any queue. The pause lives in memory: it ends with the broker.
"""

from __future__ import annotations

from broker.queues.queue import Queue


def pause(queue: Queue) -> bool:
    """Deliver nothing until `resume`. Return False if the queue is paused already."""
    if queue.paused:
        return False
    queue.paused = True
    queue.hold()
    return True


def resume(queue: Queue) -> bool:
    """Deliver again. Return False if the queue is not paused."""
    if not queue.paused:
        return False
    queue.paused = False
    queue.free()
    return True
