"""What enters from the core itself: dead letters and wills."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.errors import BrokerError
from broker.gate import Gate
from broker.limits import LimitedQueue
from broker.message import AT_LEAST_ONCE, AT_MOST_ONCE, Address, Amended, Message
from broker.route import LOOPED, Listener, Route
from broker.store.contract import Settled, Store, Ticket

#: Deaths that are counted; a publisher may have written any number there.
COUNT_MAX: Final = 1 << 32


class Publisher:
    """The role a virtual host plays for letters."""

    agenda: Agenda
    speaker: Listener | None
    store: Store

    @property
    def internal(self) -> Gate:
        raise NotImplementedError

    def route(self, gate: Gate, exchange: str, key: str) -> Route:
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

    def __init__(self, publisher: Publisher, queue: LimitedQueue, message: Message, reason: str) -> None:
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
                # Also when the queue is deleted meanwhile: the deletion may be lost in a crash that keeps the letter.
                store.append(Settled(queue.number, position), None)
        finally:
            store.commit()

    def _publish(self) -> None:
        publisher, message, limits = self._publisher, self._message, self._queue.limits
        gate = publisher.internal
        properties = message.properties
        headers = properties.get("headers")
        deaths = _deaths(headers.get("x-death") if isinstance(headers, dict) else None)
        gate.received += 1
        if self._reason != "rejected" and _looped(deaths, self._queue.name):
            gate.count_fate(LOOPED)
            return
        _record(deaths, self._queue.name, self._reason, message.address, int(publisher.agenda.wall), properties.get("expiration"))
        assurance = message.assurance
        if assurance == AT_MOST_ONCE and properties.get("delivery_mode") == 2:
            assurance = AT_LEAST_ONCE  # No queue so far had to ask.
        key = limits.dead_letter_key
        route = publisher.route(gate, limits.dead_letter_exchange or "", message.address.key if key is None else key)
        source = message.encoding
        if isinstance(source, Amended):
            source = source.source
        letter = Message(route, message.content, Amended(source, {"x-death": deaths}), assurance)
        try:
            publisher.publish(gate, route, letter, None)
        except BrokerError:
            return  # Counted with its fate: the exchange is gone.


class Will(Task):
    """The message that a client left for the case that it disappears."""

    def __init__(self, publisher: Publisher, gate: Gate, message: Message, lifetime: int, speaker: Listener | None) -> None:
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


def _deaths(value: object) -> list[dict[str, object]]:
    return [dict(death) for death in value if isinstance(death, dict)] if isinstance(value, list) else []


def _looped(deaths: list[dict[str, object]], queue: str) -> bool:
    """Whether the message died here before, and nobody rejected it since: then it would go round for ever."""
    for death in deaths:
        if death.get("reason") == "rejected":
            return False
        if death.get("queue") == queue:
            return True
    return False


def _record(deaths: list[dict[str, object]], queue: str, reason: str, address: Address, time: int, expiration: object) -> None:
    """Count another death in this queue for this reason, most recent first."""
    for death in deaths:
        if death.get("queue") == queue and death.get("reason") == reason:
            count = death.get("count")
            death["count"] = count + 1 if isinstance(count, int) and 0 < count < COUNT_MAX else 1
            deaths.remove(death)
            deaths.insert(0, death)
            return
    death = {"count": 1, "reason": reason, "queue": queue, "time": datetime.fromtimestamp(time, UTC),
             "exchange": address.exchange, "routing-keys": [address.key]}
    if expiration is not None:
        death["original-expiration"] = expiration
    deaths.insert(0, death)
