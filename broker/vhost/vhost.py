"""The virtual host: its parts, the slow path of publishing, and the queues of sessions.

A virtual host is a separate set of exchanges, queues, bindings and policies. Front ends reach all
of it through one VirtualHost:

    VirtualHost --+-- declarations   exchanges, queues and journals (declarations.py)
                  +-- applied_policies    sets and applies policies (applied_policies.py)
                  +-- bindings       add and remove bindings (bindings.py)
                  +-- contexts       route caches of publishers (routing/publish_context.py)
                  +-- retained       retained messages (retained.py)
                  +-- producers      deduplication of publishers (routing/deduplication.py)

A message is published on the fast path by its front end, which puts it into the queues of its plan
directly, or with `publish_persistent`. A message with a feature that the plan's `slow_path_mask`
names takes the slow path, `publish`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.agenda import Agenda
from broker.limits import BrokerLimits
from broker.messages.cc_headers import BCC
from broker.messages.fates import REFUSED, REPEATED, UNROUTABLE
from broker.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    AmendedEncoding,
    Encoding,
    Message,
    Properties,
    amend,
)
from broker.messages.outlet import Outlet
from broker.messages.x_death import Death
from broker.queues.delay import DelayQueue
from broker.queues.destination import Destination
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.queue import Queue
from broker.routing.authorization import DeclarationRights
from broker.routing.binding import Binding
from broker.routing.deduplication import NumberedPublication, Producers
from broker.routing.exchanges import Exchange, RecentHistoryExchange
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.exchanges.delayed import delay_of
from broker.routing.plan import Plan
from broker.routing.plan_index import first_word
from broker.routing.plan_search import SearchSlot
from broker.routing.publish_context import PublishContext
from broker.routing.resolved_targets import ResolvedTargets
from broker.routing.route import MessageRoute, Route
from broker.routing.subscriber import Subscriber
from broker.store.contract import MessageStored, Store, Ticket, Undefined
from broker.stream.streams import Streams
from broker.vhost.dead_letters import (
    MOVES_MAX,
    DeadLetters,
    DelayedPublications,
    PublishWill,
    QueueMoves,
    SharedAddresses,
)
from broker.vhost.declarations import Declarations
from broker.vhost.options import VirtualHostOptions
from broker.vhost.recent_history import HistoryReplay
from broker.vhost.retained import RetainedMessages
from broker.vhost.totals import VirtualHostTotals

#: The largest number of direct replies that wait for a consumer which does not read.
REPLIES_MAX: Final = 100_000


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
        #: The session whose messages are published now. It gets no copy of them if its subscription
        #: says "no local".
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

    @property
    def options(self) -> VirtualHostOptions:
        """Description, tags, default queue type and limits."""
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
            sum(ingress.unrepresentable for ingress in self.contexts.ingress_counters().values()),
        )

    def absorb(self, other: VirtualHost) -> None:
        """Add the counts of a virtual host that is deleted, so that metrics never fall."""
        self.contexts.absorb(other.contexts)
        for reason, count in other.dead_letters.items():
            self.dead_letters[reason] = self.dead_letters.get(reason, 0) + count
        own, gone = self.declarations, other.declarations
        own.deleted.merge(gone.deleted)
        own.queues_declared += gone.queues_declared
        own.queues_created += gone.queues_created
        own.queues_deleted += gone.queues_deleted
        self._planner.scope.paused += other._planner.scope.paused
        self.bindings.refused += other.bindings.refused

    # -- declarations and bindings, as clients request them

    def exchange(self, name: str) -> Exchange:
        """Return the exchange of this name. Raise NotFound if there is none."""
        return self._planner.exchange(name)

    def queue(self, name: str, owner: object = None) -> Queue:
        """Return the queue of this name, which the connection `owner` wants to use.

        Raise NotFound if there is no such queue, ResourceLocked if the queue is exclusive to
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

    def with_default_type(
        self,
        name: str,
        arguments: Mapping[str, object],
        durable: bool,
        exclusive: bool,
        auto_delete: bool,
    ) -> Mapping[str, object]:
        """Return queue arguments with the default queue type of the virtual host.

        As in RabbitMQ, the type is added if the arguments have none and the queue can have it. An
        existing queue of another type keeps its type.
        """
        default = self.options.default_queue_type
        if default in ("", "classic") or "x-queue-type" in arguments:
            return arguments
        if not durable or exclusive or auto_delete:
            return arguments
        known = self.queues.get(name)
        if known is not None and known.arguments.arguments.get("x-queue-type") != default:
            return arguments
        return {**arguments, "x-queue-type": default}

    def delete_queue(
        self,
        queue: Queue,
        if_unused: bool = False,
        if_empty: bool = False,
        ticket: Ticket | None = None,
    ) -> int:
        """Delete a queue, and return how many messages it held. See `Declarations.delete_queue`."""
        return self.declarations.delete_queue(queue, if_unused, if_empty, ticket, self.closing)

    def rights_of(self, identity: Identity, administrator: bool) -> DeclarationRights:
        """Return the rights of a user to declare and bind in this virtual host.

        `identity` is the user's identity in this virtual host. `administrator` is True if the user
        has the tag `administrator`.
        """
        return DeclarationRights(
            identity,
            administrator,
            self.name,
            self.exchanges,
            self.queues,
            self.moves,
            self.policies,
        )

    def bind(
        self, source: str, binding: Binding, ticket: Ticket | None = None
    ) -> HistoryReplay | None:
        """Add a binding to an exchange.

        The new binding replaces the binding with the same destination, key and arguments, if there
        is one. If the binding is new, its destination gets the history of the exchange, if there is
        one. Return the task that delivers this history; None if there is no history.
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
        if ticket is not None:
            self.store.wait_for_all(ticket)

    # -- queues that clients cannot declare

    def open_reply(self, name: str) -> Queue:
        """Return a new queue for direct replies to one consumer.

        The default exchange routes to the queue by this name. No binding can lead to it.
        """
        queue = self.replies[name] = Queue(self.name, name, self.agenda, self.store, False)
        queue.max_length = REPLIES_MAX
        return queue

    def close_reply(self, queue: Queue) -> None:
        """Delete a queue for direct replies."""
        del self.replies[queue.name]
        queue.on_deleted()
        self.declarations.deleted.add_queue(queue)
        self.declarations.evict_default_route(queue)

    def new_inbox(self, name: str, durable: bool, max_length: int) -> Queue:
        """Return a new inbox for a session, which drops its oldest messages above `max_length`."""
        inbox = self.inboxes[name] = Queue(self.name, name, self.agenda, self.store, durable)
        inbox.private = True
        inbox.max_length = max_length
        self.declarations.inbox_names.add(name)
        return inbox

    def add_subscriber(self, subscriber: Subscriber) -> None:
        """Include a session or a subscription group in the totals."""
        self.subscribers[subscriber] = None

    def delete_subscriber(self, subscriber: Subscriber, ticket: Ticket | None) -> None:
        """Delete a session or a subscription group, with its inbox and bindings."""
        inbox = subscriber.inbox
        if inbox.durable:
            # Append this entry before `on_deleted` releases the messages: their release takes
            # effect once this entry is durable.
            self.store.append(
                Undefined(self.name, "session", subscriber.name, subscriber.number), ticket
            )
        inbox.on_deleted()
        self.inboxes.pop(inbox.name, None)
        self.declarations.inbox_names.remove(inbox.name)
        self.subscribers.pop(subscriber, None)
        self.declarations.deleted.add_subscriber(subscriber)
        subscriber.dead = True
        self.bindings.remove_to(subscriber)

    def alarm(self, on: bool) -> None:
        """Apply the start or the end of the alarms for memory and disk.

        While an alarm is on, all messages take the slow path, and their publishers are blocked.
        """
        self.alarmed = on
        self._planner.always_slow = on
        self.retire_plans()

    # -- publishing

    def route(
        self, context: PublishContext, exchange: str, key: str, slot: SearchSlot
    ) -> Route | None:
        """Return a new route for one message, which no cache keeps; None if the search pauses."""
        return _new_route(
            context, exchange, key, self._planner.plan(context.identity, exchange, key, slot)
        )

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
        None if the search pauses.
        """
        plan = self._planner.plan_keys(context.identity, exchange, keys, properties, deaths, slot)
        return _new_route(context, exchange, keys[0], plan)

    def route_copies(
        self,
        context: PublishContext,
        exchange: str,
        keys: list[str],
        blind: list[str],
        properties: Properties,
        slot: SearchSlot,
    ) -> Route | None:
        """Return a new route for one message with headers CC or BCC; `blind` are the BCC keys.

        Return None if the search pauses.
        """
        plan = self._planner.plan_keys(context.identity, exchange, keys, properties, None, slot)
        if plan is None:
            return None
        route = MessageRoute(exchange, keys, blind, plan)
        route.origin = context.origin
        return route

    def resolve_now(
        self,
        context: PublishContext,
        exchange: str,
        keys: list[str],
        properties: Properties,
        slot: SearchSlot,
    ) -> ResolvedTargets | None:
        """Return the present destinations of a message that a transaction publishes later.

        Return None if the search pauses. Raise NotFound if the exchange does not exist,
        AccessRefused if the identity may not publish to it.
        """
        return self._planner.resolve_now(context.identity, exchange, keys, properties, slot)

    def plan_of(
        self, context: PublishContext, route: Route, message: Message, slot: SearchSlot
    ) -> Plan | None:
        """Return the present plan of a message, for `publish`; None if the search pauses."""
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

        `plan` is the result of `plan_of`, called in the same turn. Raise the plan's `refusal`, if
        it has one. The ticket waits for all changes that must be durable before the publisher gets
        a confirm. Afterwards, a message with QoS 1 or 2 that a durable queue gets has a `position`
        in the store.
        """
        if plan.refusal is not None:
            context.count(plan, 1)
            # Raise a copy: an error object that is raised again and again collects tracebacks.
            raise type(plan.refusal)(str(plan.refusal))
        if plan is not route.plan and plan.recorded:
            message.address = _with_plan(route, plan)
        for known in plan.filters:
            # Behind another exchange, a filter decides only if no other destination is left.
            only = known.name == route.exchange or plan.fate == UNROUTABLE
            if only and known.repeats(message.properties):
                context.count_fate(REPEATED)
                self.reply_when_all_durable(ticket)
                return REPEATED
        refusing = [queue for queue in plan.limited if not queue.accepts(message)]
        for full in refusing:
            full.refuse(message)
        if message.qos > AT_MOST_ONCE and plan.durable:
            entry = route.entry if isinstance(route, MessageRoute) and not refusing else None
            if entry is None:
                self._store_message(message, plan, refusing, ticket)
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
            self._delay(
                waiting, message, route.blind if isinstance(route, MessageRoute) else [], ticket
            )
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

        Call this method only if the plan's `slow_path_mask` names no feature of the message except
        PERSISTENCE. The message must not have QoS 2, and the plan must have an empty
        `reliable_relay`.
        """
        plan = route.plan
        annotations: list[int] | None = None
        if plan.annotated:
            annotations = [queue.annotate(False) for queue in plan.durable]
        message.position = self.store.append_message(
            self.name, message, plan.numbers, annotations, ticket
        )
        for queue in plan.reliable_queues:
            queue.put(message)
        route.count += 1

    def publish_once(
        self,
        context: PublishContext,
        route: Route,
        plan: Plan,
        message: Message,
        ticket: Ticket | None,
        publication: NumberedPublication,
    ) -> i64:
        """Publish a message of a producer that numbers its messages, and return the fate.

        A repeated message is not published again. Its ticket waits until all changes so far are
        durable, and with them the first publication. Without a ticket, the publisher is not told of
        a refusal, so its later messages are not refused.
        """
        if self.producers.is_repeat(publication):
            context.count_fate(REPEATED)
            self.reply_when_all_durable(ticket)
            return REPEATED
        if ticket is not None and self.producers.is_held_back(publication):
            context.count_fate(REFUSED)
            return REFUSED
        self.store.begin()
        try:
            fate = self.publish(context, route, plan, message, ticket)
            if fate != REFUSED:
                self.producers.record(publication, ticket)
            elif ticket is not None:
                self.producers.refuse(publication)
        finally:
            self.store.commit()
        return fate

    def _delay(
        self, waiting: DelayQueue, message: Message, blind: list[str], ticket: Ticket | None
    ) -> None:
        """Put a copy of the message into the queue of a delayed exchange.

        The copy keeps the `blind` routing keys (BCC) in its headers until the delay is over.
        """
        copy = message.copy(message.qos, False)
        if blind:
            copy.encoding = amend(copy.encoding, {BCC: blind}, {})
        copy.position = 0
        copy.expires = self.agenda.now + delay_of(message.properties)
        if copy.qos > AT_MOST_ONCE and waiting.durable:
            copy.position = self.store.append(
                MessageStored(self.name, copy, [int(waiting.number)]), ticket
            )
        waiting.put(copy)

    def prepare(self, route: MessageRoute, message: Message) -> None:
        """Encode the store's entry for a persistent message before the message is published.

        Do nothing if a queue of the plan stores an annotation with the message: `Queue.annotate`
        makes the annotation when the message is published.
        """
        plan = route.plan
        if message.qos > AT_MOST_ONCE and plan.durable and not plan.annotated:
            entry = route.entry = MessageStored(self.name, message, plan.numbers)
            self.store.prepare(entry)

    def _store_message(
        self, message: Message, plan: Plan, refusing: list[LimitedQueue], ticket: Ticket | None
    ) -> None:
        """Store the message for the durable queues of the plan that do not refuse it."""
        numbers = plan.numbers
        if refusing:
            numbers = [int(queue.number) for queue in plan.durable if queue not in refusing]
        if numbers:
            annotations: list[int] | None = None
            if plan.annotated:
                qos1_inboxes = plan.qos1_inboxes if message.qos == EXACTLY_ONCE else []
                annotations = [
                    queue.annotate(queue in qos1_inboxes)
                    for queue in plan.durable
                    if queue not in refusing
                ]
            message.position = self.store.append(
                MessageStored(self.name, message, numbers, annotations), ticket
            )

    def retain(self, message: Message, ticket: Ticket | None) -> None:
        """Replace the retained message of the topic, or remove it if the new payload is empty."""
        self.retained.keep(message, ticket)

    def encoded(self, encoding: AmendedEncoding, content: bytes, qos: i64) -> Encoding:
        """Return an encoding that holds the properties of a dead letter in little memory."""
        return self._codecs.property_codec.encoded(encoding, content, qos)

    def publish_will(
        self,
        context: PublishContext,
        will: Message,
        lifetime: int = -1,
        session: Subscriber | None = None,
    ) -> None:
        """Publish the will message of a session at the end of this turn.

        The message expires after `lifetime` milliseconds; never if `lifetime` is below 0.
        """
        self.contexts.join(context)
        self.agenda.add(PublishWill(self, context, will, lifetime, session))

    def leave(self, context: PublishContext) -> None:
        """Decrement the use count of the context: a connection or a will no longer needs it."""
        self.contexts.leave(context)

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

        The method retires the plans that lead to the queue, so it must be called between
        publications.
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


def _new_route(context: PublishContext, exchange: str, key: str, plan: Plan | None) -> Route | None:
    """Return a route with this plan; None if `plan` is None."""
    if plan is None:
        return None
    route = Route(exchange, key, plan)
    route.origin = context.origin
    return route


def _with_plan(route: Route, plan: Plan) -> Route:
    """Return a copy of the route with `plan`, which was made for one message."""
    copy = Route(route.exchange, route.key, plan)
    copy.origin = route.origin
    return copy
