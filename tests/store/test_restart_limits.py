"""Tests that a queue with a limit is within the limit after a restart.

Consumers held some of the queue's messages before the restart.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.slices import MESSAGES_PER_SLICE
from tests.clients import Amqp, marshal, publication
from tests.store.homes import Home

B = spec.Basic
LIMITS: list[dict[str, Any]] = [
    {"x_max_length": 5},
    {"x_max_length_bytes": 10},
    {"x_max_length": 5, "x_max_priority": 3},
    {"x_max_length": 5, "x_queue_type": "quorum"},
]


def bodies(client: Amqp, queue: str) -> list[bytes]:
    messages: list[bytes] = []
    while got := client.bodies(client.send(B.Get(queue=queue, no_ack=True))):
        messages += got
    return messages


def held(home: Home, count: int, **arguments: Any) -> Amqp:
    """Publish 2 * `count` messages: a consumer holds the first half, and the second half waits."""
    client = home.amqp()
    client.queue("dead", "amq.fanout", durable=True)
    client.queue("q", durable=True, x_dead_letter_exchange="amq.fanout", **arguments)
    client.send(B.Qos(prefetch_count=count), B.Consume(queue="q"))
    for number in range(2 * count):
        client.publish("", "q", b"%02d" % (number % 100), delivery_mode=2)
    assert (home.queue("q").unacked, home.queue("q").depth) == (count, count)
    return client


@pytest.mark.parametrize("arguments", LIMITS)
def test_messages_that_a_consumer_held_do_not_fill_a_queue_above_its_limit(
    tmp_path: Path, arguments: dict[str, Any]
) -> None:
    home = Home(tmp_path / "d")
    held(home, 5, **arguments)
    home.crash()
    home = Home(tmp_path / "d")
    home.settle()
    assert home.queue("q").depth == 5
    client = home.amqp()
    assert bodies(client, "q") == [b"%02d" % number for number in range(5, 10)]
    assert bodies(client, "dead") == [b"%02d" % number for number in range(5)]
    home.crash()


def test_a_queue_that_refuses_messages_drops_none_that_it_has_accepted(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    held(home, 5, x_max_length=5, x_overflow="reject-publish")
    home.crash()
    home = Home(tmp_path / "d")
    home.settle()
    client = home.amqp()
    client.send(spec.Confirm.Select())
    [answer] = client.publish("", "q", b"more", delivery_mode=2)
    assert answer.name == "Basic.Nack"
    assert bodies(client, "q") == [b"%02d" % number for number in range(10)]
    home.crash()


def test_many_messages_above_the_limit_are_dropped_in_slices(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    count = int(2 * MESSAGES_PER_SLICE + 10)
    client = home.amqp()
    client.queue("q", durable=True, x_max_length=count)
    client.connection.receive_data(
        marshal(1, B.Qos(prefetch_count=count))
        + marshal(1, B.Consume(queue="q"))
        + publication("", "q", b"", delivery_mode=2) * count
    )
    home.settle(client.connection)
    client.connection.receive_data(publication("", "q", b"", delivery_mode=2) * count)
    home.settle(client.connection)
    assert (home.queue("q").unacked, home.queue("q").depth) == (count, count)
    home.crash()
    home = Home(tmp_path / "d")
    depths = [int(home.queue("q").depth)]
    while not home.broker.agenda.idle:
        home.broker.agenda.turn()
        depths.append(int(home.queue("q").depth))
    dropped = [before - after for before, after in pairwise(depths)]
    assert sum(dropped) == count and max(dropped) <= MESSAGES_PER_SLICE
    assert home.copies()["over_limit"] == count
    home.crash()
