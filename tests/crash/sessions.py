"""A subscriber with a persistent session, which disconnects, loses its connection and reconnects.

The subscriber keeps its QoS 2 state from one connection to the next, as [MQTT-4.3.3-2] requires.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from tests.crash.client import Client, Ports
from tests.crash.ledger import read_body
from tests.crash.publishers import PUBACK, PUBCOMP, PUBREC, PUBREL
from tests.crash.wire import Mqtt, read_publish, short

Message = tuple[str, int]


class Subscriber(Client):
    """An MQTT subscriber that records the messages that it accepts.

    It drops a QoS 2 message as a duplicate if the last handshake with this packet identifier is not
    complete.
    """

    def __init__(self, name: str, seed: int, topic_filter: str) -> None:
        super().__init__(name, seed)
        #: All accepted messages, in order, by QoS.
        self.handed: dict[int, list[Message]] = {1: [], 2: []}
        #: For each QoS 1 message: the number of its copies whose acknowledgement is durable.
        self.settled: Counter[Message] = Counter()
        #: Publisher -> number of a message -> how often the publisher has sent the message again.
        #: For each repetition, the broker may have stored another copy.
        self.sent_again: dict[str, dict[int, int]] = {}
        #: True if the subscriber shall stay connected.
        self.closing = False
        self.visits = 0
        self._filter = topic_filter
        self._held: set[int] = set()

    async def begin(self, ports: Ports) -> None:
        """Connect, open the persistent session, and subscribe."""
        client = await Mqtt.connect(ports.mqtt, self.name)
        await client.subscribe((self._filter, 2))
        await client.leave()

    async def live(self, ports: Ports) -> None:
        random = self.random
        while True:
            client = await Mqtt.connect(ports.mqtt, self.name)
            assert client.present, "the session is gone"
            self.visits += 1
            await self._read(client, random.randrange(50, 1_500))
            if random.random() < 0.5:
                client.abort()
            else:
                await client.send(b"\xe0\x00")
                client.writer.close()
            await asyncio.sleep(random.choice((0, 0.01, 0.1)))

    async def _read(self, client: Mqtt, count: int) -> None:
        """Read and answer `count` packets; at random, leave the last packet unanswered."""
        random = self.random
        acked: list[Message] = []
        #: Packet identifier of a QoS 2 message -> QoS 1 messages acknowledged before its PUBREC on
        #: this connection. When the PUBREL comes, the PUBREC is durable, and so are these
        #: acknowledgements.
        before: dict[int, list[Message]] = {}
        while count > 0 or self.closing:
            first, data = await client.packet()
            count -= 1
            answer = b""
            if first == PUBREL:
                packet_id = int.from_bytes(data, "big")
                self._held.discard(packet_id)
                self.settled.update(before.pop(packet_id, ()))
                answer = short(PUBCOMP, packet_id)
            else:
                assert first >> 4 == 3, f"{first:#x} {data.hex()}"
                publication = read_publish(first, data)
                message = read_body(publication.body)
                if publication.qos == 1:
                    name, number = message
                    again = self.sent_again.get(name, {}).get(number, 0)
                    assert self.settled[message] <= again, (
                        f"{message} was settled for good, and came again; copies settled: "
                        f"{self.settled[message]}, sent again: {again}"
                    )
                    self.handed[1].append(message)
                    acked.append(message)
                    answer = short(PUBACK, publication.packet_id)
                else:
                    assert publication.qos == 2, publication
                    if publication.packet_id not in self._held:
                        self._held.add(publication.packet_id)
                        self.handed[2].append(message)
                    before[publication.packet_id], acked = acked, []
                    answer = short(PUBREC, publication.packet_id)
            if count > 0 or self.closing or random.random() < 0.5:
                await client.send(answer)
