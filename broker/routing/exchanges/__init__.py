"""Exchanges: from the routing key (or the headers) of a message to the bindings that match it.

The planner asks an exchange only when the route cache has no route. Each exchange type has a file.
Reading order: base, direct, fanout, topic, headers, consistent_hash, modulus_hash,
random_choice, delayed, recent_history, deduplication.
"""

from __future__ import annotations

from broker.routing.exchanges.base import Exchange
from broker.routing.exchanges.consistent_hash import ConsistentHashExchange
from broker.routing.exchanges.deduplication import DeduplicationExchange
from broker.routing.exchanges.delayed import DelayedExchange
from broker.routing.exchanges.direct import DirectExchange
from broker.routing.exchanges.fanout import FanoutExchange
from broker.routing.exchanges.headers import HeadersExchange
from broker.routing.exchanges.modulus_hash import ModulusHashExchange
from broker.routing.exchanges.random_choice import LocalRandomExchange, RandomExchange
from broker.routing.exchanges.recent_history import RecentHistoryExchange
from broker.routing.exchanges.topic import TopicExchange

__all__ = [
    "TYPES",
    "ConsistentHashExchange",
    "DeduplicationExchange",
    "DelayedExchange",
    "DirectExchange",
    "Exchange",
    "FanoutExchange",
    "HeadersExchange",
    "LocalRandomExchange",
    "ModulusHashExchange",
    "RandomExchange",
    "RecentHistoryExchange",
    "TopicExchange",
    "is_topic",
]

#: Exchange types by the name under which clients declare them. The delayed, recent-history
#: and deduplication exchanges are not here, because their constructors need a queue.
TYPES: dict[str, type[Exchange]] = {
    kind.kind: kind
    for kind in (
        DirectExchange,
        FanoutExchange,
        TopicExchange,
        HeadersExchange,
        ConsistentHashExchange,
        ModulusHashExchange,
        RandomExchange,
        LocalRandomExchange,
    )
}


def is_topic(exchange: Exchange) -> bool:
    """True if topic rules apply to the routing keys of the exchange.

    Topic rules apply to topic exchanges, and to delayed exchanges that route as a topic exchange
    does.
    """
    inner = exchange.inner if isinstance(exchange, DelayedExchange) else exchange
    return inner.kind == TopicExchange.kind
