"""Exchanges: from a routing key to the bindings that want it. Asked on a route cache miss only.

One type a file. Reading order: base, direct, fanout, topic, headers, consistent_hash, delayed.
"""

from __future__ import annotations

from broker.routing.exchanges.base import Exchange
from broker.routing.exchanges.consistent_hash import ConsistentHashExchange
from broker.routing.exchanges.delayed import DelayedExchange
from broker.routing.exchanges.direct import DirectExchange
from broker.routing.exchanges.fanout import FanoutExchange
from broker.routing.exchanges.headers import HeadersExchange
from broker.routing.exchanges.topic import TopicExchange

__all__ = [
    "TYPES",
    "ConsistentHashExchange",
    "DelayedExchange",
    "DirectExchange",
    "Exchange",
    "FanoutExchange",
    "HeadersExchange",
    "TopicExchange",
]

#: Every exchange type by the name under which clients declare it, but for the one that delays,
#: which needs more.
TYPES: dict[str, type[Exchange]] = {
    kind.kind: kind
    for kind in (
        DirectExchange,
        FanoutExchange,
        TopicExchange,
        HeadersExchange,
        ConsistentHashExchange,
    )
}
