"""Tests that each turn has bounded work if many channels, connections or consumers end together.

Each test counts steps or turns; no test reads a clock.
"""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.queues.consumer import Consumer
from broker.queues.queue import Queue
from broker.routing.binding import Binding
from broker.routing.exchanges.base import ExchangeOptions
from broker.routing.exchanges.consistent_hash import (
    DIRECT_SHARES,
    SHARES_PER_STEP,
    ConsistentHashExchange,
)
from broker.routing.plan_search import STEPS_PER_TURN
from protocols.amqp.channel.receiver import CONSUMERS_PER_UNIT
from protocols.amqp.channel.settlement import SETTLED_PER_SLICE
from protocols.window import Window
from tests.clients import Amqp, World, marshal, publication
from tests.wire.amqp.speech import deliveries, names

B, Q = spec.Basic, spec.Queue


def open_channels(client: Amqp, count: int) -> None:
    """Open channels 2 to `count`."""
    client.connection.receive_data(
        b"".join(marshal(number, spec.Channel.Open()) for number in range(2, count + 1))
    )
    client.world.settle(client.connection)
    client.connection.data_to_send()


def deliver_all(client: Amqp, queue: str, count: int) -> None:
    """Run turns and read the client's deliveries until `count` messages are outstanding."""
    for _ in range(1_000):
        if client.world.queue(queue).unacked == count:
            return
        client.connection.data_to_send()
        client.connection.resume_deliveries()
        client.world.turn()
    raise AssertionError("the messages were not delivered")


def test_a_lost_connection_with_many_channels_requeues_in_slices_and_in_order() -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    open_channels(client, 40)
    count = 40 * 200
    client.connection.receive_data(
        b"".join(
            marshal(number, B.Qos(0, 200, False))
            + marshal(number, B.Consume(queue="q", consumer_tag="t", nowait=True))
            for number in range(1, 41)
        )
    )
    writer = world.amqp()
    for at in range(0, count, 1_000):
        writer.connection.receive_data(
            b"".join(publication("", "q", b"%d" % n) for n in range(at, at + 1_000))
        )
        world.settle(writer.connection, client.connection)
        client.connection.data_to_send()
    deliver_all(client, "q", count)
    client.connection.on_closed()
    queue = world.queue("q")
    assert queue.consumer_count == 0
    assert 0 < queue.depth < 2 * SETTLED_PER_SLICE
    turns = 0
    while queue.unacked:
        before = queue.depth
        world.broker.agenda.turn()
        assert queue.depth - before <= 8 * SETTLED_PER_SLICE
        turns += 1
    assert turns > 1 and queue.depth == count
    writer.connection.receive_data(marshal(1, B.Consume(queue="q", consumer_tag="u", no_ack=True)))
    bodies: list[bytes] = []
    for _ in range(100):
        bodies += [one.body for one in deliveries(writer.read())]
        writer.connection.resume_deliveries()
        world.turn()
    assert bodies == [b"%d" % number for number in range(count)]
    world.fates()


class CountedConsumers(list[Consumer]):
    """A list of consumers that counts how often it is searched."""

    searches = 0

    def __contains__(self, one: object) -> bool:
        self.searches += 1
        return super().__contains__(one)


@pytest.mark.parametrize("arguments", [{}, {"x_expires": 60_000}, {"x_max_length": 10}])
@pytest.mark.parametrize("whole", [False, True])
def test_the_consumers_of_an_ended_channel_leave_their_queue_in_one_pass(
    whole: bool, arguments: dict[str, Any]
) -> None:
    world = World()
    stays, leaves = world.amqp(), world.amqp()
    stays.queue("q", **arguments)
    open_channels(leaves, 3)
    for client, channels in ((stays, [1]), (leaves, [1, 2, 3])):
        client.send(
            *[B.Consume(queue="q", consumer_tag=f"t{number}") for number in range(100)],
            channel=channels[0],
        )
        for channel in channels[1:]:
            client.send(
                *[B.Consume(queue="q", consumer_tag=f"t{number}") for number in range(100)],
                channel=channel,
            )
    queue = world.queue("q")
    counted = queue.consumers = CountedConsumers(queue.consumers)
    assert queue.consumer_count == 400
    if whole:
        leaves.connection.on_closed()
        left = 100
    else:
        leaves.send(spec.Channel.Close(200, "", 0, 0), channel=2)
        left = 300
    assert (queue.consumer_count, counted.searches) == (left, 0)
    stays.publish("", "q", b"x")
    world.fates()


def test_cancelling_a_consumer_costs_the_search_for_it() -> None:
    world = World()
    many, client = world.amqp(), world.amqp()
    many.queue("q")
    count = 20 * CONSUMERS_PER_UNIT
    many.send(*[B.Consume(queue="q", consumer_tag=f"t{number}") for number in range(count)])
    client.send(*[B.Consume(queue="q", consumer_tag=f"t{number}") for number in range(900)])
    # If a cancellation cost only its usual steps, all 900 would fit into one turn.
    client.connection.receive_data(
        b"".join(marshal(1, B.Cancel(consumer_tag=f"t{number}")) for number in range(900))
    )
    assert client.connection.behind
    assert names(client.read()) == ["Basic.CancelOk"] * 900
    assert world.queue("q").consumer_count == count


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("get"), st.just(0)),
            st.tuples(st.just("ack"), st.integers(0, 30)),
            st.tuples(st.just("nack"), st.integers(0, 30)),
            st.tuples(st.just("consume"), st.integers(0, 3)),
            st.tuples(st.just("cancel"), st.integers(0, 3)),
            st.tuples(st.just("prefetch"), st.integers(0, 5)),
            st.tuples(st.just("global"), st.integers(0, 12)),
            st.tuples(st.just("publish"), st.integers(1, 5)),
        ),
        max_size=40,
    )
)
def test_a_shared_prefetch_counts_the_outstanding_deliveries_of_all_consumers(
    steps: list[tuple[str, int]],
) -> None:
    world = World()
    client, writer = world.amqp(), world.amqp()
    client.queue("q")
    receiver = client.connection.channels.open[1].receiver
    for step, number in steps:
        if step == "get":
            client.send(B.Get(queue="q"))
        elif step in ("ack", "nack") and receiver.unacked.get(number) is not None:
            client.send(B.Ack(number) if step == "ack" else B.Nack(number, requeue=True))
        elif step == "consume" and f"t{number}" not in receiver.consumers:
            client.send(B.Consume(queue="q", consumer_tag=f"t{number}", no_ack=number == 3))
        elif step == "cancel":
            client.send(B.Cancel(consumer_tag=f"t{number}"))
        elif step == "prefetch":
            client.send(B.Qos(0, number, False))
        elif step == "global":
            client.send(B.Qos(0, number, True))
        elif step == "publish":
            for _ in range(number):
                writer.publish("", "q", b"x")
        pool = receiver.pool
        if pool is not None:
            held = sum(
                delivery.consumer.pool is pool for _, delivery in receiver.unacked.outstanding()
            )
            assert pool.credit == receiver.shared_prefetch - held
            consumed = [
                delivery.consumer
                for _, delivery in receiver.unacked.outstanding()
                if delivery.consumer.tag
            ]
            assert all(consumer.pool is pool for consumer in consumed)
    world.fates()


def test_a_shared_prefetch_walks_no_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    client = world.amqp()
    client.queue("q")
    for _ in range(20):
        client.publish("", "q", b"x")
    client.send(B.Consume(queue="q", consumer_tag="t"))
    monkeypatch.delattr(Window, "outstanding")
    assert names(client.send(B.Qos(0, 5, True))) == ["Basic.QosOk"]
    client.send(B.Ack(16, multiple=True))
    client.publish("", "q", b"y")
    assert world.queue("q").unacked == 5


# -- the consistent-hash exchange


def ring(count: int) -> tuple[ConsistentHashExchange, Queue]:
    """Return a consistent-hash exchange with `count` bindings to one queue, and the queue."""
    world = World()
    world.vhost.declare_queue("q")
    queue = world.queue("q")
    exchange = ConsistentHashExchange("h", ExchangeOptions())
    for number in range(count):
        exchange.bind(Binding(str(1 + number % 7), queue, 0, {"n": number}))
    return exchange, queue


def test_a_hash_over_many_bindings_is_computed_in_slices_with_the_same_result() -> None:
    exchange, _ = ring(DIRECT_SHARES + 100)
    assert exchange.needs_search and exchange.lookup_steps == 0
    for key in ("a", "b", "c"):
        matches: list[Binding] = []
        [search] = exchange.searches(key, {}, matches)
        slices = 0
        while not search.done:
            assert matches == []
            assert search.advance(1_000) >= -1
            slices += 1
        assert slices == -(-(DIRECT_SHARES + 100) // (1_000 * SHARES_PER_STEP))
        assert matches == exchange.match(key, {}) and len(matches) == 1


def test_a_hash_over_few_bindings_counts_its_work() -> None:
    exchange, _ = ring(400)
    assert not exchange.needs_search
    assert exchange.lookup_steps == 400 // SHARES_PER_STEP < STEPS_PER_TURN
