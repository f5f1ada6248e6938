"""The messages that consumers returned to a queue, in the order in which they are delivered again.

A returned message goes back to its old place in the queue: the messages are sorted by sequence
number. A channel that closes may return hundreds of thousands of messages, in ascending or in
descending order. Both orders are fast, because the messages are in two lists:

    first     the messages with the lowest numbers; the lowest number is at the end
    later     messages with higher numbers than all in `first`; the lowest number is at the start
"""

from __future__ import annotations

from bisect import insort
from typing import Final

from mypy_extensions import i64, mypyc_attr

from broker.messages.memory import SAMPLES, estimate
from broker.queues.consumer import ReturnedMessage


@mypyc_attr(acyclic=True)
class ReturnedMessages:
    """The returned messages of one queue. `count` is their number."""

    __slots__ = ("_first", "_later", "count")

    def __init__(self) -> None:
        self.count: i64 = 0
        self._first: list[ReturnedMessage] = []
        self._later: list[ReturnedMessage] = []

    def insert(self, returned: ReturnedMessage) -> None:
        """Insert a returned message, in the order of the sequence numbers."""
        first = self._first
        if not first:
            first.append(returned)
        elif returned.sequence < first[0].sequence:
            insort(first, returned, key=_highest_first)
        else:
            insort(self._later, returned, key=_lowest_first)
        self.count += 1

    def pop(self) -> ReturnedMessage:
        """Remove and return the message with the lowest sequence number."""
        returned = self._first.pop()
        self.count -= 1
        if not self._first and self.count > 0:
            self._first, self._later = self._later, self._first
            self._first.reverse()
        return returned

    def peek(self) -> ReturnedMessage:
        """Return the message with the lowest sequence number. `count` must be above 0."""
        return self._first[-1]

    def in_order(self) -> list[ReturnedMessage]:
        """Return all messages, the lowest sequence number first."""
        return self._first[::-1] + self._later

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the messages in bytes."""
        return _memory_of(self._first) + _memory_of(self._later)


#: The returned messages of every queue without returned messages: one shared object, never changed.
NO_RETURNED: Final = ReturnedMessages()


def _highest_first(returned: ReturnedMessage) -> int:
    return -int(returned.sequence)


def _lowest_first(returned: ReturnedMessage) -> int:
    return int(returned.sequence)


def _memory_of(returned: list[ReturnedMessage]) -> i64:
    stride = max(1, len(returned) // int(SAMPLES))
    return estimate([one.message for one in returned[::stride]], len(returned))
