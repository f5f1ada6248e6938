"""What enters from the core itself: dead letters and wills."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.errors import BrokerError
from broker.messages.cc_headers import BCC, CC, additional_keys, cc_keys
from broker.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Message, Properties, amend
from broker.messages.x_death import Death, count_death, death_headers, deaths_of
from broker.queues.limited import DeadLetterHost, LimitedQueue
from broker.queues.queue import Queue
from broker.routing.exchanges.delayed import DELAY_MAX, HEADER, delay_of
from broker.routing.publish_context import PublishContext
from broker.routing.route import Route, Subscriber
from broker.store.contract import MessageSettled, Store, Ticket

#: A dead letter lives as long as its next queue lets it.
_SPENT: Final[dict[str, object]] = {"expiration": None}


class MessagePublisher(DeadLetterHost):
    """The role a virtual host plays for letters."""

    agenda: Agenda
    publishing_session: Subscriber | None
    store: Store

    @property
    def internal(self) -> PublishContext:
        raise NotImplementedError

    def route(self, context: PublishContext, exchange: str, key: str) -> Route:
        raise NotImplementedError

    def route_by(
        self,
        context: PublishContext,
        exchange: str,
        keys: list[str],
        properties: Properties,
        deaths: list[Death] | None = None,
    ) -> Route:
        raise NotImplementedError

    def publish(
        self, context: PublishContext, route: Route, message: Message, ticket: Ticket | None
    ) -> i64:
        raise NotImplementedError

    def retain(self, message: Message, ticket: Ticket | None) -> None:
        raise NotImplementedError

    def leave(self, context: PublishContext) -> None:
        raise NotImplementedError


class DeadLetter(Task):
    """A message leaving a queue unconsumed, on its way to the queue's dead letter exchange.

    The store hears of both at once: after a crash it is in the one place or in the other.
    """

    def __init__(
        self, publisher: MessagePublisher, queue: LimitedQueue, message: Message, reason: str
    ) -> None:
        self._publisher = publisher
        self._queue = queue
        self._message = message
        self._reason = reason

    def run(self) -> None:
        store = self._publisher.store
        store.begin()
        try:
            self._publish()
            queue, position = self._queue, self._message.position
            if queue.durable and position > 0:
                # Also when the queue is deleted meanwhile: the deletion may be lost in a crash that
                # keeps the letter.
                store.append(MessageSettled(queue.number, position), None)
        finally:
            store.commit()

    def _publish(self) -> None:
        publisher, message, terms = self._publisher, self._message, self._queue.arguments
        context = publisher.internal
        properties = message.properties
        found = properties.get("headers")
        headers: Properties = found if isinstance(found, dict) else {}
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
        if terms.dead_letter_key is not None:
            keys = [terms.dead_letter_key]
            changes[CC] = None
        qos = message.qos
        if qos == AT_MOST_ONCE and properties.get("delivery_mode") == 2:
            qos = AT_LEAST_ONCE  # No queue so far had to ask.
        route = publisher.route_by(
            context,
            terms.dead_letter_exchange or "",
            keys,
            {**properties, "headers": {**headers, **changes}},
            None if self._reason == "rejected" else deaths,
        )
        letter = Message(route, message.content, amend(message.encoding, changes, _SPENT), qos)
        context.received += 1
        try:
            publisher.publish(context, route, letter, None)
        except BrokerError:
            return  # Counted with its fate: the exchange is gone.


class DelayedPublish(Task):
    """A message whose delay is over, on its way to where its exchange leads.

    After a crash it is here or there.
    """

    def __init__(self, publisher: MessagePublisher, waiting: Queue, message: Message) -> None:
        self._publisher = publisher
        self._waiting = waiting
        self._message = message

    def run(self) -> None:
        store = self._publisher.store
        store.begin()
        try:
            self._publish()
            waiting, position = self._waiting, self._message.position
            if waiting.durable and position > 0:
                store.append(MessageSettled(waiting.number, position), None)
        finally:
            store.commit()

    def _publish(self) -> None:
        publisher, message = self._publisher, self._message
        context, properties = publisher.internal, message.properties
        found = properties.get("headers")
        headers: Properties = found if isinstance(found, dict) else {}
        over: dict[str, object] = {HEADER: -delay_of(properties)}
        if BCC in headers:
            over[BCC] = None
        route = publisher.route_by(
            context,
            message.address.exchange,
            [message.address.key, *additional_keys(headers)],
            {**properties, "headers": {**headers, **over}},
        )
        released = Message(route, message.content, amend(message.encoding, over, {}), message.qos)
        expiration = properties.get("expiration")
        if isinstance(expiration, str) and expiration.isdigit():
            released.expires = publisher.agenda.now + min(int(expiration), DELAY_MAX)
        context.received += 1
        try:
            publisher.publish(context, route, released, None)
        except BrokerError:
            return  # Counted with its fate: the exchange is gone.


class PublishWill(Task):
    """The message that a client left for the case that it disappears."""

    def __init__(
        self,
        publisher: MessagePublisher,
        context: PublishContext,
        message: Message,
        lifetime: int,
        speaker: Subscriber | None,
    ) -> None:
        self._publisher = publisher
        self._context = context
        self._message = message
        self._lifetime = lifetime
        self._speaker = speaker

    def run(self) -> None:
        publisher, context, will = self._publisher, self._context, self._message
        route = publisher.route(context, will.address.exchange, will.address.key)
        context.received += 1
        message = Message(route, will.content, will.encoding, will.qos)
        if self._lifetime >= 0:
            message.expires = publisher.agenda.now + self._lifetime
        publisher.publishing_session = self._speaker
        try:
            if will.retained and route.plan.refusal is None:
                publisher.retain(message, None)
            publisher.publish(context, route, message, None)
        except BrokerError:
            pass  # Counted with its fate: the client may not publish there.
        publisher.publishing_session = None
        publisher.leave(context)
