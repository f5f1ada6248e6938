"""The PublishContext: the route cache through which one identity publishes to a virtual host.

    front end: bytes of exchange and routing key --routes.get()--> Route --plan--> fast path
                                                       | miss         | slow_path_mask
                                                       v              v
                                                   resolve()     VirtualHost.publish, the slow path

A front end looks up the bytes as they stand in the packet, so that a hit decodes no names, checks
no permissions and matches no bindings. On a miss, `resolve` asks the Planner for a plan and caches
the route under these bytes. When the cache is full, the oldest routes are evicted.

A message takes the slow path if it has a feature named in the `slow_path_mask` of its plan, for
example an expiration, or headers that a headers exchange matches. The mask of a stale plan makes
every message take the slow path, which calls `renew` to give the route a new plan.

Routes count their publications. The context adds these counts to the IngressCounters of its front
end when a route is evicted or renewed, or when `collect` is called. A reader of the counters first
collects the counts of all routes, in slices (`PublishContexts.collect_steps`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from mypy_extensions import i64

from broker.access.identity import INTERNAL, Identity
from broker.agenda import Agenda, BulkTask
from broker.eviction import evict_oldest
from broker.limits import BrokerLimits
from broker.messages.fates import MESSAGE_FATES, UNROUTABLE
from broker.messages.message import Origin
from broker.routing.connection_counts import ConnectionCounts
from broker.routing.deduplication import owner_of
from broker.routing.plan import Plan
from broker.routing.plan_search import SearchSlot
from broker.routing.route import Route
from broker.routing.topology_stream import TopologyStream

#: Size in bytes of the longest cache key. Longer names are resolved for each message.
NAME_MAX: Final = 512
#: A full cache evicts its capacity divided by this number at once.
EVICTION_DIVISOR: Final = 16
#: Number of routes of unused contexts that are removed in one slice of bulk work.
ROUTES_PER_SLICE: Final = 250


class PlanResolver:
    """The part of the Planner that a PublishContext calls."""

    def plan(self, identity: Identity, exchange: str, key: str, slot: SearchSlot) -> Plan | None:
        """Return the plan of messages that the identity publishes to this exchange with this key.

        If the identity may not publish them, the plan has a `refusal`. Return None if the search
        for the plan pauses. The caller then calls again in the next turn, with the same slot.
        """
        raise NotImplementedError

    def count(self, route: Route, plan: Plan, messages: i64) -> None:
        """Add `messages`, a number of messages with this plan, to the counts of the exchange."""

    def remember(self, route: Route, messages: i64) -> None:
        """Add `messages`, a number of messages of a route, to the topic history."""


class Prewarmer:
    """Fills the route cache of a new PublishContext. Prewarming (prewarming.py) implements it."""

    def prewarm(self, context: PublishContext) -> None:
        """Fill the context's route cache with the routes that its clients are expected to use."""
        raise NotImplementedError


class PublishContext:
    """The routes and the counters of one identity that publishes through one front end.

    All connections of the identity share the context. `routes` is the same dict for the life of
    the context, so a hot loop may keep a reference to it.
    """

    def __init__(
        self,
        resolver: PlanResolver,
        identity: Identity,
        front: str,
        counters: IngressCounters,
        most: int,
    ) -> None:
        """Create a context that adds its counts to `counters`, and caches up to `most` routes."""
        self.identity = identity
        self.front = front
        self.origin = Origin(identity.name, front)
        #: The owner of the producers that publish with this context (deduplication.py).
        self.producer_owner = owner_of(identity)
        self.routes: dict[bytes, Route] = {}
        #: Number of messages that clients published.
        self.received: i64 = 0
        #: Number of connections that use this context, and of wills that wait to be published.
        self.users = 0
        self._counters = counters
        self._resolver = resolver
        #: The largest number of cached routes.
        self.capacity = most
        #: The last route that was resolved and not cached; its count is not added to the fates yet.
        self._uncached: Route | None = None

    def resolve(self, name: bytes, exchange: str, key: str, slot: SearchSlot) -> Route | None:
        """Resolve a route and cache it. Not a hot path.

        The cache key is `name`: the bytes of exchange and routing key as they stand in the packet.

        Return None if the search for the route's plan pauses. The caller then calls again, with the
        same slot.

        The route is not cached if a name is too long, or if it goes through the default exchange
        and its key names no queue: clients that reply to deleted queues would fill the cache.
        """
        plan = self._resolver.plan(self.identity, exchange, key, slot)
        if plan is None:
            return None
        self._counters.misses += 1
        route = Route(exchange, key, plan)
        route.origin = self.origin
        route.cached = True
        if len(name) > NAME_MAX or not exchange and route.plan.fate == UNROUTABLE:
            self._collect_uncached()
            self._uncached = route
            return route
        if len(self.routes) >= self.capacity:
            self.reduce(1 + self.capacity // EVICTION_DIVISOR)
        self.routes[name] = route
        return route

    def evict(self, name: bytes) -> None:
        """Remove the route that is cached under `name`, if any. See `resolve` for `name`."""
        route = self.routes.pop(name, None)
        if route is not None:
            self._remember(route)

    def reduce(self, most: int) -> int:
        """Remove up to `most` cached routes, the oldest first; return how many were removed."""
        evicted = evict_oldest(self.routes, most)
        for _, route in evicted:
            self._remember(route)
        return len(evicted)

    def renew(self, route: Route, slot: SearchSlot) -> bool:
        """Replace the stale plan of a route by a new plan. Not a hot path.

        Return False if the search for the plan pauses. The caller then calls again, with the same
        slot.
        """
        plan = self._resolver.plan(self.identity, route.exchange, route.key, slot)
        if plan is None:
            return False
        self._collect(route)
        route.plan = plan
        route.routed = plan.routed
        return True

    # -- counts

    def count(self, plan: Plan, messages: i64) -> None:
        """Count messages that were published with this plan: their fate and their copies."""
        counters = self._counters
        counters.fates[plan.fate] += int(messages)
        counters.copies += int(messages * plan.copies)
        counters.unrepresentable += int(messages * plan.unrepresentable)

    def count_published(self, route: Route, plan: Plan) -> None:
        """Count a message of this route that took the slow path with this plan."""
        self.count(plan, 1)
        self._resolver.count(route, plan, 1)
        if route.cached:
            route.recent += 1
        else:
            self._resolver.remember(route, 1)

    def count_fate(self, fate: i64) -> None:
        """Count a message with this fate. Called if the message has no plan, or if its fate differs
        from the plan's fate.
        """
        self._counters.fates[fate] += 1

    def count_copies(self, copies: i64, unrepresentable: i64) -> None:
        """Count copies that `count` has not counted, for example of delivered retained messages.

        `unrepresentable` is the number of copies that their destination could not represent.
        """
        self._counters.copies += int(copies)
        self._counters.unrepresentable += int(unrepresentable)

    def _collect(self, route: Route) -> None:
        """Move the number of publications in `route.count` into the counts of this context."""
        if route.count > 0:
            self.count(route.plan, route.count)
            self._resolver.count(route, route.plan, route.count)
            route.recent += route.count
            route.count = 0

    def _collect_uncached(self) -> None:
        if self._uncached is not None:
            self._remember(self._uncached)
            self._uncached = None

    def _remember(self, route: Route) -> None:
        """Move the count of a route into the counts of this context and into the topic history.

        The topic history has the topics of the last hour, each with its number of messages.
        """
        self._collect(route)
        if route.recent > 0:
            self._resolver.remember(route, route.recent)
            route.recent = 0

    def remember(self, routes: list[Route]) -> None:
        """Add the messages of these routes to the topic history (topic_history.py)."""
        for route in routes:
            self._remember(route)

    def collect(self, routes: list[Route]) -> None:
        """Move the publication counts of these routes into the counters of the front end.

        Also move the count of the last resolved route that was not cached.
        """
        for route in routes:
            self._collect(route)
        self._collect_uncached()


class IngressCounters:
    """Counts of the messages that were published through one front end.

    All publish contexts of the front end in a virtual host add to the same counters.
    """

    def __init__(self) -> None:
        #: Number of messages that clients published. In the counters that contexts share, only the
        #: messages of removed contexts are counted here; `PublishContexts.collected` adds the
        #: messages of the present contexts.
        self.received = 0
        #: Numbers of messages by fate, in the order of MESSAGE_FATES.
        self.fates = [0] * len(MESSAGE_FATES)
        #: Number of copies, and of copies that their destination could not represent.
        self.copies = 0
        self.unrepresentable = 0
        #: Number of lookups that had to resolve a route.
        self.misses = 0

    def merge(self, other: IngressCounters) -> None:
        """Add the counts of `other` to these counters."""
        self.received += other.received
        self.copies += other.copies
        self.unrepresentable += other.unrepresentable
        self.misses += other.misses
        sum_into(self.fates, other.fates)

    def copy(self) -> IngressCounters:
        """Return a copy of these counters."""
        other = IngressCounters()
        other.merge(self)
        return other


class PublishContexts:
    """All publish contexts of a virtual host, and the counts of contexts that were removed."""

    def __init__(self, resolver: PlanResolver, agenda: Agenda, limits: BrokerLimits) -> None:
        #: The counters that the contexts of a front end share, by front end.
        self._counters: dict[str, IngressCounters] = {}
        self._resolver = resolver
        self._limits = limits
        #: The context of messages that the broker itself publishes, such as dead letters.
        self.internal = self._new_context(INTERNAL, "internal")
        self._contexts: dict[tuple[Identity, str], PublishContext] = {}
        #: The stream `$topology`, which records each connection that opens or closes; None if there
        #: is none.
        self.topology: TopologyStream | None = None
        #: Number of connections in this virtual host, and of wills that wait to be published.
        self.users = 0
        self.connections = ConnectionCounts()
        #: Fills the cache of each new context, if routes are to be prewarmed.
        self.prewarmer: Prewarmer | None = None
        #: The number of contexts above which unused contexts are removed.
        self._most = limits.contexts
        self._removal = ContextRemoval(self, agenda)

    def enter(self, identity: Identity, front: str) -> PublishContext:
        """Return the context of an identity that connects through a front end.

        The connection calls `leave` when it ends.
        """
        context = self.find(identity, front)
        self.hold(context)
        self.connections.add(identity.name)
        if self.topology is not None:
            self.topology.connected(identity.name, front)
        return context

    def find(self, identity: Identity, front: str) -> PublishContext:
        """Return the context of an identity and a front end; create it if it does not exist."""
        context = self._contexts.get((identity, front))
        if context is None:
            context = self._contexts[identity, front] = self._new_context(identity, front)
            if self.prewarmer is not None:
                self.prewarmer.prewarm(context)
        return context

    def _new_context(self, identity: Identity, front: str) -> PublishContext:
        return PublishContext(
            self._resolver, identity, front, self._counters_of(front), self._limits.routes
        )

    def _counters_of(self, front: str) -> IngressCounters:
        """Return the counters that all contexts of a front end share."""
        return self._counters.setdefault(front, IngressCounters())

    def leave(self, context: PublishContext) -> None:
        """Undo a call of `enter`, because the connection has ended."""
        name = context.identity.name
        self.connections.remove(name)
        if self.topology is not None:
            self.topology.disconnected(name, context.front)
        self.release(context)

    def hold(self, context: PublishContext) -> None:
        """Increment the use count of the context: a connection or an unpublished will needs it."""
        context.users += 1
        self.users += 1

    def release(self, context: PublishContext) -> None:
        """Decrement the use count: a connection or a will message has stopped using the context.

        Unused contexts are kept for the next connection of their identity, up to a limit. Above the
        limit, they are removed in slices.
        """
        context.users -= 1
        self.users -= 1
        if len(self._contexts) > self._most:
            # If most contexts are in use, look for unused contexts again when there are twice as
            # many.
            self._most = 2 * len(self._contexts)
            self._removal.begin(list(self._contexts.values()))

    def reduce(self, context: PublishContext, most: int) -> int:
        """Remove up to `most` routes of a context, and the context itself once it has no routes.

        A context that is in use keeps its routes. Return the number of removed routes.
        """
        if context.users:
            return 0
        removed = context.reduce(most)
        if not context.routes:
            del self._contexts[context.identity, context.front]
            context.collect([])
            self._counters_of(context.front).received += int(context.received)
        return removed

    def on_reduced(self) -> None:
        """Set the number of contexts above which unused contexts are removed the next time."""
        self._most = max(self._limits.contexts, 2 * len(self._contexts))

    def absorb(self, other: PublishContexts) -> None:
        """Add the counts of `other`, the contexts of a deleted virtual host."""
        for front, ingress in other.ingress_counters().items():
            self._counters_of(front).merge(ingress)

    def __iter__(self) -> Iterator[PublishContext]:
        return iter([self.internal, *self._contexts.values()])

    def evict(self, name: bytes) -> None:
        """Remove the route that is cached under `name` from the caches of all contexts."""
        for context in self:
            context.evict(name)

    def collect_steps(self, most: int) -> Iterator[None]:
        """Add the counts of all cached routes to the counters of front ends and of exchanges.

        Each `next` on the iterator collects up to `most` routes. The list of contexts is copied in
        the first step, and the list of a context's routes when the steps reach the context.
        """
        left = most
        for context in list(self):
            routes = list(context.routes.values())
            at = 0
            while at < len(routes) or at == 0:
                some = routes[at : at + left]
                context.collect(some)
                at += max(1, len(some))
                left -= 1 + len(some)
                if left <= 0:
                    left = most
                    yield None

    def ingress_counters(self) -> dict[str, IngressCounters]:
        """Return the counts of received messages, by the name of the receiving front end.

        The counts are complete. Collecting them takes time in proportion to the number of routes. A
        caller that must not stall the event loop uses `collect_steps` and then `collected`.
        """
        for _ in self.collect_steps(1_000_000):
            pass
        return self.collected()

    def collected(self) -> dict[str, IngressCounters]:
        """Return the counts of received messages, by the name of the receiving front end.

        Each cached route counts its own publications. The result lacks the publications that routes
        have counted since the last `collect_steps`.
        """
        totals = {front: counters.copy() for front, counters in self._counters.items()}
        for context in self:
            totals[context.front].received += int(context.received)
        return totals


class ContextRemoval(BulkTask):
    """Removes unused publish contexts, in slices of ROUTES_PER_SLICE routes."""

    def __init__(self, contexts: PublishContexts, agenda: Agenda) -> None:
        super().__init__(agenda)
        self._contexts = contexts
        #: The contexts that were not examined yet.
        self._left: list[PublishContext] = []

    def begin(self, contexts: list[PublishContext]) -> None:
        """Begin to remove all contexts in `contexts` that are not in use."""
        self._left = contexts
        self.schedule()

    def has_work(self) -> bool:
        return bool(self._left)

    def do_slice(self) -> None:
        budget = ROUTES_PER_SLICE
        while self._left and budget > 0:
            context = self._left.pop()
            budget -= 1 + self._contexts.reduce(context, budget)
            if context.routes and not context.users:
                self._left.append(context)
        if not self._left:
            self._contexts.on_reduced()


def sum_into(totals: list[int], more: list[int]) -> None:
    """Add each count of `more` to the count at its position in `totals`."""
    for at, count in enumerate(more):
        totals[at] += count
