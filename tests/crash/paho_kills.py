"""Kills a broker repeatedly while paho-mqtt publishes to a paho-mqtt subscriber with QoS 2.

    publisher --> Relay --> broker --> Relay --> subscriber      one relay, kill -9 at any packet

Both sessions are persistent. The Relay is a network proxy (tests/crash/relay.py). It records all
packets, so the test can tell whether a client or the broker repeats a message.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.broker import BrokerProcess
from tests.crash.exchanges import Exchanges
from tests.crash.ledger import SIZES, body_of
from tests.crash.relay import CONNACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, Recorded, Relay
from tests.crash.wire import PATIENCE, until

PUBLISHER, SUBSCRIBER, TOPIC = "publisher", "subscriber", "crash/two"
#: Maximum number of messages of the publisher that are not acknowledged.
OUTSTANDING: Final = 40
#: Minimum number of messages of a run. A kill soon after a start leaves little time to publish, so
#: a run with too few messages kills the broker more often.
MESSAGES: Final = 100
#: The packets at which the broker is killed: (True if the client sends the packet, the client, the
#: kind of the packet).
MOMENTS: Final = [
    *((True, PUBLISHER, kind) for kind in (PUBLISH, PUBREL)),
    *((False, PUBLISHER, kind) for kind in (CONNACK, PUBREC, PUBCOMP)),
    *((False, SUBSCRIBER, kind) for kind in (CONNACK, PUBLISH, PUBREL)),
    *((True, SUBSCRIBER, kind) for kind in (PUBREC, PUBCOMP)),
]
#: Seconds between two attempts of a client to connect.
_RETRY: Any = 0.1
#: The logger to which paho writes all its actions; pytest shows this log if a test fails.
_LOGGER: Final = logging.getLogger("paho")
_LOGGER.setLevel(logging.DEBUG)


class RepeatedKills:
    """A broker that is killed repeatedly, with its data directory, its two clients and their
    packets.
    """

    def __init__(
        self,
        directory: Path,
        seed: int,
        level: int,
        patient: bool,
        kind: type[paho.Client] = paho.Client,
    ) -> None:
        self.relay = Relay(patient, level)
        self.exchanges = Exchanges(PUBLISHER, SUBSCRIBER)
        #: For each message: the number of copies that the subscriber's application received.
        self.received: Counter[bytes] = Counter()
        #: The bodies of all published messages.
        self.bodies: list[bytes] = []
        self._random = Random(seed)
        self._directory = directory
        self._level = level
        self._kind = kind
        self._broker: BrokerProcess | None = None
        #: Number of messages for which the publisher has received PUBCOMP.
        self._completed = 0
        self._subscribed = False
        #: Number of records that `exchanges` has taken.
        self._taken = 0

    async def run(self, kills: int) -> None:
        """Kill the broker at least `kills` times, and until more than MESSAGES messages were sent.

        Return when all QoS 2 handshakes have ended.
        """
        await self.relay.start()
        clients: list[paho.Client] = []
        try:
            await self._start_broker()
            self._open()
            clients.append(self._client(SUBSCRIBER, paho.Client))
            clients[0].on_message = self._on_message
            clients[0].on_subscribe = self._on_subscribe
            clients[0].loop_start()
            code, _ = clients[0].subscribe(TOPIC, 2)
            assert code == paho.MQTT_ERR_SUCCESS, code
            await until(lambda: self._subscribed)
            await self._stop_broker()
            clients.append(self._client(PUBLISHER, self._kind))
            clients[1].on_publish = self._on_publish
            clients[1].loop_start()
            killed = 0
            while killed < kills or len(self.bodies) <= MESSAGES:
                killed += 1
                await self._start_broker()
                await self._publish_until_kill(clients[1])
            await self._start_broker()
            self._open()
            await self._finish()
            await self._stop_broker()
        finally:
            for client in clients:
                client.disconnect()
                await asyncio.to_thread(client.loop_stop)
            if self._broker is not None:
                self._broker.kill()
            await self.relay.stop()

    def _client(self, name: str, kind: type[paho.Client]) -> paho.Client:
        level5 = self._level == 5
        client = kind(
            CallbackAPIVersion.VERSION2,
            name,
            None if level5 else False,
            protocol=paho.MQTTv5 if level5 else paho.MQTTv311,
        )
        client.enable_logger(_LOGGER)
        client.reconnect_delay_set(_RETRY, _RETRY)
        if level5:
            # paho has no type annotations for Properties.
            properties: Any = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = 3_600
            client.connect("127.0.0.1", self.relay.port, clean_start=False, properties=properties)
        else:
            client.connect("127.0.0.1", self.relay.port)
        return client

    def _on_message(self, _client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
        self.received[bytes(message.payload)] += 1

    def _on_subscribe(self, *_: object) -> None:
        self._subscribed = True

    def _on_publish(self, *_: object) -> None:
        self._completed += 1

    async def _start_broker(self) -> None:
        self._broker = await asyncio.to_thread(
            BrokerProcess, "--data-dir", str(self._directory), "--store-segment", "65536"
        )

    def _open(self) -> None:
        """Let clients connect: tell the network proxy the MQTT port of the new broker."""
        assert self._broker is not None
        self.relay.upstream = self._broker.mqtt.port

    async def _stop_broker(self) -> None:
        assert self._broker is not None
        self.relay.upstream = 0
        await asyncio.to_thread(self._broker.stop)

    async def _publish_until_kill(self, publisher: paho.Client) -> None:
        """Publish until a packet of a random kind passes the network proxy; then kill the broker.

        At random, the proxy drops that packet or forwards it.
        """
        random, broker = self._random, self._broker
        assert broker is not None
        moment, left = random.choice(MOMENTS), random.choice((1, 1, 2, 20, 100, 400))
        if moment[-1] == CONNACK:
            left = 1
        loses = random.random() < 0.5

        def trap(packet: Recorded) -> bool:
            nonlocal left
            if (packet.from_client, packet.client, packet.kind) != moment:
                return True
            left -= 1
            if left > 0:
                return True
            self.relay.trap = None
            self.relay.upstream = 0
            broker.process.kill()
            return not loses

        self.relay.trap = trap
        self._open()
        async with asyncio.timeout(PATIENCE):
            while self.relay.upstream:
                self._publish(publisher)
                await asyncio.sleep(random.choice((0, 0, 0.001, 0.01)))
        code = await asyncio.to_thread(broker.process.wait)
        assert "Traceback" not in broker.log and code == -signal.SIGKILL, broker.log
        broker.kill()
        self._judge()

    def _publish(self, publisher: paho.Client) -> None:
        """Publish a random number of messages, with at most OUTSTANDING unacknowledged messages."""
        outstanding = len(self.bodies) - self._completed
        for _ in range(self._random.randint(0, OUTSTANDING - outstanding)):
            body = body_of(PUBLISHER, len(self.bodies), self._random.choice(SIZES))
            self.bodies.append(body)
            publisher.publish(TOPIC, body, 2)

    async def _finish(self) -> None:
        """Wait until all messages have arrived, and all QoS 2 handshakes are complete."""
        await until(
            lambda: (
                self._completed == len(self.bodies) and self.received.keys() >= set(self.bodies)
            ),
            2 * PATIENCE,
        )

        def ended() -> bool:
            self._judge()
            return self.exchanges.complete

        await until(ended)

    def write_record(self, path: Path) -> None:
        """Write all recorded packets to a file, one per line."""
        path.write_text("".join(f"{packet}\n" for packet in self.relay.records))

    def _judge(self) -> None:
        """Check the packets that were recorded since the last call, and keep the faults found."""
        records = self.relay.records
        while self._taken < len(records):
            self.exchanges.take(records[self._taken])
            self._taken += 1
