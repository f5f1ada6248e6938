"""Computes the size of a queue in bytes, in slices, when the queue gets a limit in bytes.

The size is the sum of the body sizes of the waiting messages. Messages that come later are added to
the size when they come.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.message import Message
from broker.queues.consumer import ReturnedMessage
from broker.queues.fifo import Fifo

#: Largest number of waiting messages whose body sizes are added up in one slice. This takes up to 2
#: ms.
COUNTED_PER_SLICE: Final[i64] = 20_000


def uncounted_size(returned: ReturnedMessage, number: i64) -> i64:
    """Return the size of a message's body in bytes, or 0 if the message is counted already.

    `number` is the number of the present count (Recount). Mark the message as included in this
    count.
    """
    if returned.counted == number:
        return 0
    returned.counted = number
    return returned.message.encoding.size(returned.message.content)


class Recount:
    """Adds up the body sizes of the messages that waited in one queue when the count began.

    The queue itself adds the sizes of messages that come later. `number` distinguishes the count
    from earlier counts of the same queue.
    """

    def __init__(
        self, number: i64, first: i64, waiting: i64, paged: i64, returned: list[ReturnedMessage]
    ) -> None:
        """Begin the count of `waiting` messages in memory, from the sequence number `first` on.

        `paged` is the number of messages behind them, which are on disk only and never counted.
        `returned` are the returned messages, which wait before them. The caller must not use the
        list `returned` afterwards.
        """
        self._number: i64 = number
        #: The bodies of messages with sequence numbers from `_next` to `_end` - 1 are still to be
        #: counted.
        self._next: i64 = first
        self._end: i64 = first + waiting
        #: The messages with numbers from `_end` to `_paged_end` - 1 are on disk only, and are never
        #: counted.
        self._paged_end: i64 = first + waiting + paged
        self._returned = returned

    @property
    def finished(self) -> bool:
        """True if the count includes all bodies of messages that waited when the count began."""
        return self._next >= self._end and not self._returned

    def contains(self, sequence: i64) -> bool:
        """True if the queue's size in bytes already includes the message with this number."""
        return sequence < self._next or sequence >= self._paged_end

    def count_slice(self, head: i64, waiting: Fifo[Message]) -> i64:
        """Do one slice of the count: return the total size of the next bodies in bytes.

        Messages that have left the queue are skipped. `waiting` are the waiting messages now, and
        `head` is the sequence number of the first waiting message.
        """
        left: i64 = COUNTED_PER_SLICE
        size: i64 = 0
        while left > 0 and self._returned:
            left -= 1
            size += uncounted_size(self._returned.pop(), self._number)
        start: i64 = max(self._next, head)
        count: i64 = max(0, min(self._end - start, left))
        for message in waiting.part(start - head, count):
            size += message.encoding.size(message.content)
        self._next = min(start + count, self._end)
        return size
