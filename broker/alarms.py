"""Alarms of low memory or disk space, during which publishers are blocked.

    an alarm starts     --> every message takes the slow path --> the connection of a publisher is
                            blocked after its next message
    the last alarm ends --> the blocked connections go on

Consumers are not blocked, because their acknowledgements free memory and disk space.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.messages.outlet import Outlet


class Alarms:
    """The alarms that are on, by name, and the connections that are blocked until no alarm is on.

    `changed` is a list of functions. Each is called with True when the first alarm starts, and with
    False when the last alarm ends.
    """

    def __init__(self) -> None:
        self.on: dict[str, None] = {}
        self.changed: list[Callable[[bool], None]] = []
        #: The connections that are blocked now.
        self.waiting: dict[Outlet, None] = {}
        #: Number of times that a connection was blocked.
        self.blocked = 0

    def set(self, name: str, on: bool) -> None:
        """Turn the alarm `name`, "memory" or "disk", on or off.

        The end of the last alarm unblocks all blocked connections.
        """
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
        """Add a blocked connection; the end of the last alarm unblocks it."""
        self.waiting[outlet] = None
        self.blocked += 1

    def leave(self, outlet: Outlet) -> None:
        """Remove a closed connection from the blocked connections."""
        self.waiting.pop(outlet, None)

    @property
    def reason(self) -> str:
        """The reason that is sent to blocked AMQP clients, such as ``low on memory & disk``."""
        return "low on " + " & ".join(self.on)
