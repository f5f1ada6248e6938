"""The worker of the bridges: a process that runs the links which the broker configures."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from typing import Final, Protocol

from trellis.bridge import contract
from trellis.bridge.contract import BridgeState, LocalAmqp, MqttBridge, Shovel

#: Seconds between two reports of the states that have changed.
REPORT_SECONDS: Final = 0.5
#: The priority of the process is lowered by this number, so that the broker runs first.
NICE: Final = 5


class RunningLink(Protocol):
    """A running link between two brokers."""

    @property
    def state(self) -> BridgeState:
        """The present state of the link."""

    def start(self) -> None:
        """Begin to connect."""

    def stop(self) -> None:
        """Close the connections."""


class BridgeWorker:
    """The part of the worker that runs the links of the broker, and reports their states."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self._links: dict[MqttBridge | Shovel, RunningLink] = {}
        #: The number of the present configuration.
        self._number = 0
        self._reported: bytes = b""

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Run the links of each Configure message until the broker closes the connection."""
        self._send(contract.line(contract.WorkerReady()))
        reporting = asyncio.create_task(self._report())
        while text := await reader.readline():
            self._configure(contract.to_worker.decode(text))
        reporting.cancel()

    def _configure(self, wanted: contract.Configure) -> None:
        """Stop each link without an equal definition in `wanted`, and start the new links."""
        definitions: list[MqttBridge | Shovel] = [*wanted.bridges, *wanted.shovels]
        self._number = wanted.number
        for removed in self._links.keys() - set(definitions):
            self._links.pop(removed).stop()
        for definition in definitions:
            if definition not in self._links:
                self._links[definition] = link = _link(definition, wanted.local)
                link.start()

    async def _report(self) -> None:
        while True:
            states = [link.state for link in self._links.values()]
            text = contract.line(contract.LinkReport(self._number, states))
            if text != self._reported:
                self._reported = text
                self._send(text)
            await asyncio.sleep(REPORT_SECONDS)

    def _send(self, text: bytes) -> None:
        self._writer.write(text)


def _link(definition: MqttBridge | Shovel, local: LocalAmqp) -> RunningLink:
    # A worker without shovels needs no AMQP client, and a worker without bridges no MQTT client.
    if isinstance(definition, Shovel):
        from trellis.bridge.shovel import ShovelLink
        from trellis.bridge.shovel_message import keep_properties_encoded

        keep_properties_encoded()
        return ShovelLink(definition, local)
    from trellis.bridge.mqtt_bridge import MqttLink

    return MqttLink(definition)


async def _serve(descriptor: int) -> None:
    reader, writer = await asyncio.open_unix_connection(
        sock=socket.socket(fileno=descriptor), limit=contract.LINE_MAX
    )
    await BridgeWorker(writer).serve(reader)


def main(descriptor: int) -> None:
    """Run the worker, which talks to the broker over the socket with this file descriptor.

    When the process ends, the connections of its links break, so the brokers deliver
    unacknowledged messages again.
    """
    os.nice(NICE)
    # A link reports each of its errors; pika would write some of them to the broker's log, too.
    logging.getLogger("pika").setLevel(logging.CRITICAL)
    try:
        asyncio.run(_serve(descriptor))
    except ConnectionError:
        pass  # The broker was killed.
    os._exit(0)
