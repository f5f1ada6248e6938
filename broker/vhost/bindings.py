"""Adds, removes and stores the bindings of a virtual host.

A binding is durable if both of its ends, the exchange and the destination, are durable. The
binding's name in the store contains the numbers of its ends, because the bindings of a deleted
queue are removed in slices. Meanwhile a new queue of the same name may get bindings, which must
stay.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from broker.agenda import Agenda
from broker.errors import AccessRefused, LimitExceeded
from broker.limits import BrokerLimits
from broker.queues.destination import Destination
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges import Exchange
from broker.routing.exchanges.base import KEY_BYTES_PER_BINDING
from broker.routing.planner import Planner
from broker.routing.subscriber import Subscriber
from broker.routing.topology_stream import TOPOLOGY, TopologyStream, binding_facts
from broker.store.contract import Store, Ticket
from broker.store.entries import Defined, Undefined
from broker.vhost.background import BindingRemoval, ExchangeRemoval
from matching.bucket import members

#: The cost of the deletion of an auto-delete exchange, as a number of removed bindings.
DELETION_COST: Final = 5
#: Plans are retired when a destination is deleted or changed. If more bindings than
#: SINGLE_RETIREMENTS lead from an exchange to the destination, all plans of the exchange are
#: retired. If the destination is bound to more exchanges than that, all plans of the virtual host
#: are retired.
SINGLE_RETIREMENTS: Final = 256


class Bindings:
    """The bindings of all exchanges of one virtual host.

    The exchanges hold the bindings. This class stores the bindings, records them in the topology
    stream, and makes stale the plans that a changed binding affects. `delete_exchange` is called
    with the name of an auto-delete exchange that lost its last binding.
    """

    def __init__(
        self,
        vhost: str,
        agenda: Agenda,
        store: Store,
        planner: Planner,
        exchanges: dict[str, Exchange],
        delete_exchange: Callable[[str], None],
        limits: BrokerLimits,
    ) -> None:
        self._vhost = vhost
        self._limits = limits
        #: The number of bindings that were refused because of the limit `limits.pattern_nodes`.
        self.refused = 0
        self._agenda = agenda
        self._store = store
        self._planner = planner
        self._exchanges = exchanges
        self._delete_exchange = delete_exchange
        #: True while an auto-delete exchange is being deleted because it lost its last binding.
        self._deleting = False
        self._removal = ExchangeRemoval(self, agenda)
        #: The stream `$topology`, which records each change of a binding; None if there is none.
        self.topology: TopologyStream | None = None

    def bind(self, source: str, binding: Binding, ticket: Ticket | None = None) -> bool:
        """Add a binding to an exchange. Return True if it replaces no other binding.

        The new binding replaces the binding with the same destination, key and arguments, if there
        is one. Raises NotFound if the exchange does not exist, PreconditionFailed if its type does
        not accept the binding, AccessRefused if the destination is the topology stream,
        LimitExceeded if lookups would become too long because of the bindings to this destination.
        """
        exchange = self._planner.exchange(source)
        if self.topology is not None and binding.destination is self.topology.queue:
            raise AccessRefused(
                f"cannot bind queue '{TOPOLOGY}' in vhost '{self._vhost}': "
                "only the broker publishes to this queue"
            )
        if self._limits.pattern_nodes:
            try:
                exchange.check_limit(binding, self._limits.pattern_nodes)
            except LimitExceeded:
                self.refused += 1
                raise
        known = self.add(exchange, binding)
        if known is not None and known.qos == binding.qos and known.arguments == binding.arguments:
            if ticket is not None and _is_durable(exchange, binding):
                self._store.wait_for_all(ticket)
        elif _is_durable(exchange, binding):
            target = binding.destination
            self._store.define(
                Defined(
                    self._vhost,
                    _stored_kind(target),
                    _stored_name(exchange, binding),
                    {
                        "source": int(exchange.number),
                        "destination": int(target.number),
                        "key": binding.key,
                        "assurance": int(binding.qos),
                        "grammar": binding.grammar.name,
                        "arguments": dict(binding.arguments),
                    },
                ),
                ticket,
                self._audited(exchange, binding),
            )
        self._record(exchange, binding, True)
        self._planner.retire(exchange.name, exchange.first_word(binding))
        return known is None

    def add(self, exchange: Exchange, binding: Binding) -> Binding | None:
        """Add a binding without storing it. A restore calls this method for a stored binding.

        The new binding replaces the binding with the same destination, key and arguments, if there
        is one. Return the replaced binding, or None. Raises PreconditionFailed if the type of the
        exchange does not accept the binding.
        """
        exchange.check(binding)
        return exchange.bind(binding)

    def unbind(self, source: str, binding: Binding, ticket: Ticket | None = None) -> None:
        """Remove the binding that has the destination, key and arguments of `binding`, if any."""
        exchange = self._exchanges.get(source)
        known = None if exchange is None else exchange.unbind(binding.destination, binding.identity)
        if exchange is not None and known is not None:
            if _is_durable(exchange, known):
                self._store.define(
                    Undefined(
                        self._vhost, _stored_kind(known.destination), _stored_name(exchange, known)
                    ),
                    ticket,
                    self._audited(exchange, known),
                )
            self._record(exchange, known, False)
            self._planner.retire(exchange.name, exchange.first_word(known))
            self._auto_delete(exchange)
        elif ticket is not None:
            self._store.wait_for_all(ticket)

    def remove_to(self, destination: Destination) -> None:
        """Remove all bindings to a deleted destination, in slices.

        The plans that may contain the destination become stale at once.
        """
        self.retire_to(destination)
        exchanges = [one for one in members(destination.bound_to) if isinstance(one, Exchange)]
        if exchanges:
            exchanges.reverse()
            BindingRemoval(self, self._agenda, exchanges, [destination]).run_first_slice()

    def retire_to(self, destination: Destination) -> None:
        """Make all plans stale that may contain this destination because of a binding.

        If the destination is bound to more than SINGLE_RETIREMENTS exchanges, make all plans of the
        virtual host stale, which takes less time.
        """
        bound_to = destination.bound_to
        if isinstance(bound_to, dict) and len(bound_to) > SINGLE_RETIREMENTS:
            self._planner.retire_all()
            return
        for exchange in members(destination.bound_to):
            if not isinstance(exchange, Exchange):
                continue
            words: set[str | None] = {None}
            if exchange.bindings.count(destination) <= SINGLE_RETIREMENTS:
                mine = exchange.bindings.to(destination)
                words = {exchange.first_word(binding) for binding in mine}
            for word in [None] if None in words else words:
                self._planner.retire(exchange.name, word)

    def remove_from(self, exchange: Exchange) -> None:
        """Remove all bindings of a deleted exchange, in slices."""
        BindingRemoval(
            self, self._agenda, [exchange], exchange.bindings.destinations()
        ).run_first_slice()

    def remove_slice(self, exchange: Exchange, destination: Destination, most: int) -> int:
        """Remove up to `most` bindings from `exchange` to `destination`, after a deletion.

        Return the cost as a number of bindings: a binding with a long key counts several times, and
        DELETION_COST is added if the exchange was deleted because it lost its last binding. Return
        0 if no binding was left to remove. The store needs no record of each binding, because it
        removes the bindings with the deleted exchange or destination.
        """
        removed = exchange.unbind_some(destination, most)
        if not removed:
            return 0
        failure: Exception | None = None
        for binding in removed:
            try:
                self._record(exchange, binding, False)
            except Exception as error:  # noqa: BLE001  the other bindings must be recorded
                failure = error
        key_bytes = sum(len(binding.key) for binding in removed)
        cost = max(len(removed), key_bytes // KEY_BYTES_PER_BINDING)
        if self._auto_delete(exchange):
            cost += DELETION_COST
        if failure is not None:
            raise failure
        return cost

    def _audited(self, exchange: Exchange, binding: Binding) -> dict[str, object] | None:
        """Return the fields of a binding for the audit trail; None if there is no audit trail."""
        if self._store.audit is None:
            return None
        return binding_facts(exchange.name, binding, isinstance(binding.destination, Subscriber))

    def _record(self, exchange: Exchange, binding: Binding, added: bool) -> None:
        """Record the binding as added or removed in the topology stream, if there is one."""
        if self.topology is not None:
            session = isinstance(binding.destination, Subscriber)
            if added:
                self.topology.bound(exchange.name, binding, session)
            else:
                self.topology.unbound(exchange.name, binding, session)

    def record_reader(self, exchange: str, binding: Binding) -> None:
        """Record again a subscription whose user, or the user's rules, have changed."""
        source = self._exchanges.get(exchange)
        if source is not None:
            self._record(source, binding, True)

    def _auto_delete(self, exchange: Exchange) -> bool:
        """Delete the exchange if it is auto-delete and has lost its last binding.

        If the deletion of another auto-delete exchange removed the last binding, delete this
        exchange in a later slice. Return True if the exchange was deleted now.
        """
        if exchange.options.auto_delete and not exchange.bindings and not exchange.dead:
            if not self._deleting:
                self.delete_unused(exchange)
                return True
            self._removal.add(exchange)
        return False

    def delete_unused(self, exchange: Exchange) -> None:
        """Delete an auto-delete exchange, unless it has bindings again or is deleted already."""
        if not exchange.bindings and not exchange.dead:
            self._deleting = True
            try:
                self._delete_exchange(exchange.name)
            finally:
                self._deleting = False


def _is_durable(exchange: Exchange, binding: Binding) -> bool:
    """True if the binding survives a restart, because its exchange and its destination survive."""
    target = binding.destination
    durable = (
        target.durable
        if isinstance(target, Queue)
        else (
            target.inbox.durable
            if isinstance(target, Subscriber)
            else isinstance(target, Exchange) and target.options.durable
        )
    )
    return exchange.options.durable and durable


def _stored_kind(destination: Destination) -> str:
    return "subscription" if isinstance(destination, Subscriber) else "binding"


def _stored_name(exchange: Exchange, binding: Binding) -> str:
    """Return the name of the binding's definition in the store."""
    return f"{exchange.number}:{binding.destination.number}:{binding.identity}"
