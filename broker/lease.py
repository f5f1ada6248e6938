"""The time for which the active node of a cluster may act."""

from __future__ import annotations

from collections.abc import Callable
from math import inf


class Lease:
    """The lease of the node that owns the replicated log (broker/replication/owner.py).

    The event loop tests the lease before each flush. So this class is compiled, unlike the other
    code of the replicated log, and a test only reads the clock and compares two numbers.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """Make a lease that has ended. `clock` returns the present time in seconds."""
        #: The time at which the lease ends, in seconds of the clock. Written by the thread that
        #: appends to the log.
        self._until = -inf
        self._clock = clock

    def lasts(self) -> bool:
        """True if the node may deliver, answer and expire messages now. Hot path."""
        return self._clock() < self._until

    def extend(self, until: float) -> None:
        """Set the time at which the lease ends, in seconds of the clock."""
        self._until = until

    def end(self) -> None:
        """End the lease now: until the next `extend`, the node may not deliver or answer."""
        self._until = -inf
