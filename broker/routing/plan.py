"""The Plan: where the messages of a route go, computed before the first message is published.

A plan belongs to a set of destinations. All routes that lead to this set share the plan, so there
are few plans and many routes. When a binding changes, the plans become stale, and each route gets
a new plan with its next message.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.errors import AccessRefused, BrokerError
from broker.messages.fates import DENIED, LOOPED, REFUSED, ROUTED, UNROUTABLE
from broker.messages.message import (
    ALWAYS,
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXPIRATION,
    HEADERS,
    NOWHERE,
    PERSISTENCE,
    QUEUES,
    REPLY_TO,
    SUBSCRIBERS,
    USER_ID,
)
from broker.queues.delay import DelayQueue
from broker.queues.duplicate_filter import DuplicateFilter
from broker.queues.limited import LimitedQueue
from broker.queues.queue import Queue
from broker.queues.recent import RecentQueue
from broker.routing.relay import EMPTY_RELAY, RecordingRelay, Relay
from broker.routing.subscriber import Subscriber
from broker.stream.queue import StreamQueue

#: `Plan.weight` counts a destination twice if there are this many destinations, three times if
#: there are twice as many, and so on.
LARGE_FANOUT: Final[i64] = 1_000


class Plan:
    """A set of destinations, arranged for the loops that publish to them.

    Every message of a stale plan takes the slow path, which gives the route a new plan. So the hot
    loops need not check if a plan is stale.
    """

    def __init__(
        self,
        targets: list[tuple[Queue | Subscriber, int]],
        unrepresentable: int,
        by_headers: bool,
        by_publishing_session: bool = False,
    ) -> None:
        subscribers = [(target, qos) for target, qos in targets if isinstance(target, Subscriber)]
        queues = [target for target, _ in targets if isinstance(target, Queue)]
        #: Filters of deduplication exchanges, which remember each message but get no copy.
        self.filters = [queue for queue in queues if isinstance(queue, DuplicateFilter)]
        if self.filters:
            queues = [queue for queue in queues if not isinstance(queue, DuplicateFilter)]
        copies = len(targets) - len(self.filters)
        #: Queues of delayed exchanges, which keep the message until its delay is over.
        self.delays = [queue for queue in queues if isinstance(queue, DelayQueue)]
        #: Queues that get every message, with any QoS.
        self.queues = (
            [queue for queue in queues if queue not in self.delays] if self.delays else queues
        )
        reliable = [subscriber for subscriber, qos in subscribers if qos > AT_MOST_ONCE]
        #: Queues and inboxes that get a message published with QoS 1 or 2, in this order: inboxes
        #: that forward messages are last.
        self.reliable_queues = (
            self.queues
            + [subscriber.inbox for subscriber in reliable if not subscriber.forwards]
            + [subscriber.inbox for subscriber in reliable if subscriber.forwards]
        )
        #: Inboxes that get a QoS 2 message with QoS 1, because their subscription grants QoS 1.
        self.qos1_inboxes = [
            subscriber.inbox for subscriber, qos in subscribers if qos == AT_LEAST_ONCE
        ]
        #: Subscribers that get a message published with QoS 0.
        self.relay = _relay([subscriber for subscriber, _ in subscribers])
        #: Subscribers whose subscription asks for QoS 0. Messages published with QoS 1 or 2 reach
        #: them with QoS 0.
        self.reliable_relay = _relay(
            [subscriber for subscriber, qos in subscribers if qos == AT_MOST_ONCE]
        )
        self.streams = [queue for queue in self.queues if isinstance(queue, StreamQueue)]
        #: The number of destinations without the histories of recent-history exchanges.
        reached = copies - sum(isinstance(queue, RecentQueue) for queue in queues)
        #: Queues for which the store keeps messages published with QoS 1 or 2.
        self.durable = [
            queue
            for queue in self.reliable_queues
            if queue.durable and not isinstance(queue, StreamQueue)
        ]
        #: The number of queues, streams and subscribers that get each message, including journals
        #: that have a binding.
        self.reached: i64 = reached
        #: The number of copies of each message without the copies in journals. Streams record this
        #: number with each message.
        self.routed: i64 = reached
        #: True if a stream records the messages.
        self.recorded = bool(self.streams)
        #: The numbers of the durable queues in the store.
        self.numbers = [int(queue.number) for queue in self.durable]
        #: True if at least one durable queue stores an annotation with each message.
        self.annotated = any(queue.annotates for queue in self.durable)
        #: Queues that refuse messages when they are full (overflow reject-publish).
        self.limited = [
            queue
            for queue in self.queues
            if isinstance(queue, LimitedQueue) and queue.arguments.reject_publish
        ]
        #: True if `LimitedQueue.behind` is True for one of the queues: a publisher then waits after
        #: each message.
        self.behind = any(isinstance(queue, LimitedQueue) and queue.behind for queue in self.queues)
        #: True if the destinations depend on the headers of each message.
        self.by_headers = by_headers
        #: True if the destinations depend on the publishing session, because a subscription has the
        #: option "no local": it gets no message that its own session publishes.
        self.by_publishing_session = by_publishing_session
        self.stale = False
        #: True if a trace may follow messages of this plan (tracing.py).
        self.traced = False
        #: The error that publishing with this plan raises: the exchange does not exist, or the
        #: publisher lacks a permission. None if publishing is permitted.
        self.refusal: BrokerError | None = None
        #: The fate of each message that is published with this plan.
        self.fate: i64 = ROUTED if reached else UNROUTABLE
        #: The number of copies of each message, including the copies that a destination cannot
        #: represent.
        self.copies: i64 = copies + unrepresentable
        #: The number of copies of each message whose destination cannot represent the topic.
        self.unrepresentable: i64 = unrepresentable
        #: The cost of a message, in units of the work budget of a turn. The cost for each queue
        #: grows with the number of queues, because thousands of queues do not fit into the
        #: processor's cache.
        self.weight: i64 = 1 + len(targets) * (1 + len(targets) // LARGE_FANOUT)
        #: The features that send a message to the slow path, as bits of messages/message.py. A
        #: message whose only such feature is PERSISTENCE goes to `VirtualHost.publish_persistent`
        #: instead.
        self.slow_path_mask: i64 = EXPIRATION | USER_ID | HEADERS | REPLY_TO
        if self.queues:
            self.slow_path_mask |= QUEUES
        if by_headers or by_publishing_session or self.limited or self.streams or self.delays:
            self.slow_path_mask |= ALWAYS
        if self.behind:
            self.slow_path_mask |= ALWAYS
        for subscriber, _ in subscribers:
            self.slow_path_mask |= subscriber.relay_format.apart
        if subscribers:
            self.slow_path_mask |= SUBSCRIBERS
        if self.durable:
            self.slow_path_mask |= PERSISTENCE
        if reached == 0:
            self.slow_path_mask |= NOWHERE

    def add_journals(self, journals: list[StreamQueue], publisher: str) -> None:
        """Add streams that record each message, even a message without another destination.

        `publisher` is the user name that the streams record. The journals do not change the fate of
        a message: without another destination, the message stays unroutable.
        """
        added: list[StreamQueue] = [journal for journal in journals if journal not in self.queues]
        self.routed -= len(journals) - len(added)
        if not added:
            return
        self.queues = [*self.queues, *added]
        self.reliable_queues = [*self.reliable_queues, *added]
        self.copies += len(added)
        self.recorded = True
        self.relay = RecordingRelay(
            self.relay.targets, added, publisher.encode("utf-8", "replace"), self.routed
        )

    def twin(self) -> Plan:
        """Return a new plan with the same destinations; both plans share their lists and relays."""
        other = Plan([], 0, self.by_headers, self.by_publishing_session)
        other.filters = self.filters
        other.delays, other.queues, other.streams = self.delays, self.queues, self.streams
        other.reliable_queues, other.qos1_inboxes = self.reliable_queues, self.qos1_inboxes
        other.relay, other.reliable_relay = self.relay, self.reliable_relay
        other.durable, other.numbers, other.annotated = self.durable, self.numbers, self.annotated
        other.limited, other.behind = self.limited, self.behind
        other.reached, other.routed, other.recorded = self.reached, self.routed, self.recorded
        other.fate, other.copies = self.fate, self.copies
        other.unrepresentable, other.weight = self.unrepresentable, self.weight
        other.slow_path_mask = self.slow_path_mask
        other.traced = self.traced
        other.refusal = self.refusal
        return other

    def trace(self) -> None:
        """Send all messages of this plan to the slow path, where a trace may follow them."""
        self.traced = True
        self.slow_path_mask |= ALWAYS

    def release(self) -> None:
        """Remove the references of a stale plan to its destinations.

        The plan keeps its fate and its number of copies: routes still need them to count messages
        that were published with this plan.
        """
        self.queues, self.reliable_queues, self.qos1_inboxes = [], [], []
        self.limited, self.durable, self.numbers = [], [], []
        self.delays, self.streams, self.filters = [], [], []
        self.relay = self.reliable_relay = EMPTY_RELAY


def refused(refusal: BrokerError) -> Plan:
    """Return a plan without destinations, whose messages are refused with this error."""
    plan = Plan([], 0, False)
    plan.refusal = refusal
    plan.fate = DENIED if isinstance(refusal, AccessRefused) else REFUSED
    plan.slow_path_mask = ALWAYS
    return plan


def looped() -> Plan:
    """Return a plan without destinations, for a message that is part of a dead letter cycle."""
    plan = Plan([], 0, False)
    plan.fate = LOOPED
    return plan


def _relay(subscribers: list[Subscriber]) -> Relay:
    return Relay(subscribers) if subscribers else EMPTY_RELAY
