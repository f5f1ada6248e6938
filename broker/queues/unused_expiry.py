"""The timer of `x-expires`, which deletes a queue that was not used for a period."""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import i64

from broker.agenda import Task
from broker.queues.queue import Queue


def _nothing() -> None:
    """Do nothing: the queue is deleted already."""


class UnusedExpiry(Task):
    """The timer that deletes a queue which was not used for its `x-expires` period.

    `queue` is None once the queue is deleted, so that a pending timer does not keep the queue.
    """

    def __init__(self, queue: Queue, expire: Callable[[], None]) -> None:
        """Create the timer. `expire` deletes the queue, unless the queue has consumers again."""
        self.queue: Queue | None = queue
        self._expire: Callable[[], None] = expire
        self._expires: i64 = 0
        #: The time of the timer in ms of Agenda.now; 0 if no timer is set.
        self._timer_due: i64 = 0

    def renew(self) -> None:
        """Restart the `x-expires` period from now."""
        queue = self.queue
        if queue is not None:
            self._expires = queue.agenda.now + queue.arguments.expires
            due: i64 = self._timer_due
            if due == 0 or due > self._expires:
                self._timer_due = self._expires
                queue.agenda.at(self._expires, self)
                if due > 0:
                    queue.agenda.drop_timer()

    def end(self) -> None:
        """Stop the timer: the queue is deleted."""
        queue, self.queue = self.queue, None
        self._expire = _nothing
        if queue is not None and self._timer_due > 0:
            queue.agenda.drop_timer()

    def needs_timer(self, when: i64) -> bool:
        return self.queue is not None and when == self._timer_due

    def run(self) -> None:
        queue = self.queue
        if queue is None:
            return
        now: i64 = queue.agenda.now
        if now < self._timer_due:
            return  # The timer was set again to an earlier time; this call is from the old timer.
        self._timer_due = 0
        if queue.arguments.expires <= 0 or queue.consumer_count > 0:
            return  # The period starts again when the last consumer leaves.
        if now >= self._expires:
            self._expire()
        else:
            self._timer_due = self._expires
            queue.agenda.at(self._expires, self)
