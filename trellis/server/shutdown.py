"""The stop of a running node: the end of its client connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from trellis import logs
from trellis.server.listener import BoundListener
from trellis.server.node import BrokerNode
from trellis.server.turn_link import TurnLink

#: Seconds between two checks whether all clients have disconnected.
POLL_SECONDS: Final = 0.02
#: Seconds after which a stop logs the clients that it waits for, and the largest number of clients
#: in that line.
NAMED_AFTER_SECONDS: Final = 1.0
NAMED_MAX: Final = 10
#: Seconds in which a client without unsent output must answer or disconnect.
ANSWER_SECONDS: Final = 3.0


async def shut_down(
    node: BrokerNode,
    listeners: Iterable[BoundListener],
    grace: float,
    skip_grace: Callable[[], bool],
) -> None:
    """Close the listeners and all client connections, and wait up to `grace` seconds for their end.

    After ANSWER_SECONDS, each connection whose client has received all output is aborted. The wait
    ends early when `skip_grace` returns True. The HTTP listeners are not among `listeners`: metrics
    and health are served until the end.
    """
    logs.info("stop", connections=len(node.turn.links), grace=f"{grace:g}s")
    node.ready = False
    for ports in listeners:
        ports.close()
    links = node.turn.links
    loop = asyncio.get_running_loop()
    began = loop.time()
    aborted = 0
    named = False
    while links:
        for link in list(links):
            # Repeated, because a link that was just accepted appears in `links` a little later.
            link.close()
        await asyncio.sleep(POLL_SECONDS)
        waited = loop.time() - began
        if skip_grace() or waited >= grace:
            break
        if links and not named and waited >= NAMED_AFTER_SECONDS:
            named = True
            _log_waiting(list(links))
        if waited >= ANSWER_SECONDS:
            silent = [link for link in links if link.unsent == 0]
            aborted += len(silent)
            for link in silent:
                link.abort()
    aborted += len(links)
    for link in list(links):
        link.abort()
    await asyncio.sleep(0)
    node.turn.report_closed()
    while not skip_grace() and loop.time() - began < grace:
        if node.broker.agenda.idle:
            break  # All deliveries of the closed connections are back in their queues.
        await asyncio.sleep(POLL_SECONDS)
    node.broker.write_deliveries()
    if node.audit is not None:
        await node.audit.finish()
    logs.info("stopped", aborted=aborted)


def _log_waiting(links: list[TurnLink]) -> None:
    """Log the clients for which a stop waits."""
    logs.info(
        "stop_waits",
        connections=len(links),
        clients=",".join(link.label for link in links[:NAMED_MAX]),
        note=f"clients that do not answer within {ANSWER_SECONDS:g} s are aborted",
    )
