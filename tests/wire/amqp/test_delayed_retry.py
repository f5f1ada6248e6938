"""Delayed retry: the arguments x-delayed-retry-type, -min and -max, and their policy keys."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.agenda import TIMER_SLACK
from broker.queues.policies import Policy
from broker.queues.statistics import STATISTICS
from tests.clients import Amqp, World
from tests.store.homes import Home
from tests.wire.amqp.speech import deliveries, read, refusal

Q, B = spec.Queue, spec.Basic


def retrying(world: World, kind: str = "all", **arguments: Any) -> Amqp:
    client = world.amqp()
    client.queue("q", x_delayed_retry_type=kind, **({"x_delayed_retry_min": 10} | arguments))
    return client


def get(client: Amqp) -> int:
    """Poll the queue; return the delivery tag, or 0 if no message is there."""
    messages = deliveries(client.send(B.Get(queue="q")))
    return messages[0].number if messages else 0


def delay_after(client: Amqp, method: Any) -> int:
    """Send a nack or reject; return the milliseconds until the message is delivered again."""
    client.send(method)
    for waited in range(200):
        if get(client):
            return waited
        client.world.sleep(1)
    raise AssertionError("the message did not come back within 200 ms")


def nack(tag: int) -> Any:
    return B.Nack(delivery_tag=tag, requeue=True)


def reject(tag: int) -> Any:
    return B.Reject(delivery_tag=tag, requeue=True)


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20), st.integers(1, 60), st.integers(1, 5))
def test_the_delay_grows_with_each_return_up_to_the_longest(
    least: int, most: int, returns: int
) -> None:
    client = retrying(World(), x_delayed_retry_min=least, x_delayed_retry_max=most)
    client.publish("", "q", b"x")
    tag = get(client)
    for number in range(1, returns + 1):
        assert delay_after(client, nack(tag + number - 1)) == min(least * number, most)
    client.world.fates()


@pytest.mark.parametrize(
    ("kind", "nacked", "rejected"),
    [("disabled", 0, 0), ("all", 10, 20), ("failed", 0, 20), ("returned", 10, 0)],
)
def test_the_type_says_which_returned_messages_wait(kind: str, nacked: int, rejected: int) -> None:
    client = retrying(World(), kind)
    client.publish("", "q", b"x")
    tag = get(client)
    assert delay_after(client, nack(tag)) == nacked
    assert delay_after(client, reject(tag + 1)) == rejected


@pytest.mark.parametrize("deleted", [False, True])
def test_a_message_that_waits_for_its_next_delivery_counts_as_delivered_once(deleted: bool) -> None:
    world = World()
    client = retrying(world)
    for body in (b"x", b"y"):
        client.publish("", "q", body)
        client.send(nack(get(client)))
    queue = world.queue("q")
    wanted = dict.fromkeys(STATISTICS, 0) | {"publish": 2, "get": 2}
    assert (queue.unacked, queue.depth) == (2, 0)
    assert dict(zip(STATISTICS, queue.statistics(), strict=True)) == wanted
    if deleted:
        client.send(Q.Delete(queue="q"))
    world.sleep(10)
    world.settle(client.connection)
    assert (queue.unacked, queue.depth) == (0, 0 if deleted else 2)
    assert dict(zip(STATISTICS, queue.statistics(), strict=True)) == wanted
    assert dict(zip(STATISTICS, world.vhost.totals().whole().statistics, strict=True)) == wanted


@pytest.mark.parametrize(("kind", "delayed"), [("failed", True), ("returned", False)])
def test_the_end_of_a_channel_is_a_failed_delivery(kind: str, delayed: bool) -> None:
    client = retrying(World(), kind)
    client.publish("", "q", b"x")
    get(client)
    client.send(spec.Channel.Close(0, "", 0, 0))
    client.send(spec.Channel.Open())
    assert (get(client) == 0) is delayed
    client.world.sleep(10)
    assert bool(get(client)) is delayed
    client.world.fates()


def test_other_messages_are_delivered_while_one_waits_which_keeps_its_place() -> None:
    client = retrying(World())
    for body in (b"1", b"2", b"3"):
        client.publish("", "q", body)
    client.send(nack(get(client)))
    assert deliveries(client.send(B.Get(queue="q")))[0].body == b"2"
    client.world.sleep(10)
    assert read(client, "q") == [b"1", b"3"]
    client.world.fates()


def test_a_consumer_gets_the_message_when_its_delay_is_over() -> None:
    client = retrying(World())
    client.send(B.Consume(queue="q"))
    client.publish("", "q", b"x")
    assert deliveries(client.send(nack(1))) == []
    client.world.sleep(9)
    assert deliveries(client.read()) == []
    client.world.sleep(1)
    [message] = deliveries(client.read())
    assert message.redelivered and message.body == b"x"


def test_the_delivery_limit_ends_the_retries() -> None:
    client = retrying(World(), x_delivery_limit=2)
    client.publish("", "q", b"x")
    tag = get(client)
    for number in range(2):
        delay_after(client, nack(tag + number))
    client.send(nack(tag + 2))
    client.world.sleep(1_000)
    assert get(client) == 0 and client.world.copies() == {"delivery_limit": 1}
    client.world.fates()


def test_messages_of_a_priority_queue_return_by_priority() -> None:
    client = retrying(World(), x_max_priority=5)
    client.publish("", "q", b"low", priority=1)
    client.publish("", "q", b"high", priority=4)
    first = get(client)
    client.send(nack(first))
    client.world.sleep(10)
    assert read(client, "q") == [b"high", b"low"]
    client.world.fates()


def test_a_policy_delays_and_its_end_does_not_hold_messages_back() -> None:
    client = World().amqp()
    client.queue("q")
    policies = client.world.vhost.applied_policies
    definition = {"delayed-retry-type": "all", "delayed-retry-min": 10}
    policies.set_policy(Policy("/", "p", "q", "queues", 0, definition))
    client.world.settle()
    client.publish("", "q", b"x")
    tag = get(client)
    assert delay_after(client, nack(tag)) == 10
    client.send(nack(tag + 1))
    policies.clear_policy("p")
    client.world.settle()
    client.world.sleep(20)
    assert delay_after(client, nack(get(client))) == 0


def test_many_delayed_messages_return_in_slices_and_in_order() -> None:
    client = retrying(World())
    world = client.world
    count = 2_500
    for number in range(count):
        client.publish("", "q", b"%d" % number)
    client.send(B.Consume(queue="q"))
    client.send(spec.Channel.Close(0, "", 0, 0))
    world.settle()
    queue, agenda = world.queue("q"), world.broker.agenda
    assert (queue.depth, queue.unacked) == (0, count)
    agenda.advance(int(agenda.now) + 10, agenda.wall)
    depths = [0]
    while not agenda.idle:
        agenda.turn()
        depths.append(int(queue.depth))
    assert depths[-1] == count
    assert all(after - before <= 1_000 for before, after in pairwise(depths))
    client.send(spec.Channel.Open())
    assert read(client, "q") == [b"%d" % number for number in range(count)]


def test_a_deleted_queue_releases_its_delayed_messages(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = retrying(home, durable=True)
    client.publish("", "q", b"x", delivery_mode=2)
    client.send(nack(get(client)))
    client.send(Q.Delete(queue="q"))
    home.sleep(10)
    assert home.copies() == {"purged": 1}
    home.fates()
    home.store.sync()
    home.crash()
    assert Home(tmp_path / "d").report.orphaned == 0


def test_a_delayed_message_waits_in_its_queue_after_a_restart(tmp_path: Path) -> None:
    home = Home(tmp_path / "d")
    client = retrying(home, durable=True)
    client.publish("", "q", b"x", delivery_mode=2)
    client.send(nack(get(client)))
    home.store.sync()
    home.crash()
    assert read(Home(tmp_path / "d").amqp(), "q") == [b"x"]


def test_the_memory_of_delayed_messages_counts() -> None:
    client = retrying(World())
    client.publish("", "q", bytes(100_000))
    client.send(nack(get(client)))
    assert client.world.queue("q").memory_bytes() > 100_000


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-delayed-retry-type": "all"},
        {"x-delayed-retry-type": "some", "x-delayed-retry-min": 1},
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 0},
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1, "x-delayed-retry-max": "1"},
        {"x-delayed-retry-type": "all", "x-delayed-retry-min": 1, "x-queue-type": "stream"},
    ],
)
def test_invalid_arguments_are_refused(arguments: dict[str, Any]) -> None:
    client = World().amqp()
    error = refusal(client.send(Q.Declare(queue="q", durable=True, arguments=arguments)))
    assert error.code == 406 and "x-delayed-retry" in error.text


def test_the_deletion_of_a_queue_ends_the_timer_of_its_delays() -> None:
    world = World()
    client = retrying(world)
    deadlines = []
    for _ in range(2 * TIMER_SLACK):
        client.queue("p", x_delayed_retry_type="all", x_delayed_retry_min=1 << 50)
        client.publish("", "p", b"x")
        client.send(B.Get(queue="p"))
        client.send(B.Recover(requeue=True), Q.Delete(queue="p"))
        world.settle()
        deadlines.append(world.broker.agenda.deadline)
    # The agenda removes cancelled timers in slices; at the end, no deadline is left.
    assert 0 in deadlines
    world.fates()
