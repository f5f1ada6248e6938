"""The queue that adds up the body sizes of its waiting messages, for a limit in bytes.

    a message waits --> waiting_bytes + its body     a message leaves --> waiting_bytes - its body

A policy may add the limit to a queue with many messages. Then the bodies that are in memory are
added up in slices (recount.py). Messages that are only on disk at that time never count.
"""

from __future__ import annotations

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.messages.message import Message
from broker.queues.arguments import UNLIMITED
from broker.queues.consumer import ReturnedMessage
from broker.queues.queue import Queue
from broker.queues.recount import Recount
from broker.store.contract import Store


class MeasuredQueue(Queue):
    """A queue that adds up the body sizes of its waiting messages while it limits their sum."""

    def __init__(self, vhost: str, name: str, agenda: Agenda, store: Store, durable: bool) -> None:
        super().__init__(vhost, name, agenda, store, durable)
        #: Total size of the waiting messages' bodies in bytes, counted only if the queue limits it.
        self.waiting_bytes: i64 = 0
        #: `_count_number` is the number of times that the bodies were counted anew. `_recount` is
        #: the last of these counts; None if there is none since `_stop_counting`.
        self._count_number: i64 = 0
        self._recount: Recount | None = None

    def count_waiting(self) -> None:
        """Begin to add up the body sizes of the waiting messages in memory, in slices."""
        waiting = self._waiting
        self._count_number += 1
        self._recount = Recount(
            self._count_number,
            waiting.sequence + 1,
            waiting.memory.size,
            waiting.paged,
            waiting.returned.in_order(),
        )
        self.count_slice()

    @property
    def is_counting(self) -> bool:
        """True while body sizes of waiting messages are still to be added up."""
        return self._recount is not None and not self._recount.finished

    def count_slice(self) -> None:
        """Do one slice of the count of body sizes that `count_waiting` began."""
        recount = self._recount
        if recount is not None and not recount.finished:
            self.waiting_bytes += recount.count_slice(
                self._waiting.sequence + 1, self._waiting.memory
            )
            if not recount.finished:
                self._schedule_upkeep()

    def _stop_counting(self) -> None:
        """Set the size of the waiting messages to 0, and count no further bodies."""
        self.waiting_bytes = 0
        self._recount = None

    def count_bytes(self, message: Message) -> None:
        """Add the message's body to the size of the waiting messages, if the queue limits it."""
        if self.arguments.max_bytes != UNLIMITED:
            self.waiting_bytes += message.encoding.size(message.content)

    def insert_returned(self, returned: ReturnedMessage) -> None:
        returned.counted = self._count_number
        super().insert_returned(returned)
        self.count_bytes(returned.message)

    def _pop_head(self) -> ReturnedMessage:
        was_returned = self._waiting.returned.count > 0
        returned = self._remove_head()
        if self.arguments.max_bytes != UNLIMITED:
            if self._is_counted(returned, was_returned):
                size: i64 = returned.message.encoding.size(returned.message.content)
                self.waiting_bytes = max(0, self.waiting_bytes - size)
            else:
                returned.counted = self._count_number  # Removed: no later slice counts its body.
        return returned

    def _is_counted(self, returned: ReturnedMessage, was_returned: bool) -> bool:
        """True if `waiting_bytes` includes this message, which was the head of the queue.

        `was_returned` is True if the message was among the returned messages.
        """
        if was_returned:
            return returned.counted == self._count_number
        return self._recount is None or self._recount.contains(returned.sequence)

    def _remove_head(self) -> ReturnedMessage:
        """Remove the head of the queue and return it."""
        return super()._pop_head()

    def purge(self) -> int:
        self._stop_counting()
        return super().purge()
