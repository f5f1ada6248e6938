"""Alarms of low memory or disk space, during which publishers are blocked.

    an alarm starts   --> every publish takes the slow path --> the connection of a publisher is
                          blocked after its next message
    the last one ends --> the blocked connections go on

Consumers are not blocked, because their acknowledgements free memory and disk space.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.messages.outlet import Outlet


class Alarms:
    """The alarms that are on, by name, and the connections that wait for their end.

    Each function in `changed` is called with True when the first alarm starts, and with False when
    the last one ends.
    """

    def __init__(self) -> None:
        self.on: dict[str, None] = {}
        self.changed: list[Callable[[bool], None]] = []
        #: The connections that are blocked, and how many times a connection was blocked.
        self.waiting: dict[Outlet, None] = {}
        self.blocked = 0

    def set(self, name: str, on: bool) -> None:
        """Turn an alarm on or off."""
        before = bool(self.on)
        if on:
            self.on[name] = None
        else:
            self.on.pop(name, None)
        if bool(self.on) == before:
            return
        for tell in self.changed:
            tell(not before)
        if before:
            waiting, self.waiting = self.waiting, {}
            for outlet in waiting:
                outlet.unblock()

    def wait(self, outlet: Outlet) -> None:
        """Remember a blocked connection, to unblock it when no alarm is on any more."""
        self.waiting[outlet] = None
        self.blocked += 1

    def leave(self, outlet: Outlet) -> None:
        """Remove a connection that was closed."""
        self.waiting.pop(outlet, None)

    @property
    def reason(self) -> str:
        """The reason that blocked clients get, as in ``low on memory & disk``."""
        return "low on " + " & ".join(self.on)
