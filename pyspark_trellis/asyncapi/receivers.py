"""Finds the queues and the MQTT subscriptions to which observed topics go, by the bindings.

Topics are routed by the same rules as in `trellis ask audit` (routing.py). If a topic reaches a
headers exchange, or another exchange that routes by more than the topic, the destinations behind
this exchange are unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from pyspark_trellis.asyncapi.observations import ObservedAddress
from pyspark_trellis.definitions import BY_NAME, SESSION, BoundQueue, DefinitionsFile
from pyspark_trellis.routing import BatchRouter, Rows

#: Number of topics that are routed at once. The number limits the memory, because each topic may
#: reach all queues.
_TOGETHER: Final = 500
#: Largest number of bindings without an observed topic that become addresses.
UNOBSERVED_MAX: Final = 1_000


@dataclass
class AddressReceivers:
    """The receivers of an address: queues, and the numbers of the bindings of MQTT subscriptions.

    `subscriptions` has indexes in `DefinitionsFile.bindings`.
    """

    queues: set[str] = field(default_factory=set)
    subscriptions: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Receivers:
    """The receivers of each observed address, and the bindings that no observed topic matches."""

    of: list[AddressReceivers]
    unobserved: list[BoundQueue]


def receivers(addresses: Sequence[ObservedAddress], definitions: DefinitionsFile) -> Receivers:
    """Return the receivers of each address, in order, and the bindings that match no topic."""
    by_address = [AddressReceivers() for _ in addresses]
    used: set[int] = set()
    groups: dict[tuple[str, str], list[tuple[int, str]]] = defaultdict(list)
    for number, address in enumerate(addresses):
        for topic in address.topics:
            groups[address.vhost, address.exchange].append((number, topic))
    routers: dict[str, BatchRouter] = {}
    for (vhost, exchange), topics in groups.items():
        host = definitions.hosts.get(vhost)
        if host is None or exchange not in host.types:
            continue  # The exchange or the virtual host does not exist any more.
        router = routers.setdefault(vhost, BatchRouter(host))
        for at in range(0, len(topics), _TOGETHER):
            _route(router, exchange, topics[at : at + _TOGETHER], by_address, used, definitions)
    unobserved = [
        each
        for each in definitions.bindings
        if each.number not in used
        and not each.to_exchange
        and each.source
        and definitions.hosts[each.vhost].types[each.source] in BY_NAME
    ]
    return Receivers(by_address, unobserved[:UNOBSERVED_MAX])


def _route(
    router: BatchRouter,
    exchange: str,
    topics: list[tuple[int, str]],
    by_address: list[AddressReceivers],
    used: set[int],
    definitions: DefinitionsFile,
) -> None:
    numbers = np.array([number for number, _ in topics])
    routed = router.route(exchange, [topic for _, topic in topics])
    for number, receiver in _pairs(numbers, routed.receivers):
        name = router.names[receiver]
        if not name.startswith(SESSION):
            by_address[number].queues.add(name)
    for number, binding in _pairs(numbers, routed.bindings):
        used.add(binding)
        if definitions.bindings[binding].kind == "session":
            by_address[number].subscriptions.add(binding)


def _pairs(numbers: Rows, columns: tuple[Rows, Rows]) -> list[tuple[int, int]]:
    """Return the different pairs (number of an address, number of a destination), sorted.

    `numbers` has the number of the address of each row (topic). `columns` are pairs (row, number of
    a destination of the row), as two arrays of equal length.
    """
    rows, others = columns
    return sorted(set(zip(numbers[rows].tolist(), others.tolist(), strict=True)))
