"""The methods of a link that the turn of the event loop calls."""

from __future__ import annotations

from mypy_extensions import i64

from broker.messages.outlet import Sender


class TurnLink(Sender):
    """The base class of links: the methods of a link that the turn of the event loop calls.

    This is a base class and not a Protocol, because compiled code calls methods of a base class
    faster.
    """

    def __init__(self) -> None:
        #: Number of the slot in which the link waits for a check of its deadline, and its index in
        #: this slot (link_deadlines.py). The number is 0 while the link waits for no check.
        self.slot: i64 = 0
        self.slot_index: i64 = 0

    def hold_input(self) -> None:
        """Read no further input, because the link has stored input that waits for a later turn."""
        raise NotImplementedError

    def handle_unread_input(self) -> None:
        """Handle the stored input that waited for its turn, such as input before a login."""
        raise NotImplementedError

    def resume(self) -> None:
        """Handle leftover input, which an earlier turn had no time for."""
        raise NotImplementedError

    def flush(self) -> None:
        """Write the collected output to the transport."""
        raise NotImplementedError

    def advance(self, now: int) -> None:
        """Handle deadlines that have passed at time `now`, in ms."""
        raise NotImplementedError

    def next_deadline(self) -> i64:
        """Return the time at which to call `advance` next, in ms; 0 for never."""
        raise NotImplementedError

    def excuse(self, pause: int) -> None:
        """Move the client's deadlines `pause` ms later, because no input was read for this time."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection in an orderly way, because the broker stops."""
        raise NotImplementedError

    def abort(self) -> None:
        """Close the transport at once; unsent output is lost."""
        raise NotImplementedError

    @property
    def unsent(self) -> int:
        """Size in bytes of the output that was not passed to the operating system yet."""
        raise NotImplementedError

    @property
    def descriptor(self) -> int:
        """The file descriptor of the client's socket; -1 if it is closed."""
        raise NotImplementedError

    @property
    def label(self) -> str:
        """Protocol, address and user of the client, for the log."""
        raise NotImplementedError
