"""The virtual host: its parts, and the slow path of publishing.

A virtual host is a separate set of exchanges, queues, bindings and policies. Front ends use all
parts through one VirtualHost:

    VirtualHost --+-- declarations       exchanges, queues and journals (declarations.py)
                  +-- applied_policies   sets and applies policies (applied_policies.py)
                  +-- bindings           add and remove bindings (bindings.py)
                  +-- contexts           route caches of publishers (routing/publish_context.py)
                  +-- retained           retained messages (retained.py)
                  +-- producers          deduplication of publishers (routing/deduplication.py)

publishing.py has the rarer ways to publish, private_queues.py the inboxes of sessions and the
queues of direct replies, client_declarations.py the rules for the declarations of clients.

A message is published on the fast path by its front end, which puts it into the queues of its plan
directly, or with `publish_persistent`. A message with a feature that the plan's `slow_path_mask`
names takes the slow path, `publish`.
"""

from __future__ import annotations

from collections.abc import Mapping

from mypy_extensions import i64

from broker.agenda import Agenda
from broker.limits import BrokerLimits
from broker.messages.fates import REFUSED, REPEATED, UNROUTABLE
from broker.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    AmendedEncoding,
    Encoding,
    Message,
    Properties,
)
from broker.messages.outlet import Outlet
from broker.messages.tracing import readdressed, report
from broker.messages.x_death import Death
from broker.queues.destination import Destination
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.deduplication import Producers
from broker.routing.exchanges import Exchange, RecentHistoryExchange
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.plan import Plan
from broker.routing.plan_index import first_word
from broker.routing.plan_search import SearchSlot
from broker.routing.publish_context import PublishContext
from broker.routing.route import MessageRoute, Route, new_route, with_plan
from broker.routing.subscriber import Subscriber
from broker.store.contract import Store, Ticket
from broker.stream.streams import Streams
from broker.vhost.dead_letters import (
    MOVES_MAX,
    DeadLetters,
    DelayedPublications,
    QueueMoves,
    SharedAddresses,
)
from broker.vhost.declarations import Declarations
from broker.vhost.options import VirtualHostOptions
from broker.vhost.recent_history import HistoryReplay
from broker.vhost.retained import RetainedMessages
from broker.vhost.slow_path_entries import delay, store_message
from broker.vhost.totals import VirtualHostTotals


class VirtualHost(DeadLetterHost):
    """A virtual host, as front ends and the management API use it.

    The methods raise subclasses of BrokerError.
    """

    def __init__(
        self,
        name: str,
        agenda: Agenda,
        store: Store,
        limits: BrokerLimits,
        streams: Streams | None = None,
    ) -> None:
        self.name = name
        self.agenda = agenda
        self.store = store
        self.limits = limits
        self.subscribers: dict[Subscriber, None] = {}
        #: The session whose messages are being published. A subscription of this session with the
        #: option "no local" gets no copy of these messages.
        self.publishing_session: Subscriber | None = None
        self.retained = RetainedMessages(
            name, agenda, store, limits.retained, limits.retained_bytes
        )
        self.producers = Producers(name, store, agenda)
        #: True once the deletion of the virtual host has begun: no client can connect to it then.
        self.closing = False
        #: True while an alarm for memory or disk is on: publishers are blocked.
        self.alarmed = False
        #: Number of dead letters by reason.
        self.dead_letters: dict[str, int] = {}
        #: For each queue with messages that wait to be published again: the task that publishes
        #: them.
        self.moves: dict[LimitedQueue, QueueMoves] = {}
        #: Publishers that wait because a queue is `LimitedQueue.behind` with its dead letters.
        self.held_publishers: dict[Outlet, None] = {}
        self.addresses = SharedAddresses()
        streams = streams or Streams(store)
        self._codecs = streams.codecs
        declarations = Declarations(name, agenda, store, limits, streams, self)
        self.declarations = declarations
        self.bindings = declarations.bindings
        self.contexts = declarations.contexts
        #: The context of messages that the broker itself publishes.
        self.internal = self.contexts.internal
        # The dicts of the declarations, which callers read directly. They are never replaced.
        self.exchanges = declarations.exchanges
        self.queues = declarations.queues
        self.replies = declarations.replies
        self.delays = declarations.delays
        self.histories = declarations.histories
        self.inboxes = declarations.inboxes
        self.policies = declarations.policies
        self.parameters = declarations.parameters
        self.applied_policies = declarations.applied_policies
        self._planner = declarations.planner
        self.traces = declarations.planner.traces

    @property
    def options(self) -> VirtualHostOptions:
        """Description, tags, default queue type, limits, and protection from deletion."""
        return self.declarations.options

    @options.setter
    def options(self, options: VirtualHostOptions) -> None:
        self.declarations.options = options

    # -- counts

    @property
    def plans(self) -> int:
        """The number of cached plans that are not stale."""
        return len(self._planner)

    @property
    def paused_searches(self) -> int:
        """The number of searches for destinations that took more than one turn."""
        return int(self._planner.scope.paused)

    def totals(self) -> VirtualHostTotals:
        """Return a new count of the objects and messages, which the caller advances in steps."""
        return VirtualHostTotals(
            list(self.queues.values()),
            [*self.replies.values(), *self.delays.values(), *self.histories.values()],
            list(self.subscribers),
            self.declarations.deleted,
            sum(ingress.unrepresentable for ingress in self.contexts.collected().values()),
        )

    def absorb(self, other: VirtualHost) -> None:
        """Add the counts of a virtual host that is deleted, so that metrics never fall."""
        self.contexts.absorb(other.contexts)
        for reason, count in other.dead_letters.items():
            self.dead_letters[reason] = self.dead_letters.get(reason, 0) + count
        self.declarations.absorb(other.declarations)

    # -- declarations and bindings, as clients request them

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of this name. Raises NotFound if there is none."""
        return self._planner.exchange(name)

    def queue(self, name: str, owner: object = None) -> Queue:
        """Return the queue of this name, for use by the connection `owner`.

        Raises NotFound if there is no such queue, ResourceLocked if the queue is exclusive to
        another connection or belongs to a session.
        """
        return self.declarations.queue(name, owner)

    def declare_exchange(
        self, name: str, kind: str, options: ExchangeOptions, ticket: Ticket | None = None
    ) -> Exchange:
        """Return the exchange of this name; create it if it does not exist."""
        return self.declarations.declare_exchange(name, kind, options, ticket)

    def delete_exchange(
        self, name: str, if_unused: bool = False, ticket: Ticket | None = None
    ) -> None:
        """Delete an exchange, if it exists. See `Declarations.delete_exchange`."""
        self.declarations.delete_exchange(name, if_unused, ticket)

    def declare_queue(
        self,
        name: str,
        durable: bool = False,
        arguments: Mapping[str, object] | None = None,
        owner: object = None,
        exclusive: bool = False,
        auto_delete: bool = False,
        ticket: Ticket | None = None,
    ) -> Queue:
        """Return the queue of this name; create it if it does not exist."""
        return self.declarations.declare_queue(
            name, durable, arguments, owner, exclusive, auto_delete, ticket
        )

    def delete_queue(
        self,
        queue: Queue,
        if_unused: bool = False,
        if_empty: bool = False,
        ticket: Ticket | None = None,
    ) -> int:
        """Delete a queue; return how many messages waited. See `Declarations.delete_queue`."""
        return self.declarations.delete_queue(queue, if_unused, if_empty, ticket, self.closing)

    def bind(
        self, source: str, binding: Binding, ticket: Ticket | None = None
    ) -> HistoryReplay | None:
        """Add a binding to an exchange.

        The new binding replaces the binding with the same destination, key and arguments, if there
        is one. If it replaces none and the exchange keeps a history (RecentHistoryExchange), return
        the task that delivers the history to the destination, else None.
        """
        exchange = self.exchanges.get(source)
        if self.bindings.bind(source, binding, ticket) and isinstance(
            exchange, RecentHistoryExchange
        ):
            replay = HistoryReplay(self, exchange, binding)
            replay.run_first_slice()
            return replay
        return None

    def unbind(self, source: str, binding: Binding, ticket: Ticket | None = None) -> None:
        """Remove the binding that has the destination, key and arguments of `binding`, if any."""
        self.bindings.unbind(source, binding, ticket)

    def retire_plans(self) -> None:
        """Make all plans stale, because a permission changed."""
        self._planner.retire_all()

    def retire_plans_to(self, destination: Destination) -> None:
        """Make stale all plans that may lead to a destination.

        Called after a change of the destination or of its permissions.
        """
        self.bindings.retire_to(destination)

    def reply_when_durable(self, known: Destination, ticket: Ticket | None) -> None:
        """Delay a reply until the definition of an existing object is durable.

        So a declare-ok survives a crash, even if another client declared the object just before.
        """
        if ticket is not None:
            self.store.wait_for(known.number, ticket)

    def reply_when_all_durable(self, ticket: Ticket | None) -> None:
        """Delay a reply until all changes so far are durable.

        Called if a client requests a change that another client may have made just before.
        """
        self.store.reply_when_all_durable(ticket)

    def alarm(self, on: bool) -> None:
        """Record that an alarm for memory or disk is on, or that no alarm is on any more.

        While an alarm is on, all messages take the slow path, and their publishers are blocked.
        """
        self.alarmed = on
        self._planner.always_slow = on
        self.retire_plans()

    # -- publishing

    def route(
        self, context: PublishContext, exchange: str, key: str, slot: SearchSlot
    ) -> Route | None:
        """Return a new uncached route for one message; None if the search needs another turn."""
        plan = self._planner.plan(context.identity, exchange, key, slot)
        return new_route(exchange, key, plan, context.origin)

    def route_by(
        self,
        context: PublishContext,
        exchange: str,
        keys: list[str],
        properties: Properties,
        deaths: list[Death] | None,
        slot: SearchSlot,
    ) -> Route | None:
        """Return a new route for one message with several routing keys, or for a dead letter.

        If `deaths` is given, the message is a dead letter that must not go round in a cycle. Return
        None if the search needs another turn.
        """
        plan = self._planner.plan_keys(context.identity, exchange, keys, properties, deaths, slot)
        return new_route(exchange, keys[0], plan, context.origin)

    def plan_of(
        self, context: PublishContext, route: Route, message: Message, slot: SearchSlot
    ) -> Plan | None:
        """Return the present plan of a message; None if the search for it needs another turn."""
        if route.plan.stale and not context.renew(route, slot):
            return None
        plan = route.plan
        if plan.refusal is None and (plan.by_headers or plan.by_publishing_session):
            return self._planner.follow(
                self.exchange(route.exchange),
                route,
                message.properties,
                self.publishing_session,
                context.identity.name,
                slot,
            )
        return plan

    def publish(
        self,
        context: PublishContext,
        route: Route,
        plan: Plan,
        message: Message,
        ticket: Ticket | None,
    ) -> i64:
        """Publish a message on the slow path, and return its fate.

        `plan` is the result of `plan_of`, called in the same turn. Raises the plan's `refusal`, if
        it has one. The ticket waits for all changes that must be durable before the publisher gets
        a confirm. Afterwards, a message with QoS 1 or 2 that a durable queue gets has a `position`
        in the store.
        """
        if plan is not route.plan and plan.recorded:
            message.address = readdressed(message.address, with_plan(route, plan))
        if self.traces.active:
            self.traces.follow(context, route, plan, message)
        if plan.refusal is not None:
            context.count(plan, 1)
            # Raise a copy: an error object that is raised again and again collects tracebacks.
            raise plan.refusal.copy()
        for known in plan.filters:
            # The filter decides for a message published to its own exchange. If the message came to
            # this exchange through another exchange, the filter decides only if the message has no
            # other destination.
            only = known.name == route.exchange or plan.fate == UNROUTABLE
            if only and known.repeats(message.properties):
                context.count_fate(REPEATED)
                self.reply_when_all_durable(ticket)
                report(message, "repeated", known.name)
                return REPEATED
        refusing = [queue for queue in plan.limited if not queue.accepts(message)]
        for full in refusing:
            full.refuse(message)
        if message.qos > AT_MOST_ONCE and plan.durable:
            entry = route.entry if isinstance(route, MessageRoute) and not refusing else None
            if entry is None:
                store_message(self.name, self.store, message, plan, refusing, ticket)
            else:
                message.position = self.store.append(entry, ticket)
        for queue in plan.queues if message.qos == AT_MOST_ONCE else plan.reliable_queues:
            if queue in refusing:
                continue
            if message.qos == EXACTLY_ONCE and queue in plan.qos1_inboxes:
                queue.put(message.copy(AT_LEAST_ONCE, False))
            else:
                queue.put(message)
        if plan.streams and ticket is not None:
            self.store.wait_for_next_batch(ticket)
        for waiting in plan.delays:
            blind = route.blind if isinstance(route, MessageRoute) else []
            delay(self.name, self.store, waiting, message, blind, ticket)
        (plan.relay if message.qos == AT_MOST_ONCE else plan.reliable_relay).offer(message)
        if refusing:
            context.count_fate(REFUSED)
            context.count_copies(plan.copies, plan.unrepresentable)
            return REFUSED
        for known in plan.filters:
            known.record(message.properties)
        context.count_published(route, plan)
        return plan.fate

    def publish_persistent(self, route: Route, message: Message, ticket: Ticket | None) -> None:
        """Store a message and put it into the queues of its plan. Hot path.

        Call this method only for a message with QoS 0 or 1 whose only feature in the plan's
        `slow_path_mask` is PERSISTENCE. All destinations of the plan must get the message through a
        queue: its `reliable_relay` must be empty.
        """
        plan = route.plan
        annotations: list[int] | None = None
        if plan.annotated:
            annotations = [queue.annotate(False) for queue in plan.durable]
        message.position = self.store.append_message(
            self.name, message, plan.numbers, annotations, ticket
        )
        route.deliver(message, plan.reliable_queues)

    def retain(self, message: Message, ticket: Ticket | None) -> None:
        """Replace the retained message of the topic, or remove it if the new payload is empty."""
        self.retained.keep(message, ticket)

    def encoded(self, encoding: AmendedEncoding, content: bytes, qos: i64) -> Encoding:
        """Return an encoding that holds the properties of a dead letter in little memory."""
        return self._codecs.property_codec.encoded(encoding, content, qos)

    def release(self, context: PublishContext) -> None:
        """Decrement the use count of a context, because a will message has stopped using it."""
        self.contexts.release(context)

    # -- requests of queues

    def expire_queue(self, queue: LimitedQueue) -> None:
        if self.queues.get(queue.name) is queue:
            self.delete_queue(queue)

    def publish_delayed(self, queue: LimitedQueue, message: Message) -> None:
        moves = self.moves.get(queue) or DelayedPublications(self, queue)
        moves.add(message)

    def dead_letter(self, queue: LimitedQueue, message: Message, reason: str) -> None:
        self.dead_letters[reason] = self.dead_letters.get(reason, 0) + 1
        moves = self.moves.get(queue)
        if not isinstance(moves, DeadLetters):
            moves = DeadLetters(self, queue)
        moves.add_for(message, reason)

    def set_behind(self, queue: LimitedQueue, behind: bool) -> None:
        """If `behind` is True, make publishers to the queue wait; else let all of them go on.

        The plans that lead to the queue become stale, so call this method between publications
        only.
        """
        queue.behind = behind
        self.retire_plans_to(queue)
        self._planner.retire("", first_word(queue.name))
        if not behind:
            held, self.held_publishers = self.held_publishers, {}
            for outlet in held:
                outlet.resume_publishing()

    def is_behind(self, queue: LimitedQueue) -> bool:
        moves = self.moves.get(queue)
        return moves is not None and moves.waiting >= MOVES_MAX
