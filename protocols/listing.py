"""The columns that the list of connections has for every protocol."""

from __future__ import annotations

from protocols.connection import Connection


def row_of(connection: Connection) -> dict[str, object]:
    """Return the connection's row in the list of connections: values by column name."""
    return {
        "peer": str(connection.peer),
        "protocol": connection.front.name,
        "user": "",
        "state": "closing" if connection.finished else "open",
        "listener": connection.peer.listener,
        "since": int(connection.opened_at),
        "octets_in": int(connection.bytes_in),
        "octets_out": int(connection.bytes_out),
        "unsent": connection.unsent,
        "slow": _slowness(connection),
    }


def _slowness(connection: Connection) -> str:
    """Return the reason why the broker reads nothing from the client, or delivers nothing to it, at
    present; "" if there is no reason.
    """
    if connection.paused:
        return "reads too slowly"
    if connection.blocked:
        return "blocked by an alarm"
    return connection.throttled or ("waits" if connection.stalled else "")
