"""Traces: follow the messages that match a filter, from their publication to their settlement.

    operator --begin--> Trace --selects--> routes: their plans are `traced`, for the slow path
    publication on a traced plan --follow--> the message is marked (messages/tracing.py)
    queues and consumers --report--> events of the Trace <--read-- operator

A trace makes all plans stale when it begins and when it ends. While no trace runs, publications
have no additional cost. While a trace runs, only messages of the routes that it selects take the
slow path. A trace that is not read for IDLE_MS ends by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

from mypy_extensions import i64

from broker.agenda import Agenda, Task
from broker.errors import LimitExceeded
from broker.messages.fates import MESSAGE_FATES, ROUTED, UNROUTABLE
from broker.messages.message import AT_MOST_ONCE, Message
from broker.messages.outlet import Outlet
from broker.messages.tracing import MessageTrace, TracedAddress, TwoTraces, trace_of
from broker.names import shown
from broker.queues.queue import Queue
from broker.routing.plan import Plan
from broker.routing.publish_context import PublishContext
from broker.routing.route import MessageRoute, Route
from broker.routing.sampling import MessageSampler
from broker.routing.subscriber import Subscriber
from broker.stream.queue import StreamQueue
from matching.grammar import AMQP, MQTT, swap

#: Largest number of traces that run in one virtual host at the same time.
TRACES_MAX: Final = 8
#: Largest number of unread events of a trace. Above this number, each new event removes the oldest
#: event.
EVENTS_MAX: Final = 2_000
#: Largest length of a name or text in an event, in characters.
TEXT_MAX: Final = 256
#: Largest number of destinations of one message that a trace names.
DESTINATIONS_MAX: Final = 20
#: Time without a reader after which a trace ends, in ms.
IDLE_MS: Final = 30_000


class TraceFilter:
    """The messages that a trace follows. An empty text matches every message.

    `key` is a binding key of AMQP, `topic` an MQTT topic filter. `queue` is the name of a queue to
    which the message is routed. `client` is the name or address of the publishing client:
    see `Outlet.client_names`.
    """

    def __init__(
        self,
        exchange: str | None = None,
        key: str = "",
        topic: str = "",
        user: str = "",
        client: str = "",
        queue: str = "",
        message_id: str = "",
    ) -> None:
        self.exchange = exchange
        self.key = key
        self.topic = topic
        self.user = user
        self.client = client
        self.queue = queue
        self.message_id = message_id

    def selects(self, user: str, exchange: str, key: str) -> bool:
        """True if a message that this user publishes to this exchange and key may match the
        filter.
        """
        return (
            (self.exchange is None or self.exchange == exchange)
            and (not self.user or self.user == user)
            and (not self.key or AMQP.matches(self.key, key))
            and (not self.topic or MQTT.matches(self.topic, swap(key)))
        )

    def leads_to(self, queues: list[Queue]) -> bool:
        """True if the filter names no queue, or one of these queues."""
        return not self.queue or any(queue.name == self.queue for queue in queues)

    def matches(self, plan: Plan, message: Message, publisher: Outlet | None) -> bool:
        """True if the filter's queue, client and `message_id` match this message.

        Called only if `selects` is True for the user, exchange and routing key of the message.
        """
        if not self.leads_to([*plan.reliable_queues, *plan.delays]):
            return False
        if self.client and (publisher is None or self.client not in publisher.client_names()):
            return False
        return not self.message_id or self.message_id == message.properties.get("message_id")


class TraceEvent:
    """A step of one message, at a time in seconds since the epoch.

    `number` is the sequence number of the event in its trace, from 1. `message` is the sequence
    number of the message in the trace. `place` is the name of the exchange, queue or session.
    """

    def __init__(
        self, number: int, time: float, message: int, step: str, place: str, detail: str
    ) -> None:
        self.number = number
        self.time = time
        self.message = message
        self.step = step
        self.place = place
        self.detail = detail


class Trace(Task):
    """One trace: its filter, the messages that it follows, and the events that wait to be read.

    At most `rate` new messages are followed in a second; further messages are counted in `skipped`.
    """

    def __init__(
        self, traces: Traces, number: int, chosen: TraceFilter, rate: int, agenda: Agenda
    ) -> None:
        self.number = number
        self.chosen = chosen
        self.rate = rate
        #: Number of messages that the trace followed, and that matched but exceeded `rate`.
        self.followed = 0
        self.skipped = 0
        #: Number of events that were added, and of events that were removed before they were read.
        self.reported = 0
        self.lost = 0
        self.ended = False
        self._traces = traces
        self._agenda = agenda
        self._events: deque[TraceEvent] = deque()
        #: The present second of the agenda's clock, and the number of messages followed in this
        #: second.
        self._second: i64 = 0
        self._followed_now = 0
        self._idle_from: i64 = agenda.now
        agenda.at(agenda.now + IDLE_MS, self)

    def run(self) -> None:
        """End the trace if it has not been read for IDLE_MS; otherwise set the timer again."""
        if self.ended:
            return
        end: i64 = self._idle_from + IDLE_MS
        if self._agenda.now >= end:
            self._traces.end(self)
        else:
            self._agenda.at(end, self)

    def needs_timer(self, when: i64) -> bool:
        return not self.ended

    def follow(self) -> FollowedMessage | None:
        """Begin to follow one more message; return the object to which its steps are reported.

        Return None if the trace has begun to follow `rate` messages in this second already.
        """
        second: i64 = self._agenda.now // 1_000
        if second != self._second:
            self._second = second
            self._followed_now = 0
        if self._followed_now >= self.rate:
            self.skipped += 1
            return None
        self._followed_now += 1
        self.followed += 1
        return FollowedMessage(self, self.followed)

    def add(self, message: int, step: str, place: str, detail: str) -> None:
        """Add a TraceEvent about the message with this number, if the trace still runs."""
        if self.ended:
            return
        self.reported += 1
        if len(self._events) >= EVENTS_MAX:
            self._events.popleft()
            self.lost += 1
            self._traces.lost += 1
        self._events.append(
            TraceEvent(self.reported, self._agenda.wall, message, step, _cut(place), _cut(detail))
        )

    def read(self, after: int, most: int) -> list[TraceEvent]:
        """Return up to `most` events after the event number `after`; remove all events up to
        `after`.
        """
        self._idle_from = self._agenda.now
        while self._events and self._events[0].number <= after:
            self._events.popleft()
        return [self._events[at] for at in range(min(most, len(self._events)))]

    def finish(self) -> None:
        """Forget all events, and ignore later steps of the messages. Called by `Traces.end`."""
        self.ended = True
        self._events.clear()
        self._agenda.drop_timer()


class FollowedMessage(MessageTrace):
    """A message that a trace follows."""

    def __init__(self, trace: Trace, number: int) -> None:
        self._trace = trace
        self._number = number

    def report(self, step: str, place: str, detail: str) -> None:
        self._trace.add(self._number, step, place, detail)


class Traces:
    """The traces that run in the virtual host `vhost`.

    The function `retire` makes all plans of this virtual host stale.
    """

    def __init__(self, vhost: str, agenda: Agenda, retire: Callable[[], None]) -> None:
        self.running: list[Trace] = []
        #: The sampler for distributed tracing; None if no messages are sampled.
        self.sampler: MessageSampler | None = None
        #: True if messages on the slow path are reported: a trace runs, or there is a sampler.
        self.active = False
        #: The connection whose message is being published on a traced plan; None if the broker
        #: itself publishes the message.
        self.publisher: Outlet | None = None
        #: Number of events of all traces that were removed before they were read.
        self.lost = 0
        self._vhost = vhost
        self._agenda = agenda
        self._retire = retire
        self._begun = 0

    def use_sampler(self, sampler: MessageSampler) -> None:
        """Sample messages for distributed tracing from now on."""
        self.sampler = sampler
        self.active = True
        self._retire()

    def begin(self, chosen: TraceFilter, rate: int) -> Trace:
        """Begin a trace that follows at most `rate` messages per second.

        Raises LimitExceeded if TRACES_MAX traces run.
        """
        if len(self.running) >= TRACES_MAX:
            raise LimitExceeded(
                f"cannot begin a trace: {TRACES_MAX} traces run in this vhost already; end one of "
                f"them, or wait: a trace that is not read ends after {IDLE_MS // 1_000} s"
            )
        self._begun += 1
        trace = Trace(self, self._begun, chosen, rate, self._agenda)
        self.running = [*self.running, trace]
        self.active = True
        self._retire()
        return trace

    def find(self, number: int) -> Trace | None:
        """Return the running trace with this number; None if there is none."""
        return next((trace for trace in self.running if trace.number == number), None)

    def end(self, trace: Trace) -> None:
        """End a trace, if it still runs."""
        if not trace.ended:
            trace.finish()
            self.running = [other for other in self.running if other is not trace]
            self.active = bool(self.running) or self.sampler is not None
            self._retire()

    def select(
        self,
        user: str,
        exchange: str,
        key: str,
        targets: list[tuple[Queue | Subscriber, int]],
        vary: bool,
    ) -> bool:
        """True if a trace may follow messages that this user publishes to this exchange and key, or
        if the sampler must see every message (`MessageSampler.asks_all`).

        `targets` are the destinations of these messages. `vary` is True if the destinations depend
        on the message, so that a message may have other destinations.
        """
        if self.sampler is not None and self.sampler.asks_all:
            return True
        if not self.running:
            return False
        queues = [one if isinstance(one, Queue) else one.inbox for one, _ in targets]
        return any(
            trace.chosen.selects(user, exchange, key) and (vary or trace.chosen.leads_to(queues))
            for trace in self.running
        )

    def follow(self, context: PublishContext, route: Route, plan: Plan, message: Message) -> None:
        """Mark a message that is being published, if a trace follows it or the sampler chooses it.

        Report its publication and its destinations. A message that is marked already is a successor
        of a traced message: only its destinations are reported.
        """
        publisher, self.publisher = self.publisher, None
        known = trace_of(message)
        if known is None:
            known = self._begin(context, route, plan, message, publisher)
            if known is None:
                return
            message.address = TracedAddress(message.address, known)
        if plan.refusal is not None:
            known.report("refused", _exchange_of(route), str(plan.refusal))
            return
        _report_destinations(known, plan, message)

    def follow_repeated(self, context: PublishContext, route: Route, message: Message) -> None:
        """Report a repeated message: it is confirmed and dropped because of its sequence number."""
        publisher, self.publisher = self.publisher, None
        known = self._begin(context, route, route.plan, message, publisher)
        if known is not None:
            known.report(
                "repeated", _exchange_of(route), "the producer has used this sequence number before"
            )

    def _begin(
        self,
        context: PublishContext,
        route: Route,
        plan: Plan,
        message: Message,
        publisher: Outlet | None,
    ) -> MessageTrace | None:
        """Report the publication of a message, and return its MessageTrace; None if no trace
        follows it and the sampler does not choose it.
        """
        trace: MessageTrace | None = None
        if self.running and (route.plan.traced or isinstance(route, MessageRoute)):
            trace = self._begin_following(context.identity.name, route, plan, message, publisher)
        if self.sampler is not None:
            exchange = route.exchange
            sampled = self.sampler.sample(self._vhost, context, exchange, message, publisher)
            if sampled is not None:
                trace = sampled if trace is None else TwoTraces(trace, sampled)
        if trace is not None:
            trace.report("published", _exchange_of(route), _origin(context, message, publisher))
        return trace

    def _begin_following(
        self,
        user: str,
        route: Route,
        plan: Plan,
        message: Message,
        publisher: Outlet | None,
    ) -> MessageTrace | None:
        """Return the MessageTrace of a message in the first trace that follows it; None if no trace
        follows the message.
        """
        keys = route.keys if isinstance(route, MessageRoute) else [route.key]
        for trace in self.running:
            chosen = trace.chosen
            if any(chosen.selects(user, route.exchange, key) for key in keys) and chosen.matches(
                plan, message, publisher
            ):
                followed = trace.follow()
                if followed is not None:
                    return followed
        return None


def _exchange_of(route: Route) -> str:
    """Return the name of the route's exchange; "amq.default" for the default exchange."""
    return route.exchange or "amq.default"


def _origin(context: PublishContext, message: Message, publisher: Outlet | None) -> str:
    """Return a text for operators: routing key, publisher, client, QoS, size and message_id."""
    names = () if publisher is None else publisher.client_names()
    client = f" from client {' '.join(names)}" if names else ""
    identifier = message.properties.get("message_id")
    quality = ("transient", "persistent")[min(int(message.qos), 1)]
    if context.front.startswith("mqtt"):
        quality = f"QoS {int(message.qos)}"
    return (
        f"key '{shown(message.address.key)}' by user '{context.identity.name}' over "
        f"{context.front}{client}, {quality}, "
        f"{int(message.encoding.size(message.content)):,} B"
        + (f", message_id '{identifier}'" if identifier else "")
    )


def _report_destinations(trace: MessageTrace, plan: Plan, message: Message) -> None:
    """Report the destinations of a message, at most DESTINATIONS_MAX of each kind."""
    reliable = message.qos > AT_MOST_ONCE
    queues = plan.reliable_queues if reliable else plan.queues
    for queue in queues[:DESTINATIONS_MAX]:
        trace.report("routed", queue.name, _state_of(queue))
    subscribers = (plan.reliable_relay if reliable else plan.relay).targets
    for subscriber in subscribers[:DESTINATIONS_MAX]:
        _report_relay(trace, subscriber)
    for waiting in plan.delays:
        trace.report("delayed", waiting.name, "the message waits until its x-delay is over")
    more = max(0, len(queues) - DESTINATIONS_MAX) + max(0, len(subscribers) - DESTINATIONS_MAX)
    if more:
        trace.report("routed", "", f"further destinations: {more:,}")
    if plan.unrepresentable:
        trace.report(
            "not_representable",
            "",
            "number of destinations whose protocol cannot represent the topic: "
            f"{int(plan.unrepresentable):,}",
        )
    if plan.fate != ROUTED:
        detail = "no binding matches" if plan.fate == UNROUTABLE else ""
        trace.report(MESSAGE_FATES[plan.fate], "", detail)


def _state_of(queue: Queue) -> str:
    if isinstance(queue, StreamQueue):
        return "a stream appends the message"
    paused = ", paused" if queue.paused else ""
    return (
        f"waiting messages: {int(queue.depth):,}, unacknowledged: {int(queue.unacked):,}, "
        f"consumers: {queue.consumer_count:,}{paused}"
    )


def _report_relay(trace: MessageTrace, subscriber: Subscriber) -> None:
    """Report the fate of a subscriber's QoS 0 copy: delivered, dropped, or no client connected."""
    outlet, name = subscriber.outlet, subscriber.name
    if outlet is None and not subscriber.is_connected:
        detail = "no client is connected, and sessions keep no QoS 0 messages"
        trace.report("offline", name, detail)
    elif outlet is not None and outlet.paused:
        trace.report("dropped", name, "the client does not read fast enough")
    else:
        names = () if outlet is None else outlet.client_names()
        trace.report_delivery(name, names, "with QoS 0")


def _cut(text: str) -> str:
    """Return the text, cut to TEXT_MAX characters and with escape sequences for invalid UTF-8."""
    return shown(text if len(text) <= TEXT_MAX else f"{text[: TEXT_MAX - 1]}…")
