"""Pauses a queue: until an operator resumes it, the queue accepts messages but delivers none.

A pause is one hold of the queue (`Queue.hold`). A consumer keeps the messages that it has, and may
settle and return them. A client that polls (basic.get) gets no message. Messages expire, and limits
drop messages, as in any queue. The pause is in memory only: it ends when the broker stops.
"""

from __future__ import annotations

from broker.queues.queue import Queue


def pause(queue: Queue) -> bool:
    """Stop the deliveries of a queue until `resume`. Return False if it is already paused."""
    if queue.paused:
        return False
    queue.paused = True
    queue.hold()
    return True


def resume(queue: Queue) -> bool:
    """End the pause of a queue. Return False if the queue is not paused."""
    if not queue.paused:
        return False
    queue.paused = False
    queue.free()
    return True
