"""Consumers: their share of the messages, order, prefetch, settlement and end."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import Amqp, World, marshal, publication, unmarshal
from tests.wire.amqp.speech import Raw, deliveries, names, open_channel, read, refusal

Q, B = spec.Queue, spec.Basic


def filled(count: int = 5, **flags: Any) -> Amqp:
    """Return a client with a queue `q` that has the messages 0, 1, 2, ..."""
    client = World().amqp()
    client.send(Q.Declare(queue="q", **flags))
    fill(client, count)
    return client


def fill(client: Amqp, count: int, first: int = 0) -> None:
    client.connection.receive_data(
        b"".join(publication("", "q", b"%d" % number) for number in range(first, first + count))
    )


def bodies(frames: list[Any]) -> list[int]:
    return [int(one.body) for one in deliveries(frames)]


def state(client: Amqp) -> tuple[int, int]:
    return int(client.world.queue("q").depth), int(client.world.queue("q").unacked)


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


def test_nothing_is_delivered_after_cancel_ok_and_what_was_may_still_be_settled() -> None:
    client = filled(2)
    client.send(B.Qos(prefetch_count=1), B.Consume(queue="q", consumer_tag="t"))
    assert names(client.send(B.Cancel("t"))) == ["Basic.CancelOk"]
    assert client.send(B.Ack(1)) == [] and state(client) == (1, 0)
    assert refusal(client.send(B.Ack(1))).code == 406


def test_what_a_cancelled_consumer_holds_goes_back_with_its_channel() -> None:
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


def test_a_consumer_that_deletes_its_own_queue_hears_cancel_before_delete_ok() -> None:
    client = filled(0)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    assert names(client.send(Q.Delete(queue="q"))) == ["Basic.Cancel", "Queue.DeleteOk"]


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


# -- turns


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


# -- prefetch


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
def test_global_prefetch_counts_what_consumers_hold_already(held: int) -> None:
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


def test_global_prefetch_does_not_count_what_was_got() -> None:
    client = filled(10)
    client.send(B.Get(queue="q"), B.Get(queue="q"), B.Qos(prefetch_count=2, global_=True))
    assert bodies(client.send(B.Consume(queue="q", consumer_tag="a"))) == [2, 3]
    assert bodies(client.send(B.Ack(2, multiple=True))) == []
    client.send(B.Qos(prefetch_count=3, global_=True))
    assert state(client) == (5, 3)


def test_what_a_cancelled_consumer_holds_counts_until_it_is_settled() -> None:
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


def test_no_ack_consumers_stand_outside_the_global_prefetch_and_leave_nothing_behind() -> None:
    client = filled(10)
    client.send(B.Qos(prefetch_count=1, global_=True))
    for _ in range(3):
        client.send(B.Consume(queue="q", consumer_tag="n", no_ack=True))
        client.send(B.Cancel("n"))
    assert state(client) == (0, 0)
    pool = client.connection.channels.open[1].receiver.pool
    assert pool.consumers == {} and pool.credit == 1


# -- get


def test_get_tells_what_is_left_and_when_nothing_is() -> None:
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


# -- settling


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
def test_settling_takes_away_or_puts_back_what_it_says(
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


def test_what_is_put_back_comes_before_what_waited_in_its_old_order() -> None:
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
def test_what_is_held_goes_back_in_order_when_a_channel_or_connection_ends(end: str) -> None:
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


def test_multiple_up_to_a_settled_number_settles_what_is_before_it() -> None:
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
