"""Near misses: bindings that do not match a message, but would match after one small change.

    the key `sensors.kitchen` and the binding `sensors.*.temp`    one more word
    `Sensors.kitchen.temp` and `sensors.*.temp`                   upper and lower case
    `sensors/kitchen/temp` and `sensors.*.temp`                   `/` instead of `.`
    `sensor.kitchen.temp` and `sensors.*.temp`                    one character of a word
    `sensors.kitchen.temp.` and `sensors.*.temp`                  a separator at the end
    the header type=pdf and the criterion type=PDF                one header
    the key matches a binding of another exchange                 another exchange

The search is bounded: it examines at most CANDIDATES_MAX bindings, in steps of at most
CHUNK_MAX, and keeps at most NEAR_MISSES_MAX near misses of each kind. Bindings to
destinations that get the message anyway are no near misses.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from broker.messages.message import Properties, headers_of
from broker.queues.destination import Destination
from broker.routing.binding import Binding
from broker.routing.binding_chunks import CHUNK_MAX, BindingChunk, chunks_of
from broker.routing.exchanges import (
    DelayedExchange,
    DirectExchange,
    Exchange,
    HeadersExchange,
    TopicExchange,
)
from broker.routing.explanation import RouteExplanation
from broker.routing.key_differences import (
    HEADER,
    KINDS,
    MORE,
    HeaderComparison,
    KeyComparison,
    NearDifference,
)
from broker.routing.matching_bindings import STEPS
from broker.routing.near_key_filter import NearKeyFilter
from broker.routing.plan_search import SearchScope
from matching.bucket import members
from matching.fields.matcher import FieldsRow
from matching.fields.signature import headers_signature, may_fail_once
from matching.grammar import AMQP, MQTT

#: Largest number of near misses in the result of `best`, and of each kind during the search.
NEAR_MISSES_MAX: Final = 10
#: Largest number of bindings and queue names that a search examines. One step examines at most
#: CHUNK_MAX of them.
CANDIDATES_MAX: Final = 250_000
#: Largest number of exact comparisons in one step. A comparison takes 3 us for a binding key, and
#: 35 us for the arguments of a headers binding.
KEY_COMPARISONS_PER_STEP: Final = 128
HEADER_COMPARISONS_PER_STEP: Final = 16
#: Largest number of other exchanges in which the search looks for a matching binding.
EXCHANGES_MAX: Final = 1_000
#: The kind of a near miss whose binding belongs to another exchange.
OTHER_EXCHANGE: Final = "exchange"
#: All kinds, the most probable mistake first.
_ORDER: Final = (*KINDS[:4], OTHER_EXCHANGE, *KINDS[4:])


class NearMiss:
    """A binding that almost matches: the name of its exchange, the binding, and the difference.

    The default exchange has no bindings. In its near misses, `binding` is None, and `destination`
    is a queue with a name like the routing key.
    """

    def __init__(
        self,
        exchange: str,
        key: str,
        destination: Destination,
        difference: NearDifference,
        binding: Binding | None = None,
    ) -> None:
        self.exchange = exchange
        self.key = key
        self.destination = destination
        self.difference = difference
        self.binding = binding


class NearMissSearch:
    """The search for near misses of one message: bindings that almost match the message.

    `explanation` explains the route of the message; its iterator `steps` must be exhausted before
    the search begins. The iterator `steps` of the search must be exhausted before `best` is called.
    """

    def __init__(
        self,
        scope: SearchScope,
        explanation: RouteExplanation,
        key: str,
        properties: Properties,
        noun: str = "routing key",
    ) -> None:
        """Create a search.

        `noun` is the word for the routing key in texts: "topic" for the message of an MQTT client.
        """
        self._scope = scope
        self._walked = {one.exchange: None for one in explanation.walked}
        self._reached = explanation.reached
        self._key = key
        self._noun = noun
        self._properties = properties
        #: The number of bindings and queue names that were examined.
        self.examined = 0
        #: False if some bindings were not examined: there are more than CANDIDATES_MAX bindings, or
        #: the search has already found enough near misses of their kind.
        self.complete = True
        self._by_kind: dict[str, list[NearMiss]] = {}
        self._amqp = KeyComparison(AMQP, key, noun)
        self._mqtt = KeyComparison(MQTT, key, noun)

    def best(self) -> list[NearMiss]:
        """Return up to NEAR_MISSES_MAX near misses, the most probable mistakes first."""
        near_misses: list[NearMiss] = []
        for kind in _ORDER:
            near_misses += sorted(self._by_kind.get(kind, []), key=_order)
        return near_misses[:NEAR_MISSES_MAX]

    def steps(self) -> Iterator[None]:
        """Search for near misses; each `next` on the iterator does one bounded step of the work."""
        for exchange in self._walked:
            inner = exchange.inner if isinstance(exchange, DelayedExchange) else exchange
            if exchange.name == "":
                yield from self._examine_queues()
            elif isinstance(inner, (TopicExchange, DirectExchange)):
                yield from self._examine_keys(exchange, isinstance(inner, TopicExchange))
            elif isinstance(inner, HeadersExchange):
                yield from self._examine_headers(exchange, inner)
        yield from self._ask_others()

    def _examine_keys(self, exchange: Exchange, wildcards: bool) -> Iterator[None]:
        """Compare, in steps, the binding keys of an exchange with the routing key.

        `wildcards` is True if the exchange is a topic exchange.
        """
        key_filter = NearKeyFilter(self._key, wildcards)
        for chunk in self._chunks(exchange):
            similar = chunk.selected(key_filter.passing(chunk.keys()))
            for compared, binding in enumerate(similar, 1):
                comparison = self._amqp if binding.grammar is AMQP else self._mqtt
                difference = comparison.difference(binding.key, wildcards)
                if difference is not None:
                    self._add_binding(exchange, binding, difference)
                if compared % KEY_COMPARISONS_PER_STEP == 0:
                    yield None
            key_filter.only_fewer_words = len(self._by_kind.get(MORE, [])) >= NEAR_MISSES_MAX
            yield None

    def _examine_headers(self, exchange: Exchange, rules: HeadersExchange) -> Iterator[None]:
        """Compare the criteria of a headers exchange, in steps, with the headers of the message.

        All near misses of headers are of one kind. So the search ends with NEAR_MISSES_MAX of them.
        """
        headers = headers_of(self._properties)
        comparison, given = HeaderComparison(headers), headers_signature(headers)
        rows = rules.rows()
        compared = 0
        for at in range(0, len(rows), CHUNK_MAX):
            if self.examined >= CANDIDATES_MAX:
                self.complete = False
                return
            some = rows[at : at + CHUNK_MAX]
            self.examined += len(some)
            near = [row for row in some if may_fail_once(row.signature, given)]
            for number in comparison.similar([row.arguments for row in near]):
                if len(self._by_kind.get(HEADER, [])) >= NEAR_MISSES_MAX:
                    self.complete = False
                    return
                difference = comparison.difference(near[number].arguments)
                if difference is not None:
                    yield from self._add_row(exchange, near[number], difference)
                compared += 1
                if compared % HEADER_COMPARISONS_PER_STEP == 0:
                    yield None
            yield None

    def _add_row(
        self, exchange: Exchange, row: FieldsRow[Binding], difference: NearDifference
    ) -> Iterator[None]:
        """Add near misses, in steps, for the bindings of a row, which have equal arguments."""
        for number, binding in enumerate(members(row.bucket), 1):
            target = binding.destination
            if target not in self._reached and not target.dead:
                self._add_binding(exchange, binding, difference)
                if len(self._by_kind[HEADER]) >= NEAR_MISSES_MAX:
                    return
            if number % CHUNK_MAX == 0:
                yield None

    def _chunks(self, exchange: Exchange) -> Iterator[BindingChunk]:
        """Yield the bindings to destinations that do not get the message, in bounded chunks."""
        for chunk in chunks_of(exchange, self._reached):
            if self.examined >= CANDIDATES_MAX:
                self.complete = False
                return
            self.examined += chunk.size
            yield chunk

    def _examine_queues(self) -> Iterator[None]:
        """Compare, in steps, the names of all queues with the routing key, for the default
        exchange.
        """
        key_filter = NearKeyFilter(self._key, False)
        names = list(self._scope.queues)
        for at in range(0, len(names), CHUNK_MAX):
            if self.examined >= CANDIDATES_MAX:
                self.complete = False
                return
            part = names[at : at + CHUNK_MAX]
            self.examined += len(part)
            for number in key_filter.passing(part):
                queue = self._scope.queues.get(part[number])
                if queue is None or queue in self._reached:
                    continue
                difference = self._amqp.difference(part[number], False)
                if difference is not None:
                    self._add(NearMiss("", part[number], queue, difference))
            yield None

    def _ask_others(self) -> Iterator[None]:
        """Find, in steps, bindings that match the message in exchanges that it does not reach."""
        examined = 0
        for exchange in list(self._scope.exchanges.values()):
            if exchange in self._walked or exchange.dead:
                continue
            if exchange.name == "":
                self._ask_default()
            if not isinstance(exchange, (TopicExchange, DirectExchange)):
                continue
            examined += 1
            if examined > EXCHANGES_MAX:
                self.complete = False
                return
            bindings: list[Binding] = []
            if exchange.needs_search:
                for lookup in exchange.searches(self._key, self._properties, bindings):
                    while not lookup.done:
                        lookup.advance(STEPS)
                        yield None
            else:
                bindings = exchange.match(self._key, self._properties)
            for binding in bindings[:CHUNK_MAX]:
                target = binding.destination
                if target not in self._reached and not target.dead:
                    text = (
                        f"the binding matches the {self._noun}, but is a binding of exchange "
                        f"'{exchange.name}'"
                    )
                    difference = NearDifference(OTHER_EXCHANGE, text)
                    self._add(NearMiss(exchange.name, binding.key, target, difference, binding))
            yield None

    def _ask_default(self) -> None:
        queue = self._scope.default_target(self._key)
        if queue is not None and queue not in self._reached:
            text = (
                "the routing key is the name of this queue: publish the message to the default "
                "exchange"
            )
            difference = NearDifference(OTHER_EXCHANGE, text)
            self._add(NearMiss("", self._key, queue, difference))

    def _add_binding(
        self, exchange: Exchange, binding: Binding, difference: NearDifference
    ) -> None:
        self._add(NearMiss(exchange.name, binding.key, binding.destination, difference, binding))

    def _add(self, miss: NearMiss) -> None:
        known = self._by_kind.setdefault(miss.difference.kind, [])
        if len(known) < NEAR_MISSES_MAX:
            known.append(miss)


def _order(miss: NearMiss) -> tuple[str, str, str]:
    return miss.exchange, miss.key, miss.destination.name
