"""Tests of x-max-length-bytes that a policy adds to a queue with messages only on disk."""

from __future__ import annotations

from pathlib import Path

import pamqp.commands as spec
import pytest

from broker.queues.limited import LimitedQueue
from broker.queues.policies import Policy
from tests.clients import Amqp, publication
from tests.store.homes import Home

B = spec.Basic


def publish(client: Amqp, count: int) -> None:
    client.connection.receive_data(
        b"".join(publication("", "q", b"x" * 10, delivery_mode=2) for _ in range(count))
    )
    client.read()


@pytest.mark.parametrize("returned", [0, 3, 7])
def test_messages_on_disk_that_do_not_count_leave_the_size_of_later_messages_alone(
    tmp_path: Path, returned: int
) -> None:
    """Check x-max-length-bytes if a policy sets it for a queue of 20 messages, 15 only on disk.

    Only the bytes of the 5 messages in memory and of messages that are published later count.
    `returned` is the number of messages that a client fetches and requeues.
    """
    home = Home(tmp_path / "data")
    home.store.window = 5
    client = home.amqp()
    client.queue("q", durable=True)
    publish(client, 20)
    policy = Policy("/", "p", "^q$", "queues", 0, {"max-length-bytes": 300})
    home.vhost.applied_policies.set_policy(policy)
    home.settle()
    queue = home.queue("q")
    assert isinstance(queue, LimitedQueue)
    assert (queue.depth, queue.paged, queue.waiting_bytes) == (20, 15, 50)
    for _ in range(5):
        client.send(B.Get(queue="q", no_ack=True))
    publish(client, 30)
    assert (queue.depth, queue.waiting_bytes) == (45, 300)
    for _ in range(returned):
        client.send(B.Get(queue="q"))
    client.send(B.Nack(0, multiple=True, requeue=True))
    home.settle()
    # A returned message counts from now on. It is the oldest message, so the queue drops it.
    assert (queue.depth, queue.waiting_bytes) == (45 - returned, 300)
    while queue.depth > 20:
        client.send(B.Get(queue="q", no_ack=True))
    assert queue.waiting_bytes == 200
    publish(client, 30)
    assert (queue.depth, queue.waiting_bytes) == (30, 300)
