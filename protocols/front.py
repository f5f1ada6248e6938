"""A front end: what all connections of one protocol share."""

from __future__ import annotations

from broker.core import Broker
from protocols.connection import Connection, Peer
from protocols.tally import Tally


class Front:
    """Makes connections, lists them, and counts how they ended. `name` is the protocol's in the metrics."""

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        #: What its gates are called: one for each version of the protocol, where they differ.
        self.ways_in: tuple[str, ...] = (name,)
        self.broker = broker
        self.tally = Tally()
        self.connections: dict[Connection, None] = {}
        self.opened = 0
        #: How many connections ended for which reason.
        self.closed: dict[str, int] = {}
        #: Logins by outcome.
        self.logins: dict[str, int] = {}

    def connect(self, peer: Peer) -> Connection:
        """A connection for a client that just came."""
        raise NotImplementedError

    def enter(self, connection: Connection) -> None:
        self.connections[connection] = None
        self.opened += 1

    def leave(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self.closed[connection.reason] = self.closed.get(connection.reason, 0) + 1

    def channels_of(self, user: str) -> int:
        """Channels that the connections of a user have open; none where a protocol has no channels."""
        return 0

    def count_login(self, outcome: str) -> None:
        self.logins[outcome] = self.logins.get(outcome, 0) + 1
