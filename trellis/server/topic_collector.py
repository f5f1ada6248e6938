"""Collects the topics of published messages, once a minute, into the history of topics.

The routes of publishers count their messages. A collection adds these counts to the history, in
slices, so that a turn of the event loop stays short with hundreds of thousands of routes.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import Final

from broker.broker import Broker

#: Seconds between two collections.
COLLECT_SECONDS: Final = 60.0
#: Number of routes that one turn of the event loop collects.
ROUTES_SLICE: Final = 250


class TopicCollector:
    """Adds the counts of all routes to the history of topics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._busy = asyncio.Lock()

    async def run(self) -> None:
        """Collect every COLLECT_SECONDS until the task is cancelled."""
        self._broker.history.advance(time.time())
        while True:
            await asyncio.sleep(COLLECT_SECONDS)
            await self.collect()

    async def collect(self) -> None:
        """Collect the counts of all routes now."""
        async with self._busy:
            self._broker.history.advance(time.time())
            for vhost in list(self._broker.vhosts.values()):
                for context in list(vhost.contexts):
                    routes = iter(list(context.routes.values()))
                    while some := list(islice(routes, ROUTES_SLICE)):
                        context.remember(some)
                        await asyncio.sleep(0)
