"""Messages that the broker itself publishes: dead letters, delayed messages and wills.

A dead letter is a message that a queue discards (it expired, the queue was full, a consumer
rejected it, or it was returned too often) and that is published to the queue's dead letter
exchange. Its header `x-death` counts, for each queue and reason, how often that happened.

A dead letter cycle is a chain of dead letter exchanges that leads a message back to a queue which
discarded it before; without a check, the message would go round for ever. So before a dead letter
is routed, `Planner.plan_keys` compares its destinations with `x-death`: the message does not go to
a queue that discarded it before, unless a consumer has rejected the message since (`would_cycle` in
messages/x_death.py). A message that has no other destination left ends with the fate "looped". For
a message that becomes a dead letter because a consumer rejected it, there is no check: the consumer
decides each time whether the message goes round again.

Dead letters and delayed messages move from one queue to others. The store gets both changes in one
group: after a crash, the message is either still in the one queue or already in the others.
"""

from __future__ import annotations

from typing import Final, Protocol

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.errors import BrokerError
from broker.messages.cc_headers import BCC, CC, additional_keys, cc_keys
from broker.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Message, Properties, amend
from broker.messages.x_death import Death, count_death, death_headers, deaths_of
from broker.queues.queue import Queue
from broker.routing.exchanges.delayed import DELAY_MAX, HEADER, delay_of
from broker.routing.plan import Plan
from broker.routing.plan_search import SearchSlot
from broker.routing.publish_context import PublishContext
from broker.routing.route import Route
from broker.routing.subscriber import Subscriber
from broker.store.contract import Store, Ticket

#: A dead letter loses its expiration, or it would expire in the next queue too.
_WITHOUT_EXPIRATION: Final[dict[str, object]] = {"expiration": None}


class MessagePublisher(Protocol):
    """The part of a virtual host that publishes the broker's own messages."""

    agenda: Agenda
    store: Store
    internal: PublishContext
    publishing_session: Subscriber | None

    def route(
        self, context: PublishContext, exchange: str, key: str, slot: SearchSlot
    ) -> Route | None:
        """Return a new route for one message; None if the search for its plan pauses."""

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

        None if the search for its plan pauses.
        """

    def plan_of(
        self, context: PublishContext, route: Route, message: Message, slot: SearchSlot
    ) -> Plan | None:
        """Return the present plan of a message; None if the search for it pauses."""

    def publish(
        self,
        context: PublishContext,
        route: Route,
        plan: Plan,
        message: Message,
        ticket: Ticket | None,
    ) -> i64:
        """Publish a message and return its fate. Raise the plan's `refusal`, if it has one."""

    def retain(self, message: Message, ticket: Ticket | None) -> None:
        """Make the message the retained message of its topic."""

    def leave(self, context: PublishContext) -> None:
        """Count one user of the context less, because a connection or a will no longer needs it."""


class QueueMove(Task):
    """A task that moves a message from a queue to the destinations of an exchange.

    The subclass says how the message is routed, and which headers and properties change. If the
    search for the destinations pauses, the task runs again in the next turn.
    """

    def __init__(self, publisher: MessagePublisher, queue: Queue, message: Message) -> None:
        self._publisher = publisher
        self._queue = queue
        self._message = message
        self._slot: SearchSlot | None = None

    def run(self) -> None:
        publisher = self._publisher
        slot = self._slot or SearchSlot()
        moved = self._move(slot)
        if moved is None:
            self._slot = slot
            publisher.agenda.later(self)
            return
        store = publisher.store
        store.begin()
        try:
            self._publish(moved)
            queue, position = self._queue, self._message.position
            if queue.durable and position > 0:
                # A queue that was deleted meanwhile settles the message too: a crash may lose the
                # deletion and keep the published message.
                store.append_settled(queue.number, position)
        finally:
            store.commit()

    def _move(self, slot: SearchSlot) -> Message | None:
        """Return the new message, whose address is its route; None if the search pauses."""
        raise NotImplementedError

    def _publish(self, message: Message) -> None:
        context, route = self._publisher.internal, message.address
        assert isinstance(route, Route)
        context.received += 1
        try:
            self._publisher.publish(context, route, route.plan, message, None)
        except BrokerError:
            return  # The exchange does not exist. The message is counted with the fate "refused".


class DeadLetter(QueueMove):
    """A task that publishes a discarded message to the dead letter exchange of its queue."""

    def __init__(
        self, publisher: MessagePublisher, queue: Queue, message: Message, reason: str
    ) -> None:
        super().__init__(publisher, queue, message)
        self._reason = reason

    def _move(self, slot: SearchSlot) -> Message | None:
        publisher, message, arguments = self._publisher, self._message, self._queue.arguments
        properties = message.properties
        headers = _headers_of(properties)
        deaths = deaths_of(headers)
        exchange = message.address.exchange
        keys = [message.address.key, *cc_keys(headers)]
        count_death(
            deaths,
            self._queue.name,
            self._reason,
            exchange,
            keys,
            int(publisher.agenda.wall),
            properties.get("expiration"),
        )
        changes = death_headers(headers, deaths, self._queue.name, self._reason, exchange)
        if arguments.dead_letter_key is not None:
            keys = [arguments.dead_letter_key]
            changes[CC] = None
        qos = message.qos
        if qos == AT_MOST_ONCE and properties.get("delivery_mode") == 2:
            # A persistent message whose queues were all transient has QoS 0 until here.
            qos = AT_LEAST_ONCE
        route = publisher.route_by(
            publisher.internal,
            arguments.dead_letter_exchange or "",
            keys,
            {**properties, "headers": {**headers, **changes}},
            None if self._reason == "rejected" else deaths,
            slot,
        )
        if route is None:
            return None
        encoding = amend(message.encoding, changes, _WITHOUT_EXPIRATION)
        return Message(route, message.content, encoding, qos)


class DelayedPublish(QueueMove):
    """A task that publishes a message of a delayed exchange whose delay is over."""

    def _move(self, slot: SearchSlot) -> Message | None:
        publisher, message = self._publisher, self._message
        properties = message.properties
        headers = _headers_of(properties)
        changes: dict[str, object] = {HEADER: -delay_of(properties)}
        if BCC in headers:
            changes[BCC] = None
        route = publisher.route_by(
            publisher.internal,
            message.address.exchange,
            [message.address.key, *additional_keys(headers)],
            {**properties, "headers": {**headers, **changes}},
            None,
            slot,
        )
        if route is None:
            return None
        encoding = amend(message.encoding, changes, {})
        released = Message(route, message.content, encoding, message.qos)
        expiration = properties.get("expiration")
        if isinstance(expiration, str) and expiration.isdigit():
            released.expires = publisher.agenda.now + min(int(expiration), DELAY_MAX)
        return released


class PublishWill(Task):
    """A task that publishes the will message of a session whose connection was lost."""

    def __init__(
        self,
        publisher: MessagePublisher,
        context: PublishContext,
        message: Message,
        lifetime: int,
        session: Subscriber | None,
    ) -> None:
        self._publisher = publisher
        self._context = context
        self._message = message
        self._lifetime = lifetime
        self._session = session
        self._slot: SearchSlot | None = None

    def run(self) -> None:
        publisher, context, will = self._publisher, self._context, self._message
        slot = self._slot or SearchSlot()
        route = publisher.route(context, will.address.exchange, will.address.key, slot)
        plan: Plan | None = None
        if route is not None:
            message = Message(route, will.content, will.encoding, will.qos)
            publisher.publishing_session = self._session
            plan = publisher.plan_of(context, route, message, slot)
            publisher.publishing_session = None
        if route is None or plan is None:
            self._slot = slot
            publisher.agenda.later(self)
            return
        context.received += 1
        if self._lifetime >= 0:
            message.expires = publisher.agenda.now + self._lifetime
        publisher.publishing_session = self._session
        try:
            if will.retained and route.plan.refusal is None:
                publisher.retain(message, None)
            publisher.publish(context, route, plan, message, None)
        except BrokerError:
            pass  # The client may not publish there. The will is counted with the fate "denied".
        publisher.publishing_session = None
        publisher.leave(context)


def _headers_of(properties: Properties) -> Properties:
    """Return the headers among the properties of a message; an empty mapping if it has none."""
    headers = properties.get("headers")
    return headers if isinstance(headers, dict) else {}
