"""The Planner: from an identity, an exchange and a routing key to a Plan.

The Planner checks permissions, and follows the bindings of one virtual host. A PublishContext asks
the Planner for a plan only when its route cache has no route, so nothing here is a hot path.

A search that is too long for one turn pauses (plan_search.py). A method with a SearchSlot then
returns None and has no effect. The caller calls the method again in the next turn, with the same
slot.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.access.identity import INTERNAL, Identity
from broker.agenda import Agenda
from broker.errors import AccessRefused, BrokerError, no_exchange
from broker.limits import BrokerLimits
from broker.messages.fates import UNROUTABLE
from broker.messages.message import ALWAYS, TRACEPARENT_HEADER, Properties
from broker.messages.x_death import Death, would_cycle
from broker.queues.queue import Queue
from broker.routing.exchanges import Exchange, is_topic
from broker.routing.plan import Plan, looped, refused
from broker.routing.plan_index import PlanIndex, PlanPlace
from broker.routing.plan_search import PlanSearch, SearchScope, SearchSlot
from broker.routing.publish_context import PlanResolver
from broker.routing.resolved_targets import ResolvedTargets
from broker.routing.route import Route
from broker.routing.subscriber import Subscriber
from broker.routing.topic_groups import TopicGroups
from broker.routing.topic_history import TopicHistory
from broker.routing.topology_stream import TOPOLOGY
from broker.routing.tracing import Traces
from broker.stream.queue import StreamQueue

#: The exchange that MQTT clients use. A message that an AMQP client publishes to it has headers in
#: place of MQTT's flags, for example a header to retain the message.
TOPICS: Final = "amq.topic"


class Planner(PlanResolver):
    """The plans of one virtual host.

    Plans are interned: routes to the same set of destinations share one plan, if the same changes
    make their plans stale (plan_index.py).
    """

    def __init__(
        self,
        vhost: str,
        agenda: Agenda,
        exchanges: dict[str, Exchange],
        queues: dict[str, Queue],
        replies: dict[str, Queue],
        limits: BrokerLimits,
    ) -> None:
        self._vhost = vhost
        self._exchanges = exchanges
        self._queues = queues
        self.scope = SearchScope(exchanges, queues, replies)
        self._limits = limits
        self._index = PlanIndex(agenda, limits.routes)
        #: Streams that record each message of the virtual host.
        self.journals: list[StreamQueue] = []
        #: True while each message takes the slow path, because an alarm is on.
        self.always_slow = False
        #: Counters of unroutable messages by groups of topics; None if the operator names no group.
        self.topic_groups: TopicGroups | None = None
        #: The topics of the last hour, in all virtual hosts.
        self.history = TopicHistory()
        #: The running traces, whose messages take the slow path.
        self.traces = Traces(vhost, agenda, self.retire_all)

    def __len__(self) -> int:
        return len(self._index)

    def count(self, route: Route, plan: Plan, messages: i64) -> None:
        known = self._exchanges.get(route.exchange)
        if known is None:
            return
        known.published += messages
        known.copies += messages * plan.copies
        if plan.fate == UNROUTABLE:
            known.unroutable += messages
            self.history.add_unroutable(self._vhost, route.exchange, route.key, messages)
            if self.topic_groups is not None and is_topic(known):
                self.topic_groups.count(route.key, messages)

    def remember(self, route: Route, messages: i64) -> None:
        if route.exchange:
            self.history.add(self._vhost, route.exchange, route.key, messages)
            return
        # The bindings of the default exchange never change, so its messages are only counted by
        # queue, for a trial that deletes the queue. Reply queues are not counted, because their
        # names would fill the history.
        queue = self._queues.get(route.key)
        if queue is not None and queue.exclusive_to is None and not queue.auto_delete:
            self.history.add_direct(self._vhost, route.key, messages)

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of this name. Raises NotFound if there is none."""
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise no_exchange(name, self._vhost)
        return exchange

    def retire(self, exchange: str, word: str | None = None) -> None:
        """Make stale all plans through an exchange, because the exchange or one of its bindings
        changed. A paused search that has already followed the exchange restarts.

        If `word` is given, only the plans for routing keys that begin with this word become stale.
        """
        known = self._exchanges.get(exchange)
        if known is not None:
            known.version += 1
        self._index.retire(exchange, word)

    def retire_all(self) -> None:
        """Make all plans stale, for example because a permission or a policy changed."""
        self.scope.version += 1
        self._index.retire_all()

    def plan(self, identity: Identity, exchange: str, key: str, slot: SearchSlot) -> Plan | None:
        """Return the plan of messages that the identity publishes to this exchange with this key.

        If the identity may not publish them, the plan has a `refusal`. Return None if the search
        pauses.
        """
        route = Route(exchange, key, NO_PLAN)
        try:
            source = self.admit(identity, exchange, [route])
        except BrokerError as refusal:
            return self._refusal(exchange, key, refusal, identity.name)
        return self._find(slot, source, route, identity.name)

    def follow(
        self,
        exchange: Exchange,
        route: Route,
        properties: Properties,
        publishing_session: Subscriber | None,
        publisher: str,
        slot: SearchSlot,
    ) -> Plan | None:
        """Follow the bindings of the exchange, and return the plan of the destinations found.

        A destination to which several bindings lead gets the message with the highest QoS of these
        bindings. `publisher` is the user name that journals record. `publishing_session` gets no
        copy of its own message through a binding with the argument NO_LOCAL. Return None if the
        search pauses.
        """
        search = self._search(
            slot, "message", exchange, route, [route.key], properties, publishing_session
        )
        if search is None:
            return None
        if search.by_headers:
            self.history.offer(self._vhost, route.exchange, route.key, properties)
        destinations = search.destinations()
        recorded = publisher if self.journals else None
        identity = (recorded, search.unrepresentable, *destinations)
        plan = self._index.get_of_message(identity)
        if plan is None:
            plan = self._new_plan(search, destinations, publisher, False)
            self._index.add_of_message(identity, plan)
        return plan

    def plan_keys(
        self,
        identity: Identity,
        exchange: str,
        keys: list[str],
        properties: Properties,
        deaths: list[Death] | None,
        slot: SearchSlot,
    ) -> Plan | None:
        """Return a plan, not interned, for one message with several routing keys.

        `keys` begins with the message's own routing key. If `deaths` is given, the message is a
        dead letter that must not go round in a cycle: a queue for which `would_cycle` is True gets
        no copy. If no destination remains, the message ends with the fate LOOPED. Return None if
        the search pauses.
        """
        routes = [Route(exchange, key, NO_PLAN) for key in keys]
        try:
            source = self.admit(identity, exchange, routes)
        except BrokerError as refusal:
            return refused(refusal)
        search = self._search(slot, "keys", source, routes[0], keys, properties, None)
        if search is None:
            return None
        targets = search.destinations()
        if deaths is not None:
            left = [target for target in targets if not would_cycle(deaths, target[0].name)]
            if targets and not left:
                return looped()
            targets = left
        plan = Plan(targets, search.unrepresentable, False)
        plan.add_journals(self.journals, identity.name)
        return plan

    def resolve_now(
        self,
        identity: Identity,
        exchange: str,
        keys: list[str],
        properties: Properties,
        slot: SearchSlot,
    ) -> ResolvedTargets | None:
        """Return the present destinations of a message that is published later, in a transaction.

        Return None if the search pauses. Raises NotFound if the exchange does not exist,
        AccessRefused if the identity may not publish to it.
        """
        routes = [Route(exchange, key, NO_PLAN) for key in keys]
        source = self.admit(identity, exchange, routes)
        search = self._search(slot, "transaction", source, routes[0], keys, properties, None)
        if search is None:
            return None
        return ResolvedTargets(
            search.destinations(),
            search.unrepresentable,
            list(self.journals),
            identity.name,
        )

    def admit(self, identity: Identity, exchange: str, routes: list[Route]) -> Exchange:
        """Return the exchange if the identity may publish messages of these routes to it.

        Raises NotFound if the exchange does not exist, AccessRefused if the identity may not
        publish to the exchange.
        """
        source = self.exchange(exchange)
        if identity is not INTERNAL:
            if source.options.internal:
                raise AccessRefused(
                    f"cannot publish to internal exchange '{exchange}' in vhost '{self._vhost}'"
                )
            identity.may("write", "exchange", exchange or "amq.default", self._vhost)
            if (
                exchange == ""
                and any(route.key == TOPOLOGY for route in routes)
                and isinstance(self._queues.get(TOPOLOGY), StreamQueue)
            ):
                raise AccessRefused(
                    f"cannot publish to queue '{TOPOLOGY}' in vhost '{self._vhost}': "
                    "only the broker publishes to this queue"
                )
        if is_topic(source):
            for route in routes:
                if not identity.may_route(exchange, route.key, route.topic):
                    raise AccessRefused(
                        f"write access to topic '{route.key}' in exchange '{exchange}' "
                        f"in vhost '{self._vhost}' refused for user '{identity.name}'"
                    )
        return source

    def _refusal(self, exchange: str, key: str, refusal: BrokerError, publisher: str) -> Plan:
        place = PlanPlace([exchange], key)
        traced = self.traces.select(publisher, exchange, key, [], False)
        identity = (place, type(refusal), str(refusal), traced)
        known = self._index.get(identity)
        if known is None:
            known = refused(refusal.copy())
            known.traced = traced
            self._intern(identity, known)
        return known

    def _search(
        self,
        slot: SearchSlot,
        name: str,
        source: Exchange,
        route: Route,
        keys: list[str],
        properties: Properties,
        publishing_session: Subscriber | None,
    ) -> PlanSearch | None:
        """Begin or continue the search `name` of `slot`; return it when complete, None if it
        pauses.
        """
        search = None if slot.searches is None else slot.searches.get(name)
        if search is None or not search.is_for(source, keys):
            search = PlanSearch(
                self.scope, source, route.topic, keys, properties, publishing_session
            )
            if search.advance(slot):
                return search
            if slot.searches is None:
                slot.searches = {}
            slot.searches[name] = search
            return None
        return search if search.advance(slot) else None

    def _find(
        self, slot: SearchSlot, source: Exchange, route: Route, publisher: str
    ) -> Plan | None:
        """Return the plan of a route for messages without headers; None if the search pauses."""
        search = self._search(slot, "route", source, route, [route.key], {}, None)
        if search is None or search.plan is not None:
            return None if search is None else search.plan
        destinations = search.destinations()
        vary = search.by_headers or search.by_publishing_session
        traced = self.traces.select(publisher, source.name, route.key, destinations, vary)
        if search.outdated:
            plan = self._new_plan(search, destinations, publisher, traced)
            plan.stale = True
            plan.slow_path_mask = ALWAYS
        else:
            identity = (
                PlanPlace(search.seen, route.key),
                publisher if self.journals else None,
                search.by_headers,
                search.by_publishing_session,
                search.unrepresentable,
                traced,
                *destinations,
            )
            plan = self._index.get(identity) or self._intern(
                identity,
                self._index.twin(identity)
                or self._new_plan(search, destinations, publisher, traced),
            )
        search.plan = plan
        return plan

    def _new_plan(
        self,
        search: PlanSearch,
        destinations: list[tuple[Queue | Subscriber, int]],
        publisher: str,
        traced: bool,
    ) -> Plan:
        plan = Plan(
            destinations, search.unrepresentable, search.by_headers, search.by_publishing_session
        )
        plan.add_journals(self.journals, publisher)
        if self.traces.sampler is not None:
            plan.slow_path_mask |= TRACEPARENT_HEADER
        if self.always_slow:
            plan.slow_path_mask = ALWAYS
        if traced:
            plan.trace()
        return plan

    def _intern(self, identity: tuple[object, ...], plan: Plan) -> Plan:
        if len(self._index) >= self._limits.routes:
            self.retire_all()
        self._index.add(identity, plan)
        return plan


NO_PLAN: Final = Plan([], 0, False)
