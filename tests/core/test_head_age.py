"""Tests of the age that a queue reports for its first waiting message.

The age is at most the real age, and nearly as high.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pamqp import commands

from broker.queues.arrivals import MARK_MS, MARKS_MAX, Arrivals
from broker.queues.policies import Policy
from tests.clients import World
from tests.store.test_features import Lasting, later, persistent


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5_000), st.booleans()), min_size=1, max_size=400))
def test_an_age_is_at_most_the_real_age_and_nearly_as_high(
    steps: list[tuple[int, bool]],
) -> None:
    arrivals, now, due, head = Arrivals(), 0, 0, 0
    came: list[int] = []
    for pause, takes in steps:
        now += pause
        came.append(now)
        sequence = len(came)
        if takes and head < sequence - 1:
            head += 1  # The queue keeps at least the new message.
        if sequence == 1 or now >= due:
            due = int(arrivals.mark(sequence, now, head + 1))
        estimate, real = int(arrivals.time_of(head + 1)), came[head]
        # Marks are at least MARK_MS apart, and the distance doubles only when all 64 marks are in
        # use. So the error of the estimate has two bounds: MARK_MS, and a fraction of the longest
        # waiting time; the larger one applies.
        span = now - came[0]
        assert real - max(int(MARK_MS), 4 * span // int(MARKS_MAX) + 5_000) <= estimate <= real
        assert len(arrivals._times) == len(arrivals._sequences) <= MARKS_MAX


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 5}, {"x_max_length": 100}])
def test_the_age_follows_the_first_message(arguments: dict[str, Any]) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", **arguments)
    queue = world.queue("q")
    assert queue.head_age is None
    client.publish("", "q", b"1")
    world.sleep(5_000)
    client.publish("", "q", b"2")
    world.sleep(2_000)
    assert queue.head_age == 7_000
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    assert queue.head_age == 2_000
    client.send(commands.Queue.Purge(queue="q"))
    assert queue.head_age is None


def test_a_returned_message_keeps_its_age_while_others_wait() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    for body in (b"1", b"2"):
        client.publish("", "q", body)
        world.sleep(3_000)
    client.send(commands.Basic.Get(queue="q"))
    assert world.queue("q").head_age == 3_000
    client.send(commands.Basic.Reject(1, True))
    assert world.queue("q").head_age == 6_000


def test_a_message_returned_to_an_empty_queue_counts_from_its_return() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    client.publish("", "q", b"before")
    client.send(commands.Basic.Get(queue="q", no_ack=True))
    (started,) = client.send(commands.Basic.Consume(queue="q"))
    world.sleep(60_000)
    client.publish("", "q", b"m")
    world.sleep(60_000)
    client.send(commands.Basic.Cancel(started.consumer_tag))
    client.send(commands.Basic.Recover(True))
    assert world.queue("q").head_age == 0
    world.sleep(4_000)
    assert world.queue("q").head_age == 4_000


def test_a_policy_that_replaces_the_queue_keeps_the_age() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    client.publish("", "q", b"m")
    world.sleep(4_000)
    policy = Policy("/", "p", ".*", "queues", 0, {"max-length": 10})
    world.vhost.applied_policies.set_policy(policy)
    world.turn()
    assert world.queue("q").head_age == 4_000


def test_a_stream_has_no_age() -> None:
    world = World()
    stream = world.vhost.declare_queue("s", True, {"x-queue-type": "stream"})
    world.amqp().publish("", "s", b"row")
    world.sleep(5_000)
    assert (stream.depth, stream.head_age) == (1, None)


def test_a_restart_counts_from_the_start(tmp_path: Path) -> None:
    first = Lasting(tmp_path)
    client = first.amqp()
    client.queue("q", durable=True)
    for _ in range(2):
        persistent(client, "", "q", b"m")
    first.sleep(9_000)
    first.stop()
    world = later(tmp_path)
    assert world.queue("q").head_age == 0
    world.sleep(3_000)
    persistent(world.amqp(), "", "q", b"new")
    assert world.queue("q").head_age == 3_000
    world.stop()
