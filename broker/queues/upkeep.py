"""The timers and the bulk work of a queue: discarding messages, and retrying to read the tail."""

from __future__ import annotations

from typing import Final, Protocol

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask, Task

#: Time after which a queue tries again to read its tail if no file descriptor was free, in ms.
TAIL_RETRY_MS: Final[i64] = 1_000


class KeptQueue(Protocol):
    """The methods of a queue that its timers and its bulk work call."""

    agenda: Agenda

    def keep_up(self) -> None:
        """Do one slice of the queue's bulk work: discard expired messages, and messages over a
        limit.
        """

    def retry_tail(self) -> None:
        """Read the tail, and deliver again, after a shortage of file descriptors."""


class TailRetry(Task):
    """A timer after which a queue tries again to read its tail."""

    def __init__(self, queue: KeptQueue) -> None:
        self._queue = queue

    def run(self) -> None:
        self._queue.retry_tail()


class QueueUpkeep(BulkTask):
    """The bulk work of one queue, and the timer of its expiry: both call `Queue.keep_up`."""

    def __init__(self, queue: KeptQueue) -> None:
        super().__init__(queue.agenda)
        #: None once the queue is deleted, so that a pending timer does not keep it in memory.
        self._queue: KeptQueue | None = queue
        self._requested = False
        #: The time at which the timer runs out, in ms of Agenda.now; 0 if no timer is set.
        self._due: i64 = 0

    def request(self) -> None:
        """Schedule the discarding of messages (`Queue.keep_up`) as bulk work of the agenda."""
        self._requested = True
        self.schedule()

    def expire_at(self, when: i64) -> None:
        """Discard expired messages (`Queue.keep_up`) at the time `when`, in ms.

        Do nothing if an earlier call is scheduled already.
        """
        due: i64 = self._due
        if due == 0 or when < due:
            self._due = when
            self._agenda.at(when, self)
            if due > 0:
                self._agenda.drop_timer()

    def end(self) -> None:
        """Cancel the scheduled discarding of messages, because the queue is deleted."""
        self._queue = None
        if self._due > 0:
            self._due = 0
            self._agenda.drop_timer()

    def has_work(self) -> bool:
        return self._requested

    def do_slice(self) -> None:
        self._requested = False
        if self._due <= self._agenda.now:
            self._due = 0
        if self._queue is not None:
            self._queue.keep_up()

    def on_failure(self) -> None:
        self._requested = True

    def needs_timer(self, when: i64) -> bool:
        return when == self._due
