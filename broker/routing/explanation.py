"""The explanation of a route: which exchanges, bindings and destinations a message would reach.

    exchange --bindings, each with its reason--> queue, subscriber     a verdict (queue_verdicts.py)
        |                                  `---> exchange, and so on
        `--alternate exchange, if no binding matched

PlanSearch, the search of real publications, finds the exchanges and destinations. Then the
explanation asks each of these exchanges again for its matching bindings, to say why they match. No
message is published and nothing is cached. Only exchanges of a random type change: their number of
choices grows.

An explanation works in steps of bounded work, between which other work may run. If a binding
changes in between, `outdated` is True.
"""

from __future__ import annotations

from collections.abc import Iterator

from mypy_extensions import i64

from broker.messages.message import Properties, topic_of
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import PARTLY, Binding
from broker.routing.exchanges import DelayedExchange, Exchange, RandomExchange
from broker.routing.matching_bindings import STEPS, matching_bindings
from broker.routing.plan_search import PlanSearch, SearchScope, SearchSlot
from broker.routing.subscriber import Subscriber


class MatchedBinding:
    """A binding that matches the message, and the routing key that it matches."""

    __slots__ = ("binding", "key")

    def __init__(self, binding: Binding, key: str) -> None:
        self.binding = binding
        self.key = key


class WalkedExchange:
    """An exchange that the message reaches, with the bindings that match there.

    `entered` is a text that says how the message reaches the exchange. `alternate` is the name of
    the alternate exchange that gets the message because no binding matches; "" for none.
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.entered = ""
        self.matched: list[MatchedBinding] = []
        self.alternate = ""


class RouteExplanation:
    """The explanation of one route. The attributes are valid once the iterator `steps` is
    exhausted.
    """

    def __init__(
        self, scope: SearchScope, exchange: Exchange, keys: list[str], properties: Properties
    ) -> None:
        self._scope = scope
        self._keys = keys
        self._properties = properties
        self._topic = topic_of(keys[0])
        self._search = PlanSearch(scope, exchange, self._topic, keys, properties)
        #: The exchanges that the message reaches, in the order of the search.
        self.walked: list[WalkedExchange] = []
        #: The alternate exchanges that do not exist.
        self.missing: list[str] = []
        #: The queues and subscribers that the message reaches, each with its QoS.
        self.targets: list[tuple[Queue | Subscriber, int]] = []
        #: The subscribers and queues that match, but cannot represent the routing key.
        self.unrepresentable: list[Queue | Subscriber] = []
        #: The queues, subscribers and exchanges that the message reaches.
        self.reached: set[Destination] = set()
        #: True if bindings changed while the explanation was computed.
        self.outdated = False

    def steps(self) -> Iterator[None]:
        """Compute the explanation; each `next` on the iterator does one bounded step."""
        slot = SearchSlot(STEPS)
        while not self._search.advance(slot):
            yield None
        self.targets = self._search.destinations()
        versions = self._versions()
        for name, exchange in self._search.seen.items():
            if exchange is None:
                self.missing.append(name)
            else:
                self.walked.append(WalkedExchange(exchange))
                self.reached.add(exchange)
        for number, (target, _) in enumerate(self.targets):
            self.reached.add(target)
            if number % STEPS == STEPS - 1:
                yield None
        for walked in self.walked:
            yield from self._look_up(walked)
        yield from self._connect()
        yield from self._find_unrepresentable()
        self.outdated = self._search.outdated or versions != self._versions()

    def _versions(self) -> i64:
        versions: i64 = 0
        for exchange in self._search.seen.values():
            if exchange is not None:
                versions += exchange.version
        return versions

    def _look_up(self, walked: WalkedExchange) -> Iterator[None]:
        """Find, in steps, the bindings of an exchange that match a routing key of the message."""
        exchange = walked.exchange
        inner = exchange.inner if isinstance(exchange, DelayedExchange) else exchange
        if isinstance(inner, RandomExchange):
            yield from self._find_chosen(walked)
            return
        keys = self._keys if exchange.uses_keys else self._keys[:1]
        for key in keys:
            bindings: list[Binding] = []
            yield from matching_bindings(self._scope, exchange, key, self._properties, bindings)
            for number, binding in enumerate(bindings):
                if not binding.destination.dead:
                    walked.matched.append(MatchedBinding(binding, key))
                if number % STEPS == STEPS - 1:
                    yield None

    def _find_chosen(self, walked: WalkedExchange) -> Iterator[None]:
        """Find, in steps, the binding that a random exchange chose for the message.

        The chosen binding is the binding whose destination the message reaches.
        """
        bindings = walked.exchange.bindings
        for destination in bindings.destinations():
            if destination in self.reached and not walked.matched:
                for binding in bindings.some_to(destination, 1):
                    walked.matched.append(MatchedBinding(binding, self._keys[0]))
            yield None

    def _connect(self) -> Iterator[None]:
        """Set `entered` of each exchange, in steps: the binding or exchange through which the
        message reaches the exchange.
        """
        by_name = {one.exchange.name: one for one in self.walked}
        for walked in self.walked:
            for number, matched in enumerate(walked.matched):
                if number % STEPS == STEPS - 1:
                    yield None
                target = matched.binding.destination
                if isinstance(target, Exchange) and target.name in by_name:
                    entered = by_name[target.name]
                    entered.entered = entered.entered or f"binding of '{walked.exchange.name}'"
            alternate = walked.exchange.alternate
            if not walked.matched and alternate is not None and alternate in self._search.seen:
                walked.alternate = alternate
                if alternate in by_name:
                    entered = by_name[alternate]
                    role = f"alternate exchange of '{walked.exchange.name}'"
                    entered.entered = entered.entered or role
        self.walked[0].entered = "published here"

    def _find_unrepresentable(self) -> Iterator[None]:
        """Find, in steps, destinations that cannot represent the topic.

        Only destinations of matching bindings are examined.
        """
        if not self._search.unrepresentable:
            return
        reached = self.reached
        known: set[Destination] = set()
        number = 0
        for walked in self.walked:
            for matched in walked.matched:
                target = matched.binding.destination
                number += 1
                if number % STEPS == 0:
                    yield None
                if target in reached or target in known or PARTLY in matched.binding.arguments:
                    continue
                known.add(target)
                if isinstance(target, (Queue, Subscriber)):
                    self.unrepresentable.append(target)
