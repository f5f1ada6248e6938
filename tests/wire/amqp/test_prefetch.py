"""Tests of the prefetch count: for each consumer, and for a whole channel (global)."""

from __future__ import annotations

import pamqp.commands as spec
import pytest

from tests.clients import World, marshal
from tests.wire.amqp.filled import B, bodies, fill, filled, state
from tests.wire.amqp.speech import Raw, deliveries, open_channel


@pytest.mark.parametrize("count", [1, 2, 3, 10])
def test_prefetch_bounds_each_consumer_started_later(count: int) -> None:
    client = filled(0)
    client.send(B.Consume(queue="q", consumer_tag="before"), B.Cancel("before"))
    client.send(
        B.Qos(prefetch_count=count),
        B.Consume(queue="q", consumer_tag="a"),
        B.Consume(queue="q", consumer_tag="b"),
    )
    fill(client, 100)
    tags = [one.tag for one in deliveries(client.read())]
    assert (tags.count("a"), tags.count("b")) == (count, count)
    assert bodies(client.send(B.Ack(1))) == [2 * count]
    assert bodies(client.send(B.Reject(2, requeue=False))) == [2 * count + 1]
    assert len(bodies(client.send(B.Ack(0, multiple=True)))) == 2 * count


def test_a_changed_prefetch_does_not_touch_consumers_at_work() -> None:
    client = filled(10)
    client.send(B.Qos(prefetch_count=2))
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="a"))) == [0, 1]
    assert bodies(client.send(B.Qos(prefetch_count=5))) == []
    assert bodies(client.send(B.Ack(1))) == [2]
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="b"))) == [3, 4, 5, 6, 7]


def test_zero_prefetch_is_no_bound_and_no_ack_knows_none() -> None:
    client = filled(20)
    assert (
        len(
            bodies(
                client.send(
                    B.Qos(prefetch_count=1),
                    B.Qos(prefetch_count=0),
                    B.Consume(queue="q", consumer_tag="a"),
                )
            )
        )
        == 20
    )
    fill(client, 20)
    client.read()
    client.send(
        B.Cancel("a"), B.Qos(prefetch_count=1), B.Consume(queue="q", consumer_tag="b", no_ack=True)
    )
    fill(client, 20)
    assert len(bodies(client.read())) == 20


def test_py_amqp_retunes_consumers_at_work() -> None:
    world = World()
    raw = Raw(world)
    raw.say(
        b"AMQP\0\0\x09\1"
        + marshal(0, spec.Connection.StartOk({"product": "py-amqp"}, response="\0guest\0guest"))
        + marshal(0, spec.Connection.TuneOk(0, 0, 0))
        + marshal(0, spec.Connection.Open())
        + marshal(1, spec.Channel.Open())
    )
    writer = world.amqp()
    writer.queue("q")
    fill(writer, 20)
    raw.call(B.Qos(prefetch_count=2), channel=1)
    assert bodies(raw.call(B.Consume(queue="q", consumer_tag="a"), channel=1)) == [0, 1]
    assert bodies(raw.call(B.Qos(prefetch_count=4), channel=1)) == [2, 3]
    assert bodies(raw.call(B.Qos(prefetch_count=1), channel=1)) == []
    assert bodies(raw.call(B.Ack(3, multiple=True), channel=1)) == []
    assert bodies(raw.call(B.Ack(4), channel=1)) == [4]
    assert len(bodies(raw.call(B.Qos(prefetch_count=0), channel=1))) == 15


def test_global_prefetch_is_shared_by_the_consumers_of_a_channel() -> None:
    client = filled(10)
    open_channel(client, 2)
    frames = client.send(
        B.Qos(prefetch_count=3, global_=True),
        B.Consume(queue="q", consumer_tag="a"),
        B.Consume(queue="q", consumer_tag="b"),
    )
    assert [(one.tag, int(one.body)) for one in deliveries(frames)] == [
        ("a", 0),
        ("b", 1),
        ("a", 2),
    ]
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="other"), channel=2)) == [
        3,
        4,
        5,
        6,
        7,
        8,
        9,
    ]
    client.send(B.Cancel("other"), channel=2)
    fill(client, 10, 10)
    assert bodies(client.read()) == []
    assert len(bodies(client.send(B.Ack(2, multiple=True)))) == 2


def test_global_and_own_prefetch_both_bind() -> None:
    client = filled(10)
    client.send(B.Qos(prefetch_count=4, global_=True), B.Qos(prefetch_count=1))
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="a"))) == [0]
    client.send(B.Qos(prefetch_count=0))
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="b"))) == [1, 2, 3]
    assert [(one.tag, int(one.body)) for one in deliveries(client.send(B.Ack(1)))] in (
        [("a", 4)],
        [("b", 4)],
    )


@pytest.mark.parametrize("held", [0, 1, 3, 5])
def test_global_prefetch_counts_earlier_deliveries_of_consumers(held: int) -> None:
    client = filled(0)
    client.send(B.Consume(queue="q", consumer_tag="a"))
    fill(client, held)
    client.read()
    client.send(B.Qos(prefetch_count=3, global_=True))
    fill(client, 10)
    assert len(bodies(client.read())) == max(0, 3 - held)
    for _ in range(3):
        client.send(B.Ack(0, multiple=True))
        assert state(client)[1] == min(3, state(client)[0] + state(client)[1])


def test_global_prefetch_does_not_count_fetched_messages() -> None:
    client = filled(10)
    client.send(B.Get(queue="q"), B.Get(queue="q"), B.Qos(prefetch_count=2, global_=True))
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="a"))) == [2, 3]
    assert bodies(client.send(B.Ack(2, multiple=True))) == []
    client.send(B.Qos(prefetch_count=3, global_=True))
    assert state(client) == (5, 3)


def test_deliveries_of_a_cancelled_consumer_count_until_they_are_settled() -> None:
    client = filled(10)
    client.send(B.Qos(prefetch_count=2, global_=True), B.Consume(queue="q", consumer_tag="a"))
    client.send(B.Cancel("a"))
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="b"))) == []
    client.send(B.Qos(prefetch_count=3, global_=True))
    assert state(client)[1] == 3
    assert len(bodies(client.send(B.Ack(2, multiple=True)))) == 2


def test_global_prefetch_taken_back_lets_everything_out() -> None:
    client = filled(10)
    client.send(B.Qos(prefetch_count=2, global_=True), B.Consume(queue="q", consumer_tag="a"))
    assert len(bodies(client.send(B.Qos(prefetch_count=0, global_=True)))) == 8


def test_global_prefetch_wakes_consumers_of_other_queues() -> None:
    client = filled(3)
    client.queue("p")
    client.publish("", "p", b"10")
    client.send(B.Qos(prefetch_count=3, global_=True), B.Consume(queue="q", consumer_tag="a"))
    assert bodies(client.send(B.Consume(queue="p", consumer_tag="b"))) == []
    assert bodies(client.send(B.Ack(1))) == [10]


@pytest.mark.parametrize("multiple", [True, False])
@pytest.mark.parametrize("prefetch", [1, 3, 10, 33])
@pytest.mark.parametrize("waiting", [("a", "b", "c"), ("a", "empty", "b", "c")])
def test_the_queues_of_a_channel_share_the_global_prefetch_fairly(
    waiting: tuple[str, ...], prefetch: int, multiple: bool
) -> None:
    client = World().amqp()
    for name in waiting:
        client.queue(name)
        for _ in range(100 if name != "empty" else 0):
            client.publish("", name, b"x")
    client.send(B.Qos(prefetch_count=prefetch, global_=True))
    got = deliveries(client.send(*[B.Consume(queue=name, consumer_tag=name) for name in waiting]))
    counts = dict.fromkeys(("a", "b", "c"), 0)
    taken = 0
    while taken < 99:
        assert got
        for one in got:
            counts[one.tag] += 1
        taken += len(got)
        if multiple:
            got = deliveries(client.send(B.Ack(taken, multiple=True)))
        else:
            first = taken - len(got) + 1
            acks = [B.Ack(number) for number in range(first, taken + 1)]
            got = deliveries(client.send(*acks))
    assert max(counts.values()) - min(counts.values()) <= prefetch
    assert min(counts.values()) >= 99 // 3 - prefetch // 2 - 1


def test_no_ack_consumers_stand_outside_the_global_prefetch_and_leave_nothing_behind() -> None:
    client = filled(10)
    client.send(B.Qos(prefetch_count=1, global_=True))
    for _ in range(3):
        client.send(B.Consume(queue="q", consumer_tag="n", no_ack=True))
        client.send(B.Cancel("n"))
    assert state(client) == (0, 0)
    pool = client.connection.channels.open[1].receiver.pool
    assert pool.consumers == {} and pool.credit == 1
