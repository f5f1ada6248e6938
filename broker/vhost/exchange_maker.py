"""Creates the exchanges of a virtual host, of all types."""

from __future__ import annotations

from typing import Final

from broker.agenda import Agenda
from broker.errors import PreconditionFailed
from broker.limits import BrokerLimits
from broker.queues.arguments import NO_ARGUMENTS
from broker.queues.delay import DelayQueue
from broker.queues.duplicate_filter import DuplicateFilter
from broker.queues.limited import DeadLetterHost
from broker.queues.recent import RecentQueue
from broker.routing.exchanges import (
    TYPES,
    DeduplicationExchange,
    DelayedExchange,
    Exchange,
    RecentHistoryExchange,
    TopicExchange,
)
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.exchanges.deduplication import cache_arguments
from broker.routing.exchanges.recent_history import history_length
from broker.routing.exchanges.topic import topic_exchange
from broker.store.contract import Store

#: The types of exchanges whose constructors need a queue.
WITH_QUEUE: Final = (
    DelayedExchange.kind,
    RecentHistoryExchange.kind,
    DeduplicationExchange.kind,
)


class ExchangeMaker:
    """The part of a virtual host that creates exchanges, and the queues that some types need."""

    def __init__(
        self, vhost: str, agenda: Agenda, store: Store, limits: BrokerLimits, host: DeadLetterHost
    ) -> None:
        self._vhost = vhost
        self._agenda = agenda
        self._store = store
        self._limits = limits
        self._host = host

    def make(self, name: str, kind: str, options: ExchangeOptions) -> Exchange:
        """Return a new exchange. Raises PreconditionFailed if its type or an option is invalid."""
        where = f"for exchange '{name}' in vhost '{self._vhost}'"
        if "alternate-exchange" in options.arguments and options.alternate is None:
            raise PreconditionFailed(f"invalid arg 'alternate-exchange' {where}: must be a string")
        if kind == TopicExchange.kind:
            return topic_exchange(name, options, self._limits.matcher, self._limits.matchers)
        if kind == DelayedExchange.kind:
            inner = options.arguments.get("x-delayed-type")
            if not isinstance(inner, str) or inner not in TYPES:
                raise PreconditionFailed(
                    f"invalid arg 'x-delayed-type' {where}: must be one of "
                    f"{', '.join(sorted(TYPES))}, not {inner!r}"
                )
            waiting = DelayQueue(
                self._vhost,
                name,
                self._agenda,
                self._store,
                options.durable,
                NO_ARGUMENTS,
                self._host,
            )
            return DelayedExchange(name, options, self.make(name, inner, options), waiting)
        if kind == RecentHistoryExchange.kind:
            length = history_length(where, options)
            recent = RecentQueue(
                self._vhost, name, self._agenda, self._store, options.durable, length
            )
            return RecentHistoryExchange(name, options, recent)
        if kind == DeduplicationExchange.kind:
            size, ttl = cache_arguments(where, options)
            known = DuplicateFilter(self._vhost, name, self._agenda, self._store, size, ttl)
            return DeduplicationExchange(name, options, known)
        exchange_type = TYPES.get(kind)
        if exchange_type is None:
            kinds = ", ".join(sorted([*TYPES, *WITH_QUEUE]))
            raise PreconditionFailed(f"invalid exchange type '{kind}'; known types are {kinds}")
        return exchange_type(name, options)
