"""What enters from the core itself: dead letters and wills."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.errors import BrokerError
from broker.messages.cc_headers import BCC, CC, all_keys, open_keys
from broker.messages.message import AT_LEAST_ONCE, AT_MOST_ONCE, Message, Properties, amend
from broker.messages.x_death import Death, deaths_of, record, told
from broker.queues.limited import Host, LimitedQueue
from broker.queues.queue import Queue
from broker.routing.exchanges.delayed import DELAY_MAX, HEADER, delay_of
from broker.routing.publish_context import Gate
from broker.routing.route import Listener, Route
from broker.store.contract import Settled, Store, Ticket

#: A dead letter lives as long as its next queue lets it.
_SPENT: Final[dict[str, object]] = {"expiration": None}


class Publisher(Host):
    """The role a virtual host plays for letters."""

    agenda: Agenda
    speaker: Listener | None
    store: Store

    @property
    def internal(self) -> Gate:
        raise NotImplementedError

    def route(self, gate: Gate, exchange: str, key: str) -> Route:
        raise NotImplementedError

    def route_by(
        self,
        gate: Gate,
        exchange: str,
        keys: list[str],
        properties: Properties,
        deaths: list[Death] | None = None,
    ) -> Route:
        raise NotImplementedError

    def publish(self, gate: Gate, route: Route, message: Message, ticket: Ticket | None) -> i64:
        raise NotImplementedError

    def retain(self, message: Message, ticket: Ticket | None) -> None:
        raise NotImplementedError

    def leave(self, gate: Gate) -> None:
        raise NotImplementedError


class DeadLetter(Task):
    """A message leaving a queue unconsumed, on its way to the queue's dead letter exchange.

    The store hears of both at once: after a crash it is in the one place or in the other.
    """

    def __init__(
        self, publisher: Publisher, queue: LimitedQueue, message: Message, reason: str
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
                store.append(Settled(queue.number, position), None)
        finally:
            store.commit()

    def _publish(self) -> None:
        publisher, message, terms = self._publisher, self._message, self._queue.terms
        gate = publisher.internal
        properties = message.properties
        found = properties.get("headers")
        headers: Properties = found if isinstance(found, dict) else {}
        deaths = deaths_of(headers)
        exchange = message.address.exchange
        keys = [message.address.key, *open_keys(headers)]
        record(
            deaths,
            self._queue.name,
            self._reason,
            exchange,
            keys,
            int(publisher.agenda.wall),
            properties.get("expiration"),
        )
        changes = told(headers, deaths, self._queue.name, self._reason, exchange)
        if terms.dead_letter_key is not None:
            keys = [terms.dead_letter_key]
            changes[CC] = None
        assurance = message.assurance
        if assurance == AT_MOST_ONCE and properties.get("delivery_mode") == 2:
            assurance = AT_LEAST_ONCE  # No queue so far had to ask.
        route = publisher.route_by(
            gate,
            terms.dead_letter_exchange or "",
            keys,
            {**properties, "headers": {**headers, **changes}},
            None if self._reason == "rejected" else deaths,
        )
        letter = Message(
            route, message.content, amend(message.encoding, changes, _SPENT), assurance
        )
        gate.received += 1
        try:
            publisher.publish(gate, route, letter, None)
        except BrokerError:
            return  # Counted with its fate: the exchange is gone.


class Release(Task):
    """A message whose delay is over, on its way to where its exchange leads.

    After a crash it is here or there.
    """

    def __init__(self, publisher: Publisher, waiting: Queue, message: Message) -> None:
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
                store.append(Settled(waiting.number, position), None)
        finally:
            store.commit()

    def _publish(self) -> None:
        publisher, message = self._publisher, self._message
        gate, properties = publisher.internal, message.properties
        found = properties.get("headers")
        headers: Properties = found if isinstance(found, dict) else {}
        over: dict[str, object] = {HEADER: -delay_of(properties)}
        if BCC in headers:
            over[BCC] = None
        route = publisher.route_by(
            gate,
            message.address.exchange,
            [message.address.key, *all_keys(headers)],
            {**properties, "headers": {**headers, **over}},
        )
        released = Message(
            route, message.content, amend(message.encoding, over, {}), message.assurance
        )
        expiration = properties.get("expiration")
        if isinstance(expiration, str) and expiration.isdigit():
            released.expires = publisher.agenda.now + min(int(expiration), DELAY_MAX)
        gate.received += 1
        try:
            publisher.publish(gate, route, released, None)
        except BrokerError:
            return  # Counted with its fate: the exchange is gone.


class Will(Task):
    """The message that a client left for the case that it disappears."""

    def __init__(
        self,
        publisher: Publisher,
        gate: Gate,
        message: Message,
        lifetime: int,
        speaker: Listener | None,
    ) -> None:
        self._publisher = publisher
        self._gate = gate
        self._message = message
        self._lifetime = lifetime
        self._speaker = speaker

    def run(self) -> None:
        publisher, gate, will = self._publisher, self._gate, self._message
        route = publisher.route(gate, will.address.exchange, will.address.key)
        gate.received += 1
        message = Message(route, will.content, will.encoding, will.assurance)
        if self._lifetime >= 0:
            message.expires = publisher.agenda.now + self._lifetime
        publisher.speaker = self._speaker
        try:
            if will.retained and route.plan.refusal is None:
                publisher.retain(message, None)
            publisher.publish(gate, route, message, None)
        except BrokerError:
            pass  # Counted with its fate: the client may not publish there.
        publisher.speaker = None
        publisher.leave(gate)
