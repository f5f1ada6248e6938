"""Priorities of messages and of consumers, and the single active consumer."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.clients import Amqp, World
from tests.wire.amqp.speech import deliveries, names, open_channel, read, refusal

Q, B = spec.Queue, spec.Basic


def consume(
    client: Amqp,
    tag: str,
    priority: int | None = None,
    no_ack: bool = True,
    prefetch: int = 0,
    channel: int = 1,
) -> list[Any]:
    arguments: Any = {} if priority is None else {"x-priority": priority}
    if prefetch:
        client.send(B.Qos(prefetch_count=prefetch), channel=channel)
    return client.send(
        B.Consume(queue="q", consumer_tag=tag, no_ack=no_ack, arguments=arguments), channel=channel
    )


def tags(frames: list[Any]) -> list[str]:
    return [one.tag for one in deliveries(frames)]


# -- messages


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.none(), st.integers(0, 255)), max_size=20), st.integers(1, 255))
def test_higher_priorities_go_first_and_equal_ones_in_order(
    priorities: list[int | None], highest: int
) -> None:
    client = World().amqp()
    client.queue("q", x_max_priority=highest)
    for number, priority in enumerate(priorities):
        given: Any = {} if priority is None else {"priority": priority}
        client.publish("", "q", b"%d" % number, **given)
    ranked = sorted(
        range(len(priorities)), key=lambda number: -min(priorities[number] or 0, highest)
    )
    assert read(client, "q") == [b"%d" % number for number in ranked]
    client.world.fates()


def test_requeued_message_goes_to_its_old_place_in_its_priority() -> None:
    client = World().amqp()
    client.queue("q", x_max_priority=9)
    for number, priority in enumerate((1, 5, 5, 1)):
        client.publish("", "q", b"%d" % number, priority=priority)
    first, second = client.send(B.Get(queue="q")), client.send(B.Get(queue="q"))
    assert [one.body for one in deliveries(first + second)] == [b"1", b"2"]
    client.send(B.Nack(2, multiple=True, requeue=True))
    client.publish("", "q", b"4", priority=5)
    assert read(client, "q") == [b"1", b"2", b"4", b"0", b"3"]


def test_a_queue_without_priorities_ignores_them() -> None:
    client = World().amqp()
    client.queue("q", x_max_priority=0)
    for number in range(3):
        client.publish("", "q", b"%d" % number, priority=number)
    assert read(client, "q") == [b"0", b"1", b"2"]


def test_a_full_queue_with_priorities_drops_its_head_which_is_the_highest() -> None:
    client = World().amqp()
    client.queue("q", x_max_priority=9, x_max_length=2)
    for number, priority in enumerate((9, 1, 1)):
        client.publish("", "q", b"%d" % number, priority=priority)
    assert read(client, "q") == [b"1", b"2"]


def test_expired_message_behind_a_higher_priority_waits_for_its_turn() -> None:
    client = World().amqp()
    client.queue("q", x_max_priority=9)
    client.publish("", "q", b"low", expiration="10")
    client.publish("", "q", b"high", priority=9)
    client.world.sleep(20)
    assert client.world.queue("q").depth == 2
    assert read(client, "q") == [b"high"] and client.world.copies() == {
        "auto_acknowledged": 1,
        "expired": 1,
    }


def test_a_queue_with_priorities_is_purged_and_deleted_with_all_it_holds() -> None:
    client = World().amqp()
    client.queue("q", x_max_priority=9)
    for number in range(5):
        client.publish("", "q", b"x", priority=number)
    assert client.send(Q.Purge(queue="q"))[0].message_count == 5
    client.publish("", "q", b"x", priority=3)
    assert client.send(Q.Delete(queue="q"))[0].message_count == 1
    assert client.world.copies() == {"purged": 6} and client.world.fates() == {"routed": 6}


def test_priorities_come_through_dead_letters() -> None:
    client = World().amqp()
    client.queue("dead_letters", x_max_priority=9)
    client.queue(
        "q", x_max_length=0, x_dead_letter_exchange="", x_dead_letter_routing_key="dead_letters"
    )
    for number, priority in enumerate((1, 7)):
        client.publish("", "q", b"%d" % number, priority=priority)
    client.world.turn()
    assert read(client, "dead_letters") == [b"1", b"0"]


# -- consumers


def test_consumers_with_a_higher_priority_get_everything_while_they_are_ready() -> None:
    client = World().amqp()
    client.queue("q")
    for tag, priority in (("low", -1), ("a", 5), ("none", None), ("b", 5)):
        consume(client, tag, priority)
    assert [tags(client.publish("", "q", b"x"))[0] for _ in range(4)] == ["a", "b", "a", "b"]


def test_consumers_of_lower_priority_take_the_surplus_in_turn() -> None:
    client = World().amqp()
    client.queue("q")
    consume(client, "high", 5, no_ack=False, prefetch=1)
    for channel, tag in ((2, "low"), (3, "lower"), (4, "low too")):
        open_channel(client, channel)
        consume(
            client, tag, -1 if tag == "lower" else None, no_ack=False, prefetch=2, channel=channel
        )
    consumers = [tags(client.publish("", "q", b"x"))[0] for _ in range(7)]
    assert consumers == ["high", "low", "low too", "low", "low too", "lower", "lower"]
    client.publish("", "q", b"x")
    assert tags(client.send(B.Ack(1))) == ["high"]


def test_consumers_of_the_next_priority_replace_cancelled_ones() -> None:
    client = World().amqp()
    client.queue("q")
    for tag, priority in (("a", 9), ("b", 3), ("c", 3), ("d", 1)):
        consume(client, tag, priority)
    client.send(B.Cancel("a"))
    assert [tags(client.publish("", "q", b"x"))[0] for _ in range(3)] in (
        ["b", "c", "b"],
        ["c", "b", "c"],
    )
    client.send(B.Cancel("b"), B.Cancel("c"))
    assert tags(client.publish("", "q", b"x")) == ["d"]
    assert client.send(Q.Declare(queue="q", passive=True))[0].consumer_count == 1


@pytest.mark.parametrize("priority", ["1", 1.5, True, 1 << 40])
def test_a_priority_that_is_no_number_is_refused(priority: Any) -> None:
    client = World().amqp()
    client.queue("q")
    error = refusal(
        client.send(B.Consume(queue="q", consumer_tag="t", arguments={"x-priority": priority}))
    )
    assert (
        error[:2] == ("channel", 406)
        and "invalid arg 'x-priority' for queue 'q' in vhost '/'" in error.text
    )
    assert error[3:] == (60, 20)


# -- one at a time


def test_of_all_consumers_one_is_active_and_the_next_takes_over() -> None:
    client = World().amqp()
    client.queue("q", x_single_active_consumer=True)
    for tag in "abc":
        consume(client, tag)
    assert [tags(client.publish("", "q", b"x"))[0] for _ in range(3)] == ["a"] * 3
    client.send(B.Cancel("a"))
    assert [tags(client.publish("", "q", b"x"))[0] for _ in range(2)] == ["b"] * 2
    client.send(B.Cancel("c"), B.Cancel("b"))
    assert deliveries(client.publish("", "q", b"x")) == []
    assert tags(consume(client, "d")) == ["d"]


def test_the_active_one_without_credit_is_waited_for() -> None:
    client = World().amqp()
    client.queue("q", x_single_active_consumer=True)
    consume(client, "a", no_ack=False, prefetch=1)
    consume(client, "b")
    assert [tags(client.publish("", "q", b"%d" % number)) for number in range(3)] == [["a"], [], []]
    assert tags(client.send(B.Ack(1))) == ["a"]
    assert tags(client.send(B.Cancel("a"))) == ["b"]


def test_the_next_active_one_is_the_one_with_the_highest_priority() -> None:
    client = World().amqp()
    client.queue("q", x_single_active_consumer=True)
    for tag, priority in (("a", 0), ("b", 1), ("c", 2)):
        consume(client, tag, priority)
    assert tags(client.publish("", "q", b"x")) == ["a"]
    client.send(B.Cancel("a"))
    assert tags(client.publish("", "q", b"x")) == ["c"]


def test_deliveries_of_the_active_consumer_go_to_the_next_after_its_connection() -> None:
    world = World()
    first, second = world.amqp(), world.amqp()
    first.queue("q", x_single_active_consumer=True)
    consume(first, "a", no_ack=False)
    consume(second, "b", no_ack=False)
    assert [
        one.body
        for number in range(3)
        for one in deliveries(first.publish("", "q", b"%d" % number))
    ] == [b"0", b"1", b"2"]
    first.connection.on_closed()
    assert [(one.tag, one.body, one.redelivered) for one in deliveries(second.read())] == [
        ("b", b"0", True),
        ("b", b"1", True),
        ("b", b"2", True),
    ]


def test_beside_a_single_active_consumer_none_is_exclusive() -> None:
    client = World().amqp()
    client.queue("q", x_single_active_consumer=True)
    assert refusal(client.send(B.Consume(queue="q", consumer_tag="t", exclusive=True)))[:2] == (
        "channel",
        403,
    )


def test_exclusive_consumer_is_refused_beside_waiting_consumers() -> None:
    client = World().amqp()
    client.queue("q")
    consume(client, "a", 5)
    consume(client, "b", 1)
    client.send(B.Cancel("a"))
    assert names(client.send(B.Consume(queue="q", consumer_tag="t", exclusive=True))) == [
        "Channel.Close"
    ]
