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

    def __init__(
        self, connections: int, unauthenticated_per_address: int, per_address: int = 0
    ) -> None:
        self.connections = connections
        self.per_address = per_address
        self._open: dict[str, int] = {}
        self.unauthenticated_per_address = unauthenticated_per_address
        #: How many were turned away, and why.
        self.refused = dict.fromkeys(REASONS, 0)
        self._unauthenticated: dict[str, list[Connection]] = {}

    def refusal_reason(self, address: str, local: bool, open_now: int) -> str:
        """Why the next connection from this address is refused; empty when it is not."""
        reason = ""
        if open_now >= self.connections:
            reason = "connections"
        elif not local and 0 < self.per_address <= self._open.get(address, 0):
            reason = "address_connections"
        elif not local and self._count_unauthenticated(address) >= self.unauthenticated_per_address:
            reason = "unauthenticated_per_address"
        if reason:
            self.count_refusal(reason)
        return reason

    def count_refusal(self, reason: str) -> None:
        """Count one of REASONS."""
        self.refused[reason] += 1

    def _count_unauthenticated(self, address: str) -> int:
        """How many of this address have not logged in.

        Those that have are forgotten when the list is full.
        """
        waiting = self._unauthenticated.get(address)
        if waiting is None:
            return 0
        if len(waiting) >= self.unauthenticated_per_address:
            waiting[:] = [
                connection
                for connection in waiting
                if not connection.admitted and not connection.finished
            ]
        return len(waiting)

    def add(self, connection: Connection) -> None:
        if not connection.peer.local:
            self._open[connection.peer.address] = self._open.get(connection.peer.address, 0) + 1
            self._unauthenticated.setdefault(connection.peer.address, []).append(connection)

    def remove(self, connection: Connection) -> None:
        if connection.peer.address in self._open:
            self._open[connection.peer.address] -= 1
            if not self._open[connection.peer.address]:
                del self._open[connection.peer.address]
        waiting = self._unauthenticated.get(connection.peer.address)
        if waiting is not None and connection in waiting:
            waiting.remove(connection)
            if not waiting:
                del self._unauthenticated[connection.peer.address]
