"""Acknowledgements, rejections and requeues: removed messages, and the order of requeues."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import World, marshal
from tests.wire.amqp.filled import B, fill, filled, state
from tests.wire.amqp.speech import deliveries, names, open_channel, read, refusal


@pytest.mark.parametrize(
    ("settle", "gone", "back"),
    [
        ([B.Ack(1)], [0], []),
        ([B.Ack(2)], [1], []),
        ([B.Ack(2, multiple=True)], [0, 1], []),
        ([B.Ack(0, multiple=True)], [0, 1, 2, 3], []),
        ([B.Ack(2), B.Ack(3, multiple=True)], [0, 1, 2], []),
        ([B.Nack(1, requeue=False)], [0], []),
        ([B.Nack(3, multiple=True, requeue=False)], [0, 1, 2], []),
        ([B.Nack(0, multiple=True, requeue=False)], [0, 1, 2, 3], []),
        ([B.Reject(4, requeue=False)], [3], []),
        ([B.Reject(3, requeue=True)], [], [2]),
        ([B.Nack(2, requeue=True)], [], [1]),
        ([B.Nack(3, multiple=True, requeue=True)], [], [0, 1, 2]),
        ([B.Nack(0, multiple=True, requeue=True)], [], [0, 1, 2, 3]),
        ([B.Reject(3, requeue=True), B.Reject(1, requeue=True)], [], [0, 2]),
        ([B.Recover(requeue=True)], [], [0, 1, 2, 3]),
        ([B.Ack(2), B.Recover(requeue=True)], [1], [0, 2, 3]),
    ],
)
def test_settling_removes_or_requeues_the_given_deliveries(
    settle: list[Any], gone: list[int], back: list[int]
) -> None:
    client = filled(4)
    client.send(*[B.Get(queue="q") for _ in range(4)])
    client.send(*settle)
    assert state(client) == (len(back), 4 - len(gone) - len(back))
    again = deliveries(client.send(B.Consume(queue="q", consumer_tag="t", no_ack=True)))
    assert [(int(one.body), one.redelivered) for one in again] == [
        (number, True) for number in back
    ]
    client.world.fates()


def test_requeued_messages_come_before_waiting_ones_in_their_old_order() -> None:
    client = filled(6)
    client.send(*[B.Get(queue="q") for _ in range(4)])
    client.send(B.Nack(4, requeue=True), B.Nack(2, requeue=True), B.Ack(1), B.Nack(3, requeue=True))
    got = deliveries(client.send(B.Consume(queue="q", consumer_tag="t")))
    assert [(int(one.body), one.redelivered) for one in got] == [
        (1, True),
        (2, True),
        (3, True),
        (4, False),
        (5, False),
    ]


@pytest.mark.parametrize("end", ["channel.close", "error", "connection.close", "lost"])
def test_deliveries_are_requeued_in_order_when_a_channel_or_connection_ends(end: str) -> None:
    client = filled(6)
    other = client.world.amqp()
    open_channel(client, 2)
    client.send(B.Qos(prefetch_count=2), B.Consume(queue="q", consumer_tag="a"), channel=2)
    client.send(B.Get(queue="q"), B.Get(queue="q"), channel=2)
    client.send(B.Ack(2), channel=2)
    if end == "channel.close":
        assert names(client.send(spec.Channel.Close(0, "", 0, 0), channel=2)) == ["Channel.CloseOk"]
    elif end == "error":
        assert refusal(client.send(B.Ack(99), channel=2)).code == 406
    elif end == "connection.close":
        client.send(spec.Connection.Close(0, "", 0, 0), channel=0)
    else:
        client.connection.on_closed()
    got = deliveries(other.send(B.Consume(queue="q", consumer_tag="t")))
    flags = {int(one.body): one.redelivered for one in got}
    assert [int(one.body) for one in got] == [0, 2, 3, 4, 5] and flags == {
        0: True,
        2: True,
        3: True,
        4: True,
        5: False,
    }


def test_two_channels_put_back_into_one_order() -> None:
    client = filled(4)
    open_channel(client, 2)
    for number in (1, 2, 1, 2):
        client.send(B.Get(queue="q"), channel=number)
    client.send(B.Nack(0, multiple=True, requeue=True), channel=2)
    client.send(B.Nack(0, multiple=True, requeue=True), channel=1)
    assert read(client, "q") == [b"0", b"1", b"2", b"3"]


def test_a_requeued_message_may_go_to_another_consumer() -> None:
    world = World()
    first, second = world.amqp(), world.amqp()
    first.queue("q")
    first.send(B.Qos(prefetch_count=1), B.Consume(queue="q", consumer_tag="a"))
    second.send(B.Qos(prefetch_count=1), B.Consume(queue="q", consumer_tag="b"))
    first.publish("", "q", b"x")
    assert [
        one.redelivered for one in deliveries(first.read() + first.send(B.Reject(1, requeue=True)))
    ] == []
    assert [(one.tag, one.redelivered) for one in deliveries(second.read())] == [("b", True)]


def test_a_rejected_message_may_come_back_for_ever() -> None:
    client = filled(1)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    for number in range(1, 50):
        [one] = deliveries(client.send(B.Nack(number, requeue=True)))
        assert (one.number, one.redelivered) == (number + 1, True)


def test_recover_delivers_again_with_new_numbers() -> None:
    client = filled(3)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    frames = client.send(B.Recover(requeue=True))
    assert names(frames)[0] == "Basic.RecoverOk"
    assert [(one.number, int(one.body), one.redelivered) for one in deliveries(frames)] == [
        (4, 0, True),
        (5, 1, True),
        (6, 2, True),
    ]
    assert refusal(client.send(B.Ack(1))).code == 406


def test_multiple_up_to_a_settled_tag_settles_the_earlier_deliveries() -> None:
    client = filled(4)
    client.send(*[B.Get(queue="q") for _ in range(4)])
    assert client.send(B.Ack(3), B.Ack(3, multiple=True)) == [] and state(client) == (0, 1)
    assert refusal(client.send(B.Ack(3, multiple=True))).code == 406


def test_acknowledgements_in_any_order_and_chunking_settle_the_same() -> None:
    client = filled(100)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    numbers = [number * 37 % 101 for number in range(1, 101)]
    data = b"".join(marshal(1, B.Ack(number)) for number in numbers)
    for at in range(0, len(data), 13):
        client.connection.receive_data(data[at : at + 13])
    assert client.read() == [] and state(client) == (0, 0)


def test_very_many_messages_go_back_in_order() -> None:
    client = filled(20_000)
    client.world.settle(client.connection)
    client.connection.receive_data(marshal(1, B.Consume(queue="q", consumer_tag="t")))
    while client.world.queue("q").unacked < 20_000:
        client.read_bytes()
    client.send(B.Cancel("t"))
    client.connection.receive_data(
        marshal(1, B.Nack(0, multiple=True, requeue=True)) + marshal(1, B.Get(queue="q"))
    )
    client.world.settle(client.connection)
    [back] = deliveries(client.read())
    assert (back.number, back.body, state(client)) == (20_001, b"0", (19_999, 1))


def test_numbers_and_memory_stay_right_over_many_messages_beside_one_that_is_never_settled() -> (
    None
):
    client = filled(1)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    last = 1
    for _ in range(300):
        fill(client, 10)
        last = max(one.number for one in deliveries(client.read()))
        client.connection.receive_data(
            b"".join(marshal(1, B.Ack(number)) for number in range(last - 9, last + 1))
        )
    assert last == 3_001 and state(client) == (0, 1)
    client.send(B.Cancel("t"), B.Consume(queue="q", consumer_tag="n", no_ack=True))
    fill(client, 3_000)
    assert deliveries(client.read())[-1].number == 6_001
    assert client.send(B.Nack(1, requeue=True))[0].redelivered is True
