"""Interfaces of the objects that a session uses: its connection, its shared subscriptions, its
client's delayed will and the registry of sessions.

session.py imports these interfaces only. The modules that implement them import session.py, so
without the interfaces the imports would form a cycle.
"""

from __future__ import annotations

from broker.agenda import Task
from broker.definitions.session_restorer import SessionRestorer
from broker.messages.outlet import Outlet
from broker.queues.consumer import CreditPool
from broker.routing.subscriber import Subscriber
from broker.store.contract import Ticket
from protocols.connection import Connection


class SessionConnection(Connection):
    """The interface through which a session uses the connection of its client."""

    def close_with(self, code: int, reason: str, text: str = "") -> None:
        """End the connection on the broker's initiative.

        A client of level 5 receives the reason code `code` and the text [MQTT-4.13.1-1]. `reason`
        is counted in the metrics.
        """
        raise NotImplementedError


class SharedSubscription:
    """The membership of one session in a shared subscription.

    `name` is the name of the shared subscription: $share/GROUP/FILTER.
    """

    def __init__(self, name: str, qos: int) -> None:
        self.name = name
        self.qos = qos
        #: The subscription identifier; 0 for none.
        self.identifier = 0
        #: True while the subscription waits because the session had no room for its message.
        self.refused = False
        #: True once the subscription has ended.
        self.ended = False

    def attach(self, outlet: Outlet, gate: CreditPool) -> None:
        """Deliver over the session's present connection from now on; `outlet` is the connection's
        output.

        `gate` is the pool of credit that all shared subscriptions of this connection share. The
        subscription delivers nothing while `gate` has no credit. Do nothing if the subscription has
        this gate already.
        """
        raise NotImplementedError

    def detach(self) -> None:
        """Stop deliveries, because the session's connection has ended."""
        raise NotImplementedError

    def schedule_drain(self) -> None:
        """Schedule further deliveries, because the session accepts messages again."""
        raise NotImplementedError

    def leave(self, ticket: Ticket | None) -> None:
        """End the subscription: the session leaves the group."""
        raise NotImplementedError


class DelayedWillTask(Task):
    """A will that waits until its delay has passed. `run` publishes the will.

    The task is cancelled if the client connects again before the delay has passed.
    """

    def cancel(self) -> None:
        """Drop the will, because the client has connected again."""
        raise NotImplementedError


class SessionRegistry(SessionRestorer):
    """The interface through which a session uses the registry of all sessions."""

    @property
    def backlog(self) -> int:
        """The limit of the messages that wait in the inbox of a session."""
        raise NotImplementedError

    @property
    def receive_maximum(self) -> int:
        """The broker's limit of the messages in flight of a session."""
        raise NotImplementedError

    def expire(self, session: Subscriber) -> None:
        """End a session whose client stayed away for too long."""
        raise NotImplementedError

    def clear_will(self, session: Subscriber) -> None:
        """Remove the stored will of a session, because the will was published."""
        raise NotImplementedError
