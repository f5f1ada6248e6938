"""A trial of changed bindings: which queues would have got more or fewer messages of the last hour.

    topics of the last hour --each routed twice--> destinations with the present bindings
    (topic_history.py)                         `-> destinations with the changed bindings
                                                          |
                                                          v
                                            gains and losses by destination

A changed binding is one that an operator may want to add or to remove. A trial may also delete
queues and exchanges, with their bindings. Nothing in the broker changes: the trial holds the
bindings to add in exchanges of its own, which no client can see. To route a topic with the changes,
the trial also searches these exchanges, and skips the bindings to remove, and the queues and
exchanges to delete.

A trial works in steps of bounded work, between which other work may run.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from broker.errors import NotFound, PreconditionFailed
from broker.messages.message import Properties, topic_of
from broker.names import shown
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import PARTLY, Binding
from broker.routing.exchanges import (
    DirectExchange,
    Exchange,
    FanoutExchange,
    RandomExchange,
    TopicExchange,
)
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.matching_bindings import STEPS, matching_bindings
from broker.routing.plan_search import SearchScope
from broker.routing.subscriber import Subscriber
from broker.routing.topic_history import HistorySum

#: Largest number of changed bindings in one trial.
CHANGES_MAX: Final = 100
#: Largest number of destinations whose gains and losses are reported, each with at most
#: TOPICS_SHOWN topics, those with most messages.
DESTINATIONS_MAX: Final = 500
TOPICS_SHOWN: Final = 20
#: Largest number of bindings that all walks of one trial follow. A trial that needs more ends, and
#: its answer says so.
BINDINGS_MAX: Final = 2_000_000

_NO_PROPERTIES: Final[Properties] = {}


class BindingChange:
    """A binding that the trial adds, or an existing binding that the trial removes."""

    def __init__(self, added: bool, exchange: Exchange, binding: Binding) -> None:
        self.added = added
        self.exchange = exchange
        self.binding = binding
        #: Numbers of topics and messages of the last hour that match the binding.
        self.topics = 0
        self.messages = 0


class TopicEffect:
    """A topic whose messages a destination gains or loses, with their number.

    Topics are ordered by their number of messages, the smallest first.
    """

    __slots__ = ("exchange", "key", "messages")

    def __init__(self, exchange: str, key: str, messages: int) -> None:
        self.exchange = exchange
        self.key = key
        self.messages = messages

    def __lt__(self, other: TopicEffect) -> bool:
        return (self.messages, self.key) < (other.messages, other.key)


class DestinationEffect:
    """The topics and messages that one destination gains or loses by the changed bindings.

    `gains` is True for gains, False for losses. A destination may have one object for each.
    """

    def __init__(self, destination: Destination, gains: bool) -> None:
        self.destination = destination
        self.gains = gains
        self.topics = 0
        self.messages = 0
        #: A heap of the TOPICS_SHOWN topics with most messages.
        self.largest: list[TopicEffect] = []

    def add(self, topic: TopicEffect) -> None:
        """Count a topic that the destination gains or loses, and its messages."""
        self.topics += 1
        self.messages += topic.messages
        if len(self.largest) < TOPICS_SHOWN:
            heapq.heappush(self.largest, topic)
        else:
            heapq.heappushpop(self.largest, topic)


class _StandIn(Destination):
    """The destination to which the trial binds an added binding, in place of the real one.

    The real destination would count the binding as its own.
    """

    def __init__(self, real: Destination) -> None:
        super().__init__(real.name)
        self.real = real


class _Walk:
    """The routing of one topic through the exchanges, with or without the changed bindings.

    `targets` are the queues and subscribers that the topic reaches.
    """

    def __init__(self) -> None:
        self.targets: dict[Destination, None] = {}
        #: The changes that matched the topic.
        self.matched: dict[BindingChange, None] = {}
        #: True if the walk entered an exchange whose bindings the trial changes, or met a queue or
        #: an exchange that the trial deletes.
        self.changes = False
        #: True if the walk entered an exchange that looks at headers, which the history lacks.
        self.by_headers = False


class BindingTrial:
    """A trial of changed bindings in one virtual host, on the topics in `history`.

    `deleted` are queues and exchanges that the trial deletes.

    The attributes are valid once the iterator `steps` is exhausted.
    """

    def __init__(
        self,
        vhost: str,
        scope: SearchScope,
        changes: Sequence[BindingChange],
        history: HistorySum,
        deleted: Collection[Destination] = (),
    ) -> None:
        """Prepare the trial of `changes`.

        Raises NotFound if a binding to remove does not exist, and PreconditionFailed if a binding
        cannot be tried: for example, because a headers exchange does not route by the key alone.
        """
        self.changes = list(changes)
        self._vhost = vhost
        self._scope = scope
        self._history = history
        self._added: dict[str, Exchange] = {}
        self._removed: dict[Binding, BindingChange] = {}
        self._adding: dict[Binding, BindingChange] = {}
        for change in self.changes:
            self._prepare(change)
        self._changed = {change.exchange.name for change in self.changes}
        self._deleted = frozenset(deleted)
        #: The gains and losses by destination.
        self.effects: dict[tuple[Destination, bool], DestinationEffect] = {}
        #: Number of gains and losses of destinations beyond DESTINATIONS_MAX.
        self.left_out = 0
        #: Numbers of topics and messages that were tried, and of all remembered ones.
        self.topics = self.messages = 0
        self.topics_known = self.messages_known = 0
        #: Number of topics that pass an exchange that looks at headers.
        self.by_headers = 0
        #: Numbers of messages that reach no destination only with, or only without, the changes.
        self.newly_unroutable = self.newly_routed = 0
        self._bindings = 0

    @property
    def complete(self) -> bool:
        """True if all topics were routed; False if the trial was ended, because it took too long.

        A trial ends after it has followed BINDINGS_MAX bindings.
        """
        return self.topics == self.topics_known

    def _prepare(self, change: BindingChange) -> None:
        exchange, binding = change.exchange, change.binding
        if not isinstance(exchange, (DirectExchange, FanoutExchange, TopicExchange)):
            raise PreconditionFailed(
                f"cannot try a binding of exchange '{exchange.name}' of type '{exchange.kind}': "
                "only the bindings of direct, fanout and topic exchanges depend on nothing but the "
                "routing key"
            )
        if exchange.name == "":
            raise PreconditionFailed(
                "cannot try a binding of the default exchange: its bindings never change"
            )
        known = exchange.bindings.get(binding.destination, {}).get(binding.identity)
        if not change.added:
            if known is None:
                raise NotFound(
                    f"no binding '{shown(binding.key)}' from exchange '{exchange.name}' to "
                    f"'{binding.destination.name}' in vhost '{self._vhost}'"
                )
            self._removed[known] = change
            return
        exchange.check(binding)
        mine = self._added.get(exchange.name)
        if mine is None:
            mine = self._added[exchange.name] = _empty_copy(exchange)
        stand_in = _StandIn(binding.destination)
        added = Binding(
            binding.key, stand_in, binding.qos, dict(binding.arguments), binding.grammar
        )
        mine.bind(added)
        self._adding[added] = change

    def steps(self) -> Iterator[None]:
        """Route all topics, with and without the changed bindings.

        Each `next` on the iterator does one bounded step of the work.
        """
        yield from self._history.steps()
        mine = [
            (exchange, keys)
            for (vhost, exchange), keys in self._history.counts.items()
            if vhost == self._vhost
        ]
        for _, keys in mine:
            self.topics_known += len(keys)
            self.messages_known += sum(keys.values())
            yield None
        yield from self._try_direct()
        for name, keys in mine:
            exchange = self._scope.exchanges.get(name)
            for key, messages in keys.items():
                if self._bindings > BINDINGS_MAX:
                    return
                self.topics += 1
                self.messages += messages
                if exchange is not None:
                    yield from self._try(exchange, key, messages)
                yield None

    def _try_direct(self) -> Iterator[None]:
        """Route the messages that were published to a deleted queue by its name."""
        for target in self._deleted:
            messages = self._history.direct(self._vhost, target.name)
            if messages == 0 or not isinstance(target, Queue):
                continue
            self.topics_known += 1
            self.messages_known += messages
            self.topics += 1
            self.messages += messages
            yield from self._try(self._scope.exchanges[""], target.name, messages)

    def _try(self, exchange: Exchange, key: str, messages: int) -> Iterator[None]:
        before = _Walk()
        yield from self._walk(before, exchange, key, False)
        self.by_headers += before.by_headers
        if not before.changes:
            return
        after = _Walk()
        yield from self._walk(after, exchange, key, True)
        for change in {**before.matched, **after.matched}:
            change.topics += 1
            change.messages += messages
        if before.targets and not after.targets:
            self.newly_unroutable += messages
        elif after.targets and not before.targets:
            self.newly_routed += messages
        for walk, other, gains in ((after, before, True), (before, after, False)):
            for number, target in enumerate(walk.targets):
                if number % STEPS == STEPS - 1:
                    yield None
                if target not in other.targets:
                    self._add(target, gains, TopicEffect(exchange.name, key, messages))

    def _add(self, target: Destination, gains: bool, topic: TopicEffect) -> None:
        effect = self.effects.get((target, gains))
        if effect is None:
            if len(self.effects) >= DESTINATIONS_MAX:
                self.left_out += 1
                return
            effect = self.effects[target, gains] = DestinationEffect(target, gains)
        effect.add(topic)

    def _walk(self, walk: _Walk, exchange: Exchange, key: str, changed: bool) -> Iterator[None]:
        """Find the destinations of a routing key, from an exchange on, and add them to `walk`.

        If `changed` is True, follow also the bindings that the trial adds, and skip the removed
        bindings and the deleted queues and exchanges. Each `next` on the iterator does one bounded
        step of the work.
        """
        ahead, seen = [exchange], {exchange.name}
        if self._is_deleted(walk, exchange, changed):
            return
        while ahead:
            source = ahead.pop()
            walk.by_headers = walk.by_headers or source.by_headers
            found: list[Binding] = []
            if isinstance(source, RandomExchange):
                found = source.all_bindings()  # Each of them may get the message.
            else:
                yield from matching_bindings(self._scope, source, key, _NO_PROPERTIES, found)
            if source.name in self._changed:
                walk.changes = True
                if changed and source.name in self._added:
                    more = self._added[source.name]
                    yield from matching_bindings(self._scope, more, key, _NO_PROPERTIES, found)
            self._bindings += 1 + len(found)
            matched = False
            for number, binding in enumerate(found):
                if number % STEPS == STEPS - 1:
                    yield None
                target = self._target_of(walk, binding, key, changed)
                if target is None or target.dead or self._is_deleted(walk, target, changed):
                    continue
                matched = True
                if not isinstance(target, Exchange):
                    walk.targets[target] = None
                elif target.name not in seen:
                    seen.add(target.name)
                    ahead.append(target)
            if not matched and source.alternate is not None and source.alternate not in seen:
                seen.add(source.alternate)
                alternate = self._scope.exchanges.get(source.alternate)
                if alternate is not None and not self._is_deleted(walk, alternate, changed):
                    ahead.append(alternate)

    def _is_deleted(self, walk: _Walk, target: Destination, changed: bool) -> bool:
        """True if the trial deletes a queue or an exchange, and `changed` is True."""
        if target not in self._deleted:
            return False
        walk.changes = True
        return changed

    def _target_of(
        self, walk: _Walk, binding: Binding, key: str, changed: bool
    ) -> Destination | None:
        """Return the real destination of a binding that matches.

        Return None if the trial removes the binding (and `changed` is True), or if the binding is
        a subscription whose user may not read the topic.
        """
        target = binding.destination
        if isinstance(target, _StandIn):
            walk.matched[self._adding[binding]] = None
            return target.real
        if binding in self._removed:
            walk.matched[self._removed[binding]] = None
            if changed:
                return None
        if isinstance(target, Subscriber) and PARTLY in binding.arguments:
            return target if target.may_read(topic_of(key)) else None
        while isinstance(target, Queue) and target.replacement is not None:
            target = target.replacement
        return target


def _empty_copy(exchange: Exchange) -> Exchange:
    """Return a new exchange without bindings, of the type of `exchange`."""
    if isinstance(exchange, TopicExchange):
        return TopicExchange(exchange.name, ExchangeOptions())
    if isinstance(exchange, FanoutExchange):
        return FanoutExchange(exchange.name, ExchangeOptions())
    return DirectExchange(exchange.name, ExchangeOptions())
