"""The base class of front ends: makes the connections of one protocol, and renews their
permissions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from broker.agenda import Agenda, Task
from broker.broker import Broker
from protocols.connection import Connection, ConnectionRegistry
from protocols.end_reasons import INTERNAL_ERROR, INTERNAL_ERROR_TEXT
from protocols.peer import Peer

#: Number of connections that are reviewed in one turn of the event loop.
REVIEWED: Final = 100

T = TypeVar("T")


class Review(Task, Generic[T]):
    """A task that calls a function, the review, for each connection or session, in slices.

    A review may renew permissions, for example, or block connections that hold much memory during
    an alarm. A connection or session that begins while the task runs is not reviewed. If `start` is
    called while the task runs, the task begins again with all connections or sessions.
    """

    def __init__(
        self,
        agenda: Agenda,
        per_turn: int,
        holders: Callable[[], list[T]],
        review: Callable[[T], None],
    ) -> None:
        """Create a task that calls `review` for each connection or session (holder).

        `holders` returns the list of all connections or sessions. At most `per_turn` of them are
        reviewed in one turn of the event loop.
        """
        self._agenda = agenda
        self._per_turn = per_turn
        #: The task reviews `per_turn` / `_share` connections or sessions in one turn.
        self._share = 1
        self._holders = holders
        self._review = review
        #: The holders that are not reviewed yet. The last one in the list is next.
        self._left: list[T] = []
        self._running = False

    def start(self, share: int = 1) -> None:
        """Begin to review all connections or sessions, in later turns of the event loop.

        Start over if the task is running already. If one review is expensive, pass a `share` above
        1: the task then reviews `per_turn` / `share` connections or sessions in each turn.
        """
        self._left = self._holders()
        self._share = max(share, self._share) if self._running else share
        if not self._running:
            self._running = True
            self._agenda.add(self)

    def run(self) -> None:
        """Review as many connections or sessions as one turn of the event loop may review."""
        left = self._per_turn // self._share
        try:
            while self._left and left > 0:
                left -= 1
                self._review(self._left.pop())
        finally:
            # If the review fails for one holder, the task continues with the next one.
            self._running = bool(self._left)
            if self._left:
                self._agenda.later(self)


class Front(ConnectionRegistry):
    """Front end of one protocol: the base class of AmqpFront and MqttFront."""

    def __init__(self, name: str, broker: Broker) -> None:
        super().__init__(name, broker)
        #: Names of the front end's publish contexts, one for each protocol version with a separate
        #: context.
        self.context_names: tuple[str, ...] = (name,)
        self._reauthorization = Review(
            broker.agenda, REVIEWED, lambda: list(self.connections), _reauthorize
        )
        self._incomplete_messages = Review(
            broker.agenda, REVIEWED, lambda: list(self.connections), _review_incomplete
        )
        broker.alarms.changed.append(self._alarm_changed)

    def _alarm_changed(self, on: bool) -> None:
        """Block the clients that have sent large parts of incomplete messages, if `on` is True.

        Called when an alarm begins (`on`) or ends.
        """
        if on:
            self._incomplete_messages.start()

    def connect(self, peer: Peer) -> Connection:
        """Return a new connection for a client whose transport has just connected."""
        raise NotImplementedError

    def reauthorize(self, share: int = 1) -> None:
        """Renew the permissions of all connections, REVIEWED / `share` connections in each turn."""
        self._reauthorization.start(share)


def _reauthorize(connection: Connection) -> None:
    """Renew the permissions of a connection."""
    if not connection.finished:
        try:
            connection.reauthorize()
        except Exception:
            # If the connection stayed open, the client could keep permissions that its user has
            # lost.
            connection.close(INTERNAL_ERROR, INTERNAL_ERROR_TEXT)
            raise


def _review_incomplete(connection: Connection) -> None:
    """Block a client that has sent a large part of a message before an alarm began."""
    if not connection.finished:
        connection.review_incomplete()
