"""Tracks the messages under way, which finish in any order, and the end of the finished prefix."""

from __future__ import annotations


class Progress:
    """The numbers of messages under way, such as delivery tags or offsets.

    `done` is the number up to which all messages that began are finished; None if the first one is
    not. The caller bounds the number of messages under way.
    """

    def __init__(self) -> None:
        self.done: int | None = None
        #: The numbers that began and are not in the finished prefix, ascending; True if finished.
        self._open: dict[int, bool] = {}

    def begin(self, number: int) -> None:
        """Take note of a message; numbers must ascend."""
        self._open[number] = False

    def finish(self, number: int) -> None:
        """Take note that a message is settled."""
        self._open[number] = True
        while self._open and self._open[first := next(iter(self._open))]:
            del self._open[first]
            self.done = first

    def __len__(self) -> int:
        """Return the number of messages that are not in the finished prefix."""
        return len(self._open)
