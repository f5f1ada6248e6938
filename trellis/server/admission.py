"""Admission: limits on open connections, checked before any input is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from protocols.connection import Connection
from protocols.peer import network_of

#: Reasons for a refusal: too many connections in all, from one address, or from one address without
#: a login; a missing or malformed PROXY header; no file descriptors left. In the last case the
#: connections wait in the kernel's queue, and each pause in accepting counts as one refusal.
REASONS: Final = (
    "connections",
    "address_connections",
    "unauthenticated_per_address",
    "proxy_header",
    "descriptors",
)
#: By reason: the note of the log line about a refused connection, which explains the refusal and
#: names a remedy.
NOTES: Final = {
    "connections": "all connections are in use: raise limits.connections if it is set, and the "
    "limit of file descriptors (ulimit -n)",
    "address_connections": "too many connections from this address, or from its IPv6 network "
    "(/64): raise limits.address_connections",
    "unauthenticated_per_address": "too many connections from this address, or from its IPv6 "
    "network (/64), have not logged in: raise limits.unauthenticated_per_address",
    "proxy_header": "the connection has no valid PROXY header, or comes from an address that is "
    "not in the listener's setting proxies: let the proxy send the header, or add its address to "
    "the setting",
}

LogRefusal = Callable[[str, dict[str, object]], None]


class Admission:
    """The limits on connections, and the open connections by address or IPv6 network.

    At most `connections` are open in all, `per_address` from one address (0: no limit), and
    `unauthenticated_per_address` from one address before their login. The limits per address do not
    apply to loopback, which all programs of this machine share.
    """

    def __init__(
        self,
        connections: int,
        unauthenticated_per_address: int,
        per_address: int = 0,
        log: LogRefusal | None = None,
    ) -> None:
        self.connections = connections
        self.per_address = per_address
        self._open: dict[str, int] = {}
        self.unauthenticated_per_address = unauthenticated_per_address
        #: Number of refused connections by reason.
        self.refused = dict.fromkeys(REASONS, 0)
        self._unauthenticated: dict[str, list[Connection]] = {}
        self._log = log

    def refusal_reason(self, address: str, local: bool, open_now: int) -> str:
        """Return the reason to refuse a new connection from an address, or "" to admit it.

        Also count the refusal. `local` is True for a connection from this machine. `open_now` is
        the number of open connections.
        """
        reason, network = "", network_of(address)
        if open_now >= self.connections:
            reason = "connections"
        elif not local and 0 < self.per_address <= self._open.get(network, 0):
            reason = "address_connections"
        elif not local and self._count_unauthenticated(network) >= self.unauthenticated_per_address:
            reason = "unauthenticated_per_address"
        if reason:
            self.count_refusal(reason, address)
        return reason

    def count_refusal(self, reason: str, address: str = "") -> None:
        """Count a refused connection, and log the refusal unless `address` is "".

        `reason` is one of REASONS.
        """
        self.refused[reason] += 1
        if address and self._log is not None:
            self._log("connection_refused", {"address": address, "note": NOTES[reason]})

    def _count_unauthenticated(self, network: str) -> int:
        """Return the number of connections of an address or IPv6 network that have not logged in.

        A number below the limit may be too large: connections that have logged in or ended are
        removed from the list only when the list has reached the limit.
        """
        waiting = self._unauthenticated.get(network)
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
        """Count an admitted connection from another machine: as open, and as not logged in."""
        if not connection.peer.local:
            connection.peer.counted = True
            network = network_of(connection.peer.address)
            self._open[network] = self._open.get(network, 0) + 1
            self._unauthenticated.setdefault(network, []).append(connection)

    def remove(self, connection: Connection) -> None:
        """Remove a closed connection from the counts of its address, if `add` has counted it.

        The field `peer.counted` says if `add` has counted the connection. (An upgrade to WebSocket
        may have changed `peer.local` since `add`.)
        """
        peer = connection.peer
        if not peer.counted:
            return
        peer.counted = False
        network = network_of(peer.address)
        self._open[network] -= 1
        if not self._open[network]:
            del self._open[network]
        waiting = self._unauthenticated.get(network)
        if waiting is not None and connection in waiting:
            waiting.remove(connection)
            if not waiting:
                del self._unauthenticated[network]
