"""The search for the destinations of a message: from an exchange along its bindings.

    exchange --match--> bindings --+--> queue, subscriber      a destination
       ^                           `--> exchange ----.
       `---------------------------------------------+         each exchange is walked once
       `------ alternate exchange, if nothing matched

A search counts its steps. A binding, or a node that a matcher visits, is one step; the lookup of a
routing key is ten steps or more. A step takes 15 to 200 ns, compiled. Most searches take less than
100 steps. One client can make a search take millions of steps (exchanges bound to each other,
thousands of routing keys in a CC header, patterns with many wildcards), so a search may pause. A
search does STEPS_PER_TURN steps in a turn of the event loop; then the publication and its publisher
wait, while other clients are served. The caller continues the search in the next turn, with the
same SearchSlot, which holds the search.

Bindings may change during a pause. Then the search restarts, at most RESTARTS times. After that,
the search continues in spite of changes. The destinations that this search finds may lack a binding
that was added meanwhile, so their plan serves this one message and is not cached.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from mypy_extensions import i64

from broker.messages.message import Properties, topic_of
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import NO_LOCAL, PARTLY, Binding
from broker.routing.exchanges import DeduplicationExchange, Exchange
from broker.routing.exchanges.recent_history import RecentHistoryExchange, joins_history
from broker.routing.plan import Plan
from broker.routing.subscriber import Subscriber
from broker.routing.topology_stream import TOPOLOGY
from broker.stream.queue import StreamQueue
from matching.matcher import Search

#: Size in bytes of the longest routing key that consumers of queues can receive: AMQP 0-9-1 writes
#: its length into one byte.
NAME_BYTES: Final = 255
#: Steps that a search takes in one turn. Compiled, 4,096 nodes of a trie take 0.1 to 0.9 ms.
STEPS_PER_TURN: Final[i64] = 4_096
#: The number of steps in a turn for a search that must not pause: practically no limit.
UNLIMITED: Final[i64] = 1 << 60
#: Number of steps that the lookup of one routing key counts, in addition to the matcher's steps.
_KEY_STEPS: Final[i64] = 10
#: The cost of a step in units of a connection's work budget (protocols/connection.py).
STEP_COST: Final[i64] = 2
#: Largest number of times that a search restarts because bindings changed.
RESTARTS: Final = 2


def live_destinations(
    targets: Iterable[tuple[Queue | Subscriber, int]],
) -> list[tuple[Queue | Subscriber, int]]:
    """Return the destinations in `targets` that still exist, each with its QoS.

    A queue that a policy replaced is represented by its replacement.
    """
    live: list[tuple[Queue | Subscriber, int]] = []
    for target, qos in targets:
        while isinstance(target, Queue) and target.replacement is not None:
            target = target.replacement
        if not target.dead:
            live.append((target, qos))
    return live


class SearchSlot:
    """The paused searches of one publication, kept until the publication is complete.

    A publication has up to four searches for destinations, each with a name: for its route, for the
    routing keys of CC headers, for a transaction, and for the headers of the message. `steps` is
    the number of steps that each search takes in one turn. `spent` is the number of steps that all
    searches have taken.
    """

    def __init__(self, steps: i64 = STEPS_PER_TURN) -> None:
        self.steps: i64 = steps
        self.spent: i64 = 0
        self.searches: dict[str, PlanSearch] | None = None


class SearchScope:
    """The exchanges and queues of a virtual host, for searches of destinations."""

    def __init__(
        self, exchanges: dict[str, Exchange], queues: dict[str, Queue], replies: dict[str, Queue]
    ) -> None:
        self.exchanges = exchanges
        #: The default exchange routes to queues and reply queues by name.
        self.queues = queues
        self.replies = replies
        #: A version number that increases when all plans become stale, for example because
        #: permissions changed.
        self.version: i64 = 0
        #: The number of searches that had to pause.
        self.paused: i64 = 0

    def default_target(self, key: str) -> Queue | None:
        """Return the queue to which the default exchange routes `key`; None if there is none.

        The queue has the name `key`. The topology stream is never returned, because no client may
        publish to it.
        """
        queue = self.queues.get(key) or self.replies.get(key)
        return None if key == TOPOLOGY and isinstance(queue, StreamQueue) else queue


class PlanSearch:
    """One search for the destinations of a message.

    Once `advance` returns True, `targets` and other attributes hold the result.
    """

    def __init__(
        self,
        scope: SearchScope,
        exchange: Exchange,
        topic: bytes,
        keys: list[str],
        properties: Properties,
        publishing_session: Subscriber | None = None,
    ) -> None:
        """Create a search from an exchange.

        `keys` are the routing keys of the message: its own, then the keys of its CC and BCC
        headers. `topic` is the MQTT form of its own routing key. A subscription with no-local does
        not get messages of its own session, which is `publishing_session`.
        """
        self._scope = scope
        self._exchange = exchange
        self._topic = topic
        self._keys = keys
        self._properties = properties
        self._publishing_session = publishing_session
        key = keys[0]
        self._fits_queues = (
            len(key) * 4 <= NAME_BYTES or len(key.encode("utf-8", "surrogateescape")) <= NAME_BYTES
        )
        self._paused = False
        self._restarts = 0
        #: True if bindings changed during a pause, and the search went on nevertheless.
        self.outdated = False
        #: The plan that the caller makes when the search is complete; until then None.
        self.plan: Plan | None = None
        self._begin()

    def _begin(self) -> None:
        self._complete = False
        #: The destinations, each with the highest QoS of the bindings that led there.
        self.targets: dict[Destination, tuple[Queue | Subscriber, int]] = {}
        #: The destinations that cannot represent the topic.
        self._unrepresentable: set[Destination] | None = None
        #: True if the destinations depend on the headers, or on the publishing session.
        self.by_headers = False
        self.by_publishing_session = False
        #: The exchanges that the search has entered, by name; None for an alternate exchange that
        #: does not exist.
        self.seen: dict[str, Exchange | None] = {}
        #: Sum of the versions that the exchanges in `seen` had when the search entered them.
        self._versions: i64 = 0
        self._scope_version: i64 = self._scope.version
        #: For each relay format, True if it can represent the topic.
        self._formats: dict[object, bool] | None = None
        #: Exchanges that the search must still walk, apart from the source.
        self._ahead: list[Exchange] | None = None
        #: The exchange that is walked now.
        self._source: Exchange | None = None
        self._next_key: i64 = 0
        self._any_matched = False
        #: Bindings of the source that match, and how many of them were followed.
        self._matched = _NO_BINDINGS
        self._followed: i64 = 0
        #: The searches of the source's matcher that are not complete. The last search is continued
        #: first.
        self._lookups: list[Search[Binding]] | None = None
        self._enter(self._exchange)

    def advance(self, slot: SearchSlot) -> bool:
        """Continue the search for up to `slot.steps` steps; return True if the search is
        complete.
        """
        left = self._advance(slot.steps)
        slot.spent += slot.steps - left
        if not self._complete and not self._paused:
            self._paused = True
            self._scope.paused += 1
        return self._complete

    def _advance(self, steps: i64) -> i64:
        """Continue the search for up to `steps` steps; return the number of steps that remain."""
        if self._paused and self._changed():
            self.plan = None
            if self._restarts < RESTARTS:
                self._restarts += 1
                self._begin()
            else:
                self.outdated = True
        while not self._complete:
            matched = self._matched
            while self._followed < len(matched):
                if steps <= 0:
                    return steps
                steps -= 1
                binding = matched[self._followed]
                self._followed += 1
                target = binding.destination
                if not target.dead:
                    self._any_matched = True
                    if isinstance(target, Queue) and self._fits_queues:
                        known = self.targets.get(target)
                        if known is None or known[1] < binding.qos:
                            self.targets[target] = (target, int(binding.qos))
                    else:
                        self._follow(binding, target)
            source = self._source
            if source is None:
                if self._ahead:
                    self._enter(self._ahead.pop())
                else:
                    self._complete = True
            elif steps <= 0:
                return steps
            elif self._lookups:
                lookup = self._lookups[-1]
                steps = lookup.advance(int(steps))
                if lookup.done:
                    self._lookups.pop()
            elif self._next_key == 0 or self._next_key < len(self._keys) and source.uses_keys:
                self._look_up(source, self._keys[self._next_key])
                self._next_key += 1
                steps -= _KEY_STEPS + source.lookup_steps
            else:
                self._leave(source)
        return steps

    @property
    def unrepresentable(self) -> int:
        """The number of destinations that cannot represent the topic."""
        return 0 if self._unrepresentable is None else len(self._unrepresentable)

    def is_for(self, exchange: Exchange, keys: list[str]) -> bool:
        """True if this is the search for messages to this exchange with these routing keys."""
        return exchange is self._exchange and keys == self._keys

    def destinations(self) -> list[tuple[Queue | Subscriber, int]]:
        """Return the destinations that still exist, each with its QoS."""
        if not self._paused:
            return list(self.targets.values())
        return live_destinations(self.targets.values())

    def _enter(self, exchange: Exchange) -> None:
        """Begin to walk an exchange, unless the search has entered it before."""
        if exchange.name not in self.seen:
            self.seen[exchange.name] = exchange
            self._versions += exchange.version
            if exchange.by_headers:
                self.by_headers = True
                if isinstance(exchange, RecentHistoryExchange) and self._fits_queues:
                    if joins_history(self._properties):
                        self.targets[exchange.recent] = (exchange.recent, 0)
                elif isinstance(exchange, DeduplicationExchange):
                    self.targets[exchange.filter] = (exchange.filter, 0)
            self._source = exchange
            self._next_key = 0
            # A repeated message is dropped. So it does not go to the alternate exchange.
            self._any_matched = isinstance(
                exchange, DeduplicationExchange
            ) and exchange.filter.repeats(self._properties)
            self._matched = _NO_BINDINGS
            self._followed = 0

    def _look_up(self, source: Exchange, key: str) -> None:
        """Find the bindings of an exchange that match the key, or begin a search that can pause."""
        self._followed = 0
        if source.needs_search:
            self._matched = []
            self._lookups = source.searches(key, self._properties, self._matched)
            self._lookups.reverse()
        else:
            self._matched = source.match(key, self._properties)
        if source.name == "":
            queue = self._scope.default_target(key)
            if queue is not None:
                self._matched.append(Binding(key, queue))

    def _leave(self, source: Exchange) -> None:
        """End the walk of an exchange. If no binding matched, its alternate exchange is next."""
        alternate = source.alternate
        if not self._any_matched and alternate is not None:
            known = self._scope.exchanges.get(alternate)
            if known is not None:
                self._walk_later(known)
            else:
                self.seen.setdefault(alternate, None)
        self._source = None

    def _walk_later(self, exchange: Exchange) -> None:
        if self._ahead is None:
            self._ahead = []
        self._ahead.append(exchange)

    def _follow(self, binding: Binding, target: Destination) -> None:
        """Add the destination of a binding to the targets, or to the exchanges to walk.

        A subscriber to which several bindings lead gets the highest QoS of these bindings. A queue
        gets no copy here, and counts as unable to represent the routing key: the caller passes a
        queue only if the key is too long for queues.
        """
        if isinstance(target, Exchange):
            self._walk_later(target)
            return
        if not isinstance(target, Subscriber):
            # Consumers of a queue cannot receive a routing key of more than NAME_BYTES bytes.
            representable = False
        else:
            if binding.arguments:
                if NO_LOCAL in binding.arguments:
                    self.by_publishing_session = True
                    if target is self._publishing_session:
                        return
                if PARTLY in binding.arguments and not self._may_read(target):
                    return
            if self._formats is None:
                self._formats = {}
            if target.relay_format not in self._formats:
                self._formats[target.relay_format] = target.can_represent(self._topic)
            representable = self._formats[target.relay_format]
            known = self.targets.get(target)
            if representable and (known is None or known[1] < binding.qos):
                self.targets[target] = (target, int(binding.qos))
        if not representable:
            if self._unrepresentable is None:
                self._unrepresentable = set()
            self._unrepresentable.add(target)

    def _may_read(self, target: Subscriber) -> bool:
        """True if a subscriber may read the routing key that its binding matched.

        The subscriber also learns the message's own topic, so it must be allowed to read this
        topic, too.
        """
        if not target.may_read(self._topic):
            return False
        at = self._next_key - 1  # The routing key whose matching bindings the search follows now.
        return at == 0 or target.may_read(topic_of(self._keys[at]))

    def _changed(self) -> bool:
        """True if the destinations that the search has found may be outdated.

        Destinations are outdated if a permission or a binding of a walked exchange has changed, or
        if an alternate exchange that was missing exists now.
        """
        if self._scope.version != self._scope_version:
            return True
        versions: i64 = 0
        for name, exchange in self.seen.items():
            if exchange is not None:
                if exchange.dead:
                    return True
                versions += exchange.version
            elif name in self._scope.exchanges:
                return True
        return versions != self._versions


_NO_BINDINGS: Final[list[Binding]] = []
