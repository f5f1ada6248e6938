"""Tests that a wait for a delivery mark makes a queue neither drop nor refuse a message.

A queue delivers nothing above its delivery mark. Here the messages of another queue have taken the
store far beyond the mark, and the disk is slow. So the next mark is not durable for a while.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

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


def test_a_message_with_the_expiration_0_follows_a_message_that_waits_for_the_mark(
    tmp_path: Path,
) -> None:
    _, publisher, consumer = beyond_the_mark(tmp_path, x_max_length=100)
    publish(publisher, 0, count=1)
    assert consumer.bodies() == []
    publish(publisher, 1, count=1, expiration="0")
    assert consumer.bodies() == [b"0", b"1"]


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
