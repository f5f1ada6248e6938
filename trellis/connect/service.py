"""Runs all links of a process and its HTTP port, until a signal ends the process."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from typing import Final

from trellis import logs
from trellis.connect.kafka_links import FromKafkaLink, ToKafkaLink
from trellis.connect.link import ConnectorLink
from trellis.connect.settings import ConnectSettings, broker_url
from trellis.connect.status import start_pages
from trellis.connect.webhook_link import WebhookLink

#: Seconds that links may take to finish the attempts under way when the process ends. A message
#: that is not settled by then is delivered again after the next start.
PATIENCE: Final = 10.0


class PortInUse(OSError):
    """Raised if the process cannot listen on the port for /metrics and /health."""


def links_of(settings: ConnectSettings) -> list[ConnectorLink]:
    """Return the links that the settings declare.

    Raises SettingsError if a file with a password or a secret cannot be read.
    """
    broker_url(settings.broker)
    return [
        *(WebhookLink(settings.broker, each) for each in settings.webhook),
        *(ToKafkaLink(settings.broker, each) for each in settings.to_kafka),
        *(FromKafkaLink(settings.broker, each) for each in settings.from_kafka),
    ]


async def serve(settings: ConnectSettings) -> None:
    """Run all links until SIGTERM or SIGINT. Raises PortInUse or SettingsError.

    When the HTTP port is open, a line `ready http=HOST:PORT` goes to standard output.
    """
    # A link logs each of its errors; aiormq would log some of them again.
    logging.getLogger("aiormq").setLevel(logging.CRITICAL)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    links = links_of(settings)
    host, port = settings.http.host, settings.http.port
    try:
        runner = await start_pages([link.status for link in links], host, port)
    except OSError as error:
        raise PortInUse(
            f"cannot listen on {host}:{port}: {error.strerror or error}; change http.host or "
            "http.port"
        ) from None
    try:
        bound = runner.addresses[0]
        sys.stdout.write(f"ready http={bound[0]}:{bound[1]}\n")
        sys.stdout.flush()
        logs.info("connector_start", links=len(links), http=f"{bound[0]}:{bound[1]}")
        await _run(links, stop)
    finally:
        await runner.cleanup()


async def _run(links: list[ConnectorLink], stop: asyncio.Event) -> None:
    tasks = [asyncio.create_task(link.run(), name=link.status.name) for link in links]
    try:
        await stop.wait()
        for link in links:
            link.stopping.set()
        _, late = await asyncio.wait(tasks, timeout=PATIENCE)
        logs.info("connector_stop", late=len(late))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
