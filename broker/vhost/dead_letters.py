"""Messages that the broker itself publishes: dead letters and delayed messages.

A dead letter is a message that a queue discards (it expired, the queue was full, a consumer
rejected it, or it was returned too often) and that is published to the queue's dead letter
exchange. Its header `x-death` counts, for each queue and reason, how often the message was
discarded.

A dead letter cycle is a chain of dead letter exchanges that leads a message back to a queue which
discarded it before; without a check, the message would circulate forever. So before a dead letter
is routed, `Planner.plan_keys` compares its destinations with `x-death`: the message does not go to
a queue that discarded it before, unless a consumer rejected the message in that queue or later
(`would_cycle` in messages/x_death.py). A message without another destination ends with the fate
"looped", and so does a message that would become more than COPIES_MAX copies (`count_copies`). The
destinations of a message that becomes a dead letter because a consumer rejected it are not checked:
the consumer decides each time whether the message circulates again.

Each queue that discards messages has one job (QueueMoves), which publishes them in the order in
which they were discarded. A job is bulk work of the agenda: deliveries go first, and the jobs of
several queues take turns. While MOVES_MAX messages wait in a job, its queue discards no expired
messages.

A full queue discards one message for each message that it gets. When MOVES_MAX messages that it
discarded for this reason wait in its job, the queue is behind: the clients that publish to it must
wait until half of these messages are published. So the number of waiting messages is limited, to
about MOVES_MAX. A job that publishes to a queue which is behind does not wait, but moves only one
message in each slice. So the jobs of a cycle of queues cannot wait for each other.

Dead letters and delayed messages move from one queue to other queues. The store gets both changes
in one group: after a crash, the message is either still in the old queue or already in the new
queues.
"""

from __future__ import annotations

from typing import Final, Protocol

from mypy_extensions import i64

from broker.agenda import Agenda, BulkTask
from broker.errors import BrokerError
from broker.messages.cc_headers import BCC, CC, additional_keys, cc_keys
from broker.messages.fates import OVER_LIMIT
from broker.messages.memory import SAMPLES, estimate
from broker.messages.message import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    Address,
    AmendedEncoding,
    Encoding,
    Message,
    Properties,
    amend,
    headers_of,
)
from broker.messages.tracing import continue_trace
from broker.messages.x_death import (
    REASONS,
    Death,
    copies_of,
    count_copies,
    count_death,
    death_headers,
    deaths_of,
)
from broker.queues.arguments import QueueArguments
from broker.queues.delivery_attempts import without_delivery_count
from broker.queues.fifo import Fifo
from broker.queues.limited import LimitedQueue
from broker.routing.exchanges.delayed import DELAY_MAX, HEADER, delay_of
from broker.routing.plan import Plan, looped
from broker.routing.plan_search import SearchSlot
from broker.routing.publish_context import PublishContext
from broker.routing.route import Route
from broker.routing.subscriber import Subscriber
from broker.store.contract import Store, Ticket

#: A dead letter loses its expiration: otherwise it would expire in the next queue too.
_WITHOUT_EXPIRATION: Final[dict[str, object]] = {"expiration": None}
#: A step is the work for one copy of a message. A slice of a job has up to STEPS_PER_SLICE steps;
#: each message counts as _MESSAGE_STEPS steps besides its copies. So a slice publishes up to 100
#: messages, in 1 to 2 ms.
STEPS_PER_SLICE: Final[i64] = 1_000
_MESSAGE_STEPS: Final[i64] = 9
#: Steps of the search for the destinations of a message that count as one step of a slice.
SEARCH_STEPS: Final[i64] = 8
#: Number of waiting messages in one job at which its queue stops discarding messages that have
#: expired or are above a lowered limit. These messages stay in the queue, where they can be on
#: disk.
MOVES_MAX: Final = 10_000
#: The reason for which a full queue discards a message.
OVERFLOWED: Final = REASONS[int(OVER_LIMIT)]
#: Largest number of addresses that SharedAddresses holds.
ADDRESSES_MAX: Final = 1_024


class MessagePublisher(Protocol):
    """The part of a virtual host that publishes the broker's own messages."""

    agenda: Agenda
    store: Store
    internal: PublishContext
    publishing_session: Subscriber | None
    moves: dict[LimitedQueue, QueueMoves]
    addresses: SharedAddresses

    def route(
        self, context: PublishContext, exchange: str, key: str, slot: SearchSlot
    ) -> Route | None:
        """Return a new route for one message.

        Return None if the search for its destinations continues in the next turn of the event loop:
        call again with the same `slot` then.
        """

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

        `deaths` are the entries of x-death that the check for cycles uses; None for no check.
        Return None if the search for the destinations continues in the next turn.
        """

    def plan_of(
        self, context: PublishContext, route: Route, message: Message, slot: SearchSlot
    ) -> Plan | None:
        """Return the present plan of a message; None if the search for it continues in the next
        turn.
        """

    def publish(
        self,
        context: PublishContext,
        route: Route,
        plan: Plan,
        message: Message,
        ticket: Ticket | None,
    ) -> i64:
        """Publish a message and return its fate. Raises the plan's `refusal`, if it has one."""

    def encoded(self, encoding: AmendedEncoding, content: bytes, qos: i64) -> Encoding:
        """Return an encoding that holds the properties of a dead letter in little memory.

        `content` and `qos` are attributes of the dead letter.
        """

    def retain(self, message: Message, ticket: Ticket | None) -> None:
        """Make the message the retained message of its topic."""

    def release(self, context: PublishContext) -> None:
        """Decrement the use count of a context, because a will message has stopped using it."""

    def set_behind(self, queue: LimitedQueue, behind: bool) -> None:
        """If `behind` is True, make the publishers to the queue wait; else let them go on."""


class SharedAddresses:
    """The addresses of messages that the broker published lately, such as dead letters.

    Each of these messages has a route of its own, with a plan. If the message referred to its
    route, the plan would stay in memory as long as the message. So the message refers to an Address
    without a plan, which it shares with other messages.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], Address] = {}

    def of(self, route: Route) -> Address:
        """Return the shared Address that has the exchange and the routing key of a route."""
        return self.named(route.exchange, route.key, route)

    def named(self, exchange: str, key: str, route: Route) -> Address:
        """Return the shared Address with this exchange and routing key, for a message of this
        route.
        """
        name = (exchange, key, int(route.routed))
        address = self._known.get(name)
        if address is None:
            if len(self._known) >= ADDRESSES_MAX:
                self._known.clear()
            address = self._known[name] = Address(exchange, key)
            address.origin, address.routed = route.origin, route.routed
        return address


class QueueMoves(BulkTask):
    """The job that moves messages from one queue to the destinations of an exchange, in order.

    The subclass defines how a message is routed, and which headers and properties change.
    """

    def __init__(self, publisher: MessagePublisher, queue: LimitedQueue) -> None:
        super().__init__(publisher.agenda)
        self._publisher = publisher
        self._queue = queue
        self._messages: Fifo[Message] = Fifo()
        #: The number of waiting messages that the queue discarded because it was full.
        self.overflowed = 0
        #: The paused search for the destinations of the first message; None if no search is paused.
        self._slot: SearchSlot | None = None

    @property
    def waiting(self) -> int:
        """Number of messages that are not published yet."""
        return self._messages.size

    def memory_bytes(self) -> i64:
        """Return the estimated memory of the messages that are not published yet, in bytes."""
        return estimate(self._messages.sample(SAMPLES), self._messages.size)

    def add(self, message: Message) -> None:
        """Publish the message in a later slice, after the messages that are already waiting."""
        if self._messages.size == 0:
            self._publisher.moves[self._queue] = self
        self._messages.push(message)
        self.schedule()

    def has_work(self) -> bool:
        return self._messages.size > 0

    def do_slice(self) -> None:
        if self._messages.size == 0:
            return  # The last slice moved the message whose arrival scheduled this slice.
        left: i64 = STEPS_PER_SLICE
        try:
            while left > 0 and self._messages.size > 0:
                left -= self._move_first()
        finally:
            queue = self._queue
            if self._messages.size == 0:
                del self._publisher.moves[queue]
            if self.overflowed >= MOVES_MAX and not queue.behind:
                self._publisher.set_behind(queue, True)
            elif self.overflowed < MOVES_MAX // 2 and queue.behind:
                self._publisher.set_behind(queue, False)

    def _move_first(self) -> i64:
        """Move the first waiting message, and return the number of steps that this took.

        If the search for its destinations takes longer than this slice, the message stays, and the
        next slice continues the search.
        """
        message = self._messages.peek()
        assert message is not None
        slot = self._slot or SearchSlot()
        pauses = False
        try:
            amended = self._amended(message, slot)
            if amended is None:
                pauses = True
                return STEPS_PER_SLICE
            route, moved = amended
            behind = route.plan.behind
            self._move(message, route, moved)
            if behind:
                return STEPS_PER_SLICE
            return _MESSAGE_STEPS + route.plan.weight + slot.spent // SEARCH_STEPS
        finally:
            self._slot = slot if pauses else None
            if not pauses:
                self._remove_first()

    def _remove_first(self) -> None:
        """Remove the first waiting message, because this job has finished with it."""
        self._messages.pop()

    def _amended(self, message: Message, slot: SearchSlot) -> tuple[Route, Message] | None:
        """Return the route and the new message, which is published in place of `message`.

        Return None if the search for the destinations takes longer than this slice. The job
        continues the search later.
        """
        raise NotImplementedError

    def _move(self, message: Message, route: Route, moved: Message) -> None:
        """Publish `moved`, and settle `message` in its queue, in one group of the store."""
        publisher, queue = self._publisher, self._queue
        context, store = publisher.internal, publisher.store
        if message.address.traced:
            continue_trace(message, moved, queue.name)
        store.begin()
        try:
            context.received += 1
            try:
                publisher.publish(context, route, route.plan, moved, None)
            except BrokerError:
                pass  # The exchange does not exist. The message has the fate "refused".
            position = message.position
            if queue.durable and position > 0:
                # A queue that was deleted meanwhile settles the message too: a crash may lose the
                # deletion and keep the published message.
                store.append_settled(queue.number, position)
        finally:
            store.commit()


class Discard:
    """The reason for which a queue discarded a message, and the queue's arguments at that time.

    The arguments name the dead letter exchange. A policy that changes them later has no effect on
    the message. Consecutive messages share an object.
    """

    __slots__ = ("arguments", "reason")

    def __init__(self, arguments: QueueArguments, reason: str) -> None:
        self.arguments = arguments
        self.reason = reason


class DeadLetters(QueueMoves):
    """The job that publishes the discarded messages of a queue to its dead letter exchange."""

    def __init__(self, publisher: MessagePublisher, queue: LimitedQueue) -> None:
        super().__init__(publisher, queue)
        #: Why the queue discarded the waiting messages, in the order of the messages.
        self._discards: Fifo[Discard] = Fifo()

    def add_for(self, message: Message, reason: str) -> None:
        """Publish a message that the queue discarded for `reason`, after the messages that wait."""
        arguments = self._queue.arguments
        last = self._discards.peek_last()
        if last is None or last.arguments is not arguments or last.reason != reason:
            last = Discard(arguments, reason)
        self._discards.push(last)
        if reason == OVERFLOWED:
            self.overflowed += 1
        self.add(message)

    def _remove_first(self) -> None:
        super()._remove_first()
        if self._discards.pop().reason == OVERFLOWED:
            self.overflowed -= 1

    def _amended(self, message: Message, slot: SearchSlot) -> tuple[Route, Message] | None:
        publisher, discard = self._publisher, self._discards.peek()
        assert discard is not None
        arguments, reason = discard.arguments, discard.reason
        original = without_delivery_count(message.encoding)
        properties = original.properties(message.content)
        headers = headers_of(properties)
        # A publisher can send the header x-death too. Such a header is no record of deaths, and is
        # replaced.
        history = headers if message.encoding.is_dead_letter() else {}
        deaths = deaths_of(history)
        copies = copies_of(deaths, reason)
        exchange = message.address.exchange
        keys = [message.address.key, *cc_keys(headers)]
        count_death(
            deaths,
            self._queue.name,
            reason,
            exchange,
            keys,
            int(publisher.agenda.wall),
            properties.get("expiration"),
        )
        changes = death_headers(history, deaths, self._queue.name, reason, exchange)
        if arguments.dead_letter_key is not None:
            keys = [arguments.dead_letter_key]
            changes[CC] = None
        qos = message.qos
        if qos == AT_MOST_ONCE and properties.get("delivery_mode") == 2:
            # A persistent message has QoS 0 while only transient queues hold it. The queue to which
            # the dead letter goes may be durable.
            qos = AT_LEAST_ONCE
        route = publisher.route_by(
            publisher.internal,
            arguments.dead_letter_exchange or "",
            keys,
            {**properties, "headers": {**headers, **changes}},
            None if reason == "rejected" else deaths,
            slot,
        )
        if route is None:
            return None
        if not count_copies(deaths, copies, _dead_lettering(route.plan)):
            route.plan = looped()
        encoding = publisher.encoded(
            amend(original, changes, _WITHOUT_EXPIRATION), message.content, qos
        )
        return route, Message(publisher.addresses.of(route), message.content, encoding, qos)


class DelayedPublications(QueueMoves):
    """The job that publishes the messages of a delayed exchange whose delay is over."""

    def _amended(self, message: Message, slot: SearchSlot) -> tuple[Route, Message] | None:
        publisher = self._publisher
        properties = message.properties
        headers = headers_of(properties)
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
        released = Message(publisher.addresses.of(route), message.content, encoding, message.qos)
        expiration = properties.get("expiration")
        if isinstance(expiration, str) and expiration.isdigit():
            released.expires = publisher.agenda.now + min(int(expiration), DELAY_MAX)
        return route, released


def _dead_lettering(plan: Plan) -> int:
    """Return how many queues of a plan dead-letter the messages that they discard."""
    return sum(queue.arguments.dead_letter_exchange is not None for queue in plan.queues)
