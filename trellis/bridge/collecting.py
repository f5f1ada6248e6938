"""Finds the shovels and federation links that the parameters and policies of a broker define."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

from broker.broker import Broker
from broker.vhost.vhost import VirtualHost
from trellis.bridge.contract import FEDERATION, SHOVEL, Shovel
from trellis.bridge.shovel_definition import federation_of, shovel_of

UPSTREAM: Final = "federation-upstream"
UPSTREAM_SET: Final = "federation-upstream-set"
#: Number of exchanges or parameters that are examined in one turn of the event loop.
SLICE: Final = 200
#: Largest number of shovels and federation links of a broker.
LINKS_MAX: Final = 1_000
#: Types of exchanges that may be federated.
FEDERATED_KINDS: Final = ("topic", "fanout", "direct", "headers")


class InvalidLink:
    """A shovel or federation link that cannot run; `reason` is the fault of its definition."""

    def __init__(self, kind: str, vhost: str, name: str, reason: str) -> None:
        self.kind = kind
        self.vhost = vhost
        self.name = name
        self.reason = reason


async def find_links(broker: Broker, node: str) -> list[Shovel | InvalidLink]:
    """Return the shovels and federation links of all virtual hosts, found in slices of SLICE.

    `node` is the name of this broker. After LINKS_MAX links, the next one is returned as an
    InvalidLink, and the rest is left out.
    """
    found: list[Shovel | InvalidLink] = []
    async for link in _links(broker, node):
        if len(found) >= LINKS_MAX:
            reason = f"the limit is {LINKS_MAX} shovels and federation links; delete some of them"
            link = InvalidLink(link.kind, link.vhost, link.name, reason)
            found.append(link)
            break
        found.append(link)
    return found


async def _links(broker: Broker, node: str) -> AsyncIterator[Shovel | InvalidLink]:
    seen = 0
    for vhost in list(broker.vhosts.values()):
        upstreams: dict[str, object] = {}
        for (component, name), value in list(vhost.parameters.values.items()):
            if component == SHOVEL:
                yield _shovel(vhost.name, name, value)
            elif component == UPSTREAM:
                upstreams[name] = value
            seen += 1
            if seen % SLICE == 0:
                await asyncio.sleep(0)
        if upstreams and any("federation" in key for key in _policy_keys(vhost)):
            async for link in _federation(vhost, upstreams, node):
                yield link
    await asyncio.sleep(0)


def _policy_keys(vhost: VirtualHost) -> Iterator[str]:
    for policy in vhost.policies.by_name.values():
        yield from policy.definition


async def _federation(
    vhost: VirtualHost, upstreams: Mapping[str, object], node: str
) -> AsyncIterator[Shovel | InvalidLink]:
    """Yield the links of the exchanges to which a policy for federation applies."""
    for number, exchange in enumerate(list(vhost.exchanges.values())):
        if number % SLICE == SLICE - 1:
            await asyncio.sleep(0)
        policy = vhost.policies.for_exchange(exchange.name)
        if policy is None or not exchange.name or exchange.options.internal:
            continue
        for upstream, change in _upstreams(vhost, policy.definition, upstreams):
            value = upstreams.get(upstream)
            name = f"{upstream} -> {exchange.name}"
            if exchange.kind not in FEDERATED_KINDS:
                reason = f"exchanges of the type '{exchange.kind}' cannot be federated"
                yield InvalidLink(FEDERATION, vhost.name, name, reason)
                continue
            if not isinstance(value, dict):
                reason = f"vhost '{vhost.name}' has no valid {UPSTREAM} '{upstream}'; set it"
                yield InvalidLink(FEDERATION, vhost.name, name, reason)
                continue
            try:
                yield federation_of(
                    vhost.name, upstream, {**value, **change}, exchange.name, exchange.kind, node
                )
            except ValueError as error:
                yield InvalidLink(FEDERATION, vhost.name, name, f"upstream '{upstream}': {error}")


def _upstreams(
    vhost: VirtualHost, definition: Mapping[str, Any], upstreams: Mapping[str, object]
) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the upstreams that a policy names, and the keys that its upstream set changes."""
    if isinstance(one := definition.get(UPSTREAM), str):
        yield one, {}
        return
    wanted = definition.get(UPSTREAM_SET)
    if wanted == "all":
        for name in upstreams:
            yield name, {}
        return
    entries = vhost.parameters.values.get((UPSTREAM_SET, wanted)) if wanted else None
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("upstream"), str):
            yield entry["upstream"], {key: entry[key] for key in entry if key != "upstream"}


def _shovel(vhost: str, name: str, value: object) -> Shovel | InvalidLink:
    try:
        return shovel_of(vhost, name, value)
    except ValueError as error:
        return InvalidLink(SHOVEL, vhost, name, str(error))
