"""Thousands of requeued deliveries come before later messages, whatever else happens meanwhile.

The broker requeues the deliveries over several turns. Until the last of them is requeued, the queue
delivers no message.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest
from pamqp.commands import Basic as B

from broker.messages.memory import MESSAGE_SIZE
from broker.queues.policies import Policy
from protocols.amqp.channel.settlement import SETTLED_PER_SLICE
from tests.clients import Amqp, World, marshal, publication
from tests.wire.amqp.bulk import fill
from tests.wire.amqp.speech import deliveries

#: Deliveries that the client holds: three slices.
HELD = 3_000


def holding(world: World, queues: tuple[str, ...] = ("q",)) -> tuple[Amqp, Amqp]:
    """Return a client that holds HELD deliveries of each queue, and a client without a consumer.

    100 more messages wait in each queue.
    """
    client, other = world.amqp(), world.amqp()
    for queue in queues:
        client.queue(queue)
    client.send(*[B.Consume(queue=queue, consumer_tag=queue) for queue in queues])
    for number in range(HELD + 100):
        if number == HELD:
            client.send(*[B.Cancel(queue) for queue in queues])
        for queue in queues:
            client.connection.receive_data(publication("", queue, b"%d" % number))
        if number % 500 == 0:
            client.read_bytes()
    client.read_bytes()
    assert {(world.queue(queue).unacked, world.queue(queue).depth) for queue in queues} == {
        (HELD, 100)
    }
    return client, other


def requeued(client: Amqp, how: str) -> None:
    """Make the broker requeue all deliveries of a client, in the way `how`, without running a
    turn."""
    if how == "lost":
        client.connection.on_closed()
        return
    if how == "commit":
        for step in (spec.Tx.Select(), B.Nack(0, multiple=True, requeue=True), spec.Tx.Commit()):
            client.connection.receive_data(marshal(1, step))
        return
    method = {
        "nack": B.Nack(0, multiple=True, requeue=True),
        "recover": B.Recover(requeue=True),
        "close": spec.Channel.Close(200, "", 0, 0),
    }[how]
    client.connection.receive_data(marshal(1, method))


def delivered(world: World, client: Amqp, count: int) -> list[Any]:
    """Run turns until a client has received at least `count` deliveries; return the deliveries."""
    messages: list[Any] = []
    for _ in range(1_000):
        messages += deliveries(client.read())
        if len(messages) >= count:
            return messages
        world.turn()
    raise AssertionError(f"{len(messages)} deliveries after 1,000 turns, not {count}")


IN_ORDER = [b"%d" % number for number in range(HELD + 100)]


@pytest.mark.parametrize("how", ["nack", "recover", "close", "lost", "commit"])
def test_requeued_messages_of_several_queues_are_delivered_in_order(how: str) -> None:
    world = World()
    client, other = holding(world, ("q", "r"))
    for queue in ("q", "r"):
        other.connection.receive_data(
            marshal(1, B.Consume(queue=queue, consumer_tag=queue, no_ack=True))
        )
        world.queue(queue).consumers[0].credit = 0
    world.turn()
    for queue in ("q", "r"):
        world.queue(queue).consumers[0].credit = 1 << 40
    requeued(client, how)
    messages = delivered(world, other, 2 * (HELD + 100))
    for queue in ("q", "r"):
        mine = [one for one in messages if one.key == queue]
        assert [one.body for one in mine] == IN_ORDER
        assert [one.redelivered for one in mine] == [True] * HELD + [False] * 100
    # After the last slice, the queues deliver later messages at once.
    for queue in ("q", "r"):
        other.connection.receive_data(publication("", queue, b"later"))
    assert [one.body for one in delivered(world, other, 2)] == [b"later"] * 2
    world.fates()


def test_a_channel_that_closes_while_it_requeues_keeps_the_order() -> None:
    world = World()
    client, other = holding(world)
    requeued(client, "nack")
    assert client.connection.stalled
    client.connection.on_closed()
    other.connection.receive_data(marshal(1, B.Consume(queue="q", no_ack=True)))
    assert [one.body for one in delivered(world, other, HELD + 100)] == IN_ORDER


def test_two_channels_that_requeue_at_once_keep_the_order_of_their_queue() -> None:
    world = World()
    first, second, other = world.amqp(), world.amqp(), world.amqp()
    first.queue("q")
    for client in (first, second):
        client.send(B.Consume(queue="q", consumer_tag="t"))
    fill(first, "q", 2 * HELD)
    for client in (first, second):
        client.read_bytes()
        client.send(B.Cancel("t"))
    assert world.queue("q").unacked == 2 * HELD
    fill(first, "q", 100)
    other.connection.receive_data(marshal(1, B.Consume(queue="q", no_ack=True)))
    for client in (first, second):
        requeued(client, "lost")
    messages = delivered(world, other, 2 * HELD + 100)
    assert [int(one.body) for one in messages] == [*range(2 * HELD), *range(100)]


@pytest.mark.parametrize("no_ack", [True, False])
def test_basic_get_waits_until_the_messages_of_its_queue_are_requeued(no_ack: bool) -> None:
    world = World()
    client, other = holding(world)
    requeued(client, "close")
    gets = marshal(1, B.Get(queue="q", no_ack=no_ack)) * (HELD + 100)
    other.connection.receive_data(gets)
    assert other.connection.stalled
    messages: list[Any] = []
    while len(messages) < HELD + 100:
        world.settle(other.connection)
        messages += deliveries(other.read())
    assert [one.body for one in messages] == IN_ORDER


@pytest.mark.parametrize("change", ["policy", "delete", "redeclare"])
def test_a_queue_that_is_replaced_or_deleted_while_it_is_held_is_not_held_afterwards(
    change: str,
) -> None:
    world = World()
    client, other = holding(world)
    requeued(client, "close")
    if change == "policy":
        limits = {"max-length": 50_000}
        world.vhost.applied_policies.set_policy(Policy("/", "p", "q", "queues", 0, limits))
    else:
        world.vhost.delete_queue(world.queue("q"))
        if change == "redeclare":
            world.vhost.declare_queue("q")
            other.connection.receive_data(publication("", "q", b"new"))
    if change == "delete":
        world.settle(client.connection)
        world.vhost.declare_queue("q")
    other.connection.receive_data(marshal(1, B.Consume(queue="q", no_ack=True)))
    other.connection.receive_data(publication("", "q", b"later"))
    wanted = {"policy": IN_ORDER, "delete": [], "redeclare": [b"new"]}[change] + [b"later"]
    assert [one.body for one in delivered(world, other, len(wanted))] == wanted
    world.settle(client.connection, other.connection)
    # A new delivery that is returned is redelivered at once, as before the bulk requeue.
    client = world.amqp()
    other.send(B.Cancel("t"), spec.Channel.Close(200, "", 0, 0))
    client.publish("", "q", b"last")
    client.send(B.Consume(queue="q", consumer_tag="t"))
    client.send(B.Nack(1, requeue=True))
    assert (world.queue("q").depth, world.queue("q").unacked) == (0, 1)
    world.fates()


@pytest.mark.parametrize("how", ["nack", "recover", "close", "lost", "commit"])
def test_requeued_messages_count_in_the_estimated_memory_of_the_queue(how: str) -> None:
    world = World()
    client, _ = holding(world)
    before = world.queue("q").memory_bytes()
    assert client.connection.memory_bytes() >= HELD * MESSAGE_SIZE
    requeued(client, how)
    world.settle()
    assert world.queue("q").depth == HELD + 100
    assert world.queue("q").memory_bytes() >= before + HELD * MESSAGE_SIZE


@pytest.mark.parametrize("empties", ["expiry", "purge"])
@pytest.mark.parametrize("arguments", [{}, {"x_max_length": 100_000}, {"x_max_priority": 2}])
def test_a_message_that_comes_while_the_returned_ones_leave_follows_the_rest(
    arguments: dict[str, Any], empties: str
) -> None:
    """The broker requeues many deliveries in several turns.

    After the first of these turns, the requeued messages expire or are purged, so that the queue is
    empty. A new message must still come after the deliveries that are requeued later.
    """
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q", **arguments)
    client.send(B.Consume(queue="q", consumer_tag="c"))
    first = int(SETTLED_PER_SLICE)
    for number in range(3 * first):
        properties: dict[str, Any] = {"expiration": "1000"} if number < first else {}
        client.connection.receive_data(publication("", "q", b"%d" % number, **properties))
        if number % 500 == 0:
            client.read_bytes()
    client.read_bytes()
    client.send(B.Cancel("c"))
    other.connection.receive_data(marshal(1, B.Consume(queue="q", no_ack=True)))
    agenda = world.broker.agenda
    requeued(client, "nack")
    queue = world.queue("q")
    assert queue.held and queue.depth == first
    if empties == "purge":
        queue.purge()
    else:
        agenda.advance(int(agenda.now) + 2_000, agenda.wall)
        queue.expire(first)
    assert queue.held and queue.depth == 0
    other.connection.receive_data(publication("", "q", b"new"))
    messages = delivered(world, other, 2 * first + 1)
    assert [one.body for one in messages] == [b"%d" % at for at in range(first, 3 * first)] + [
        b"new"
    ]
    world.fates()
