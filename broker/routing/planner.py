"""The cold side of publishing: from an identity, an exchange and a key to a Plan."""

from __future__ import annotations

from typing import Final

from broker.access.identity import INTERNAL, Identity
from broker.agenda import Agenda, Task
from broker.errors import AccessRefused, BrokerError, NotFound
from broker.limits import BrokerLimits
from broker.messages.message import ALWAYS, Properties
from broker.messages.x_death import Death, would_cycle
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import NO_LOCAL, PARTLY, Binding
from broker.routing.exchanges import Exchange, TopicExchange
from broker.routing.publish_context import PlanResolver
from broker.routing.route import LOOPED, Plan, Route, Subscriber, refused
from broker.routing.topology_stream import TOPOLOGY
from broker.stream.queue import StreamQueue

#: Octets of the longest routing key that every reader of queues can be told.
NAME_BYTES: Final = 255

#: The exchange to which a publisher may say in headers what other front ends have bits for, such as
#: that a message is to be retained.
TOPICS: Final = "amq.topic"
#: Plans that let go of their destinations in one turn.
SLICE: Final = 1_000


class Planner(PlanResolver):
    """Walks the bindings of one virtual host.

    Plans are interned, so that routes to the same set share one.
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
        #: What the default exchange leads to.
        self._queues = queues
        self._replies = replies
        self._limits = limits
        self._plans: dict[tuple[object, ...], Plan] = {}
        #: Streams that get every publication.
        self.journals: list[StreamQueue] = []
        #: Whether every publication is to be looked at.
        self.always_slow = False

    def __len__(self) -> int:
        return len(self._plans)

    def retire(self) -> None:
        """Every plan may be wrong now."""
        plans, self._plans = self._plans, {}
        for plan in plans.values():
            plan.stale = True
            plan.slow_path_mask = ALWAYS
        PlanRelease(self._agenda, plans).run()

    def plan(self, identity: Identity, exchange: str, key: str) -> Plan:
        """Everything that can be known about publications by this identity to this exchange and
        key.
        """
        route = Route(exchange, key, _NO_PLAN)
        try:
            source = self._admit(identity, exchange, [route])
        except BrokerError as refusal:
            return self._refusal(refusal)
        return self.walk(source, route, {}, None, identity.name)

    def plan_keys(
        self,
        identity: Identity,
        exchange: str,
        keys: list[str],
        properties: Properties,
        deaths: list[Death] | None = None,
    ) -> Plan:
        """The plan of one message with several routing keys, of which the first is its own; it is
        not kept.

        Queues to which a dead letter with these deaths would come back for ever are left out.
        """
        routes = [Route(exchange, key, _NO_PLAN) for key in keys]
        try:
            source = self._admit(identity, exchange, routes)
        except BrokerError as refusal:
            return refused(refusal)
        targets, unheard, _, _ = self._targets(source, routes[0], keys, properties)
        if deaths is not None:
            left = [target for target in targets if not would_cycle(deaths, target[0].name)]
            if targets and not left:
                plan = Plan([], 0, False)
                plan.fate = LOOPED
                return plan
            targets = left
        plan = Plan(targets, unheard, False)
        plan.record(self.journals, identity.name)
        return plan

    def resolve_now(
        self, identity: Identity, exchange: str, keys: list[str], properties: Properties
    ) -> ResolvedTargets:
        """Where a message with these routing keys goes now, for one that is published later.

        Raises NotFound, AccessRefused.
        """
        routes = [Route(exchange, key, _NO_PLAN) for key in keys]
        targets, unheard, _, _ = self._targets(
            self._admit(identity, exchange, routes), routes[0], keys, properties
        )
        return ResolvedTargets(targets, unheard, list(self.journals), identity.name)

    def _admit(self, identity: Identity, exchange: str, routes: list[Route]) -> Exchange:
        """The exchange, if the identity may publish there. Raises NotFound, AccessRefused."""
        source = self._exchange(exchange)
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
                    f"cannot publish to queue '{TOPOLOGY}' in vhost '{self._vhost}': only the broker writes there"
                )
        if source.kind == TopicExchange.kind:
            for route in routes:
                if not identity.may_route(exchange, route.key, route.topic):
                    raise AccessRefused(
                        f"write access to topic '{route.key}' in exchange '{exchange}' in vhost '{self._vhost}' refused "
                        f"for user '{identity.name}'"
                    )
        return source

    def _refusal(self, refusal: BrokerError) -> Plan:
        return self._intern((type(refusal), str(refusal)), refused(type(refusal)(str(refusal))))

    def walk(
        self,
        exchange: Exchange,
        route: Route,
        properties: Properties,
        speaker: Subscriber | None = None,
        publisher: str = "",
    ) -> Plan:
        """Walk the bindings; each destination once, with the highest assurance that leads there.
        The `speaker` is who publishes."""
        targets, unheard, by_headers, by_speaker = self._targets(
            exchange, route, [route.key], properties, speaker
        )
        if self.journals:
            plan = Plan(targets, unheard, by_headers, by_speaker)
            plan.record(self.journals, publisher)
            recorded = (publisher, by_headers, by_speaker, unheard, *targets)
            return self._plans.get(recorded) or self._intern(recorded, plan)
        identity = (by_headers, by_speaker, unheard, *targets)
        known_plan = self._plans.get(identity)
        return known_plan or self._intern(identity, Plan(targets, unheard, by_headers, by_speaker))

    def _targets(
        self,
        exchange: Exchange,
        route: Route,
        keys: list[str],
        properties: Properties,
        speaker: Subscriber | None = None,
    ) -> tuple[list[tuple[Queue | Subscriber, int]], int, bool, bool]:
        """Who gets it and with which assurance; how many cannot be told; whether that depends on
        more than the keys, and on who publishes."""
        seen: dict[str, Exchange] = {}
        targets: dict[Destination, tuple[Queue | Subscriber, int]] = {}
        heard: dict[object, bool] = {}
        unheard: set[Destination] = set()
        by_speaker = False
        sayable = len(route.key.encode("utf-8", "surrogateescape")) <= NAME_BYTES
        for binding in self._collect(exchange, keys, properties, seen):
            target = binding.destination
            if isinstance(target, Subscriber):
                if binding.arguments and NO_LOCAL in binding.arguments:
                    by_speaker = True
                    if target is speaker:
                        continue
                if (
                    binding.arguments
                    and PARTLY in binding.arguments
                    and not target.may_read(route.topic)
                ):
                    continue
                if target.relay_format not in heard:
                    heard[target.relay_format] = target.can_represent(route.topic)
                hears = heard[target.relay_format]
            elif isinstance(target, Queue):
                hears = sayable
            else:
                raise AssertionError("an exchange is no target")
            if not hears:
                unheard.add(target)
                continue
            known = targets.get(target)
            if known is None or known[1] < binding.qos:
                targets[target] = (target, int(binding.qos))
        return (
            list(targets.values()),
            len(unheard),
            any(source.by_headers for source in seen.values()),
            by_speaker,
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
        """Bindings that lead out of the exchanges, through exchange bindings and alternates; each
        exchange once.
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
                    queue = self._addressed(key)
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

    def _addressed(self, key: str) -> Queue | None:
        """The queue to which the default exchange leads by this key."""
        queue = self._queues.get(key) or self._replies.get(key)
        return None if key == TOPOLOGY and isinstance(queue, StreamQueue) else queue

    def _exchange(self, name: str) -> Exchange:
        exchange = self._exchanges.get(name)
        if exchange is None:
            raise NotFound(f"no exchange '{name}' in vhost '{self._vhost}'")
        return exchange


class ResolvedTargets:
    """Where a message goes that is not published yet."""

    def __init__(
        self,
        targets: list[tuple[Queue | Subscriber, int]],
        unheard: int,
        journals: list[StreamQueue],
        publisher: str,
    ) -> None:
        self._targets = targets
        self._unheard = unheard
        self._journals = journals
        self._publisher = publisher

    def plan(self) -> Plan:
        """What is left of it; who came since gets nothing."""
        left: list[tuple[Queue | Subscriber, int]] = []
        for target, qos in self._targets:
            while isinstance(target, Queue) and target.replacement is not None:
                target = target.replacement
            if not target.dead:
                left.append((target, qos))
        plan = Plan(left, self._unheard, False)
        plan.record([journal for journal in self._journals if not journal.dead], self._publisher)
        return plan


class PlanRelease(Task):
    """Retired plans let go of their destinations, some a turn: there may be as many as there are
    topics.
    """

    def __init__(self, agenda: Agenda, plans: dict[tuple[object, ...], Plan]) -> None:
        self._agenda = agenda
        self._plans = plans

    def run(self) -> None:
        plans = self._plans
        left = SLICE
        while plans and left:
            left -= 1
            plans.popitem()[1].release()
        if plans:
            self._agenda.later(self)


_NO_PLAN: Final = Plan([], 0, False)
