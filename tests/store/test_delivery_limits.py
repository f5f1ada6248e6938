"""Tests that a queue drops and refuses no message while it waits for a delivery mark.

A durable queue delivers no message above its delivery mark. In these tests, messages of another
queue have moved the store's position far beyond the mark, and the disk is slow. So the next mark
is not durable for a while.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.slices import DELIVERIES_PER_DRAIN
from tests.clients import Amqp, publication
from tests.store.homes import Home

B = spec.Basic


def beyond_the_mark(tmp_path: Path, **arguments: Any) -> tuple[Home, Amqp, Amqp]:
    """Return a publisher and a consumer of a queue whose delivery mark is not durable yet."""
    home = Home(tmp_path / "data")
    home.store.mark_span = 100
    publisher, consumer = home.amqp(), home.amqp()
    publisher.queue("q", durable=True, **arguments)
    publisher.queue("other", durable=True)
    consumer.send(B.Consume(queue="q", consumer_tag="c", no_ack=True))
    publish(publisher, 1, "other", count=200)
    publisher.send(spec.Confirm.Select())
    home.slow_disk = True
    return home, publisher, consumer


def publish(client: Amqp, first: int, queue: str = "q", count: int = 10, **given: Any) -> None:
    client.connection.receive_data(
        b"".join(
            publication("", queue, b"%d" % number, delivery_mode=2, **given)
            for number in range(first, first + count)
        )
    )
    client.read()


@pytest.mark.parametrize(
    "arguments",
    [
        {"x_message_ttl": 0},
        {"x_max_length": 0},
        {"x_max_length": 2},
        {"x_max_length_bytes": 2},
        {"x_max_length": 2, "x_overflow": "reject-publish"},
        {"x_max_length_bytes": 2, "x_overflow": "reject-publish"},
        {"x_max_length": 2, "x_max_priority": 3},
        {"x_message_ttl": 0, "x_max_priority": 3},
    ],
)
def test_a_ready_consumer_gets_all_messages_of_a_short_queue(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    home, publisher, consumer = beyond_the_mark(tmp_path, **arguments)
    publish(publisher, 0)
    home.slow_disk = False
    assert consumer.bodies() == [b"%d" % number for number in range(10)]
    assert home.copies() == {"auto_acknowledged": 10}
    assert {type(frame) for frame in publisher.read()} == {B.Ack}
    home.fates()


@pytest.mark.parametrize("arguments", [{}, {"x_max_length": 100}, {"x_max_priority": 3}])
def test_a_message_with_the_expiration_0_does_not_wait_for_the_mark(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    home, publisher, consumer = beyond_the_mark(tmp_path, **arguments)
    publish(publisher, 0, expiration="0")
    home.slow_disk = False
    home.sleep(1)
    assert consumer.bodies() == [b"%d" % number for number in range(10)]
    assert home.copies() == {"auto_acknowledged": 10}


def test_an_expired_message_follows_a_message_that_waits_for_the_mark(tmp_path: Path) -> None:
    home, publisher, consumer = beyond_the_mark(tmp_path, x_max_length=100)
    publish(publisher, 0, count=1)
    publish(publisher, 1, count=1, expiration="0")
    home.sleep(10)
    assert consumer.bodies() == []
    home.slow_disk = False
    home.turn()
    assert consumer.bodies() == [b"0", b"1"]


def test_the_wait_ends_while_the_disk_is_slow(tmp_path: Path) -> None:
    home, publisher, consumer = beyond_the_mark(tmp_path, x_max_length=2)
    publish(publisher, 0)
    home.sleep(int(home.store.mark_patience) + 10)
    assert consumer.bodies() == [b"%d" % number for number in range(10)]


def test_a_queue_whose_consumers_are_too_slow_stays_bounded(tmp_path: Path) -> None:
    """A queue may be above its limit only while it waits for the delivery mark.

    In each turn, the publisher sends more messages than the queue delivers in a turn.
    """
    home, publisher, consumer = beyond_the_mark(tmp_path, x_max_length=2)
    queue, patience = home.queue("q"), int(home.store.mark_patience)
    burst = publication("", "q", b"x", delivery_mode=2) * (2 * int(DELIVERIES_PER_DRAIN))
    depths: list[int] = []
    for _ in range(4 * patience // 10):
        publisher.connection.receive_data(burst)
        home.sleep(10)
        for client in (publisher, consumer):
            client.connection.data_to_send()
        depths.append(int(queue.depth))
    assert max(depths[: patience // 10]) > DELIVERIES_PER_DRAIN
    assert depths[-1] <= 2
    home.fates()


@pytest.mark.parametrize(
    "arguments", [{"x_max_length": 2}, {"x_max_length": 2, "x_max_priority": 3}]
)
@pytest.mark.parametrize("reason", ["cancelled", "paused"])
def test_the_limits_apply_again_if_no_consumer_is_ready_after_the_wait(
    tmp_path: Path, reason: str, arguments: dict[str, Any]
) -> None:
    home, publisher, consumer = beyond_the_mark(tmp_path, **arguments)
    publish(publisher, 0, count=8)
    publish(publisher, 8, count=2, expiration="0")
    queue = home.queue("q")
    assert queue.depth == 10
    if reason == "cancelled":
        consumer.send(B.Cancel("c"))
    else:
        queue.hold()
    home.slow_disk = False
    home.sleep(200)
    assert consumer.bodies() == []
    # The queue drops 8 of 10 messages for its length, and then the two that have expired.
    assert queue.depth == 0
    assert home.copies() == {"over_limit": 8, "expired": 2}
    publish(publisher, 10, count=5)
    assert queue.depth == 2
    home.fates()


def test_a_queue_that_was_purged_during_the_wait_applies_its_limits(tmp_path: Path) -> None:
    home, publisher, consumer = beyond_the_mark(tmp_path, x_max_length=2)
    publish(publisher, 0)
    publisher.send(B.Cancel("none"), spec.Queue.Purge(queue="q"))
    home.slow_disk = False
    home.turn()
    consumer.send(B.Cancel("c"))
    publish(publisher, 10)
    assert home.queue("q").depth == 2
    home.fates()


def test_a_queue_whose_consumer_is_not_ready_still_drops_its_oldest_message(
    tmp_path: Path,
) -> None:
    home, publisher, consumer = beyond_the_mark(tmp_path, x_max_length=2)
    consumer.send(B.Cancel("c"))
    home.amqp().send(B.Qos(prefetch_count=1), B.Consume(queue="q"))
    publish(publisher, 0)
    home.slow_disk = False
    home.turn()
    assert home.queue("q").unacked == 1 and home.queue("q").depth == 2
    assert home.copies() == {"over_limit": 7}
    home.fates()
