"""Alarms: memory or disk is short, so who publishes must wait; who consumes goes on, for that is
what helps.

raise --> every plan asks for care --> the next publication of a connection is taken, then the
connection waits clear --> those who wait go on
"""

from __future__ import annotations

from collections.abc import Callable

from broker.messages.outlet import Outlet


class Alarms:
    """Those that are on, by their names, and who waits for their end.

    `changed` is told when the first comes and the last goes.
    """

    def __init__(self) -> None:
        self.on: dict[str, None] = {}
        self.changed: list[Callable[[bool], None]] = []
        #: Connections that wait, and how often one had to.
        self.waiting: dict[Outlet, None] = {}
        self.blocked = 0

    def set(self, name: str, on: bool) -> None:
        """An alarm comes or goes."""
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
        """The connection goes on when no alarm is on any more."""
        self.waiting[outlet] = None
        self.blocked += 1

    def leave(self, outlet: Outlet) -> None:
        """The connection is gone."""
        self.waiting.pop(outlet, None)

    @property
    def reason(self) -> str:
        """What clients are told: ``low on memory & disk``."""
        return "low on " + " & ".join(self.on)
