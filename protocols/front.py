"""The base class of front ends: makes the connections of one protocol, and renews their
permissions.
"""

from __future__ import annotations

from typing import Final

from broker.agenda import Task
from broker.broker import Broker
from protocols.connection import Connection, ConnectionRegistry, Peer

#: Number of connections whose permissions are renewed in one turn of the event loop.
REVIEWED: Final = 100


class Front(ConnectionRegistry):
    """Front end of one protocol: the base class of AmqpFront and MqttFront."""

    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name, broker)
        #: Names of the front end's publish contexts, one for each version of the protocol that has
        #: a context of its own.
        self.context_names: tuple[str, ...] = (name,)
        self._reviewing: Reauthorization | None = None

    def connect(self, peer: Peer) -> Connection:
        """Return a new connection for a client whose transport has just connected."""
        raise NotImplementedError

    def reauthorize(self) -> None:
        """Renew the permissions of all connections, of REVIEWED connections in each turn."""
        if self._reviewing is None or not self._reviewing.again():
            self._reviewing = Reauthorization(self)
            self.broker.agenda.add(self._reviewing)


class Reauthorization(Task):
    """A task that renews the permissions of all connections of a front end, in slices.

    Connections that open while the task runs have the new permissions already.
    """

    def __init__(self, front: Front) -> None:
        self._front = front
        #: The connections whose permissions are not renewed yet. The last one in the list is next.
        self._left = list(front.connections)
        self._agenda = front.broker.agenda
        self._done = False

    def again(self) -> bool:
        """Start again with all connections and return True. Return False if the task is done.

        So one task is enough for several changes of permissions in a row.
        """
        self._left = [] if self._done else list(self._front.connections)
        return not self._done

    def run(self) -> None:
        """Renew the permissions of the next REVIEWED connections."""
        left = REVIEWED
        try:
            while self._left and left:
                left -= 1
                connection = self._left.pop()
                if not connection.finished:
                    connection.reauthorize()
        finally:
            # If the renewal fails for one connection, the task continues with the next one.
            self._done = not self._left
            if self._left:
                self._agenda.later(self)
