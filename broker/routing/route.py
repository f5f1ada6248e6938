"""The Route and its Plan: everything that can be known about a publication before it comes.

octets off the wire --dict--> Route --+-- address     the names, which messages keep
                                      +-- count       publications, added to the fates when the plan changes
                                      +-- plan --+-- attention   what a message must not carry to stay on the fast path
      (shared by all routes                      +-- queues      every publication goes here
       to the same set)                          +-- relay       ... and to these listeners, when sent at most once
                                                 +-- kept        queues and inboxes, when sent at least once
                                                 +-- kept_relay  ... and to the listeners that asked for at most once
                                                 +-- refusal, fate, durable, limited, lowered, delays, by_headers: for the careful path
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from broker.errors import AccessRefused, BrokerError
from broker.messages.fates import DROPPED, OFFLINE
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
    Address,
    Message,
)
from broker.messages.outlet import Outlet
from broker.queues.delay import DelayQueue
from broker.queues.destination import Destination
from broker.queues.limited import LimitedQueue
from broker.queues.queue import Queue
from broker.stream.queue import StreamQueue
from broker.stream.rows import PublishRun

#: Fates of a message that came in. Every one has exactly one; what becomes of its copies, queues
#: count.
ROUTED: Final[i64] = 0
UNROUTABLE: Final[i64] = 1
REFUSED: Final[i64] = 2
DENIED: Final[i64] = 3
TOO_LARGE: Final[i64] = 4
LOOPED: Final[i64] = 5
#: Its producer had published it before.
REPEATED: Final[i64] = 6
#: Destinations that count double, each, beside as many others.
LARGE_FANOUT: Final[i64] = 1_000
FATES: Final = ("routed", "unroutable", "refused", "denied", "too_large", "looped", "repeated")


class RelayFormat:
    """Listeners of one dialect read the same octets. `apart` says, in bits of `Plan.attention`,
    which publishers' octets they do not read as they are."""

    def __init__(self, apart: i64) -> None:
        self.apart: i64 = apart


class Subscriber(Destination):
    """A destination with two doors: an inbox for what must arrive, and its connection, while there
    is one, for what need not."""

    def __init__(self, name: str, inbox: Queue, relay_format: RelayFormat) -> None:
        super().__init__(name)
        self.inbox = inbox
        self.relay_format = relay_format
        self.outlet: Outlet | None = None
        #: Copies sent at most once: written, kept from a reader too slow, and meant for one who was
        #: away.
        self.relayed: i64 = 0
        self.dropped: i64 = 0
        self.missed: i64 = 0

    def can_represent(self, topic: bytes) -> bool:
        """Whether this can be said to the listener at all."""
        raise NotImplementedError

    def may_read(self, topic: bytes) -> bool:
        """Whether its owner may hear this, of a filter of which it may not hear all."""
        return True

    def offer(self, message: Message) -> None:
        """Write the message out if that is possible now; else count it as dropped or missed."""
        raise NotImplementedError

    def fates(self) -> list[int]:
        """How many copies ended how, in the order of COPY_FATES; those of the inbox among them."""
        fates = self.inbox.fates()
        fates[1] += int(self.relayed)
        fates[DROPPED] += int(self.dropped)
        fates[OFFLINE] += int(self.missed)
        return fates


class Relay:
    """A set of listeners that get the same octets. One object per Plan, so that a run of packets to
    the same set is recognised by identity."""

    def __init__(self, targets: list[Subscriber]) -> None:
        self.targets = targets

    def send(self, packets: bytes, count: i64) -> None:
        """Relay `count` encoded packets; a reader that is too slow loses them. Hot path."""
        for target in self.targets:
            outlet = target.outlet
            if outlet is None:
                target.missed += count
                continue
            if outlet.paused:
                target.dropped += count
                continue
            target.relayed += count
            outlet.out.write(packets)
            if not outlet.dirty:
                outlet.touch()

    def send_described(self, packets: bytes, count: i64) -> None:
        """The same, of packets that have room for properties."""
        self.send(packets, count)

    def offer(self, message: Message) -> None:
        for target in self.targets:
            target.offer(message)


class RecordingRelay(Relay):
    """...

    whose virtual host has journals: they get the packets as they are, and take them apart later.
    """

    def __init__(
        self, targets: list[Subscriber], journals: list[StreamQueue], publisher: bytes, routed: i64
    ) -> None:
        super().__init__(targets)
        self._journals = journals
        self._publisher = publisher
        self._routed: i64 = routed

    def send(self, packets: bytes, count: i64) -> None:
        self._record(packets, count, False)
        super().send(packets, count)

    def send_described(self, packets: bytes, count: i64) -> None:
        self._record(packets, count, True)
        super().send(packets, count)

    def _record(self, packets: bytes, count: i64, described: bool) -> None:
        for journal in self._journals:
            journal.put_run(PublishRun(packets, count, self._publisher, self._routed, described))


#: Listeners of no message.
EMPTY_RELAY: Final = Relay([])


class Plan:
    """What a set of destinations means for a publication. Interned: routes to the same set share
    it.

    When a binding changes, plans become `stale`, not routes: there are few plans and many routes. A
    stale plan asks for care always, and the careful path renews the route, so a hot loop need not
    know.

    `copies` is how many copies each publication makes, `unrepresentable` how many of them somebody
    cannot be told under this name. `by_speaker` is whether some listener does not hear itself.
    """

    def __init__(
        self,
        targets: list[tuple[Queue | Subscriber, int]],
        unrepresentable: int,
        by_headers: bool,
        by_speaker: bool = False,
    ) -> None:
        listeners = [(target, qos) for target, qos in targets if isinstance(target, Subscriber)]
        queues = [target for target, _ in targets if isinstance(target, Queue)]
        self.delays = [queue for queue in queues if isinstance(queue, DelayQueue)]
        self.queues = (
            [queue for queue in queues if queue not in self.delays] if self.delays else queues
        )
        self.reliable_queues = self.queues + [
            listener.inbox for listener, qos in listeners if qos > AT_MOST_ONCE
        ]
        self.lowered = [listener.inbox for listener, qos in listeners if qos == AT_LEAST_ONCE]
        self.relay = _relay([listener for listener, _ in listeners])
        self.reliable_relay = _relay(
            [listener for listener, qos in listeners if qos == AT_MOST_ONCE]
        )
        self.streams = [queue for queue in self.queues if isinstance(queue, StreamQueue)]
        self.durable = [
            queue
            for queue in self.reliable_queues
            if queue.durable and not isinstance(queue, StreamQueue)
        ]
        #: How many queues get it, streams not counted, and whether somebody writes that down.
        self.routed: i64 = len(targets) - len(self.streams)
        self.recorded = bool(self.streams)
        self.numbers = [int(queue.number) for queue in self.durable]
        #: Whether the store notes something of each message for some of them.
        self.annotated = any(queue.annotates for queue in self.durable)
        self.limited = [
            queue
            for queue in self.queues
            if isinstance(queue, LimitedQueue) and queue.arguments.reject_publish
        ]
        self.by_headers = by_headers
        self.by_publishing_session = by_speaker
        self.stale = False
        self.refusal: BrokerError | None = None
        self.fate: i64 = ROUTED if targets else UNROUTABLE
        self.copies: i64 = len(targets) + unrepresentable
        self.unrepresentable: i64 = unrepresentable
        #: What a publication costs of the budget of a turn. Thousands of queues are not in the
        #: processor's cache: each costs more.
        self.weight: i64 = 1 + len(targets) * (1 + len(targets) // LARGE_FANOUT)
        self.slow_path_mask: i64 = EXPIRATION | USER_ID | HEADERS | REPLY_TO
        if self.queues:
            self.slow_path_mask |= QUEUES
        if by_headers or by_speaker or self.limited or self.streams or self.delays:
            self.slow_path_mask |= ALWAYS
        for listener, _ in listeners:
            self.slow_path_mask |= listener.relay_format.apart
        if listeners:
            self.slow_path_mask |= SUBSCRIBERS
        if self.durable:
            self.slow_path_mask |= PERSISTENCE
        if not targets:
            self.slow_path_mask |= NOWHERE

    def record(self, journals: list[StreamQueue], publisher: str) -> None:
        """These get every publication, wherever it goes; it counts as routed by its other
        destinations only.
        """
        added: list[StreamQueue] = [journal for journal in journals if journal not in self.queues]
        if not added:
            return
        self.queues = [*self.queues, *added]
        self.reliable_queues = [*self.reliable_queues, *added]
        self.copies += len(added)
        self.recorded = True
        self.relay = RecordingRelay(
            self.relay.targets, added, publisher.encode("utf-8", "replace"), self.routed
        )

    def release(self) -> None:
        """Let go of the destinations: the plan is stale. What was counted still has its fate."""
        (
            self.queues,
            self.reliable_queues,
            self.lowered,
            self.limited,
            self.durable,
            self.numbers,
        ) = (
            [],
            [],
            [],
            [],
            [],
            [],
        )
        self.delays, self.streams = [], []
        self.relay = self.reliable_relay = EMPTY_RELAY


def refused(refusal: BrokerError) -> Plan:
    """The plan of those who may not, or of what is not there."""
    plan = Plan([], 0, False)
    plan.refusal = refusal
    plan.fate = DENIED if isinstance(refusal, AccessRefused) else REFUSED
    plan.slow_path_mask = ALWAYS
    return plan


class Route(Address):
    """What an (identity, exchange, routing key) resolves to; counts the publications that followed
    it.
    """

    def __init__(self, exchange: str, key: str, plan: Plan) -> None:
        super().__init__(exchange, key)
        self.plan = plan
        self.routed = plan.routed
        self.count: i64 = 0


class CcRoute(Route):
    """The route of one message with several routing keys.

    Its readers are told the first; they do not know of the `blind` ones.
    """

    def __init__(self, exchange: str, keys: list[str], blind: list[str], plan: Plan) -> None:
        super().__init__(exchange, keys[0], plan)
        self.keys = keys
        self.blind = blind


def _relay(listeners: list[Subscriber]) -> Relay:
    return Relay(listeners) if listeners else EMPTY_RELAY
