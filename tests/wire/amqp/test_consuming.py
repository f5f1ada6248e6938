"""Consumers: how they begin and end, how they share messages; basic.get and backpressure."""

from __future__ import annotations

import pamqp.commands as spec
import pytest

from tests.clients import World, marshal, unmarshal
from tests.wire.amqp.filled import B, Q, bodies, fill, filled, state
from tests.wire.amqp.speech import deliveries, names, open_channel, refusal

# -- beginning and ending


def test_consume_ok_comes_before_the_first_delivery() -> None:
    frames = filled(2).send(B.Consume(queue="q", consumer_tag="t"))
    assert names(frames) == [
        "Basic.ConsumeOk",
        *["Basic.Deliver", "ContentHeader", "ContentBody"] * 2,
    ]
    assert frames[0].consumer_tag == "t"


def test_a_consumer_without_a_tag_is_given_one() -> None:
    client = filled(0)
    [first, second] = client.send(B.Consume(queue="q"), B.Consume(queue="q"))
    assert first.consumer_tag.startswith("amq.ctag-") and first.consumer_tag != second.consumer_tag


@pytest.mark.parametrize("tag", ["t", "é" * 127, " ", "a b/c#", "x" * 255])
def test_tags_come_back_with_every_delivery_as_they_were_given(tag: str) -> None:
    client = filled(1)
    assert [one.tag for one in deliveries(client.send(B.Consume(queue="q", consumer_tag=tag)))] == [
        tag
    ]
    [ok] = client.send(B.Cancel(tag))
    assert ok.consumer_tag == tag


def test_the_same_tag_may_be_used_on_two_channels_and_again_after_its_end() -> None:
    client = filled(0)
    open_channel(client, 2)
    assert (
        names(
            client.send(B.Consume(queue="q", consumer_tag="t"))
            + client.send(B.Consume(queue="q", consumer_tag="t"), channel=2)
        )
        == ["Basic.ConsumeOk"] * 2
    )
    assert names(client.send(B.Cancel("t"), B.Consume(queue="q", consumer_tag="t"))) == [
        "Basic.CancelOk",
        "Basic.ConsumeOk",
    ]


def test_cancelled_consumer_gets_no_delivery_and_may_settle_earlier_ones() -> None:
    client = filled(2)
    client.send(B.Qos(prefetch_count=1), B.Consume(queue="q", consumer_tag="t"))
    assert names(client.send(B.Cancel("t"))) == ["Basic.CancelOk"]
    assert client.send(B.Ack(1)) == [] and state(client) == (1, 0)
    assert refusal(client.send(B.Ack(1))).code == 406


def test_deliveries_of_a_cancelled_consumer_are_requeued_with_its_channel() -> None:
    client = filled(1)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    client.send(B.Cancel("t"))
    assert state(client) == (0, 1)
    client.send(spec.Channel.Close(0, "", 0, 0), spec.Channel.Open())
    assert state(client) == (1, 0)


@pytest.mark.parametrize("notify", [True, False])
def test_a_consumer_hears_that_its_queue_is_gone_if_its_client_can(notify: bool) -> None:
    world = World()
    client, other = world.amqp(consumer_cancel_notify=notify), world.amqp()
    client.queue("q")
    client.send(B.Consume(queue="q", consumer_tag="a"), B.Consume(queue="q", consumer_tag="b"))
    other.send(Q.Delete(queue="q"))
    frames = client.read()
    assert [(one.name, one.consumer_tag, one.nowait) for one in frames] == (
        [("Basic.Cancel", "a", True), ("Basic.Cancel", "b", True)] if notify else []
    )
    client.queue("q")
    assert names(client.send(B.Consume(queue="q", consumer_tag="a"), B.Cancel("b"))) == [
        "Basic.ConsumeOk",
        "Basic.CancelOk",
    ]


@pytest.mark.parametrize("durable", [False, True])
def test_a_client_that_deletes_its_own_queue_gets_delete_ok_before_cancel(durable: bool) -> None:
    client = filled(0, durable=durable)
    client.send(*[B.Consume(queue="q", consumer_tag=str(tag)) for tag in range(3)])
    client.world.slow_disk = True
    got = names(client.send(Q.Delete(queue="q")))
    assert got == ([] if durable else ["Queue.DeleteOk", *["Basic.Cancel"] * 3])
    client.world.slow_disk = False
    client.world.settle(client.connection)
    got += names(client.read())
    assert got == ["Queue.DeleteOk", *["Basic.Cancel"] * 3]


def test_a_client_that_deletes_its_own_queue_without_a_reply_gets_cancel() -> None:
    client = filled(0, durable=True)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    assert names(client.send(Q.Delete(queue="q", nowait=True))) == ["Basic.Cancel"]
    assert names(client.send(Q.Declare(queue="q"))) == ["Queue.DeclareOk"]


def test_a_consumer_elsewhere_hears_that_an_exclusive_consumer_is_alone() -> None:
    world = World()
    first, second = world.amqp(), world.amqp()
    first.queue("q")
    first.send(B.Consume(queue="q", consumer_tag="t", exclusive=True))
    assert (
        refusal(second.send(B.Consume(queue="q"))).text
        == "ACCESS_REFUSED - queue 'q' in vhost '/' in exclusive use"
    )
    first.send(B.Cancel("t"))
    second.send(spec.Channel.CloseOk(), spec.Channel.Open())
    assert names(second.send(B.Consume(queue="q"))) == ["Basic.ConsumeOk"]
    assert refusal(first.send(B.Consume(queue="q", exclusive=True))).code == 403


def test_no_ack_consumers_settle_at_once() -> None:
    client = filled(3)
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="t", no_ack=True))) == [0, 1, 2]
    assert state(client) == (0, 0) and client.world.copies() == {"auto_acknowledged": 3}
    assert refusal(client.send(B.Ack(1))).code == 406


def test_delivery_tags_count_per_channel_over_consumers_and_gets() -> None:
    client = filled(6)
    open_channel(client, 2)
    client.send(B.Qos(prefetch_count=1))
    numbers = [
        one.number
        for one in deliveries(
            client.send(
                B.Get(queue="q"),
                B.Get(queue="q", no_ack=True),
                B.Consume(queue="q", consumer_tag="a"),
                B.Consume(queue="q", consumer_tag="b"),
                B.Get(queue="q"),
            )
        )
    ]
    assert sorted(numbers) == [1, 2, 3, 4, 5]
    assert [one.number for one in deliveries(client.send(B.Get(queue="q"), channel=2))] == [1]
    assert client.send(B.Ack(5)) == [] == client.send(B.Ack(1))
    assert refusal(client.send(B.Ack(2))).code == 406


# -- consumers take turns


def test_consumers_with_credit_take_turns_wherever_they_are() -> None:
    world = World()
    first, second, writer = world.amqp(), world.amqp(), world.amqp()
    first.queue("q")
    open_channel(first, 2)
    first.send(B.Consume(queue="q", consumer_tag="a"), B.Consume(queue="q", consumer_tag="b"))
    first.send(B.Qos(prefetch_count=1), B.Consume(queue="q", consumer_tag="c"), channel=2)
    second.send(B.Consume(queue="q", consumer_tag="d"))
    fill(writer, 9)
    got = [(one.tag, int(one.body)) for one in deliveries(first.read()) + deliveries(second.read())]
    assert sorted(got, key=lambda one: one[1]) == [
        ("a", 0),
        ("b", 1),
        ("c", 2),
        ("d", 3),
        ("a", 4),
        ("b", 5),
        ("d", 6),
        ("a", 7),
        ("b", 8),
    ]


def test_a_backlog_is_shared_in_turns_too() -> None:
    client = filled(6)
    client.send(B.Qos(prefetch_count=2))
    frames = client.send(
        B.Consume(queue="q", consumer_tag="a"), B.Consume(queue="q", consumer_tag="b")
    )
    assert [(one.tag, int(one.body)) for one in deliveries(frames)] == [
        ("a", 0),
        ("b", 1),
        ("a", 2),
        ("b", 3),
    ]


# -- get


def test_get_reports_the_number_of_remaining_messages_and_an_empty_queue() -> None:
    client = filled(3)
    left = [
        one.message_count
        for one in client.send(B.Get(queue="q"), B.Get(queue="q", no_ack=True), B.Get(queue="q"))
        if isinstance(one, B.GetOk)
    ]
    assert left == [2, 1, 0] and names(client.send(B.Get(queue="q"))) == ["Basic.GetEmpty"]
    assert state(client) == (0, 2)


def test_get_does_not_care_for_prefetch() -> None:
    client = filled(3)
    client.send(B.Qos(prefetch_count=1), B.Qos(prefetch_count=1, global_=True))
    assert [bodies(client.send(B.Get(queue="q"))) for _ in range(3)] == [[0], [1], [2]]


# -- a reader that does not keep up


def test_a_paused_reader_gets_no_more_and_another_one_does() -> None:
    world = World()
    slow, quick, writer = world.amqp(), world.amqp(), world.amqp()
    slow.queue("q")
    slow.send(B.Consume(queue="q", consumer_tag="s"))
    quick.send(B.Consume(queue="q", consumer_tag="q"))
    slow.connection.pause_writing()
    fill(writer, 4)
    assert (bodies(slow.read()), bodies(quick.read())) == ([], [0, 1, 2, 3])
    quick.send(B.Cancel("q"))
    fill(writer, 2, 4)
    assert bodies(slow.read()) == []
    slow.connection.resume_writing()
    assert bodies(slow.read()) == [4, 5]


def test_a_paused_reader_is_answered_all_the_same() -> None:
    client = filled(1)
    client.connection.pause_writing()
    assert names(client.send(Q.Declare(queue="q"), B.Get(queue="q"))) == [
        "Queue.DeclareOk",
        "Basic.GetOk",
        "ContentHeader",
        "ContentBody",
    ]


def test_a_backlog_comes_in_turns_of_bounded_size_and_in_order() -> None:
    client = filled(0)
    size = 10_000
    for number in range(200):
        client.publish("", "q", b"%d" % number + b" " * size)
    client.connection.receive_data(marshal(1, B.Consume(queue="q", consumer_tag="t")))
    seen: list[int] = []
    turns = 0
    while len(seen) < 200:
        data = client.read_bytes()
        assert len(data) < (1 << 18) + 2 * size
        seen += bodies(unmarshal(data))
        turns += 1
    assert seen == list(range(200)) and turns >= 7


def test_queues_of_one_connection_take_turns_when_each_fills_the_output_buffer() -> None:
    world = World()
    client, writer = world.amqp(), world.amqp()
    queues = ["a", "b", "c"]
    body = bytes(20_000)
    for channel, queue in enumerate(queues, 1):
        client.queue(queue)
        if channel > 1:
            open_channel(client, channel)
        for _ in range(60):
            writer.publish("", queue, body)
    for channel, queue in enumerate(queues, 1):
        consume = B.Consume(queue=queue, consumer_tag=queue, no_ack=True)
        client.connection.receive_data(marshal(channel, consume))
    received = dict.fromkeys(queues, 0)
    for _ in range(9):
        for delivery in deliveries(unmarshal(client.read_bytes())):
            received[delivery.tag] += 1
            # Publish a message for each delivery, so that the queue never becomes empty.
            writer.publish("", delivery.tag, body)
    assert min(received.values()) * 2 > max(received.values()) > 20
