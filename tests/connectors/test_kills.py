"""Kills of the connector, the broker and the target: no confirmed message is lost."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import aio_pika
import aiormq
import pytest

pytest.importorskip("aiohttp", reason="the extra [connect] is not installed")

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests import forks
from tests.broker import ROOT, BrokerProcess, environment
from tests.cluster.programs import KafkaNodes
from tests.connectors.conftest import SECRET
from tests.connectors.test_kafka import PARTITIONS, created
from trellis.parent_process import end_with_parent

#: Largest duration of one test in seconds.
PATIENCE: Final = 300
KILLS: Final = 9
EACH: Final = 60


class Target:
    """The HTTP service of target.py as a process, on the same port after each kill."""

    def __init__(self, record: Path) -> None:
        self.record = record
        self.port = 0
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.connectors.target"),
                *(str(self.port), str(self.record), SECRET),
            ],
            preexec_fn=end_with_parent,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.communicate()

    def received(self) -> list[int]:
        """Return the numbers that the target has received, in the order of their arrival."""
        if not self.record.exists():
            return []
        lines = self.record.read_text().splitlines(keepends=True)
        # A kill may leave an incomplete last line, to which the next process appends.
        numbers = []
        for line in lines:
            with contextlib.suppress(ValueError):
                body = json.loads(json.loads(line)["body"])
                numbers += (
                    [int(base64.b64decode(event["data_base64"])) for event in body]
                    if isinstance(body, list)
                    else [body]
                )
        return numbers


class Broker:
    """A broker process with a data directory, on the same port after each kill."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.process = BrokerProcess("--data-dir", str(directory))
        self.port = self.process.amqp.port

    @property
    def url(self) -> str:
        return f"amqp://guest:guest@127.0.0.1:{self.port}/"

    def kill(self) -> None:
        self.process.kill()

    def start(self) -> None:
        flags = ("--data-dir", str(self._directory), "--amqp-port", str(self.port))
        self.process = BrokerProcess(*flags)


class Connector:
    """A process of `trellis connect`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.start()

    def start(self) -> None:
        self.process = forks.start(
            "trellis", "connect", str(self._file), "--log-level", "error", environment=environment()
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("ready http=")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[Broker]:
    """Start a broker that a test may kill and start again."""
    broker = Broker(tmp_path / "data")
    yield broker
    broker.kill()


async def publish(url: str, queue: str, bodies: list[bytes], **arguments: object) -> None:
    """Declare a queue with these arguments, and publish messages to it.

    Publish each message again until the broker confirms it.
    """
    left = list(bodies)
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                connection = await aio_pika.connect(url, timeout=10)
                async with connection:
                    channel = await connection.channel()
                    await channel.declare_queue(
                        queue,
                        durable=True,
                        arguments=arguments,  # type: ignore[arg-type]
                    )
                    while left:
                        message = aio_pika.Message(
                            left[0], delivery_mode=aio_pika.DeliveryMode.PERSISTENT
                        )
                        await channel.default_exchange.publish(message, queue)
                        left.pop(0)
                return
            except (OSError, aiormq.AMQPError, aio_pika.exceptions.AMQPError, RuntimeError):
                await asyncio.sleep(0.1)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "batch"), [("queue", 1), ("queue", 5), ("stream", 1)])
async def test_no_message_of_a_webhook_is_lost(
    kind: str, batch: int, broker_process: Broker, tmp_path: Path
) -> None:
    arguments = {"x-queue-type": "stream"} if kind == "stream" else {}
    target = Target(tmp_path / "received")
    await publish(broker_process.url, "work", [], **arguments)
    file = tmp_path / "connect.toml"
    file.write_text(f"""
[broker]
url = "{broker_process.url}"
[http]
port = 0
[[webhook]]
name = "work"
{kind} = "work"
url = "http://127.0.0.1:{target.port}/"
allow_private = true
secrets = ["{SECRET}"]
dead_letter = "failed"
attempts = 1000
retry_first = 0.05
retry_max = 0.2
batch = {batch}
""")
    connector = Connector(file)
    try:
        rng = random.Random(batch)
        sent = 0
        for number in range(KILLS):
            bodies = [b"%d" % each for each in range(sent, sent + EACH)]
            publishing = asyncio.create_task(
                publish(broker_process.url, "work", bodies, **arguments)
            )
            sent += EACH
            goal = len(set(target.received())) + rng.randrange(1, EACH // 2)
            await reached(target, min(goal, sent - EACH))
            victim = (connector, broker_process, target)[number % 3]
            victim.kill()
            victim.start()
            await publishing
        await reached(target, sent)
        assert set(target.received()) == set(range(sent))
        assert await depth(broker_process.url, "failed") == 0
    finally:
        connector.kill()
        target.kill()


async def reached(target: Target, count: int) -> None:
    """Wait until the target has received `count` different messages."""
    async with asyncio.timeout(PATIENCE):
        while len(set(target.received())) < count:  # noqa: ASYNC110  (a file of a process)
            await asyncio.sleep(0.02)


async def depth(url: str, queue: str) -> int:
    connection = await aio_pika.connect(url)
    async with connection:
        channel = await connection.channel()
        declared = await channel.declare_queue(queue, passive=True)
        return int(declared.declaration_result.message_count or 0)


@pytest.mark.long
async def test_no_message_to_and_from_kafka_is_lost(broker_process: Broker, tmp_path: Path) -> None:
    """Check that links from a queue to Kafka and back lose no message.

    The connector, the broker and Kafka are killed in turn.
    """
    nodes = KafkaNodes(tmp_path / "kafka", 1)
    created(nodes.servers, "work")
    await publish(broker_process.url, "work", [])
    await publish(broker_process.url, "back", [])
    file = tmp_path / "connect.toml"
    file.write_text(f"""
[broker]
url = "{broker_process.url}"
[http]
port = 0
[[to_kafka]]
name = "out"
queue = "work"
servers = "{nodes.servers}"
topic = "work"
dead_letter = "failed"
in_flight = 20
[[from_kafka]]
name = "back"
servers = "{nodes.servers}"
topics = ["work"]
group = "back"
exchange = ""
routing_key = "back"
options = {{"session.timeout.ms" = 6000}}
""")
    connector = Connector(file)
    try:
        sent = 0
        for number in range(KILLS):
            bodies = [b"%d" % each for each in range(sent, sent + EACH)]
            publishing = asyncio.create_task(publish(broker_process.url, "work", bodies))
            sent += EACH
            await asyncio.to_thread(in_kafka, nodes.servers, max(1, sent - EACH - 20))
            if number % 3 == 2:
                await asyncio.to_thread(nodes.kill, 1)
                nodes.start(1)
            else:
                victim = (connector, broker_process)[number % 3]
                victim.kill()
                victim.start()
            await publishing
        got = await received(broker_process.url, "back", sent)
        assert got == {b"%d" % each for each in range(sent)}
        assert await depth(broker_process.url, "failed") == 0
    finally:
        connector.kill()
        nodes.close()


def in_kafka(servers: str, count: int) -> None:
    """Wait until the topic has at least `count` records."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "test", "log_level": 0})
    end = time.monotonic() + PATIENCE
    record_count = 0
    while record_count < count:
        assert time.monotonic() < end, (record_count, count)
        with contextlib.suppress(KafkaException):  # Kafka is starting.
            record_count = sum(
                consumer.get_watermark_offsets(TopicPartition("work", number), 5)[1]
                for number in range(PARTITIONS)
            )
    consumer.close()


async def received(url: str, queue: str, count: int) -> set[bytes]:
    """Consume a queue until `count` different messages have arrived; return their bodies."""
    bodies: set[bytes] = set()
    async with asyncio.timeout(PATIENCE):
        connection = await aio_pika.connect(url)
        async with connection:
            channel = await connection.channel()
            target = await channel.get_queue(queue, ensure=False)
            async with target.iterator() as messages:
                async for message in messages:
                    bodies.add(message.body)
                    await message.ack()
                    if len(bodies) == count:
                        break
    return bodies
