"""The broker: its virtual hosts, and what they share: clock, store, authenticator, ids."""

from __future__ import annotations

from collections.abc import Callable

from broker.access import Authenticator
from broker.agenda import Agenda
from broker.alarms import Alarms
from broker.bounds import Bounds
from broker.store.contract import Defined, Store, Ticket
from broker.stream.streams import Streams
from broker.users import Users
from broker.vhost import VirtualHost


class Broker:
    """Everything that is chance, time or waiting is given from above, so that a whole broker can be simulated.

    `new_id` returns a text that was never returned before and that nobody can guess.
    """

    def __init__(self, store: Store, authenticator: Authenticator, new_id: Callable[[], str], bounds: Bounds | None = None,
                 name: str = "trellis") -> None:
        self.name = name
        self.bounds = bounds or Bounds()
        self.agenda = Agenda()
        self.store = store
        self.authenticator = authenticator
        self.new_id = new_id
        self.alarms = Alarms()
        self.users = Users(store)
        self.streams = Streams(store)
        self.vhosts: dict[str, VirtualHost] = {}
        self.add_vhost("/")

    def add_vhost(self, name: str) -> VirtualHost:
        """A virtual host that is made now, or was before."""
        vhost = self.vhosts[name] = VirtualHost(name, self.agenda, self.store, self.bounds, self.streams)
        vhost.alarm(bool(self.alarms.on))
        self.alarms.changed.append(vhost.alarm)
        return vhost

    def create_vhost(self, name: str, ticket: Ticket | None = None) -> VirtualHost:
        """The virtual host of that name: made, and kept, if it is not there."""
        known = self.vhosts.get(name)
        if known is not None:
            return known
        self.store.append(Defined(name, "vhost", name, {}), ticket)
        return self.add_vhost(name)

    def full(self, user: str, vhost: VirtualHost) -> str:
        """Why this user may have no further connection to the virtual host; empty when there is room."""
        most = self.bounds.vhost_connections
        if 0 < most <= vhost.gates.users:
            return f"access to vhost '{vhost.name}' refused for user '{user}': connection limit ({most}) is reached"
        most = self.bounds.user_connections
        if 0 < most <= sum(one.gates.by_name.get(user, 0) for one in self.vhosts.values()):
            return f"connection refused for user '{user}': user connection limit ({most}) is reached"
        return ""
