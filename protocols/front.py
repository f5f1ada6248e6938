"""The base class of front ends: makes the connections of one protocol, and renews their
permissions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from broker.agenda import Agenda, Task
from broker.broker import Broker
from protocols.connection import Connection, ConnectionRegistry, Peer

#: Number of connections whose permissions are renewed in one turn of the event loop.
REVIEWED: Final = 100

T = TypeVar("T")


class Reauthorization(Task, Generic[T]):
    """A task that renews the permissions of all connections, or of all sessions, in slices.

    What begins while the task runs has the new permissions already. One task is enough for several
    changes of permissions in a row.
    """

    def __init__(
        self,
        agenda: Agenda,
        per_turn: int,
        holders: Callable[[], list[T]],
        renew: Callable[[T], None],
    ) -> None:
        """`holders` returns all holders of permissions; `renew` renews the permissions of one.

        `per_turn` is the number of holders whose permissions are renewed in one turn.
        """
        self._agenda = agenda
        self._per_turn = per_turn
        self._holders = holders
        self._renew = renew
        #: The holders whose permissions are not renewed yet. The last one in the list is next.
        self._left: list[T] = []
        self._running = False

    def start(self) -> None:
        """Renew the permissions of all holders, and of those again that have been renewed."""
        self._left = self._holders()
        if not self._running:
            self._running = True
            self._agenda.add(self)

    def run(self) -> None:
        """Renew the permissions of the next holders."""
        left = self._per_turn
        try:
            while self._left and left:
                left -= 1
                self._renew(self._left.pop())
        finally:
            # If the renewal fails for one holder, the task continues with the next one.
            self._running = bool(self._left)
            if self._left:
                self._agenda.later(self)


class Front(ConnectionRegistry):
    """Front end of one protocol: the base class of AmqpFront and MqttFront."""

    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name, broker)
        #: Names of the front end's publish contexts, one for each version of the protocol that has
        #: a context of its own.
        self.context_names: tuple[str, ...] = (name,)
        self._reauthorization = Reauthorization(
            broker.agenda, REVIEWED, lambda: list(self.connections), _reauthorize
        )

    def connect(self, peer: Peer) -> Connection:
        """Return a new connection for a client whose transport has just connected."""
        raise NotImplementedError

    def reauthorize(self) -> None:
        """Renew the permissions of all connections, of REVIEWED connections in each turn."""
        self._reauthorization.start()


def _reauthorize(connection: Connection) -> None:
    """Renew the permissions of a connection."""
    if not connection.finished:
        connection.reauthorize()
