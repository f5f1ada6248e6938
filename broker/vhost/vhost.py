"""The virtual host: what clients of its own kinds hold, policies, and publishing with care.

(holdings has the rest of it.)
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.messages.cc_headers import BCC
from broker.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    Message,
    Properties,
    amend,
)
from broker.messages.x_death import Death
from broker.queues.arguments import QueueArguments
from broker.queues.delay import DelayQueue
from broker.queues.limited import LimitedQueue
from broker.queues.policies import Policy
from broker.queues.queue import Queue
from broker.routing.deduplication import NumberedPublication
from broker.routing.exchanges import Exchange
from broker.routing.exchanges.delayed import delay_of
from broker.routing.planner import ResolvedTargets
from broker.routing.publish_context import PublishContext, sum_into
from broker.routing.route import REFUSED, REPEATED, CcRoute, Plan, Route, Subscriber
from broker.store.contract import Defined, MessageStored, Ticket, Undefined
from broker.stream.queue import StreamQueue
from broker.vhost.background import PolicyUpdate
from broker.vhost.dead_letters import DeadLetter, DelayedPublish, PublishWill
from broker.vhost.holdings import Holdings

#: Replies that wait for one who asks and does not read.
REPLIES: Final = 100_000


class VirtualHost(Holdings):
    """The core's front door. Raises kinds of BrokerError."""

    def open_reply(self, name: str) -> Queue:
        """A queue of one consumer's, to which the default exchange leads by this name; no exchange
        can be bound to it.
        """
        queue = self.replies[name] = Queue(self.name, name, self.agenda, self.store, False)
        queue.max_length = REPLIES
        return queue

    def close_reply(self, queue: Queue) -> None:
        """... and it is gone."""
        del self.replies[queue.name]
        queue.on_deleted()
        sum_into(self._copy_fates, queue.fates())
        self._forget_route(queue)

    def new_inbox(self, name: str, durable: bool, max_length: int) -> Queue:
        """A queue that belongs to a session. It keeps its newest messages when it is full."""
        inbox = self.inboxes[name] = Queue(self.name, name, self.agenda, self.store, durable)
        inbox.private = True
        inbox.max_length = max_length
        return inbox

    def add_subscriber(self, listener: Subscriber) -> None:
        """Count with this listener from now on."""
        self.subscribers[listener] = None

    def delete_subscriber(self, listener: Subscriber) -> None:
        """The session is over, and what waits for it."""
        inbox = listener.inbox
        inbox.on_deleted()
        self.inboxes.pop(inbox.name, None)
        self.subscribers.pop(listener, None)
        sum_into(self._copy_fates, listener.fates())
        self._relayed += int(listener.relayed)
        listener.dead = True
        self._forget(listener)

    # -- policies

    def set_policy(self, policy: Policy, ticket: Ticket | None = None) -> None:
        """Add a policy, or put it in the place of the one of its name; what it is about follows it,
        some objects a turn.
        """
        known = self.policies.by_name.get(policy.name)
        if known is not None and known.row == policy.row:
            return
        self.store.append(Defined(self.name, "policy", policy.name, policy.row), ticket)
        self.add_policy(policy)

    def clear_policy(self, name: str, ticket: Ticket | None = None) -> None:
        """Remove a policy; one that is not there is removed already."""
        if self.policies.by_name.pop(name, None) is not None:
            self.store.append(Undefined(self.name, "policy", name), ticket)
            PolicyUpdate(self, list(self.queues.values()), list(self.exchanges.values())).run()

    def add_policy(self, policy: Policy) -> None:
        """A policy that is made now, or was before."""
        self.policies.by_name[policy.name] = policy
        PolicyUpdate(self, list(self.queues.values()), list(self.exchanges.values())).run()

    def follow_alternates(self, exchanges: list[Exchange]) -> None:
        for exchange in exchanges:
            before = exchange.alternate
            if exchange.options.alternate is None:
                exchange.alternate = self.policies.alternate(exchange.name)
            if self.topology is not None and exchange.alternate != before:
                self.topology.declared_exchange(exchange.name, exchange.kind, exchange.alternate)

    def follow_policies(self, queue: Queue) -> None:
        """What holds for the queue now.

        A plain one that must do more becomes another one in its place.
        """
        if self.queues.get(queue.name) is not queue:
            return
        arguments = queue.arguments.arguments
        terms = QueueArguments(
            queue.name, self.name, arguments, self.policies.arguments(queue.name, arguments)
        )
        if isinstance(queue, (StreamQueue, LimitedQueue)):
            queue.update_arguments(terms)
        elif terms.needs_only_plain_queue:
            queue.arguments = terms
        else:
            heir = LimitedQueue(
                self.name, queue.name, self.agenda, self.store, queue.durable, terms, self
            )
            heir.take_over(queue)
            self.queues[queue.name] = heir
            for exchange in self.exchanges.values():
                exchange.redirect(queue, heir)
            heir.update_arguments(terms)

    def alarm(self, on: bool) -> None:
        """Memory or disk is short: every publication asks for care, so that its publisher can be
        stopped.
        """
        self.alarmed = on
        self._planner.always_slow = on
        self.changed()

    # -- publishing with care

    def route(self, context: PublishContext, exchange: str, key: str) -> Route:
        """A route for once, fresh, not kept: for what comes from the core itself."""
        route = Route(exchange, key, self._planner.plan(context.identity, exchange, key))
        route.origin = context.origin
        return route

    def route_by(
        self,
        context: PublishContext,
        exchange: str,
        keys: list[str],
        properties: Properties,
        deaths: list[Death] | None = None,
    ) -> Route:
        """A route for one message that has several routing keys, or these deaths."""
        route = Route(
            exchange,
            keys[0],
            self._planner.plan_keys(context.identity, exchange, keys, properties, deaths),
        )
        route.origin = context.origin
        return route

    def route_copies(
        self,
        context: PublishContext,
        exchange: str,
        keys: list[str],
        blind: list[str],
        properties: Properties,
    ) -> Route:
        """A route for one message that has several routing keys, some of them blind."""
        route = CcRoute(
            exchange,
            keys,
            blind,
            self._planner.plan_keys(context.identity, exchange, keys, properties),
        )
        route.origin = context.origin
        return route

    def resolve_now(
        self, context: PublishContext, exchange: str, keys: list[str], properties: Properties
    ) -> ResolvedTargets:
        """Where a message goes that is published later, as things are now.

        Raises NotFound, AccessRefused.
        """
        return self._planner.resolve_now(context.identity, exchange, keys, properties)

    def publish(
        self, context: PublishContext, route: Route, message: Message, ticket: Ticket | None
    ) -> i64:
        """Publish what the hot loops do not: returns the fate; raises the plan's refusal.

        The ticket waits for what must be durable before the publisher hears a confirm. A message
        that travels with assurance and has a durable destination has a `position` afterwards.
        """
        if route.plan.stale:
            context.renew(route)
        plan = route.plan
        if plan.refusal is not None:
            context.count(plan, 1)
            raise type(plan.refusal)(
                str(plan.refusal)
            )  # A new one: a kept exception collects tracebacks.
        if plan.by_headers or plan.by_publishing_session:
            plan = self._planner.walk(
                self.exchange(route.exchange),
                route,
                message.properties,
                self.publishing_session,
                context.identity.name,
            )
            if plan.recorded:
                message.address = _as_walked(route, plan)
        refusing = [queue for queue in plan.limited if not queue.accepts(message)]
        for full in refusing:
            full.refuse(message)
        if message.qos > AT_MOST_ONCE and plan.durable:
            self._keep(message, plan, refusing, ticket)
        for queue in plan.queues if message.qos == AT_MOST_ONCE else plan.reliable_queues:
            if queue in refusing:
                continue
            if message.qos == EXACTLY_ONCE and queue in plan.lowered:
                queue.put(message.copy(AT_LEAST_ONCE, False))
            else:
                queue.put(message)
        if plan.streams and ticket is not None:
            self.store.wait_for_next_batch(ticket)
        for waiting in plan.delays:
            self._delay(waiting, message, route.blind if isinstance(route, CcRoute) else [], ticket)
        (plan.relay if message.qos == AT_MOST_ONCE else plan.reliable_relay).offer(message)
        if refusing:
            context.count_fate(REFUSED)
            context.count_copies(plan.copies, plan.unrepresentable)
            return REFUSED
        context.count(plan, 1)
        return plan.fate

    def publish_persistent(self, route: Route, message: Message, ticket: Ticket | None) -> None:
        """Store a message and put it into the queues of its plan. Hot path.

        Only for a plan whose `slow_path_mask` asks for nothing but the store. The message must not
        have QoS 2, and there must be no subscriber that gets it at most once.
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
        message: Message,
        ticket: Ticket | None,
        publication: NumberedPublication,
    ) -> i64:
        """The same, of what a producer numbered: a second time, it goes nowhere, and is confirmed
        when the first one may be.
        """
        if self.producers.is_repeat(publication):
            context.count_fate(REPEATED)
            self.reply_when_all_durable(ticket)
            return REPEATED
        self.store.begin()
        try:
            fate = self.publish(context, route, message, ticket)
            if fate != REFUSED:
                self.producers.record(publication, ticket)
        finally:
            self.store.commit()
        return fate

    def _delay(
        self, waiting: DelayQueue, message: Message, blind: list[str], ticket: Ticket | None
    ) -> None:
        """A copy waits for its time, and knows its `blind` routing keys until then."""
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

    def _keep(
        self, message: Message, plan: Plan, refusing: list[LimitedQueue], ticket: Ticket | None
    ) -> None:
        """Give the message to the store, for the durable queues among its destinations."""
        numbers = plan.numbers
        if refusing:
            numbers = [int(queue.number) for queue in plan.durable if queue not in refusing]
        if numbers:
            serials: list[int] | None = None
            if plan.annotated:
                lowered = plan.lowered if message.qos == EXACTLY_ONCE else []
                serials = [
                    queue.annotate(queue in lowered)
                    for queue in plan.durable
                    if queue not in refusing
                ]
            message.position = self.store.append(
                MessageStored(self.name, message, numbers, serials), ticket
            )

    def retain(self, message: Message, ticket: Ticket | None) -> None:
        """Remember the message for those who subscribe later."""
        self.retained.keep(message, ticket)

    def publish_will(
        self,
        context: PublishContext,
        will: Message,
        lifetime: int = -1,
        speaker: Subscriber | None = None,
    ) -> None:
        """Publish the speaker's last message, at the end of this turn.

        It expires after so many ms; never if that is below 0.
        """
        self.contexts.join(context)
        self.agenda.add(PublishWill(self, context, will, lifetime, speaker))

    def leave(self, context: PublishContext) -> None:
        """Somebody uses the gate no more."""
        self.contexts.leave(context)

    def expire_queue(self, queue: LimitedQueue) -> None:
        if self.queues.get(queue.name) is queue:
            self.delete_queue(queue)

    def publish_delayed(self, queue: LimitedQueue, message: Message) -> None:
        self.agenda.add(DelayedPublish(self, queue, message))

    def dead_letter(self, queue: LimitedQueue, message: Message, reason: str) -> None:
        self.dead_letters[reason] = self.dead_letters.get(reason, 0) + 1
        self.agenda.add(DeadLetter(self, queue, message, reason))


def _as_walked(route: Route, plan: Plan) -> Route:
    """The route of one message whose destinations its headers decided."""
    walked = Route(route.exchange, route.key, plan)
    walked.origin = route.origin
    return walked
