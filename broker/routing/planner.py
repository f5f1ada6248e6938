"""The Planner: from an identity, an exchange and a routing key to a Plan.

It checks permissions, and follows the bindings of one virtual host. A PublishContext asks it for a
plan only when its route cache has no route, so nothing here is a hot path.
"""

from __future__ import annotations

from typing import Final

from broker.access.identity import INTERNAL, Identity
from broker.agenda import Agenda, Task
from broker.errors import AccessRefused, BrokerError, NotFound
from broker.limits import BrokerLimits
from broker.messages.fates import LOOPED
from broker.messages.message import ALWAYS, Properties
from broker.messages.x_death import Death, would_cycle
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import NO_LOCAL, PARTLY, Binding
from broker.routing.exchanges import Exchange, TopicExchange
from broker.routing.plan import Plan, refused
from broker.routing.publish_context import PlanResolver
from broker.routing.route import Route
from broker.routing.subscriber import Subscriber
from broker.routing.topology_stream import TOPOLOGY
from broker.stream.queue import StreamQueue

#: Size in bytes of the longest routing key that consumers of queues can receive: AMQP 0-9-1 writes
#: its length into one byte.
NAME_BYTES: Final = 255

#: The exchange that MQTT clients use. A message that an AMQP client publishes to it has headers in
#: place of MQTT's flags, for example a header to retain the message.
TOPICS: Final = "amq.topic"
#: Retired plans that are released in one turn.
PLANS_PER_SLICE: Final = 1_000


class Planner(PlanResolver):
    """The plans of one virtual host.

    Plans are interned: routes to the same set of destinations share one.
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
        self._agenda = agenda
        self._exchanges = exchanges
        #: The queues, and the queues for direct replies, by the names under which the default
        #: exchange routes to them.
        self._queues = queues
        self._replies = replies
        self._limits = limits
        self._plans: dict[tuple[object, ...], Plan] = {}
        #: Streams that record each message of the virtual host.
        self.journals: list[StreamQueue] = []
        #: True while each message takes the slow path, because an alarm is on.
        self.always_slow = False

    def __len__(self) -> int:
        return len(self._plans)

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of this name. Raise NotFound if there is none."""
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self._vhost}'")
        return exchange

    def retire(self) -> None:
        """Make all plans stale, because a queue, an exchange, a binding or a permission changed."""
        plans, self._plans = self._plans, {}
        for plan in plans.values():
            plan.stale = True
            plan.slow_path_mask = ALWAYS
        PlanRelease(self._agenda, plans).run()

    def plan(self, identity: Identity, exchange: str, key: str) -> Plan:
        """Return the plan of messages that the identity publishes to this exchange with this key.

        If the identity may not publish them, the plan has a `refusal`.
        """
        route = Route(exchange, key, _NO_PLAN)
        try:
            source = self._admit(identity, exchange, [route])
        except BrokerError as refusal:
            return self._refusal(refusal)
        return self.follow(source, route, {}, None, identity.name)

    def plan_keys(
        self,
        identity: Identity,
        exchange: str,
        keys: list[str],
        properties: Properties,
        deaths: list[Death] | None = None,
    ) -> Plan:
        """Return the plan of one message with several routing keys, which is not interned.

        `keys` begins with the message's own routing key. If `deaths` is given, the message is a
        dead letter that must not go round in a cycle: a queue for which `would_cycle` is True gets
        no copy. If no destination is left, the message ends with the fate LOOPED.
        """
        routes = [Route(exchange, key, _NO_PLAN) for key in keys]
        try:
            source = self._admit(identity, exchange, routes)
        except BrokerError as refusal:
            return refused(refusal)
        targets, unrepresentable, _, _ = self._targets(source, routes[0], keys, properties)
        if deaths is not None:
            left = [target for target in targets if not would_cycle(deaths, target[0].name)]
            if targets and not left:
                plan = Plan([], 0, False)
                plan.fate = LOOPED
                return plan
            targets = left
        plan = Plan(targets, unrepresentable, False)
        plan.add_journals(self.journals, identity.name)
        return plan

    def resolve_now(
        self, identity: Identity, exchange: str, keys: list[str], properties: Properties
    ) -> ResolvedTargets:
        """Return the present destinations of a message that is published later, in a transaction.

        Raise NotFound if the exchange does not exist, AccessRefused if the identity may not publish
        to it.
        """
        routes = [Route(exchange, key, _NO_PLAN) for key in keys]
        targets, unrepresentable, _, _ = self._targets(
            self._admit(identity, exchange, routes), routes[0], keys, properties
        )
        return ResolvedTargets(targets, unrepresentable, list(self.journals), identity.name)

    def _admit(self, identity: Identity, exchange: str, routes: list[Route]) -> Exchange:
        """Return the exchange if the identity may publish there.

        Raise NotFound if the exchange does not exist, AccessRefused if the identity may not publish
        to it.
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
                    "only the broker writes there"
                )
        if source.kind == TopicExchange.kind:
            for route in routes:
                if not identity.may_route(exchange, route.key, route.topic):
                    raise AccessRefused(
                        f"write access to topic '{route.key}' in exchange '{exchange}' "
                        f"in vhost '{self._vhost}' refused for user '{identity.name}'"
                    )
        return source

    def _refusal(self, refusal: BrokerError) -> Plan:
        return self._intern((type(refusal), str(refusal)), refused(type(refusal)(str(refusal))))

    def follow(
        self,
        exchange: Exchange,
        route: Route,
        properties: Properties,
        publishing_session: Subscriber | None = None,
        publisher: str = "",
    ) -> Plan:
        """Follow the bindings of the exchange, and return the plan of the destinations found.

        A destination to which several bindings lead gets the message with the highest of their QoS.
        `publisher` is the user name that journals record. `publishing_session` gets no copy of its
        own message through a binding with the argument NO_LOCAL.
        """
        targets, unrepresentable, by_headers, by_publishing_session = self._targets(
            exchange, route, [route.key], properties, publishing_session
        )
        if self.journals:
            plan = Plan(targets, unrepresentable, by_headers, by_publishing_session)
            plan.add_journals(self.journals, publisher)
            recorded = (publisher, by_headers, by_publishing_session, unrepresentable, *targets)
            return self._plans.get(recorded) or self._intern(recorded, plan)
        identity = (by_headers, by_publishing_session, unrepresentable, *targets)
        known_plan = self._plans.get(identity)
        return known_plan or self._intern(
            identity, Plan(targets, unrepresentable, by_headers, by_publishing_session)
        )

    def _targets(
        self,
        exchange: Exchange,
        route: Route,
        keys: list[str],
        properties: Properties,
        publishing_session: Subscriber | None = None,
    ) -> tuple[list[tuple[Queue | Subscriber, int]], int, bool, bool]:
        """Return the first four arguments of a Plan.

        These are the destinations, each with its QoS; the number of destinations that cannot
        represent the topic; True if the destinations depend on the headers; True if they depend on
        the publishing session.
        """
        seen: dict[str, Exchange] = {}
        targets: dict[Destination, tuple[Queue | Subscriber, int]] = {}
        by_format: dict[object, bool] = {}
        unrepresentable: set[Destination] = set()
        by_publishing_session = False
        fits_queues = len(route.key.encode("utf-8", "surrogateescape")) <= NAME_BYTES
        for binding in self._collect(exchange, keys, properties, seen):
            target = binding.destination
            if isinstance(target, Subscriber):
                if binding.arguments and NO_LOCAL in binding.arguments:
                    by_publishing_session = True
                    if target is publishing_session:
                        continue
                if (
                    binding.arguments
                    and PARTLY in binding.arguments
                    and not target.may_read(route.topic)
                ):
                    continue
                if target.relay_format not in by_format:
                    by_format[target.relay_format] = target.can_represent(route.topic)
                representable = by_format[target.relay_format]
            elif isinstance(target, Queue):
                representable = fits_queues
            else:
                raise AssertionError("an exchange cannot be the target of a message")
            if not representable:
                unrepresentable.add(target)
                continue
            known = targets.get(target)
            if known is None or known[1] < binding.qos:
                targets[target] = (target, int(binding.qos))
        return (
            list(targets.values()),
            len(unrepresentable),
            any(source.by_headers for source in seen.values()),
            by_publishing_session,
        )

    def _intern(self, identity: tuple[object, ...], plan: Plan) -> Plan:
        if len(self._plans) >= self._limits.routes:
            self.retire()
        if self.always_slow:
            plan.slow_path_mask = ALWAYS
        return self._plans.setdefault(identity, plan)

    def _collect(
        self, exchange: Exchange, keys: list[str], properties: Properties, seen: dict[str, Exchange]
    ) -> list[Binding]:
        """Return the matching bindings to queues and subscribers.

        The search continues in the exchanges to which matching bindings lead, and in alternate
        exchanges, once in each exchange. `seen` collects these exchanges.
        """
        found: list[Binding] = []
        ahead = [exchange]
        while ahead:
            source = ahead.pop()
            if source.name in seen:
                continue
            seen[source.name] = source
            matched = [
                binding
                for key in keys
                for binding in source.match(key, properties)
                if not binding.destination.dead
            ]
            if source.name == "":
                for key in keys:
                    queue = self._default_target(key)
                    if queue is not None:
                        matched.append(Binding(key, queue))
            alternate = source.alternate
            if not matched and alternate is not None and alternate in self._exchanges:
                ahead.append(self._exchanges[alternate])
            for binding in matched:
                if isinstance(binding.destination, Exchange):
                    ahead.append(binding.destination)
                else:
                    found.append(binding)
        return found

    def _default_target(self, key: str) -> Queue | None:
        """Return the queue to which the default exchange routes this key: the queue of that name.

        Return None if there is none, or if it is the stream `$topology`.
        """
        queue = self._queues.get(key) or self._replies.get(key)
        return None if key == TOPOLOGY and isinstance(queue, StreamQueue) else queue


class ResolvedTargets:
    """The destinations of a message that a transaction publishes when it commits."""

    def __init__(
        self,
        targets: list[tuple[Queue | Subscriber, int]],
        unrepresentable: int,
        journals: list[StreamQueue],
        publisher: str,
    ) -> None:
        self._targets = targets
        self._unrepresentable = unrepresentable
        self._journals = journals
        self._publisher = publisher

    def plan(self) -> Plan:
        """Return a plan of the destinations that still exist.

        Destinations that were bound since the message was resolved get no copy.
        """
        left: list[tuple[Queue | Subscriber, int]] = []
        for target, qos in self._targets:
            while isinstance(target, Queue) and target.replacement is not None:
                target = target.replacement
            if not target.dead:
                left.append((target, qos))
        plan = Plan(left, self._unrepresentable, False)
        plan.add_journals(
            [journal for journal in self._journals if not journal.dead], self._publisher
        )
        return plan


class PlanRelease(Task):
    """The release of retired plans, some in each turn: there may be as many plans as topics."""

    def __init__(self, agenda: Agenda, plans: dict[tuple[object, ...], Plan]) -> None:
        self._agenda = agenda
        self._plans = plans

    def run(self) -> None:
        plans = self._plans
        left = PLANS_PER_SLICE
        while plans and left:
            left -= 1
            plans.popitem()[1].release()
        if plans:
            self._agenda.later(self)


_NO_PLAN: Final = Plan([], 0, False)
