"""The timers and the bulk work of a queue: discarding messages, and retrying to read the tail."""

from __future__ import annotations

from typing import Final, Protocol

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask, Task

#: Time after which a queue tries again to read its tail if no file descriptor was left, in ms.
TAIL_RETRY_MS: Final[i64] = 1_000


class KeptQueue(Protocol):
    """The methods of a queue that its timers and its bulk work call."""

    agenda: Agenda

    def keep_up(self) -> None:
        """Do one slice of the queue's bulk work."""

    def needs_expiry(self, when: i64) -> bool:
        """True if `keep_up` must be called at the time `when` (ms)."""

    def retry_tail(self) -> None:
        """Read the tail after a shortage of file descriptors, and continue the queue's work."""


class TailRetry(Task):
    """A timer after which a queue tries again to read its tail."""

    def __init__(self, queue: KeptQueue) -> None:
        self._queue = queue

    def run(self) -> None:
        self._queue.retry_tail()


class QueueUpkeep(BulkTask):
    """The bulk work of one queue, and its timer: see `Queue.keep_up`.

    `queue` is None once the queue is deleted, so that a pending timer does not keep it in memory.
    """

    def __init__(self, queue: KeptQueue) -> None:
        super().__init__(queue.agenda)
        self.queue: KeptQueue | None = queue
        self._requested = False

    def request(self) -> None:
        """Schedule a call of `keep_up` in the next slice."""
        self._requested = True
        self.schedule()

    def has_work(self) -> bool:
        return self._requested

    def do_slice(self) -> None:
        self._requested = False
        if self.queue is not None:
            self.queue.keep_up()

    def on_failure(self) -> None:
        self._requested = True

    def needs_timer(self, when: i64) -> bool:
        return self.queue is not None and self.queue.needs_expiry(when)
