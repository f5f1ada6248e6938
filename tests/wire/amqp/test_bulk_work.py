"""Tests that bulk work of one client is spread over many turns: settlements, commits, purges.

Each test counts turns of the agenda, or the actions in one turn; no test reads a clock.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest
from pamqp.commands import Basic as B
from pamqp.commands import Tx as T

from broker.limits import BrokerLimits
from broker.messages.outlet import FunctionSender
from broker.queues.policies import Policy
from tests.clients import World, marshal, publication
from tests.wire.amqp.bulk import MANY, QOS, TURN_MAX, deliver_many, fill
from tests.wire.amqp.speech import deliveries, names, read, refusal

TOO_MANY_PARTS = (
    "the transaction has more than 10 parts (copies of messages and settlements): commit more often"
)


# -- many deliveries settled with one method


@pytest.mark.parametrize("how", ["ack", "reject", "requeue", "recover", "close", "lost"])
def test_many_deliveries_are_settled_in_slices_and_later_methods_wait(how: str) -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    client.queue("q")
    deliver_many(world, client)
    client.send(B.Cancel("t"))
    method = {
        "ack": B.Ack(0, multiple=True),
        "reject": B.Nack(0, multiple=True, requeue=False),
        "requeue": B.Nack(0, multiple=True, requeue=True),
        "recover": B.Recover(requeue=True),
        "close": spec.Channel.Close(200, "", 0, 0),
        "lost": None,
    }[how]
    if method is None:
        client.connection.on_closed()
    else:
        client.connection.receive_data(
            marshal(1, method) + marshal(2, spec.Channel.Open()) + marshal(2, QOS)
        )
    unacked, depth = int(world.queue("q").unacked), int(world.queue("q").depth)
    assert MANY - unacked <= TURN_MAX, "the first slice"
    # While the broker settles the deliveries in slices, it serves other clients.
    assert names(other.send(spec.Queue.Declare(queue="q", passive=True))) == ["Queue.DeclareOk"]
    while world.queue("q").unacked:
        if how not in ("close", "lost"):
            assert client.connection.stalled
        world.broker.agenda.turn()
        assert unacked - int(world.queue("q").unacked) <= TURN_MAX
        unacked = int(world.queue("q").unacked)
    world.settle(client.connection)
    assert not client.connection.stalled
    if how in ("ack", "reject"):
        assert (depth, world.queue("q").depth) == (0, 0)
    else:
        assert world.queue("q").depth == MANY
        taken = other.send(*[B.Get(queue="q", no_ack=True)] * 3)
        assert [one.body for one in deliveries(taken)] == [b"0", b"1", b"2"]
        last = MANY - 4
        while last:
            last -= 1
            other.connection.receive_data(marshal(1, B.Get(queue="q", no_ack=True)))
            if last % 500 == 0:
                world.settle(other.connection)
                other.connection.data_to_send()
        [one] = deliveries(other.send(B.Get(queue="q", no_ack=True)))
        assert one.body == b"%d" % (MANY - 1)
    if how not in ("close", "lost"):
        assert "Basic.QosOk" in names(client.read())
    world.fates()


def test_a_channel_that_closes_while_its_deliveries_are_rejected_requeues_only_later_ones() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    deliver_many(world, client)
    client.connection.receive_data(marshal(1, B.Nack(MANY - 5, multiple=True, requeue=False)))
    client.connection.on_closed()
    world.settle()
    assert world.copies() == {"rejected": MANY - 5}
    assert [int(body) for body in read(world.amqp(), "q")] == list(range(MANY - 5, MANY))


def test_many_small_settlements_end_a_turn_of_input() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    deliver_many(world, client)
    client.connection.receive_data(
        b"".join(marshal(1, B.Ack(tag, multiple=True)) for tag in range(500, MANY + 1, 500))
        + marshal(1, B.Ack(0, multiple=True)) * 5
    )
    assert not client.connection.finished
    world.settle(client.connection)
    assert world.copies() == {"acknowledged": MANY}


# -- transactions


@pytest.mark.parametrize("kind", ["publications", "copies", "settlements", "multiple"])
def test_a_transaction_has_a_bounded_number_of_parts(kind: str) -> None:
    limits = BrokerLimits()
    limits.transaction_parts = 10
    world = World(limits)
    client, other = world.amqp(), world.amqp()
    for number in range(6):
        other.queue(f"q{number}", "amq.fanout")
    fill(other, "q0", 40)
    client.send(B.Consume(queue="q0", consumer_tag="t"), T.Select())
    client.read()
    exchange = "amq.fanout" if kind == "copies" else ""

    def step(number: int) -> list[Any]:
        if kind in ("publications", "copies"):
            return client.publish(exchange, "q1", b"x")
        if kind == "settlements":
            return client.send(B.Ack(number + 1))
        return client.send(B.Ack(5 * (number + 1), multiple=True))

    fits = {"publications": 10, "copies": 1, "settlements": 10, "multiple": 2}[kind]
    depth = int(world.queue("q1").depth)
    for number in range(fits):
        assert step(number) == []
    assert refusal(step(fits)) == (
        "channel",
        406,
        "PRECONDITION_FAILED - " + TOO_MANY_PARTS,
        60,
        40 if kind in ("publications", "copies") else 80,
    )
    # The refused transaction has had no effect, and the next transaction of that size is committed.
    assert (world.queue("q1").depth, world.queue("q0").unacked) == (depth, 0)
    client.send(spec.Channel.CloseOk(), spec.Channel.Open(), T.Select())
    client.send(B.Consume(queue="q0", consumer_tag="t"))
    client.read()
    for number in range(fits):
        assert step(number) == []
    assert "Tx.CommitOk" in names(client.send(T.Commit()))
    assert world.queue("q0").acknowledged == (10 if kind in ("settlements", "multiple") else 0)
    world.fates()


def test_repeated_settlements_of_one_transaction_do_not_look_at_all_deliveries_again() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    fill(client, "q", 300)
    client.send(B.Consume(queue="q", consumer_tag="t"), T.Select())
    client.read()
    client.connection.receive_data(
        b"".join(marshal(1, B.Ack(tag, multiple=True)) for tag in range(1, 301))
    )
    assert names(client.send(B.Ack(0, multiple=True), T.Commit())) == ["Tx.CommitOk"]
    assert world.copies() == {"acknowledged": 300}


# -- purge, deletion, policies


@pytest.mark.parametrize("arguments", [{}, {"x_max_priority": 5}, {"x_max_length": 100_000}])
@pytest.mark.parametrize("method", [spec.Queue.Purge(queue="q"), spec.Queue.Delete(queue="q")])
def test_a_queue_is_emptied_at_once_and_its_messages_are_released_in_slices(
    method: Any, arguments: dict[str, Any]
) -> None:
    world = World()
    client = world.amqp()
    client.queue("q", durable=True, **arguments)
    fill(client, "q", MANY, delivery_mode=2)
    assert len(world.store.state.messages) == MANY
    client.connection.receive_data(marshal(1, method))
    assert "q" not in world.vhost.queues or world.queue("q").depth == 0
    left = len(world.store.state.messages)
    assert 0 < MANY - left <= TURN_MAX
    while left:
        world.broker.agenda.turn()
        now = len(world.store.state.messages)
        assert 0 < left - now <= TURN_MAX
        left = now
    assert world.copies() == {"purged": MANY}


def test_a_policy_that_lowers_the_length_of_a_queue_trims_it_in_slices() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    fill(client, "q", MANY)
    world.vhost.applied_policies.set_policy(Policy("/", "p", "q", "queues", 0, {"max-length": 10}))
    depth = int(world.queue("q").depth)
    assert MANY - depth <= TURN_MAX
    new = 0
    while depth > 10:
        client.connection.receive_data(publication("", "q", b"new"))
        new += 1
        world.broker.agenda.turn()
        assert 0 < depth - int(world.queue("q").depth) <= TURN_MAX
        depth = int(world.queue("q").depth)
    left = [b"%d" % number for number in range(MANY - 10 + new, MANY)]
    assert read(client, "q") == [*left, *[b"new"] * new]
    world.fates()


# -- events that resume a connection, and states after an exception


@pytest.mark.parametrize("size", [10, 16_383, 16_384, 40_000])
def test_a_returned_message_of_any_size_wakes_the_connection(size: int) -> None:
    world = World()
    client = world.amqp()
    wakes: list[int] = []
    client.connection.sender = FunctionSender(lambda: wakes.append(1))
    client.connection.receive_data(publication("", "nowhere", b"x" * size, mandatory=True))
    assert wakes == [1]
    assert names(client.read())[0] == "Basic.Return"
