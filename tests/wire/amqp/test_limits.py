"""Tests of queues with a time to live, a maximum length, and each overflow behaviour."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients import World
from tests.wire.amqp.dead_lettering import B, numbered
from tests.wire.amqp.speech import deliveries, names, properties, read

# -- time


@pytest.mark.parametrize(
    ("ttl", "expiration", "lives"),
    [
        (None, "100", 100),
        (100, None, 100),
        (100, "50", 50),
        (50, "100", 50),
        (0, None, 0),
        (None, "0", 0),
        (0, "100", 0),
        (None, "0000100", 100),
    ],
)
def test_a_message_lives_as_long_as_the_shorter_of_both(
    ttl: int | None, expiration: str | None, lives: int
) -> None:
    client = World().amqp()
    arguments: Any = {} if ttl is None else {"x_message_ttl": ttl}
    client.queue("q", **arguments)
    client.publish("", "q", b"x", expiration=expiration)
    if lives:
        client.world.sleep(lives - 1)
        assert client.world.queue("q").depth == 1
        client.world.sleep(1)
    else:
        client.world.sleep(0)
    assert client.world.queue("q").depth == 0 and client.world.copies() == {"expired": 1}
    client.world.fates()


def test_a_message_without_life_reaches_a_consumer_that_is_ready() -> None:
    client = World().amqp()
    client.queue("q", x_message_ttl=0)
    client.send(B.Consume(queue="q", consumer_tag="t", no_ack=True))
    assert [
        one.body
        for one in deliveries(
            client.publish("", "q", b"x") + client.publish("", "q", b"y", expiration="0")
        )
    ] == [b"x", b"y"]


def test_an_expired_message_is_neither_got_nor_delivered_before_its_alarm() -> None:
    client = World().amqp()
    for queue in ("p", "q"):
        client.queue(queue)
        numbered(client, queue, 1, expiration="10")
    agenda = client.world.broker.agenda
    agenda.now += 10
    assert names(client.send(B.Get(queue="p"))) == ["Basic.GetEmpty"]
    assert names(client.send(B.Consume(queue="q", consumer_tag="t"))) == ["Basic.ConsumeOk"]


def test_delivered_message_does_not_expire_before_its_requeue() -> None:
    client = World().amqp()
    client.queue("q", x_message_ttl=100)
    client.publish("", "q", b"x")
    client.send(B.Get(queue="q"))
    client.world.sleep(500)
    assert client.world.queue("q").unacked == 1
    client.send(B.Nack(1, requeue=True))
    client.world.sleep(0)
    assert client.world.copies() == {"expired": 1} and client.world.queue("q").depth == 0


def test_expired_message_behind_a_long_lived_head_is_not_delivered() -> None:
    client = World().amqp()
    client.queue("q")
    for expiration in ("100", "10", "10", "200"):
        client.publish("", "q", expiration.encode(), expiration=expiration)
    client.world.sleep(50)
    # As in RabbitMQ, only messages at the head of the queue expire.
    assert client.world.queue("q").depth == 4
    assert read(client, "q") == [b"100", b"200"] and client.world.copies() == {
        "expired": 2,
        "auto_acknowledged": 2,
    }


def test_expiration_travels_with_the_message() -> None:
    client = World().amqp()
    client.queue("q")
    client.publish("", "q", b"x", expiration="10000")
    assert properties(client.send(B.Get(queue="q"))).expiration == "10000"


# -- length


@pytest.mark.parametrize(
    ("limit", "left"),
    [(0, []), (1, [b"4"]), (3, [b"2", b"3", b"4"]), (10, [b"0", b"1", b"2", b"3", b"4"])],
)
@pytest.mark.parametrize("overflow", [None, "drop-head"])
def test_a_full_queue_drops_its_oldest(limit: int, left: list[bytes], overflow: str | None) -> None:
    client = World().amqp()
    client.queue("q", x_max_length=limit, **({"x_overflow": overflow} if overflow else {}))
    numbered(client, "q", 5)
    assert read(client, "q") == left
    assert client.world.copies().get("over_limit", 0) == 5 - len(left)
    client.world.fates()


def test_length_counts_waiting_messages_and_no_deliveries() -> None:
    client = World().amqp()
    client.queue("q", x_max_length=2)
    client.send(B.Qos(prefetch_count=2), B.Consume(queue="q", consumer_tag="t"))
    numbered(client, "q", 6)
    assert (client.world.queue("q").depth, client.world.queue("q").unacked) == (2, 2)
    client.send(B.Cancel("t"), B.Nack(0, multiple=True, requeue=True))
    assert client.world.queue("q").depth == 2
    assert read(client, "q") == [b"4", b"5"]  # The requeued message is older, so it goes first.
    client.world.fates()


def test_message_requeued_into_a_full_queue_is_over_the_limit() -> None:
    client = World().amqp()
    client.queue("dead_letters", "amq.fanout")
    client.queue("q", x_max_length=1, x_dead_letter_exchange="amq.fanout")
    numbered(client, "q", 1)
    client.send(B.Get(queue="q"))
    numbered(client, "q", 1, 1)
    client.send(B.Reject(1, requeue=True))
    assert (read(client, "q"), read(client, "dead_letters")) == ([b"1"], [b"0"])
