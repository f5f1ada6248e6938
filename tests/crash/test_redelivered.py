"""After kill -9, the broker delivers unacknowledged messages again, marked as redelivered."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from typing import Any

import pamqp.commands as spec
import pytest

from tests.broker import BrokerProcess
from tests.clients import marshal
from tests.crash.wire import GONE, PATIENCE, Amqp, Delivered, acknowledgement, persistent, until

QUEUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "quorum": {"x-queue-type": "quorum", "x-delivery-limit": -1},
    "priority": {"x-max-priority": 5},
}

#: Each queue makes at least this number of deliveries before each kill: one to each consumer. (A
#: consumer with prefetch 1 gets no other message if it does not settle the first.)
LEAST = 2


class Held:
    """The messages that a queue has delivered.

    `got` checks that a message which is delivered again has the flag `redelivered`.
    """

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.delivered: set[int] = set()
        #: Number of all deliveries, and number of repeated deliveries.
        self.received = 0
        self.repeated = 0

    def got(self, event: Delivered) -> int:
        number = int(event.body)
        assert event.redelivered or number not in self.delivered, (
            f"{self.queue}: message {number} was delivered before, and is not redelivered"
        )
        self.received += 1
        self.repeated += number in self.delivered
        self.delivered.add(number)
        return number


async def publish(port: int, random: Random, first: int) -> int:
    """Publish to each queue until the broker ends; return the number for the next message."""
    client = await Amqp.connect(port)
    try:
        while True:
            for _ in range(random.randrange(1, 40)):
                for queue in QUEUES:
                    await client.send(persistent("", queue, b"%d" % first))
                first += 1
            await asyncio.sleep(random.choice((0, 0, 0.002)))
    except GONE:
        return first + 1


async def hold(port: int, random: Random, held: Held) -> None:
    """Consume from the queue of `held` until the broker ends; settle some of the messages."""
    try:
        while True:
            client = await Amqp.connect(port)
            await client.consume(held.queue, prefetch=random.choice((0, 1, 10, 300)))
            tags: dict[int, int] = {}
            for _ in range(random.choice((5, 500, 5_000))):
                event = await client.event()
                assert isinstance(event, Delivered), event
                tags[event.tag] = held.got(event)
                if random.random() < 0.5:
                    tag = random.choice(list(tags))
                    if random.random() < 0.7:
                        del tags[tag]
                        await client.send(acknowledgement(tag))
                    else:
                        del tags[tag]
                        await client.send(marshal(1, spec.Basic.Nack(tag, requeue=True)))
            client.abort()
    except GONE:
        pass


async def life(directory: Path, random: Random, first: int, helds: list[Held]) -> int:
    """Run a broker with publishers and consumers, and kill it.

    Messages are numbered from `first` on. Return the number from which the next call may go on.
    """
    broker = BrokerProcess("--data-dir", str(directory), module="tests.crash.patient")
    try:
        port = broker.amqp.port
        client = await Amqp.connect(port)
        for name, arguments in QUEUES.items():
            await client.call(
                spec.Queue.Declare(queue=name, durable=True, arguments=arguments), (50, 11)
            )
        tasks = [hold(port, random, held) for held in helds for _ in range(2)]
        before = {held.queue: held.received for held in helds}
        running = [asyncio.create_task(task) for task in tasks]
        publishing = asyncio.create_task(publish(port, random, first))
        await asyncio.sleep(random.uniform(0.2, 1.5))
        # On a slow machine, the kill waits until each queue has delivered messages.
        await until(lambda: all(held.received >= before[held.queue] + LEAST for held in helds))
    finally:
        broker.kill()
    await asyncio.gather(*running)
    return await publishing


async def check_rest(directory: Path, helds: list[Held]) -> None:
    """Consume all messages of a restarted broker.

    Check that each message which was delivered before an earlier kill is marked as redelivered.
    """
    broker = BrokerProcess("--data-dir", str(directory))
    try:
        for held in helds:
            client = await Amqp.connect(broker.amqp.port)
            depth = await client.depth(held.queue)
            await client.consume(held.queue)
            async with asyncio.timeout(PATIENCE):
                for _ in range(depth):
                    event = await client.event()
                    assert isinstance(event, Delivered), event
                    held.got(event)
            client.abort()
    finally:
        broker.stop()


async def take(port: int, queue: str, count: int) -> dict[int, bool]:
    """Consume `count` messages, settle none, and return number -> redelivered flag."""
    client = await Amqp.connect(port)
    await client.consume(queue, prefetch=count)
    flags: dict[int, bool] = {}
    async with asyncio.timeout(PATIENCE):
        while len(flags) < count:
            event = await client.event()
            assert isinstance(event, Delivered), event
            flags[int(event.body)] = event.redelivered
    return flags


@pytest.mark.parametrize("queue", QUEUES)
def test_broker_that_stops_in_order_redelivers_exactly_the_unsettled_deliveries(
    tmp_path: Path, queue: str
) -> None:
    async def first(port: int) -> None:
        client = await Amqp.connect(port)
        await client.call(
            spec.Queue.Declare(queue=queue, durable=True, arguments=QUEUES[queue]), (50, 11)
        )
        await client.send(b"".join(persistent("", queue, b"%d" % number) for number in range(50)))
        assert await take(port, queue, 10) == dict.fromkeys(range(10), False)

    broker = BrokerProcess("--data-dir", str(tmp_path / "d"))
    try:
        asyncio.run(first(broker.amqp.port))
        broker.stop()
    finally:
        broker.kill()
    broker = BrokerProcess("--data-dir", str(tmp_path / "d"))
    try:
        flags = asyncio.run(take(broker.amqp.port, queue, 50))
    finally:
        broker.kill()
    assert flags == {number: number < 10 for number in range(50)}


@pytest.mark.long
@pytest.mark.parametrize("seed", range(8))
def test_killed_broker_redelivers_the_unsettled_deliveries(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    helds = [Held(queue) for queue in QUEUES]

    async def lives() -> None:
        first = 0
        for _ in range(4):
            first = await life(tmp_path / "d", random, first, helds)
        await check_rest(tmp_path / "d", helds)

    asyncio.run(lives())
    for held in helds:
        assert held.repeated > 0, f"no message of {held.queue} came back"
