"""Records which messages are finished, and up to which number all messages are finished."""

from __future__ import annotations


class Progress:
    """The numbers, such as delivery tags or offsets, of messages that finish in any order.

    `done` is the number up to which all messages are finished; None if the first message is not
    finished. The caller bounds the number of messages that are not finished.
    """

    def __init__(self) -> None:
        self.done: int | None = None
        #: The numbers after `done`, ascending; the value is True if the message is finished.
        self._open: dict[int, bool] = {}

    def begin(self, number: int) -> None:
        """Add a message that is not finished; the numbers of successive calls must ascend."""
        self._open[number] = False

    def finish(self, number: int) -> None:
        """Mark a message as finished, and advance `done`."""
        self._open[number] = True
        while self._open and self._open[first := next(iter(self._open))]:
            del self._open[first]
            self.done = first

    def __len__(self) -> int:
        """Return the number of messages after `done`, finished or not."""
        return len(self._open)
