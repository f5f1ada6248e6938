"""Destinations of messages that an operator moves: a queue, an exchange, or the origin.

`decide` returns the reason if a message cannot be moved. A message is moved only if at least one
queue takes it and no queue would drop a message for it, so that a move loses nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

from mypy_extensions import i64

from broker.access.identity import Identity
from broker.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    Message,
    Properties,
    headers_of,
)
from broker.messages.x_death import deaths_of
from broker.queues.arguments import UNLIMITED
from broker.queues.deduplicated import DeduplicatedQueue
from broker.queues.delivery_attempts import without_delivery_count
from broker.queues.limited import LimitedQueue
from broker.queues.queue import Queue
from broker.queues.recent import RecentQueue
from broker.routing.plan import Plan
from broker.routing.plan_search import SearchSlot
from broker.routing.route import Route, new_route
from broker.stream.queue import StreamQueue
from broker.vhost.vhost import VirtualHost

#: Largest property `expiration` of a message, in ms; a larger value counts as this value.
_EXPIRATION_MAX: Final = 1 << 50


class MoveTarget:
    """The target of one moved message: where it is published, and the address that it gets.

    The message is published to the exchange `to_exchange` with the routing key `to_key`. Its
    consumers see the exchange `exchange` and the routing key `key`.
    """

    __slots__ = ("exchange", "key", "to_exchange", "to_key")

    def __init__(self, to_exchange: str, to_key: str, exchange: str, key: str) -> None:
        self.to_exchange = to_exchange
        self.to_key = to_key
        self.exchange = exchange
        self.key = key


class MoveDestination:
    """The destination of a move, which finds the target of each message."""

    #: True if all messages have the same target: if one message is refused, all are refused.
    same_for_all = False
    #: Text for operators: why a message may have no target.
    missing = ""

    @abstractmethod
    def target_of(self, message: Message) -> MoveTarget | None:
        """Return the target of a message; None if the message has no target."""
        raise NotImplementedError

    @abstractmethod
    def text(self) -> str:
        """Return the destination as text for an operator."""
        raise NotImplementedError


class ToQueue(MoveDestination):
    """A move to one queue. Consumers see the old exchange and routing key of each message."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.same_for_all = True

    def target_of(self, message: Message) -> MoveTarget | None:
        return MoveTarget("", self.name, message.address.exchange, message.address.key)

    def text(self) -> str:
        return f"queue '{self.name}'"


class ToExchange(MoveDestination):
    """A move to an exchange, with the routing key `key`; if `key` is None, each message keeps its
    own routing key.
    """

    def __init__(self, exchange: str, key: str | None) -> None:
        self.exchange = exchange
        self.key = key

    def target_of(self, message: Message) -> MoveTarget | None:
        key = message.address.key if self.key is None else self.key
        return MoveTarget(self.exchange, key, self.exchange, key)

    def text(self) -> str:
        key = "the routing key of each message" if self.key is None else f"key '{self.key}'"
        return f"exchange '{self.exchange or 'amq.default'}' with {key}"


class ToOrigin(MoveDestination):
    """A move of dead letters back to their origin: the queue in which each message died last.

    A message gets back the exchange and the routing key with which it came into that queue.
    """

    def __init__(self) -> None:
        self.missing = "the message is not a dead letter: the broker has added no header x-death"

    def target_of(self, message: Message) -> MoveTarget | None:
        if not message.encoding.is_dead_letter():
            # The broker has added no header x-death. If there is one, the publisher has set it, so
            # it names no origin.
            return None
        deaths = deaths_of(headers_of(message.properties))
        queue = deaths[0].get("queue") if deaths else None
        if not isinstance(queue, str):
            return None
        exchange, keys = deaths[0].get("exchange"), deaths[0].get("routing-keys")
        key = keys[0] if isinstance(keys, list) and keys else queue
        return MoveTarget(
            "",
            queue,
            exchange if isinstance(exchange, str) else "",
            key if isinstance(key, str) else queue,
        )

    def text(self) -> str:
        return "the queue in which each message died"


class MoveDecision:
    """The decision about one message: the route and the new message, or a refusal.

    `queues` are the queues that the message reaches.
    """

    def __init__(self, route: Route, message: Message, queues: list[Queue], refusal: str) -> None:
        self.route = route
        self.message = message
        self.queues = queues
        self.refusal = refusal


def decide(
    vhost: VirtualHost,
    identity: Identity,
    destination: MoveDestination,
    source: Queue,
    message: Message,
    slot: SearchSlot,
) -> MoveDecision | str | None:
    """Return the decision about a message of `source`, or the reason for which it has no target.

    Return None if the search for the message's queues takes longer than this turn: call again with
    the same `slot` in the next turn.
    """
    target = destination.target_of(message)
    if target is None:
        return destination.missing
    properties = message.properties
    planner = vhost.declarations.planner
    plan = planner.plan_keys(identity, target.to_exchange, [target.to_key], properties, None, slot)
    route = new_route(target.to_exchange, target.to_key, plan, vhost.internal.origin)
    if plan is None or route is None:
        return None
    moved = _moved(vhost, source, message, properties, route, target)
    queues = _queues_of(plan, moved)
    return MoveDecision(route, moved, queues, _refusal(vhost, plan, target, source, moved, queues))


def _moved(
    vhost: VirtualHost,
    source: Queue,
    message: Message,
    properties: Properties,
    route: Route,
    target: MoveTarget,
) -> Message:
    """Return the new message, which is published in place of `message`.

    The new message expires when `message` would have expired. If the source has a time to live, the
    expiry time that `message` had before is unknown. The new message then expires after the time in
    its own `expiration`, counted from now, or never without `expiration`.
    """
    qos = message.qos
    if qos == AT_MOST_ONCE and properties.get("delivery_mode") == 2:
        # A persistent message has QoS 0 while only transient queues hold it. The queue to which the
        # message moves may be durable.
        qos = AT_LEAST_ONCE
    address = vhost.addresses.named(target.exchange, target.key, route)
    encoding = without_delivery_count(message.encoding)
    moved = Message(address, message.content, encoding, qos)
    moved.expires = message.expires
    if source.arguments.ttl >= 0:
        expiration = properties.get("expiration")
        own = isinstance(expiration, str) and expiration.isdigit()
        moved.expires = 0
        if own:
            moved.expires = vhost.agenda.now + min(int(str(expiration)), _EXPIRATION_MAX)
    return moved


def _queues_of(plan: Plan, message: Message) -> list[Queue]:
    """Return the queues that keep the message; journals and histories of exchanges do not count."""
    queues = plan.queues if message.qos == AT_MOST_ONCE else plan.reliable_queues
    keeping_queues: list[Queue] = []
    for queue in queues:
        journal = isinstance(queue, StreamQueue) and queue not in plan.streams
        if not journal and not isinstance(queue, RecentQueue):
            keeping_queues.append(queue)
    keeping_queues += plan.delays
    return keeping_queues


def _refusal(
    vhost: VirtualHost,
    plan: Plan,
    target: MoveTarget,
    source: Queue,
    message: Message,
    queues: list[Queue],
) -> str:
    """Return why the message cannot be moved; "" if it can be moved."""
    if plan.refusal is not None:
        return str(plan.refusal)
    if not queues:
        if target.to_exchange == "" and target.to_key not in vhost.queues:
            return f"there is no queue '{target.to_key}' in vhost '{vhost.name}'"
        return (
            f"no queue is bound to exchange '{target.to_exchange}' in vhost '{vhost.name}' for "
            f"routing key '{target.to_key}'"
        )
    if source in queues:
        return f"the message would come back to queue '{source.name}'"
    for known in plan.filters:
        if known.repeats(message.properties):
            exchange = target.to_exchange
            return f"exchange '{exchange}' has already routed a message with the same {_VALUE}"
    for queue in queues:
        problem = problem_of(queue, message)
        if problem:
            return f"queue '{queue.name}' {problem}"
    return ""


_VALUE: Final = "x-deduplication-header"


def problem_of(queue: Queue, message: Message, more: i64 = 0, more_bytes: i64 = 0) -> str:
    """Return why the queue would drop `message` or another message; "" if it would drop none.

    Before `message`, the queue gets `more` other messages, which have `more_bytes` bytes together.
    """
    if isinstance(queue, DeduplicatedQueue) and queue.repeats(message):
        return f"already has a message with the same {_VALUE}"
    depth = queue.depth + more
    if not isinstance(queue, LimitedQueue):
        most = queue.max_length
        return f"is full: {depth} messages wait" if depth >= most else ""
    arguments = queue.arguments
    size = message.encoding.size(message.content)
    if depth >= arguments.max_length:
        return f"is full: {depth} of {arguments.max_length} messages wait"
    waiting = queue.waiting_bytes + more_bytes
    if arguments.max_bytes != UNLIMITED and waiting + size > arguments.max_bytes:
        return f"is full: {waiting} of {arguments.max_bytes} bytes wait"
    return "keeps no message, because its time to live is 0 ms" if arguments.ttl == 0 else ""
