"""Tasks that empty a purged or deleted queue: release its messages, cancel its consumers."""

from __future__ import annotations

from array import array

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask
from broker.messages.fates import PURGED
from broker.messages.message import Message
from broker.messages.tracing import report_fate
from broker.queues.consumer import Consumer, MessageSource
from broker.queues.slices import CONSUMERS_PER_SLICE, MESSAGES_PER_SLICE
from broker.queues.waiting import WaitingMessages


def release_purged(queue: MessageSource, message: Message) -> None:
    """Record in the store that a queue no longer needs a message, which was purged."""
    if message.address.traced:
        report_fate(message, PURGED, queue.name)
    queue.release(message)


class PurgeTask(BulkTask):
    """A task that releases purged messages in the store, in slices."""

    def __init__(self, queue: MessageSource, messages: WaitingMessages) -> None:
        super().__init__(queue.agenda)
        self._queue = queue
        self._messages = messages
        #: Positions in the store of the messages that were taken from the tail last, and are not
        #: released yet. The message to release next is at the end.
        self._positions: array[int] = array("q")

    def has_work(self) -> bool:
        return bool(self._positions) or not self._messages.empty

    def do_slice(self) -> None:
        left: i64 = MESSAGES_PER_SLICE
        returned, memory = self._messages.returned, self._messages.memory
        while left > 0 and returned.count > 0:
            left -= 1
            release_purged(self._queue, returned.pop().message)
        while left > 0 and memory.size > 0:
            left -= 1
            release_purged(self._queue, memory.pop())
        while left > 0 and self.has_work():
            if not self._positions:
                self._positions = self._messages.pop_positions()
                self._positions.reverse()
            left -= 1
            position = self._positions.pop()
            if position > 0:
                self._queue.release_position(position)


class ConsumerCancellation(BulkTask):
    """A task that cancels the consumers of a deleted queue, in slices."""

    def __init__(self, agenda: Agenda, standby: list[Consumer], active: list[Consumer]) -> None:
        super().__init__(agenda)
        standby.reverse()
        active.reverse()
        #: The consumers, in two lists that only this task uses now. The last consumer of the last
        #: list is cancelled next.
        self._lists = [standby, active]

    def has_work(self) -> bool:
        return any(self._lists)

    def do_slice(self) -> None:
        left = CONSUMERS_PER_SLICE
        while self._lists and left:
            if self._lists[-1]:
                left -= 1
                self._lists[-1].pop().cancelled()
            else:
                self._lists.pop()
