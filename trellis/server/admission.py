"""Whom a listener takes at all: bounds on connections, before any octet is read."""

from __future__ import annotations

from typing import Final

from protocols.connection import Connection

#: Why somebody may be turned away: too many in all, too many of one address, or that have not
#: logged in, no PROXY header from where one must come, and (they wait, and are counted once a
#: pause) no descriptors left.
REASONS: Final = (
    "connections",
    "address_connections",
    "unauthenticated_per_address",
    "proxy_header",
    "descriptors",
)


class Admission:
    """At most `connections` in all, `per_address` of one address (0: any number), and `strangers`
    of one that have not logged in yet.

    Loopback addresses have no bound of their own: whoever is there shares the machine.
    """

    def __init__(self, connections: int, strangers: int, per_address: int = 0) -> None:
        self.connections = connections
        self.per_address = per_address
        self._here: dict[str, int] = {}
        self.strangers = strangers
        #: How many were turned away, and why.
        self.refused = dict.fromkeys(REASONS, 0)
        self._waiting: dict[str, list[Connection]] = {}

    def judge(self, address: str, local: bool, open_now: int) -> str:
        """Why the next connection from this address is refused; empty when it is not."""
        reason = ""
        if open_now >= self.connections:
            reason = "connections"
        elif not local and 0 < self.per_address <= self._here.get(address, 0):
            reason = "address_connections"
        elif not local and self._strangers(address) >= self.strangers:
            reason = "unauthenticated_per_address"
        if reason:
            self.refuse(reason)
        return reason

    def refuse(self, reason: str) -> None:
        """Count one of REASONS."""
        self.refused[reason] += 1

    def _strangers(self, address: str) -> int:
        """How many of this address have not logged in.

        Those that have are forgotten when the list is full.
        """
        waiting = self._waiting.get(address)
        if waiting is None:
            return 0
        if len(waiting) >= self.strangers:
            waiting[:] = [
                connection
                for connection in waiting
                if not connection.admitted and not connection.finished
            ]
        return len(waiting)

    def enter(self, connection: Connection) -> None:
        if not connection.peer.local:
            self._here[connection.peer.address] = self._here.get(connection.peer.address, 0) + 1
            self._waiting.setdefault(connection.peer.address, []).append(connection)

    def leave(self, connection: Connection) -> None:
        if connection.peer.address in self._here:
            self._here[connection.peer.address] -= 1
            if not self._here[connection.peer.address]:
                del self._here[connection.peer.address]
        waiting = self._waiting.get(connection.peer.address)
        if waiting is not None and connection in waiting:
            waiting.remove(connection)
            if not waiting:
                del self._waiting[connection.peer.address]
