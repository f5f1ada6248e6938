"""A front end: what all connections of one protocol share."""

from __future__ import annotations

from typing import Final

from broker.agenda import Task
from broker.broker import Broker
from protocols.connection import Connection, Peer
from protocols.tally import FrontCounters

#: Connections that are looked at again in one turn.
REVIEWED: Final = 100


class Front:
    """Makes connections, lists them, and counts how they ended.

    `name` is the protocol's in the metrics.
    """

    def __init__(self, name: str, broker: Broker) -> None:
        self.name = name
        #: What its gates are called: one for each version of the protocol, where they differ.
        self.ways_in: tuple[str, ...] = (name,)
        self.broker = broker
        self.tally = FrontCounters()
        self.connections: dict[Connection, None] = {}
        self.opened = 0
        self._reviewing: Reauthorization | None = None
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

    def review(self) -> None:
        """Rights changed: whoever is here is looked at again, some a turn."""
        if self._reviewing is None or not self._reviewing.again():
            self._reviewing = Reauthorization(self)
            self.broker.agenda.add(self._reviewing)

    def channels_of(self, user: str) -> int:
        """Channels that the connections of a user have open; none where a protocol has no channels."""
        return 0

    def count_login(self, outcome: str) -> None:
        self.logins[outcome] = self.logins.get(outcome, 0) + 1


class Reauthorization(Task):
    """A walk through the connections of a front end.

    Those that come meanwhile have the new rights.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        self._left = list(front.connections)
        self._agenda = front.broker.agenda
        self._done = False

    def again(self) -> bool:
        """From the beginning, if it is still under way: many changes in a row are one walk."""
        self._left = [] if self._done else list(self._front.connections)
        return not self._done

    def run(self) -> None:
        some, self._left = self._left[:REVIEWED], self._left[REVIEWED:]
        for connection in some:
            if not connection.finished:
                connection.review()
        self._done = not self._left
        if self._left:
            self._agenda.later(self)
