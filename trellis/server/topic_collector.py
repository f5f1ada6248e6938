"""Fills the topic history: the topics of the last hour, each with its number of messages.

Each cached route of a publisher counts its messages. Once a minute, the collector adds these counts
to the topic history (broker/routing/topic_history.py). The collector works in slices, so that a
turn of the event loop stays short with hundreds of thousands of routes.
"""

from __future__ import annotations

import asyncio
import time
from itertools import islice
from typing import Final

from broker.broker import Broker

#: Seconds between two collections.
COLLECT_SECONDS: Final = 60.0
#: Number of routes that one turn of the event loop collects; a context counts as a route, too.
ROUTES_SLICE: Final = 250


class TopicCollector:
    """Adds the message counts of all cached routes of a broker to its topic history."""

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
        """Add the counts of all cached routes to the topic history now, over several turns."""
        async with self._busy:
            self._broker.history.advance(time.time())
            for vhost in list(self._broker.vhosts.values()):
                left = ROUTES_SLICE
                for context in list(vhost.contexts):
                    routes = iter(list(context.routes.values()))
                    remain = True
                    while remain:
                        some = list(islice(routes, left))
                        context.remember(some)
                        left -= len(some) + 1
                        remain = left <= 0
                        if remain:
                            await asyncio.sleep(0)
                            left = ROUTES_SLICE
