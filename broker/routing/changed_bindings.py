"""The bindings of a virtual host with and without the changes of a trial (binding_trial.py).

The trial keeps the added bindings in its own exchanges, which no client can see. In most exchange
types, each binding matches a message independently of the other bindings. The trial then looks a
message up twice: in the real exchange, skipping removed bindings, and in its own exchange.
A hash exchange chooses one of all its bindings, so the trial makes a changed copy of it.

Nothing in the broker changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Final

from broker.errors import NotFound, PreconditionFailed
from broker.messages.message import Properties
from broker.names import shown
from broker.queues.destination import Destination
from broker.routing.binding import Binding
from broker.routing.exchanges import (
    ConsistentHashExchange,
    DeduplicationExchange,
    DelayedExchange,
    Exchange,
    FanoutExchange,
    HeadersExchange,
    ModulusHashExchange,
    RandomExchange,
    RecentHistoryExchange,
)
from broker.routing.matching_bindings import STEPS, matching_bindings
from broker.routing.plan_search import SearchScope
from matching.bucket import members

#: The exchanges that choose one of their bindings by a hash.
_HASHES: Final = (ConsistentHashExchange, ModulusHashExchange)
#: The exchange types in which each binding may get each message, whatever its key and headers are.
#: A random exchange chooses one of its bindings; a deduplicating exchange drops repeated messages.
_WHOLE: Final = (RandomExchange, RecentHistoryExchange, DeduplicationExchange)


class BindingChange:
    """A binding that the trial adds, or an existing binding that the trial removes."""

    def __init__(self, added: bool, exchange: Exchange, binding: Binding) -> None:
        self.added = added
        self.exchange = exchange
        self.binding = binding
        #: Numbers of topics and messages of the last hour that the binding matches.
        self.topics = 0
        self.messages = 0


class ChangedBindings:
    """The bindings of a virtual host, with the changes of a trial and without them.

    `deleted` are the queues, sessions and exchanges that the trial deletes, with their bindings.
    """

    def __init__(
        self,
        vhost: str,
        scope: SearchScope,
        changes: Sequence[BindingChange],
        deleted: Collection[Destination],
    ) -> None:
        """Check `changes`, and add each to `added` or `removed`.

        Raises NotFound if a binding to remove does not exist, and PreconditionFailed if a binding
        cannot be tried.
        """
        self._vhost = vhost
        self._scope = scope
        self.deleted = frozenset(deleted)
        #: The removals, by the binding that the trial removes.
        self.removed: dict[Binding, BindingChange] = {}
        self.added: dict[Binding, BindingChange] = {}
        #: The exchanges of the added bindings, by name.
        self._additions: dict[str, Exchange] = {}
        #: The changed copies of hash exchanges, by name. `prepare` makes these copies.
        self._copies: dict[str, Exchange] = {}
        self._changed = {change.exchange.name for change in changes}
        #: The work of all lookups in exchanges that look at headers, in steps of a search.
        self.steps = 0
        for change in changes:
            self._take(change)
        for target in self.deleted:
            for exchange in members(target.bound_to):
                if isinstance(exchange, Exchange) and isinstance(_rules_of(exchange), _HASHES):
                    self._changed.add(exchange.name)

    def _take(self, change: BindingChange) -> None:
        exchange, binding = change.exchange, change.binding
        rules = _rules_of(exchange)
        if isinstance(rules, RandomExchange):
            raise PreconditionFailed(
                f"cannot try a binding of exchange '{exchange.name}' of type '{rules.kind}': the "
                "exchange chooses a binding for each message at random, so each binding gets the "
                "same share"
            )
        if exchange.name == "":
            raise PreconditionFailed(
                "cannot try a binding of the default exchange: its bindings never change"
            )
        if not change.added:
            known = exchange.bindings.get(binding.destination, binding.identity)
            if known is None:
                raise NotFound(
                    f"no binding with key '{shown(binding.key)}' from exchange '{exchange.name}' "
                    f"to '{binding.destination.name}' in vhost '{self._vhost}'"
                )
            self.removed[known] = change
            return
        exchange.check(binding)
        self.added[binding] = change
        if not isinstance(rules, _HASHES):
            mine = self._additions.get(exchange.name)
            if mine is None:
                mine = self._additions[exchange.name] = _empty_copy(rules)
            _add(mine, binding)

    def concerns(self, exchange: Exchange) -> bool:
        """True if the trial changes a binding that this exchange may use to route a message."""
        return exchange.name in self._changed

    def prepare(self) -> Iterator[None]:
        """Make the changed copies of hash exchanges; each `next` does one step of the work."""
        for name in self._changed:
            exchange = self._scope.exchanges.get(name)
            rules = None if exchange is None else _rules_of(exchange)
            if rules is None or not isinstance(rules, _HASHES):
                continue
            copy = _empty_copy(rules)
            for number, binding in enumerate(rules.bindings, 1):
                if number % STEPS == 0:
                    yield None
                if binding not in self.removed and binding.destination not in self.deleted:
                    _add(copy, binding)
            for binding, change in self.added.items():
                if change.exchange is exchange and binding.destination not in self.deleted:
                    _add(copy, binding)
            self._copies[name] = copy
            yield None

    def find(
        self,
        source: Exchange,
        key: str,
        properties: Properties,
        changed: bool,
        bindings: list[Binding],
    ) -> Iterator[None]:
        """Append to `bindings` the bindings of an exchange that match a message.

        If `changed` is True, `bindings` gets the added bindings, too. `bindings` may also get
        bindings that the trial removes: the caller skips them. (The changed copies of hash
        exchanges do not have these bindings.) Each `next` does one bounded step of the work.
        """
        rules = _rules_of(source)
        copy = self._copies.get(source.name) if changed else None
        yield from self._match(rules if copy is None else copy, key, properties, bindings)
        more = self._additions.get(source.name) if changed else None
        if more is not None:
            yield from self._match(more, key, properties, bindings)

    def _match(
        self, rules: Exchange, key: str, properties: Properties, bindings: list[Binding]
    ) -> Iterator[None]:
        if isinstance(rules, _WHOLE):
            bindings += rules.all_bindings()
            return
        for _ in matching_bindings(self._scope, rules, key, properties, bindings):
            if rules.by_headers:
                self.steps += STEPS
            yield None
        if rules.by_headers:
            self.steps += int(rules.lookup_steps)


def needs_message(exchange: Exchange) -> bool:
    """True if the exchange routes by more than the routing key: headers or other properties."""
    rules = _rules_of(exchange)
    if isinstance(rules, ConsistentHashExchange):
        return not rules.uses_keys
    return isinstance(rules, HeadersExchange)


def _rules_of(exchange: Exchange) -> Exchange:
    """Return the exchange whose type decides which bindings of `exchange` match.

    The result is the inner exchange of a delayed exchange; any other exchange is returned itself.
    """
    return exchange.inner if isinstance(exchange, DelayedExchange) else exchange


def _empty_copy(rules: Exchange) -> Exchange:
    """Return an exchange without bindings that matches messages by the same rules as `rules`."""
    if isinstance(rules, _WHOLE):
        return FanoutExchange(rules.name, rules.options)
    return type(rules)(rules.name, rules.options)


def _add(exchange: Exchange, binding: Binding) -> None:
    """Add a binding to an exchange of the trial, unless the exchange has an equal binding.

    Only the exchange is changed: the destination's `bound_to` does not get the exchange.
    """
    if exchange.bindings.get(binding.destination, binding.identity) is None:
        exchange.bindings.put(binding)
        exchange.added(binding)
