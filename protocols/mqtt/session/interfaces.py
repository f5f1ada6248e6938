"""Interfaces of the objects that a session uses and that know sessions themselves: its connection,
its shared subscriptions, its client's delayed will and the registry of sessions.
"""

from __future__ import annotations

from broker.access.identity import Identity
from broker.agenda import Task
from broker.definitions.restore import SessionRestorer
from broker.messages.outlet import Outlet
from broker.routing.route import Subscriber
from broker.store.contract import Ticket
from protocols.connection import Connection


class SessionConnection(Connection):
    """The connection of a session's client."""

    def close_with(self, code: int, reason: str, text: str = "") -> None:
        """End the connection on the broker's initiative.

        A client of level 5 receives the reason code and the text [MQTT-4.13.1-1]; `reason` is
        counted.
        """
        raise NotImplementedError


class SharedSubscription:
    """A shared subscription of a session."""

    def __init__(self, name: str, qos: int) -> None:
        self.name = name
        self.qos = qos
        #: 0 for none.
        self.identifier = 0

    def attach(self, outlet: Outlet) -> None:
        """The session is here."""
        raise NotImplementedError

    def detach(self) -> None:
        """It is gone."""
        raise NotImplementedError

    def schedule_drain(self) -> None:
        """It has room again."""
        raise NotImplementedError

    def leave(self, ticket: Ticket | None) -> None:
        """The subscription ends."""
        raise NotImplementedError


class DelayedWillTask(Task):
    """A will that waits for its client to come back: `run` publishes it."""

    def review(self, identity: Identity) -> None:
        """Whoever left it has these rights now."""
        raise NotImplementedError

    def cancel(self) -> None:
        """The client is back."""
        raise NotImplementedError


class SessionRegistry(SessionRestorer):
    """Where all sessions are listed."""

    def expire(self, session: Subscriber) -> None:
        """The session's client stayed away for too long: forget it."""
        raise NotImplementedError

    def clear_will(self, session: Subscriber) -> None:
        """The will of the session's client is published: the store need not keep it any more."""
        raise NotImplementedError
