"""Tests of peek, which reads the messages of a queue and leaves them in the queue.

The messages must equal the messages that clients get.
"""

from __future__ import annotations

import errno
from pathlib import Path
from random import Random
from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.peeking import PeekCursor, PeekedMessage, peek
from broker.queues.queue import Queue
from broker.store.disk import OutOfDescriptors
from tests.clients import Amqp
from tests.store.homes import Home
from tests.store.simulated import SimulatedDisk
from tests.wire.amqp.speech import deliveries

B = spec.Basic


def everything(queue: Queue, at_once: int = 3) -> list[PeekedMessage]:
    """Read all messages of a queue by peek, `at_once` messages in each call."""
    cursor, messages = PeekCursor(), []
    more = peek(queue, cursor, at_once)
    while more:
        messages += more
        more = peek(queue, cursor, at_once)
    return messages


def bodies(queue: Queue, at_once: int = 3) -> list[tuple[bytes, bool]]:
    """Return (body, True if the message was delivered before) of each message."""
    return [
        (one.message.body if one.message else b"?", one.attempts > 0)
        for one in everything(queue, at_once)
    ]


def state(queue: Queue) -> tuple[Any, ...]:
    return (
        queue.statistics(),
        queue.fates(),
        list(queue.events()),
        int(queue.depth),
        int(queue.unacked),
        queue.paged,
    )


def taken(client: Amqp, count: int) -> list[tuple[bytes, bool]]:
    """Fetch messages, and return them with their redelivered flag."""
    messages = []
    for _ in range(count):
        frames = client.send(B.Get(queue="q"))
        (body,) = client.bodies(frames)
        messages.append((body, bool(frames[0].redelivered)))
    return messages


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "arguments",
    [{}, {"x_max_length_bytes": 1 << 20}, {"x_message_ttl": 1 << 30}, {"x_max_priority": 3}],
    ids=["plain", "limited", "ttl", "priority"],
)
def test_reads_the_messages_in_the_order_in_which_clients_get_them(
    tmp_path: Path, seed: int, arguments: dict[str, Any]
) -> None:
    random, home = Random(seed), Home(tmp_path / "data")
    home.store.window = random.choice((3, 8, 1_000))
    client = home.amqp()
    client.queue("q", durable=True, **arguments)
    number = 0
    for _ in range(random.randrange(2, 7)):
        for _ in range(random.randrange(15)):
            number += 1
            properties: dict[str, Any] = {"delivery_mode": random.choice((1, 2))}
            if random.random() < 0.5:
                properties["priority"] = random.randrange(5)
            client.publish("", "q", b"%d" % number, **properties)
        for tag in range(min(random.randrange(4), home.queue("q").depth)):
            client.send(B.Get(queue="q"))
            if random.random() < 0.3:
                client.send(B.Recover(requeue=True))
            del tag
        if random.random() < 0.5:
            client.send(B.Recover(requeue=True))
    client.send(B.Recover(requeue=True))
    before = state(home.queue("q"))
    read = bodies(home.queue("q"), random.choice((1, 3, 100)))
    assert state(home.queue("q")) == before
    assert len(read) == home.queue("q").depth
    assert taken(client, len(read)) == read
    home.crash()


@pytest.mark.parametrize("large", [10, 100_000], ids=["small", "large"])
def test_reads_messages_that_are_on_disk(tmp_path: Path, large: int) -> None:
    home = Home(tmp_path / "data")
    home.store.window = 4
    client = home.amqp()
    client.queue("q", durable=True)
    sent = [b"%04d" % number + bytes(large) for number in range(20 if large > 10 else 600)]
    for body in sent:
        client.publish("", "q", body, delivery_mode=2)
    assert home.queue("q").paged > 0
    assert bodies(home.queue("q"), 1_000) == [(body, False) for body in sent]
    home.crash()


def test_messages_that_were_delivered_before_a_crash_are_marked(tmp_path: Path) -> None:
    first = Home(tmp_path / "data")
    client = first.amqp()
    client.queue("q", durable=True)
    for number in range(5):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
    taken(client, 2)
    first.crash()
    second = Home(tmp_path / "data")
    second.store.window = 2
    read = bodies(second.queue("q"))
    assert read[:2] == [(b"0", True), (b"1", True)]
    assert bodies(second.queue("q")) == read
    assert taken(second.amqp(), 5) == read
    second.crash()


def test_each_call_continues_although_the_queue_delivers_meanwhile(tmp_path: Path) -> None:
    home = Home(tmp_path / "data")
    client = home.amqp()
    client.queue("q", durable=True)
    for number in range(10):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
    cursor = PeekCursor()
    assert [one.message.body for one in peek(home.queue("q"), cursor, 3) if one.message] == [
        b"0",
        b"1",
        b"2",
    ]
    taken(client, 6)
    assert [one.message.body for one in peek(home.queue("q"), cursor, 9) if one.message] == [
        b"6",
        b"7",
        b"8",
        b"9",
    ]
    assert peek(home.queue("q"), cursor, 9) == []
    home.crash()


def test_without_a_free_file_descriptor_nothing_is_lost(tmp_path: Path) -> None:
    disk = SimulatedDisk()
    home = Home(tmp_path / "data", disk=disk, segment_size=500)
    home.store.window = 2
    client = home.amqp()
    client.queue("q", durable=True)
    for number in range(30):
        client.publish("", "q", b"%d" % number, delivery_mode=2)
    disk.refuse = lambda operation, path: errno.EMFILE if operation == "open" else 0
    queue = home.queue("q")
    with pytest.raises(OutOfDescriptors):
        everything(queue)
    disk.refuse = lambda operation, path: 0
    assert bodies(queue) == [(b"%d" % number, False) for number in range(30)]
    home.crash()


def test_a_consumer_gets_a_message_that_was_read_as_not_redelivered(tmp_path: Path) -> None:
    home = Home(tmp_path / "data")
    client = home.amqp()
    client.queue("q", durable=True)
    client.publish("", "q", b"once", delivery_mode=2)
    assert bodies(home.queue("q")) == [(b"once", False)]
    frames = client.send(B.Consume(queue="q", no_ack=True))
    (delivered,) = deliveries(frames)
    assert (delivered.body, delivered.redelivered) == (b"once", False)
    home.crash()
