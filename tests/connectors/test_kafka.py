"""Tests of links to and from Kafka, on kfake and, in `make test-long`, on a real Kafka node."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import aio_pika
import pytest

pytest.importorskip("aiohttp", reason="the extra [connect] is not installed")

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from tests.cluster.programs import KafkaNodes
from tests.connectors.conftest import Links, letters, until
from tests.connectors.test_webhooks import publish, queue_of
from trellis.connect.link import ConnectorLink
from trellis.connect.status import LinkState

Channel = aio_pika.abc.AbstractChannel
PARTITIONS: Final = 4


@pytest.fixture(scope="session")
def real_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNodes]:
    """Start one real Kafka node for many tests."""
    nodes = KafkaNodes(tmp_path_factory.mktemp("kafka"), 1)
    yield nodes
    nodes.close()


@pytest.fixture(params=["kfake", pytest.param("real_kafka", marks=pytest.mark.long)])
def servers(request: pytest.FixtureRequest) -> str:
    """Return the address of kfake or, in `make test-long`, of a real Kafka node."""
    addresses: str = request.getfixturevalue(request.param).servers
    return addresses


@pytest.fixture
def topic(servers: str, unique: str) -> str:
    """Create a topic with PARTITIONS partitions for one test; return its name."""
    return created(servers, unique)


def created(servers: str, name: str) -> str:
    """Create a topic with PARTITIONS partitions; return its name."""
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.create_topics([NewTopic(name, PARTITIONS, 1)]).values():
        future.result(30)
    return name


def records(servers: str, topic: str, count: int) -> list[Message]:
    """Return the first `count` records received from a topic, sorted by partition and offset."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "test", "auto.offset.reset": "earliest"}
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    received: list[Message] = []
    while len(received) < count:
        part = consumer.consume(count - len(received), 60)
        assert part, f"{len(received)} records came instead of {count}"
        assert [each.error() for each in part] == [None] * len(part)
        received += part
    consumer.close()
    return sorted(received, key=lambda each: (each.partition() or 0, each.offset() or 0))


def produce(servers: str, topic: str, rows: Sequence[tuple[bytes | None, bytes | None]]) -> None:
    """Publish records with these keys and values."""
    producer = Producer({"bootstrap.servers": servers, "partitioner": "murmur2_random"})
    headers: Any = [("trace", b"t"), ("content-type", b"text/plain"), ("raw", b"\xff")]
    # The broker would refuse these headers (406) or drop the record as a repeat.
    headers += [("CC", b"text"), ("x-trellis-producer", b"p"), ("x-trellis-sequence", b"1")]
    headers += [("reply-to", b"amq.rabbitmq.reply-to")]
    for key, value in rows:
        producer.produce(topic, value, key, headers=headers)
    assert producer.flush(30) == 0


def committed(servers: str, topic: str, group: str) -> int:
    """Return the sum of the offsets that a group has committed for all partitions of a topic."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
    offsets = consumer.committed(places, 20)
    consumer.close()
    return sum(max(each.offset, 0) for each in offsets)


def to_kafka(links: Links, servers: str, topic: str, **more: Any) -> ConnectorLink:
    section = {
        "name": topic[-60:],
        "servers": servers,
        "topic": topic,
        "dead_letter": f"{topic}.failed",
    }
    source = {} if "stream" in more else {"queue": topic}
    return links.start("to_kafka", **section, **source, **more)


def from_kafka(links: Links, servers: str, topic: str, **more: Any) -> ConnectorLink:
    section = {"name": topic[-60:], "servers": servers, "topics": [topic], "group": topic}
    return links.start("from_kafka", **section, **more)


# -- to Kafka


async def test_messages_become_records_with_key_and_headers(
    links: Links, channel: Channel, servers: str, topic: str
) -> None:
    await queue_of(channel, topic)
    at = datetime(2026, 3, 1, 12, tzinfo=UTC)
    await publish(
        channel,
        topic,
        b"\xff\x00",
        content_type="image/x",
        message_id="m",
        timestamp=at,
        headers={
            "text": "ä",
            "number": 7,
            "raw": bytearray(b"\xff"),
            "table": {"a": [1]},
            "amqp-exchange": "forged",
            "amqp-routing-key": "forged",
        },
    )
    link = to_kafka(links, servers, topic, key="k-{routing_key}")
    await until(lambda: link.status.delivered == 1)
    [record] = await asyncio.to_thread(records, servers, topic, 1)
    assert record.key() == f"k-{topic}".encode()
    assert record.value() == b"\xff\x00"
    assert record.timestamp()[1] == int(at.timestamp() * 1000)
    headers: Any = record.headers()
    assert len(headers) == len(dict(headers))
    assert dict(headers) == {
        "text": "ä".encode(),
        "number": b"7",
        "raw": b"\xff",
        "table": b'{"a": [1]}',
        "content-type": b"image/x",
        "message-id": b"m",
        "amqp-exchange": b"",
        "amqp-routing-key": topic.encode(),
    }


async def test_messages_of_one_key_stay_in_order_in_one_partition(
    links: Links, channel: Channel, servers: str, topic: str
) -> None:
    await queue_of(channel, topic)
    queue = await channel.get_queue(topic, ensure=False)
    await queue.bind("amq.topic", f"{topic}.#")
    exchange = await channel.get_exchange("amq.topic", ensure=False)
    for number in range(120):
        message = aio_pika.Message(b"%d" % number)
        await exchange.publish(message, f"{topic}.device{number % 7}")
    link = to_kafka(links, servers, topic, key="{word2}", in_flight=50)
    await until(lambda: link.status.delivered == 120)
    received = await asyncio.to_thread(records, servers, topic, 120)
    by_key: dict[Any, list[tuple[Any, int]]] = {}
    for each in received:
        by_key.setdefault(each.key(), []).append((each.partition(), int(each.value() or b"")))
    assert len(by_key) == 7
    for places in by_key.values():
        assert len({partition for partition, _ in places}) == 1
        assert places == sorted(places)
    assert len({each.partition() for each in received}) > 1
    await links.stop(link)


async def test_a_stream_goes_to_kafka_once(
    links: Links, channel: Channel, servers: str, topic: str
) -> None:
    await queue_of(channel, topic, **{"x-queue-type": "stream"})
    await publish(channel, topic, *(b"%d" % number for number in range(10)))
    link = to_kafka(links, servers, topic, stream=topic)
    await until(lambda: link.status.delivered == 10)
    await links.stop(link)
    assert link.status.offset == 9
    await publish(channel, topic, b"10")
    link = to_kafka(links, servers, topic, stream=topic)
    await until(lambda: link.status.delivered == 1)
    received = await asyncio.to_thread(records, servers, topic, 11)
    assert [int(each.value() or b"") for each in received] == list(range(11))


async def test_a_message_that_is_too_large_for_kafka_is_a_dead_letter(
    links: Links, channel: Channel, servers: str, topic: str
) -> None:
    await queue_of(channel, topic)
    await publish(channel, topic, b"x" * 5_000, b"small")
    link = to_kafka(links, servers, topic, options={"message.max.bytes": 2_000})
    await until(lambda: link.status.delivered == 1)
    [letter] = await letters(channel, f"{topic}.failed", 1)
    assert len(letter.body) == 5_000
    assert "too large" in str(letter.headers["x-connect-reason"]).lower()
    assert link.status.dead_lettered == 1


async def test_a_missing_topic_is_an_error_until_it_exists(
    links: Links, channel: Channel, servers: str, unique: str
) -> None:
    await queue_of(channel, unique)
    await publish(channel, unique, b"x")
    link = to_kafka(links, servers, unique)
    await until(lambda: link.status.state is LinkState.FAILING)
    assert f"has no topic '{unique}'" in link.status.error
    await asyncio.to_thread(created, servers, unique)
    await until(lambda: link.status.delivered == 1)


# -- from Kafka


async def test_records_become_messages(
    links: Links, channel: Channel, servers: str, topic: str
) -> None:
    await queue_of(channel, topic)
    queue = await channel.get_queue(topic, ensure=False)
    await queue.bind("amq.topic", "from.#")
    produce(servers, topic, [(b"device.7", b"\x00"), (None, None)])
    link = from_kafka(links, servers, topic, routing_key="from.{key}")
    await until(lambda: link.status.delivered == 2)
    messages = {each.routing_key: each for each in await letters(channel, topic, 2)}
    assert set(messages) == {"from.device.7", "from."}
    message = messages["from.device.7"]
    assert message.body == b"\x00"
    assert messages["from."].body == b""
    assert (message.content_type, message.reply_to) == ("text/plain", None)
    place = message.headers["x-connect-partition"], message.headers["x-connect-offset"]
    assert message.message_id == "-".join([topic, *map(str, place)])
    assert message.headers["trace"] == "t"
    assert message.headers["raw"] == bytearray(b"\xff")
    assert not message.headers.keys() & {"CC", "x-trellis-producer", "x-trellis-sequence"}
    assert message.headers["x-connect-topic"] == topic
    assert message.headers["x-connect-key"] == "device.7"
    await links.stop(link)
    assert await asyncio.to_thread(committed, servers, topic, topic) == 2


async def test_offsets_are_committed_after_the_confirms_only(
    links: Links, channel: Channel, servers: str, topic: str
) -> None:
    """Check that no offset is committed while the records wait because no queue takes them.

    When a queue is bound, the link copies the records, and commits their offsets.
    """
    produce(servers, topic, [(b"k", b"%d" % number) for number in range(5)])
    link = from_kafka(links, servers, topic, routing_key=f"{topic}.{{key}}")
    await until(lambda: link.status.retries >= 5)
    assert "no queue takes" in link.status.error
    assert await asyncio.to_thread(committed, servers, topic, topic) == 0
    await queue_of(channel, topic)
    queue = await channel.get_queue(topic, ensure=False)
    await queue.bind("amq.topic", f"{topic}.#")
    await until(lambda: link.status.delivered == 5)
    assert [each.body for each in await letters(channel, topic, 5)] == [
        b"%d" % number for number in range(5)
    ]
    await links.stop(link)
    assert await asyncio.to_thread(committed, servers, topic, topic) == 5


async def test_records_without_a_queue_can_be_dropped(
    links: Links, servers: str, topic: str
) -> None:
    produce(servers, topic, [(b"k", b"x")])
    link = from_kafka(links, servers, topic, unroutable="drop")
    await until(lambda: link.status.dropped == 1)
    await links.stop(link)
    assert await asyncio.to_thread(committed, servers, topic, topic) == 1


@pytest.mark.long
async def test_a_link_survives_a_pause_and_a_kill_of_kafka(
    links: Links, channel: Channel, tmp_path: Path, unique: str
) -> None:
    nodes = KafkaNodes(tmp_path, 1)
    try:
        created(nodes.servers, unique)
        await queue_of(channel, unique)
        await queue_of(channel, f"{unique}.back")
        link = to_kafka(links, nodes.servers, unique, in_flight=20)
        section = {"topics": [unique], "group": unique, "exchange": "", "servers": nodes.servers}
        back = links.start(
            "from_kafka", name=f"back-{unique}"[-60:], routing_key=f"{unique}.back", **section
        )
        sent = []
        for number in range(6):
            bodies = [b"%d-%d" % (number, each) for each in range(50)]
            sent += bodies
            await publish(channel, unique, *bodies)
            if number % 2 == 0:
                await asyncio.to_thread(nodes.kill, 1)
                nodes.start(1)  # The node would end with a thread.
        got: set[bytes] = set()
        async with asyncio.timeout(240):
            queue = await channel.get_queue(f"{unique}.back", ensure=False)
            async with queue.iterator(no_ack=True) as messages:
                async for message in messages:
                    got.add(message.body)
                    if len(got) == len(sent):
                        break
        assert got == set(sent)
        await links.stop(link)
        await links.stop(back)
    finally:
        nodes.close()
