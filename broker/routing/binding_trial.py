"""A trial of changed bindings: the messages of the last hour that queues would gain or lose.

    topics of the last hour --each routed twice--> destinations with the present bindings
    (topic_history.py)                         `-> destinations with the changed bindings
                                                          |
                                                          v
                                            gains and losses by destination

A changed binding is a binding that an operator may want to add or to remove. A trial may also
delete queues and exchanges, with their bindings. Nothing in the broker changes
(changed_bindings.py).

The destinations of a message through a headers exchange, or through an exchange that hashes a
header, depend on more than the routing key. The messages of such a topic are divided among the
sampled headers of the topic (header_samples.py), and the trial routes each sample.

A trial works in steps of bounded work, between which other work may run.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Final

from broker.messages.message import Properties, topic_of
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import PARTLY, Binding
from broker.routing.changed_bindings import BindingChange, ChangedBindings, needs_message
from broker.routing.exchanges import Exchange
from broker.routing.matching_bindings import STEPS
from broker.routing.plan_search import SearchScope
from broker.routing.subscriber import Subscriber
from broker.routing.topic_history import HistorySum

#: Largest number of changed bindings in one trial.
CHANGES_MAX: Final = 100
#: Largest number of reported gains and losses, one for each destination and direction. Each has the
#: TOPICS_SHOWN topics with most messages.
DESTINATIONS_MAX: Final = 500
TOPICS_SHOWN: Final = 20
#: Largest number of bindings that all walks of one trial follow. A trial that would need more
#: bindings ends early, and is not `complete`.
BINDINGS_MAX: Final = 2_000_000

_NO_PROPERTIES: Final[Properties] = {}


class TopicEffect:
    """A topic whose messages a destination gains or loses, with the number of these messages.

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

    `gains` is True for gains, False for losses. For a destination that gains some topics and loses
    others, there are two objects.
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


class _Walk:
    """The routing of one message through the exchanges, with or without the changed bindings.

    `targets` are the queues and subscribers that the message reaches.
    """

    def __init__(self, key: str, properties: Properties, changed: bool) -> None:
        self.key = key
        self.properties = properties
        #: True if the walk follows the added bindings, and skips the removed bindings and the
        #: deleted queues and exchanges.
        self.changed = changed
        self.targets: dict[Destination, None] = {}
        #: The changes that matched the message.
        self.matched: dict[BindingChange, None] = {}
        #: True if the walk entered an exchange whose bindings the trial changes, or met a queue or
        #: an exchange that the trial deletes.
        self.changes = False
        #: True if the walk entered an exchange that looks at the headers of the message.
        self.by_headers = False


class _TopicOutcome:
    """The effects of the changed bindings on the messages of one topic."""

    def __init__(self) -> None:
        #: Numbers of messages by destination and direction: True for gained messages, False for
        #: lost messages.
        self.effects: dict[tuple[Destination, bool], int] = {}
        #: Numbers of messages that a changed binding matches, by change.
        self.matched: dict[BindingChange, int] = {}
        self.newly_unroutable = self.newly_routed = 0


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
        cannot be tried.
        """
        self.changes = list(changes)
        self._vhost = vhost
        self._scope = scope
        self._history = history
        self._bindings = ChangedBindings(vhost, scope, changes, deleted)
        #: The gains and losses by destination.
        self.effects: dict[tuple[Destination, bool], DestinationEffect] = {}
        #: Number of gains and losses of destinations beyond DESTINATIONS_MAX.
        self.left_out = 0
        #: Numbers of topics and messages that were tried, and of all topics and messages in the
        #: history.
        self.topics = self.messages = 0
        self.topics_known = self.messages_known = 0
        #: Number of topics that pass an exchange that looks at headers, and that were tried as
        #: messages without headers, because the history has no sample of their headers.
        self.by_headers = 0
        #: Number of topics whose numbers of messages are estimates, because the history has the
        #: headers of only some of their messages.
        self.estimated = 0
        #: `newly_unroutable` is the number of messages that reach no destination any more because
        #: of the changes. `newly_routed` is the number of messages that reach a destination only
        #: with the changes.
        self.newly_unroutable = self.newly_routed = 0
        self._followed = 0

    @property
    def complete(self) -> bool:
        """True if all topics were routed; False if the trial ended early.

        A trial ends early if it has followed BINDINGS_MAX bindings.
        """
        return self.topics == self.topics_known

    def steps(self) -> Iterator[None]:
        """Route all topics, with and without the changed bindings.

        Each `next` on the iterator does one bounded step of the work.
        """
        yield from self._bindings.prepare()
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
                if self._followed + self._bindings.steps > BINDINGS_MAX:
                    return
                self.topics += 1
                self.messages += messages
                if exchange is not None:
                    yield from self._try(exchange, key, messages)
                yield None

    def _try_direct(self) -> Iterator[None]:
        """Route, in steps, the messages that were published to a deleted queue by its name."""
        for target in self._bindings.deleted:
            messages = self._history.direct(self._vhost, target.name)
            if messages == 0 or not isinstance(target, Queue):
                continue
            self.topics_known += 1
            self.messages_known += messages
            self.topics += 1
            self.messages += messages
            yield from self._try(self._scope.exchanges[""], target.name, messages)

    def _try(self, exchange: Exchange, key: str, messages: int) -> Iterator[None]:
        """Route the messages of one topic, in steps, and add up the effects of the changes."""
        before, after = _Walk(key, _NO_PROPERTIES, False), _Walk(key, _NO_PROPERTIES, True)
        yield from self._walk(before, exchange)
        if before.changes:
            yield from self._walk(after, exchange)
        outcome = _TopicOutcome()
        if before.by_headers or after.by_headers:
            samples = self._history.samples(self._vhost, exchange.name, key)
            if len(samples):
                self.estimated += len(samples) < messages
                yield from self._try_samples(exchange, key, samples.shares(messages), outcome)
                yield from self._record(outcome, exchange.name, key)
                return
            self.by_headers += 1
        yield from _compare(before, after, messages, outcome)
        yield from self._record(outcome, exchange.name, key)

    def _try_samples(
        self,
        exchange: Exchange,
        key: str,
        shares: list[tuple[Properties, int]],
        outcome: _TopicOutcome,
    ) -> Iterator[None]:
        """Route each sample of a topic, in steps; a sample stands for a number of messages."""
        for properties, messages in shares:
            before, after = _Walk(key, properties, False), _Walk(key, properties, True)
            yield from self._walk(before, exchange)
            if before.changes:
                yield from self._walk(after, exchange)
            yield from _compare(before, after, messages, outcome)

    def _record(self, outcome: _TopicOutcome, exchange: str, key: str) -> Iterator[None]:
        """Add the effects on one topic to the effects of the trial, in steps."""
        for change, messages in outcome.matched.items():
            change.topics += 1
            change.messages += messages
        self.newly_unroutable += outcome.newly_unroutable
        self.newly_routed += outcome.newly_routed
        for number, ((target, gains), messages) in enumerate(outcome.effects.items()):
            if number % STEPS == STEPS - 1:
                yield None
            effect = self.effects.get((target, gains))
            if effect is None:
                if len(self.effects) >= DESTINATIONS_MAX:
                    self.left_out += 1
                    continue
                effect = self.effects[target, gains] = DestinationEffect(target, gains)
            effect.add(TopicEffect(exchange, key, messages))

    def _walk(self, walk: _Walk, exchange: Exchange) -> Iterator[None]:
        """Find the destinations of a message, from an exchange on, and add them to `walk`.

        Each `next` on the iterator does one bounded step of the work.
        """
        ahead, seen = [exchange], {exchange.name}
        if self._is_deleted(walk, exchange):
            return
        while ahead:
            source = ahead.pop()
            walk.by_headers = walk.by_headers or needs_message(source)
            walk.changes = walk.changes or self._bindings.concerns(source)
            bindings: list[Binding] = []
            yield from self._bindings.find(
                source, walk.key, walk.properties, walk.changed, bindings
            )
            self._followed += 1 + len(bindings)
            matched = False
            for number, binding in enumerate(bindings):
                if number % STEPS == STEPS - 1:
                    yield None
                target = self._target_of(walk, binding)
                if target is None or target.dead or self._is_deleted(walk, target):
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
                if alternate is not None and not self._is_deleted(walk, alternate):
                    ahead.append(alternate)

    def _is_deleted(self, walk: _Walk, target: Destination) -> bool:
        """True if the trial deletes `target`, and `walk` is the routing with the changes."""
        if target not in self._bindings.deleted:
            return False
        walk.changes = True
        return walk.changed

    def _target_of(self, walk: _Walk, binding: Binding) -> Destination | None:
        """Return the destination of a binding that matches; for a replaced queue, the replacement.

        Return None if the trial removes the binding and `walk` is the routing with the changes, or
        if the binding is a subscription whose user may not read the topic.
        """
        target = binding.destination
        change = self._bindings.added.get(binding) or self._bindings.removed.get(binding)
        if change is not None:
            walk.matched[change] = None
            if walk.changed and not change.added:
                return None
        if isinstance(target, Subscriber) and PARTLY in binding.arguments:
            return target if target.may_read(topic_of(walk.key)) else None
        while isinstance(target, Queue) and target.replacement is not None:
            target = target.replacement
        return target


def _compare(before: _Walk, after: _Walk, messages: int, outcome: _TopicOutcome) -> Iterator[None]:
    """Add the differences between the destinations of two walks to `outcome`.

    `messages` is the number of messages for which the walks stand.

    Each `next` on the iterator does one bounded step of the work.
    """
    if not before.changes or messages == 0:
        return
    for change in {**before.matched, **after.matched}:
        outcome.matched[change] = outcome.matched.get(change, 0) + messages
    if before.targets and not after.targets:
        outcome.newly_unroutable += messages
    elif after.targets and not before.targets:
        outcome.newly_routed += messages
    for walk, other, gains in ((after, before, True), (before, after, False)):
        for number, target in enumerate(walk.targets):
            if number % STEPS == STEPS - 1:
                yield None
            if target not in other.targets:
                effects = outcome.effects
                effects[target, gains] = effects.get((target, gains), 0) + messages
