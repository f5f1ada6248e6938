"""Finds the shovels and federation links that the parameters and policies of a broker define."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

import msgspec

from broker.broker import Broker
from broker.vhost.vhost import VirtualHost
from trellis.bridge.amqp_uri import parse_uri
from trellis.bridge.contract import FEDERATION, LINKS_BYTES, SHOVEL, LocalAmqp, Shovel
from trellis.bridge.shovel_definition import federation_of, shovel_of

UPSTREAM: Final = "federation-upstream"
UPSTREAM_SET: Final = "federation-upstream-set"
#: Number of exchanges, parameters or virtual hosts that are examined in one turn of the event loop.
EXAMINED_PER_SLICE: Final = 50
#: Largest number of shovels and federation links of a broker.
LINKS_MAX: Final = 1_000
#: Number of bytes of links that are encoded in one turn of the event loop, to measure the links.
MEASURED_PER_SLICE: Final = 1 << 20
#: Types of exchanges that may be federated.
FEDERATED_KINDS: Final = ("topic", "fanout", "direct", "headers")


class InvalidLink(NamedTuple):
    """A shovel or federation link that cannot run; `reason` says why, and what to do."""

    kind: str
    vhost: str
    name: str
    reason: str


Link = Shovel | InvalidLink
#: For each virtual host and name of a shovel: the parameter, and the link that it defines.
Parsed = dict[tuple[str, str], tuple[object, Link]]


class LinkFinder:
    """Finds the links of a broker. A shovel is parsed again only if its parameter has changed."""

    def __init__(self, broker: Broker, local: LocalAmqp) -> None:
        self._broker = broker
        self._local = local
        self._parsed: Parsed = {}
        #: The sizes of the links that the last search found, as `_size` returns them.
        self._sizes: dict[tuple[str, str, str], tuple[Link, int]] = {}
        self._has_client = find_spec("pika") is not None

    async def find(self) -> list[Link]:
        """Return the shovels and federation links of all virtual hosts.

        The search runs in slices of EXAMINED_PER_SLICE. If there are more than LINKS_MAX links, the
        link after the first LINKS_MAX is returned as an InvalidLink, and no further links are
        returned. A link is also returned as an InvalidLink if it would raise the total size of all
        links above LINKS_BYTES.
        """
        all_links: list[Link] = []
        parsed: Parsed = {}
        sizes: dict[tuple[str, str, str], tuple[Link, int]] = {}
        total = measured = 0
        async with aclosing(self._links(parsed)) as links:
            async for link in links:
                if len(all_links) >= LINKS_MAX:
                    reason = f"the limit is {LINKS_MAX} shovels and federation links: delete some"
                    all_links.append(InvalidLink(link.kind, link.vhost, link.name, reason))
                    break
                name = (link.kind, link.vhost, link.name)
                known = self._sizes.get(name)
                if known is None or known[0] != link:
                    known = link, _size(link)
                    measured += known[1]
                sizes[name] = known
                if total + known[1] <= LINKS_BYTES:
                    total += known[1]
                    all_links.append(link)
                else:
                    reason = (
                        f"the definition has {known[1]} bytes; the limit for all shovels and "
                        f"federation links together is {LINKS_BYTES} bytes: shorten or delete "
                        "definitions"
                    )
                    all_links.append(InvalidLink(*name, reason))
                if measured > MEASURED_PER_SLICE:
                    measured = 0
                    await asyncio.sleep(0)
        self._parsed, self._sizes = parsed, sizes
        return all_links

    def defines(self, shovel: Shovel) -> bool:
        """True if the parameter with the name of this shovel still defines this shovel."""
        vhost = self._broker.vhosts.get(shovel.vhost)
        value = None if vhost is None else vhost.parameters.values.get((SHOVEL, shovel.name))
        return value is not None and self._shovel(shovel.vhost, shovel.name, value) == shovel

    async def _links(self, parsed: Parsed) -> AsyncGenerator[Link, None]:
        """Yield the links; store in `parsed` each shovel parameter and the link that it defines."""
        seen = 0
        for vhost in list(self._broker.vhosts.values()):
            upstreams: dict[str, object] = {}
            for (component, name), value in list(vhost.parameters.values.items()):
                if component == SHOVEL:
                    shovel = self._shovel(vhost.name, name, value)
                    parsed[vhost.name, name] = value, shovel
                    yield shovel
                elif component == UPSTREAM:
                    upstreams[name] = value
                seen += 1
                if seen % EXAMINED_PER_SLICE == 0:
                    await asyncio.sleep(0)
            if upstreams and any("federation" in key for key in _policy_keys(vhost)):
                async for link in _federation(vhost, upstreams, self._local.node):
                    yield self._usable(link)
            seen += 1
            if seen % EXAMINED_PER_SLICE == 0:
                await asyncio.sleep(0)

    def _shovel(self, vhost: str, name: str, value: object) -> Link:
        known = self._parsed.get((vhost, name))
        if known is not None and known[0] is value:
            return known[1]
        try:
            return self._usable(shovel_of(vhost, name, value))
        except ValueError as error:
            return InvalidLink(SHOVEL, vhost, name, str(error))

    def _usable(self, link: Link) -> Link:
        """Return the link itself, or an InvalidLink if this broker cannot run the link."""
        if isinstance(link, InvalidLink):
            return link
        if not self._has_client:
            reason = "pika is not installed: pip install 'trellis-broker[bridge]'"
        elif not self._local.port and not all(
            parse_uri(uri).host for uri in (*link.source.uris, *link.target.uris)
        ):
            reason = (
                "a URI without a host means this broker, whose AMQP listener is off; set "
                "amqp.enabled to true"
            )
        else:
            return link
        return InvalidLink(link.kind, link.vhost, link.name, reason)


def _size(link: Link) -> int:
    """Return the size of a link in the message to the worker in bytes; 0 for an InvalidLink."""
    return 0 if isinstance(link, InvalidLink) else len(msgspec.json.encode(link)) + 1


def _policy_keys(vhost: VirtualHost) -> Iterator[str]:
    for policy in vhost.policies.by_name.values():
        yield from policy.definition


async def _federation(
    vhost: VirtualHost, upstreams: Mapping[str, object], node: str
) -> AsyncIterator[Link]:
    """Yield the links of the exchanges to which a policy for federation applies."""
    for number, exchange in enumerate(list(vhost.exchanges.values())):
        if number % EXAMINED_PER_SLICE == EXAMINED_PER_SLICE - 1:
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
                reason = (
                    f"vhost '{vhost.name}' has no valid {UPSTREAM} '{upstream}': set this parameter"
                )
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
    """Yield the name of each upstream that a policy names, and a dict of overriding keys.

    If the policy names an upstream set, the dict has the keys of the set's entry, which override
    keys of the upstream's definition. For one upstream, and for the set "all", the dict is empty.
    """
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
