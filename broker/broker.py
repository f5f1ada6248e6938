"""The broker: its virtual hosts, and the store, users, limits and alarms that they share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from itertools import islice
from typing import Final
from urllib.parse import quote

from mypy_extensions import i64

from broker.access.identity import Authenticator
from broker.access.users import Users
from broker.agenda import Agenda, BulkTask
from broker.alarms import Alarms
from broker.errors import PreconditionFailed
from broker.limits import BrokerLimits
from broker.names import checked_name
from broker.routing.sampling import MessageSampler
from broker.routing.topic_groups import TopicGroups
from broker.routing.topic_history import TopicHistory
from broker.store.audit import BROKER
from broker.store.contract import Store, Ticket
from broker.store.entries import Defined, Undefined
from broker.stream.streams import Streams
from broker.vhost.options import MAX_CONNECTIONS, VirtualHostOptions
from broker.vhost.parameters import CLUSTER_NAME, GLOBAL
from broker.vhost.vhost import VirtualHost

#: Largest number of objects of each kind (queues, exchanges, policies, retained messages) that the
#: removal of a virtual host deletes in one slice.
DELETIONS_PER_SLICE: Final = 200
#: Pause between two slices of the removal of a virtual host, in ms.
SLICE_PAUSE_MS: Final = 5
#: Pause after which the removal of a virtual host retries failed deletions, in ms.
RETRY_PAUSE_MS: Final = 1_000


class Broker:
    """All virtual hosts, and the store, users, limits and alarms that they share.

    The store, the authenticator and the source of random ids are arguments, and the server sets the
    clocks of the agenda. So tests can simulate a whole broker. `new_id` returns a string that is
    unique and cannot be guessed.
    """

    def __init__(
        self,
        store: Store,
        authenticator: Authenticator,
        new_id: Callable[[], str],
        limits: BrokerLimits | None = None,
        name: str = "trellis",
    ) -> None:
        self.name = name
        self.limits = limits or BrokerLimits()
        self.agenda = store.agenda = Agenda()
        self.store = store
        self.authenticator = authenticator
        self.new_id = new_id
        self.alarms = Alarms()
        self.users = Users(store)
        self.users.absent.append(self._on_user_absent)
        self.streams = Streams(store)
        self.vhosts: dict[str, VirtualHost] = {}
        #: Counters of unroutable messages by groups of topics; None if no groups are configured.
        self.topic_groups: TopicGroups | None = None
        #: The topics of the last hour, with their numbers of messages.
        self.history = TopicHistory()
        #: The sampler for distributed tracing; None if no messages are sampled.
        self.sampler: MessageSampler | None = None
        self.add_vhost("/")

    def add_vhost(self, name: str) -> VirtualHost:
        """Create a virtual host without storing it, and return it. A restore calls this method."""
        vhost = self.vhosts[name] = VirtualHost(
            name, self.agenda, self.store, self.limits, self.streams
        )
        vhost.declarations.planner.topic_groups = self.topic_groups
        vhost.declarations.planner.history = self.history
        if self.sampler is not None:
            vhost.traces.use_sampler(self.sampler)
        vhost.alarm(bool(self.alarms.on))
        self.alarms.changed.append(vhost.alarm)
        return vhost

    def count_topics(self, groups: TopicGroups) -> None:
        """Set the groups of topics by which all virtual hosts count their unroutable messages."""
        self.topic_groups = groups
        for vhost in self.vhosts.values():
            vhost.declarations.planner.topic_groups = groups

    def sample_messages(self, sampler: MessageSampler) -> None:
        """Sample messages of all virtual hosts for distributed tracing from now on."""
        self.sampler = sampler
        for vhost in self.vhosts.values():
            vhost.traces.use_sampler(sampler)

    def create_vhost(
        self, name: str, ticket: Ticket | None = None, options: VirtualHostOptions | None = None
    ) -> VirtualHost:
        """Return the virtual host of this name; create and store it if it does not exist.

        If `options` are given, an existing virtual host gets them, too. Raises PreconditionFailed
        if the name is invalid.
        """
        known = self.vhosts.get(name)
        if known is not None:
            if options is not None and options.row != known.options.row:
                self.store.define(Defined(name, "vhost", name, options.row), ticket)
                known.options = options
            else:
                # An earlier request has made this change, which may not be durable yet: wait for
                # it.
                self.store.reply_when_all_durable(ticket)
            return known
        checked_name("vhost", name)
        row = {} if options is None else options.row
        self.store.define(Defined(name, "vhost", name, row), ticket)
        vhost = self.add_vhost(name)
        if options is not None:
            vhost.options = options
        return vhost

    def close_vhost(self, name: str, ticket: Ticket | None = None) -> None:
        """Delete a virtual host and its contents, in slices.

        From now on no client can connect to the virtual host, and the front ends disconnect its
        clients. The virtual host stays in `vhosts` until it is empty. Raises PreconditionFailed for
        a protected virtual host, and for the virtual host "/", which must stay because it keeps the
        counters of deleted virtual hosts.
        """
        if name == "/":
            raise PreconditionFailed(
                "vhost '/' cannot be deleted, because it keeps the counters of deleted vhosts"
            )
        vhost = self.vhosts[name]
        if vhost.options.protected:
            raise PreconditionFailed(
                f"vhost '{name}' is protected from deletion: end the protection with DELETE "
                f"/api/vhosts/{quote(name, '')}/deletion/protection"
            )
        if not vhost.closing:
            vhost.closing = True
            self.users.remove_vhost(name, ticket)
            VirtualHostRemoval(self, vhost).run_first_slice()

    def _on_user_absent(self, name: str) -> None:
        """Forget the producers of a user, unless the settings define a user of this name.

        Called after a user was deleted, and again before a user of this name is created. In
        between, a connection of the deleted user may have published its last messages, or a crash
        may have ended the removal of the sequence numbers from the store.
        """
        if self.authenticator.identity_of(name) is None:
            self.forget_producers(name)

    def forget_producers(self, user: str) -> None:
        """Forget the sequence numbers of an absent user's producers in all virtual hosts."""
        for vhost in self.vhosts.values():
            vhost.producers.remove_owner(user)

    @property
    def cluster_name(self) -> str:
        """The cluster's name for clients and tools: the global parameter `cluster_name` if it is
        set, else the attribute `name`.
        """
        given = self.vhosts["/"].parameters.values.get((GLOBAL, CLUSTER_NAME))
        return given if isinstance(given, str) else self.name

    def write_deliveries(self) -> None:
        """Store which messages of each durable queue were delivered. A clean stop calls this
        method.
        """
        for vhost in self.vhosts.values():
            for queue in vhost.queues.values():
                if queue.durable:
                    queue.write_deliveries()

    def remove_vhost(self, vhost: VirtualHost) -> None:
        """Remove an empty virtual host, and add its counters to the counters of "/"."""
        del self.vhosts[vhost.name]
        self.vhosts["/"].absorb(vhost)
        self.alarms.changed.remove(vhost.alarm)
        # Rights that were set during the deletion must not apply to a later virtual host of this
        # name.
        self.users.remove_vhost(vhost.name)
        self.store.define(Undefined(vhost.name, "vhost", vhost.name), None)

    def connection_refusal(self, user: str, vhost: VirtualHost, replaced: str | None = None) -> str:
        """Return why the user may not open another connection to the virtual host.

        Return an empty string if the user may open another connection. If the new connection takes
        over another connection to the virtual host, `replaced` is the user of that other
        connection, which is not counted; otherwise `replaced` is None.
        """
        limit = lower_limit(self.limits.vhost_connections, vhost.options.limits, MAX_CONNECTIONS)
        if 0 <= limit <= vhost.contexts.connections.total - (replaced is not None):
            return (
                f"access to vhost '{vhost.name}' refused for user '{user}': "
                f"connection limit ({limit}) is reached"
            )
        limit = self.user_limit(user, MAX_CONNECTIONS, self.limits.user_connections)
        if limit < 0:  # then the connections in all virtual hosts need not be counted
            return ""
        counts = [other.contexts.connections for other in self.vhosts.values()]
        connections = sum(count.of_user(user) for count in counts)
        if limit <= connections - (replaced == user):
            return (
                f"connection refused for user '{user}': user connection limit ({limit}) is reached"
            )
        return ""

    def user_limit(self, user: str, name: str, general: int) -> int:
        """Return the value of the limit `name` that applies to a user; -1 if there is no limit.

        `general` is the limit for all users, or 0 for no limit. If the user also has a limit of
        this name, the lower limit applies.
        """
        known = self.users.by_name.get(user)
        return lower_limit(general, {} if known is None else known.limits, name)


def lower_limit(general: int, limits: Mapping[str, int], name: str) -> int:
    """Return the lower of two limits: `general` (0: no limit) and `limits[name]`; -1 without a
    limit.
    """
    own = limits.get(name, -1)
    if general <= 0:
        return own
    return general if own < 0 else min(own, general)


class VirtualHostRemoval(BulkTask):
    """The removal of a virtual host's contents, in slices with a pause of SLICE_PAUSE_MS."""

    def __init__(self, broker: Broker, vhost: VirtualHost) -> None:
        super().__init__(broker.agenda)
        self._broker = broker
        self._vhost = vhost
        #: The queues, exchanges and policies whose deletion failed. They are tried again at
        #: `_retry_at`, in ms of Agenda.now, after all other objects.
        self._failed: set[object] = set()
        self._retry_at: i64 = 0
        self._current: object = None
        self._removed = False
        trail = broker.store.audit
        #: The user that deletes the virtual host, for the audit trail.
        self._actor = BROKER if trail is None else trail.actor

    def has_work(self) -> bool:
        return not self._removed

    def schedule(self) -> None:
        if not self._removed:
            self._agenda.at(self._agenda.now + SLICE_PAUSE_MS, self)

    def on_failure(self) -> None:
        self._failed.add(self._current)
        self._retry_at = self._agenda.now + RETRY_PAUSE_MS

    def do_slice(self) -> None:
        vhost = self._vhost
        failed = self._failed
        if failed and self._agenda.now >= self._retry_at:
            failed.clear()
        for queue in list(islice(vhost.queues.values(), DELETIONS_PER_SLICE + len(failed))):
            if queue not in failed:
                self._current = queue
                vhost.delete_queue(queue)
        for exchange in list(islice(vhost.exchanges.values(), DELETIONS_PER_SLICE + len(failed))):
            if exchange.number >= 0 and exchange not in failed:
                self._current = exchange
                vhost.delete_exchange(exchange.name)
        # Remove the policies last, because each removal updates all queues that still exist.
        if not vhost.queues:
            policies = vhost.policies.by_name
            for name in list(islice(policies, DELETIONS_PER_SLICE + len(failed))):
                if name not in failed:
                    self._current = name
                    vhost.applied_policies.clear_policy(name)
        self._current = None
        # The front ends close the sessions and connections of a virtual host with the flag
        # `closing`.
        done = (
            not vhost.queues
            and not vhost.policies.by_name
            and all(exchange.number < 0 for exchange in vhost.exchanges.values())
            and not vhost.subscribers
            and not vhost.contexts.users
            and vhost.retained.clear(DELETIONS_PER_SLICE)
            and vhost.producers.clear(DELETIONS_PER_SLICE)
        )
        if done:
            self._removed = True
            trail = self._broker.store.audit
            with nullcontext() if trail is None else trail.by(self._actor):
                self._broker.remove_vhost(vhost)
