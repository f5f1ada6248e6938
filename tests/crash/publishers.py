"""Publishers over AMQP with confirms, and over MQTT with QoS 1 and QoS 2.

The MQTT publishers use a packet identifier again as soon as its handshake is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

import pamqp.commands as spec

from tests.crash.client import Client, Ports
from tests.crash.ledger import SIZES, Feed
from tests.crash.wire import Amqp, Confirmed, Mqtt, mqtt_message, persistent, short, until

PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
DUP, RETAIN = 8, 1
#: The maximum number of unconfirmed messages of an AMQP publisher.
AHEAD: Final = 60


class Confirming(Client):
    """An AMQP publisher with confirms, which knows the queues that each routing key leads to."""

    def __init__(
        self,
        name: str,
        seed: int,
        exchange: str,
        keys: Sequence[tuple[str, tuple[str, ...]]],
        sizes: tuple[int, ...] = SIZES,
    ) -> None:
        """Create a publisher; `keys` has (routing key, queues that get messages with this key)."""
        super().__init__(name, seed)
        self.feed = Feed(name)
        self._exchange = exchange
        self._keys = keys
        self._sizes = sizes
        #: Returns True if too many confirmed messages wait for their consumer; then the publisher
        #: waits.
        self.backlogged: Callable[[], bool] = lambda: False

    async def live(self, ports: Ports) -> None:
        random, feed = self.random, self.feed
        client = await Amqp.connect(ports.amqp)
        await client.call(spec.Confirm.Select(), (85, 11))
        feed.begin()
        first = sent = confirmed = len(feed.queues)
        while True:
            if sent == confirmed:
                await until(lambda: not self.backlogged())
            if sent == confirmed or sent - confirmed < AHEAD and not self.backlogged():
                data = b""
                for _ in range(random.randrange(1, 25)):
                    key, queues = random.choice(self._keys)
                    data += persistent(
                        self._exchange, key, feed.next(random.choice(self._sizes), *queues)
                    )
                    sent += 1
                await client.send(data)
            event = await client.event()
            assert isinstance(event, Confirmed), event
            number = first + event.number
            assert event.multiple or number == confirmed + 1, (
                f"{number} is confirmed behind {confirmed}"
            )
            feed.confirmed.update(range(confirmed, number))
            confirmed = number


class AtLeastOnce(Client):
    """A publisher with QoS 1, which continues after each kill of the broker.

    After a kill, it either sends all unacknowledged messages again, or forgets all of them.
    """

    def __init__(
        self, name: str, seed: int, topic: str, queues: tuple[str, ...], identifiers: int = 6
    ) -> None:
        super().__init__(name, seed)
        self.feed = Feed(name)
        self._topic = topic
        self._queues = queues
        self._identifiers = identifiers
        #: Packet identifier -> number and body, in the order in which they were sent first.
        self._waiting: dict[int, tuple[int, bytes]] = {}
        self._known = False

    async def live(self, ports: Ports) -> None:
        random, feed = self.random, self.feed
        client = await Mqtt.connect(ports.mqtt, self.name)
        assert client.present == self._known, f"session present: {client.present}"
        self._known = True
        if random.random() < 0.3:
            self._waiting.clear()
        for packet_id, (number, body) in self._waiting.items():
            feed.again[number] = feed.again.get(number, 0) + 1
            await client.send(mqtt_message(self._topic, body, 1, packet_id, DUP))
        feed.begin()
        while True:
            data = b""
            while len(self._waiting) < self._identifiers and random.random() < 0.9:
                packet_id = next(free for free in count(1) if free not in self._waiting)
                body = feed.next(random.choice(SIZES), *self._queues)
                self._waiting[packet_id] = len(feed.queues) - 1, body
                data += mqtt_message(self._topic, body, 1, packet_id)
            await client.send(data)
            while self._waiting:
                first, answer = await client.packet()
                assert first == PUBACK, f"{first:#x} {answer.hex()}"
                number, _ = self._waiting.pop(int.from_bytes(answer, "big"))
                feed.confirmed.add(number)
                if random.random() < 0.5:
                    break


class ExactlyOnce(Client):
    """A publisher that completes each QoS 2 handshake, however often the broker is killed.

    It sends PUBLISH again until it gets PUBREC, and then PUBREL until it gets PUBCOMP
    [MQTT-4.3.3-1].
    """

    def __init__(
        self, name: str, seed: int, topic: str, queues: tuple[str, ...], identifiers: int = 8
    ) -> None:
        super().__init__(name, seed)
        self.feed = Feed(name)
        self.feed.begin()
        #: The last message that the broker should retain.
        self.retained = b""
        #: True if no new messages shall be sent.
        self.closing = False
        self._topic = topic
        self._queues = queues
        self._identifiers = identifiers
        #: Packet identifier -> PUBLISH to be sent again, or empty after its PUBREC.
        self._waiting: dict[int, tuple[int, bytes, int]] = {}
        self._known = False

    async def live(self, ports: Ports) -> None:
        client = await Mqtt.connect(ports.mqtt, self.name)
        assert client.present == self._known, f"session present: {client.present}"
        self._known = True
        for packet_id, (_, body, flags) in self._waiting.items():
            await client.send(
                mqtt_message(self._topic, body, 2, packet_id, flags | DUP)
                if body
                else short(PUBREL, packet_id)
            )
        while True:
            await self._fill(client)
            if not self._waiting:
                return await client.leave()
            first, answer = await client.packet()
            packet_id = int.from_bytes(answer, "big")
            number, body, _ = self._waiting[packet_id]
            if first == PUBREC:
                self.feed.confirmed.add(number)
                self._waiting[packet_id] = number, b"", 0
                await client.send(short(PUBREL, packet_id))
            else:
                assert first == PUBCOMP and not body, f"{first:#x} {answer.hex()}"
                del self._waiting[packet_id]

    async def _fill(self, client: Mqtt) -> None:
        random = self.random
        while not self.closing and len(self._waiting) < self._identifiers and random.random() < 0.9:
            packet_id = next(free for free in count(1) if free not in self._waiting)
            body = self.feed.next(random.choice(SIZES), *self._queues)
            flags = 0
            if random.random() < 0.1:
                flags, self.retained = RETAIN, body
            self._waiting[packet_id] = len(self.feed.queues) - 1, body, flags
            await client.send(mqtt_message(self._topic, body, 2, packet_id, flags))
