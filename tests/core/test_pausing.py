"""Tests of paused queues: they deliver nothing until an operator resumes them."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.pausing import pause, resume
from broker.queues.policies import Policy
from tests.clients import Amqp, World
from tests.wire.amqp.speech import names

B = spec.Basic


def consuming(**arguments: Any) -> Amqp:
    """Return a client that consumes the queue `q`, and must acknowledge the messages."""
    client = World().amqp()
    client.queue("q", **arguments)
    client.send(B.Consume(queue="q", consumer_tag="one"))
    return client


@pytest.mark.parametrize(
    "arguments",
    [{}, {"x_max_length": 10}, {"x_max_priority": 3}, {"x_single_active_consumer": True}],
    ids=["plain", "limited", "priority", "single"],
)
def test_a_paused_queue_delivers_nothing_until_it_is_resumed(arguments: dict[str, Any]) -> None:
    client = consuming(**arguments)
    queue = client.world.queue("q")
    assert pause(queue)
    assert not pause(queue)
    for number in range(3):
        client.publish("", "q", b"%d" % number)
    assert client.read() == []
    assert (queue.depth, queue.unacked, queue.held) == (3, 0, False)
    assert names(client.send(B.Get(queue="q"))) == ["Basic.GetEmpty"]
    assert client.world.broker.agenda.idle
    assert resume(queue)
    assert not resume(queue)
    assert client.bodies() == [b"0", b"1", b"2"]
    client.publish("", "q", b"3")
    assert queue.depth == 0
    client.world.fates()


def test_consumers_settle_and_return_messages_of_a_paused_queue() -> None:
    client = consuming()
    queue = client.world.queue("q")
    for number in range(4):
        client.publish("", "q", b"%d" % number)
    pause(queue)
    client.send(B.Ack(1), B.Nack(2, requeue=True), B.Reject(3, requeue=True))
    assert (queue.depth, queue.unacked) == (2, 1)
    client.send(B.Cancel(consumer_tag="one"), B.Consume(queue="q", consumer_tag="two"))
    assert queue.unacked == 1
    resume(queue)
    assert client.bodies() == [b"1", b"2"]


def test_messages_expire_in_a_paused_queue_and_a_policy_does_not_resume_it() -> None:
    client = consuming()
    world = client.world
    pause(world.queue("q"))
    client.publish("", "q", b"short", expiration="10")
    client.publish("", "q", b"long")
    world.sleep(20)
    assert world.queue("q").depth == 1
    before = world.queue("q")
    policy = Policy("/", "p", "^q$", "queues", 0, {"max-length": 5})
    world.vhost.applied_policies.set_policy(policy, None)
    world.settle(client.connection)
    assert world.queue("q") is not before
    assert (world.queue("q").arguments.max_length, world.queue("q").paused) == (5, True)
    assert client.read() == []
    resume(world.queue("q"))
    assert client.bodies() == [b"long"]


def test_a_channel_that_closes_returns_its_messages_to_a_paused_queue() -> None:
    client = consuming()
    queue = client.world.queue("q")
    for number in range(3):
        client.publish("", "q", b"%d" % number)
    pause(queue)
    client.send(spec.Channel.Close(0, "", 0, 0))
    client.world.settle(client.connection)
    assert (queue.depth, queue.unacked, queue.paused) == (3, 0, True)
    other = client.world.amqp()
    other.send(B.Consume(queue="q", no_ack=True))
    resume(queue)
    assert other.bodies() == [b"0", b"1", b"2"]
