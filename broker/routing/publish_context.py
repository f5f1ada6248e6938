"""The Gate: one identity's way into a virtual host through one front end, with the routes resolved
for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.access.identity import INTERNAL, Identity
from broker.eviction import evict_oldest
from broker.limits import BrokerLimits
from broker.messages.message import Origin
from broker.routing.route import FATES, UNROUTABLE, Plan, Route
from broker.routing.topology_stream import TopologyStream

#: Octets of the longest name under which a route is kept.
NAME_MAX: Final = 512
#: Which part of a full cache makes room: one in so many.
PORTION: Final = 16


class PlanResolver:
    """The role a virtual host plays for its gates."""

    def plan(self, identity: Identity, exchange: str, key: str) -> Plan:
        """Everything that can be known about publications by this identity to this exchange and
        key.
        """
        raise NotImplementedError


class Prewarmer:
    """The role of who tells a new gate what will be asked."""

    def prewarm(self, context: PublishContext) -> None:
        raise NotImplementedError


class PublishContext:
    """A front end looks `routes` up with octets off the wire, and calls `resolve` on a miss.

    `routes` stays the same dict for the life of the Gate, so a hot loop may hold it.
    """

    def __init__(self, resolver: PlanResolver, identity: Identity, front: str, most: int) -> None:
        self.identity = identity
        self.front = front
        self.origin = Origin(identity.name, front)
        self.routes: dict[bytes, Route] = {}
        #: Publications that came in, and those of them whose publisher wants a confirm.
        self.received: i64 = 0
        #: Connections that use it.
        self.users = 0
        self.misses = 0
        self._resolver = resolver
        #: How many routes it keeps.
        self.capacity = most
        self._loose: Route | None = None
        self._fates = [0] * len(FATES)
        self._copies: i64 = 0
        self._unrepresentable: i64 = 0

    def resolve(self, octets: bytes, exchange: str, key: str) -> Route:
        """Make the route, and keep it under these octets if it may be asked for again. Cold."""
        self.misses += 1
        route = Route(exchange, key, self._resolver.plan(self.identity, exchange, key))
        route.origin = self.origin
        if len(octets) > NAME_MAX or not exchange and route.plan.fate == UNROUTABLE:
            # A key to the default exchange that names no queue (any more) is not worth a place.
            self._fold_loose()
            self._loose = route
            return route
        if len(self.routes) >= self.capacity:
            for _, evicted in evict_oldest(self.routes, 1 + self.capacity // PORTION):
                self._fold(evicted)
        self.routes[octets] = route
        return route

    def evict(self, octets: bytes) -> None:
        """Let a route go."""
        route = self.routes.pop(octets, None)
        if route is not None:
            self._fold(route)

    def renew(self, route: Route) -> None:
        """Give the route a plan that is not stale. Cold."""
        self._fold(route)
        route.plan = self._resolver.plan(self.identity, route.exchange, route.key)
        route.routed = route.plan.routed

    # -- counts

    def count(self, plan: Plan, messages: i64) -> None:
        """So many publications had this plan."""
        self._fates[plan.fate] += int(messages)
        self._copies += messages * plan.copies
        self._unrepresentable += messages * plan.unrepresentable

    def count_fate(self, fate: i64) -> None:
        """A publication that had no plan, or another fate than its plan says."""
        self._fates[fate] += 1

    def count_copies(self, copies: i64, unrepresentable: i64) -> None:
        self._copies += copies
        self._unrepresentable += unrepresentable

    def _fold(self, route: Route) -> None:
        if route.count > 0:
            self.count(route.plan, route.count)
            route.count = 0

    def _fold_loose(self) -> None:
        if self._loose is not None:
            self._fold(self._loose)
            self._loose = None

    def totals(self) -> tuple[list[int], int, int]:
        """Fates (in the order of FATES), copies made, and copies not representable.

        Folds what the routes counted.
        """
        self._fold_loose()
        for route in self.routes.values():
            self._fold(route)
        return list(self._fates), int(self._copies), int(self._unrepresentable)


class IngressCounters:
    """What gates have counted."""

    def __init__(self) -> None:
        self.received = 0
        self.fates = [0] * len(FATES)
        self.copies = 0
        self.unrepresentable = 0
        self.misses = 0

    def add(self, context: PublishContext) -> None:
        fates, copies, unrepresentable = context.totals()
        self.received += int(context.received)
        self.copies += copies
        self.unrepresentable += unrepresentable
        self.misses += context.misses
        sum_into(self.fates, fates)

    def merge(self, other: IngressCounters) -> None:
        self.received += other.received
        self.copies += other.copies
        self.unrepresentable += other.unrepresentable
        self.misses += other.misses
        sum_into(self.fates, other.fates)

    def copy(self) -> IngressCounters:
        other = IngressCounters()
        other.received, other.fates, other.copies = self.received, list(self.fates), self.copies
        other.unrepresentable, other.misses = self.unrepresentable, self.misses
        return other


class PublishContexts:
    """All gates of a virtual host, and what those that are gone have counted."""

    def __init__(self, resolver: PlanResolver, limits: BrokerLimits) -> None:
        self.internal = PublishContext(resolver, INTERNAL, "internal", limits.routes)
        self._resolver = resolver
        self._limits = limits
        self._contexts: dict[tuple[Identity, str], PublishContext] = {}
        self._past: dict[str, IngressCounters] = {}
        #: Who writes down that somebody comes or goes.
        self.topology: TopologyStream | None = None
        #: Connections here, and by the names of their users.
        self.users = 0
        self.by_name: dict[str, int] = {}
        #: Who is told of new ones, if anybody is.
        self.prewarmer: Prewarmer | None = None
        #: How many there are when those that nobody uses end.
        self._most = limits.contexts

    def enter(self, identity: Identity, front: str) -> PublishContext:
        """The gate of an identity that comes in through a front end; `leave` gives it back."""
        context = self._contexts.get((identity, front))
        if context is None:
            context = self._contexts[identity, front] = PublishContext(
                self._resolver, identity, front, self._limits.routes
            )
            if self.prewarmer is not None:
                self.prewarmer.prewarm(context)
        self.join(context)
        return context

    def join(self, context: PublishContext) -> None:
        """Somebody more uses the gate."""
        context.users += 1
        self.users += 1
        name = context.identity.name
        self.by_name[name] = self.by_name.get(name, 0) + 1
        if self.topology is not None:
            self.topology.connected(name, context.front)

    def leave(self, context: PublishContext) -> None:
        """Somebody uses the gate no more. Some are kept for those who come back."""
        context.users -= 1
        self.users -= 1
        name = context.identity.name
        self.by_name[name] -= 1
        if not self.by_name[name]:
            del self.by_name[name]
        if self.topology is not None:
            self.topology.disconnected(name, context.front)
        if len(self._contexts) <= self._most:
            return
        for key, idle in [
            (key, context) for key, context in self._contexts.items() if not context.users
        ]:
            self._past.setdefault(idle.front, IngressCounters()).add(idle)
            del self._contexts[key]
        # Where most are in use, the next look waits until there are twice as many.
        self._most = max(self._limits.contexts, 2 * len(self._contexts))

    def absorb(self, other: PublishContexts) -> None:
        """The other virtual host is gone: what it counted counts here."""
        for front, ingress in other.ingress_counters().items():
            self._past.setdefault(front, IngressCounters()).merge(ingress)

    def __iter__(self) -> Iterator[PublishContext]:
        return iter([self.internal, *self._contexts.values()])

    def evict(self, octets: bytes) -> None:
        """Let the route of a name go everywhere."""
        for context in self:
            context.evict(octets)

    def ingress_counters(self) -> dict[str, IngressCounters]:
        """What came in by front end, and what became of it."""
        found = {front: past.copy() for front, past in self._past.items()}
        for context in self:
            found.setdefault(context.front, IngressCounters()).add(context)
        return found


def sum_into(totals: list[int], more: list[int]) -> None:
    """Add counts to counts, place by place."""
    for at, count in enumerate(more):
        totals[at] += count
