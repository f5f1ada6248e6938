"""Collects the counts of published messages from the cached routes of publishers, in slices."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from broker.routing.publish_context import IngressCounters
from broker.vhost.vhost import VirtualHost

#: Number of routes whose counts are collected in one turn of the event loop.
ROUTES_SLICE: Final = 1_000


async def collect_counts(vhosts: Iterable[VirtualHost]) -> None:
    """Add the counts of all routes to the counters of front ends and exchanges, in slices."""
    for vhost in list(vhosts):
        for _ in vhost.contexts.collect_steps(ROUTES_SLICE):
            await asyncio.sleep(0)
        await asyncio.sleep(0)


def collected(vhosts: Iterable[VirtualHost]) -> list[dict[str, IngressCounters]]:
    """Return the counts of received messages by virtual host, then by front end.

    Each cached route counts its own publications. The numbers of fates and copies in the result do
    not include the publications since the last call of `collect_counts`.
    """
    return [vhost.contexts.collected() for vhost in vhosts]
