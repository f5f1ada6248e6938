"""Queues that expire unused (x-expires), or limit their bytes or the deliveries of a message."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from tests.clients import Amqp, World
from tests.wire.amqp.speech import deliveries, names, properties, read, refusal

Q, B = spec.Queue, spec.Basic


# -- x-expires


def test_an_unused_queue_expires() -> None:
    client = World().amqp()
    client.queue("q", "amq.topic", "a", x_expires=100)
    client.publish("", "q", b"x")
    client.world.sleep(99)
    assert "q" in client.world.vhost.queues
    client.world.sleep(1)
    assert "q" not in client.world.vhost.queues
    client.publish("amq.topic", "a", b"x")
    assert client.world.fates() == {"routed": 1, "unroutable": 1} and client.world.copies() == {
        "purged": 1
    }


@pytest.mark.parametrize(
    "use",
    [
        Q.Declare(queue="q", passive=True),
        Q.Declare(queue="q", arguments={"x-expires": 100}),
        B.Get(queue="q", no_ack=True),
    ],
)
def test_using_a_queue_renews_its_lease(use: Any) -> None:
    client = World().amqp()
    client.queue("q", x_expires=100)
    for _ in range(3):
        client.world.sleep(60)
        client.send(use)
    client.world.sleep(99)
    assert "q" in client.world.vhost.queues
    client.world.sleep(1)
    assert "q" not in client.world.vhost.queues


def test_publishing_is_no_use() -> None:
    client = World().amqp()
    client.queue("q", x_expires=100)
    client.world.sleep(60)
    client.publish("", "q", b"x")
    client.world.sleep(40)
    assert "q" not in client.world.vhost.queues


def test_a_queue_with_consumers_stays_and_its_lease_begins_when_the_last_one_leaves() -> None:
    client = World().amqp()
    client.queue("q", x_expires=100)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    client.world.sleep(500)
    client.send(B.Cancel("t"))
    client.world.sleep(99)
    assert "q" in client.world.vhost.queues
    client.world.sleep(1)
    assert "q" not in client.world.vhost.queues


def test_a_queue_declared_anew_is_not_ended_by_the_lease_of_the_old_one() -> None:
    client = World().amqp()
    client.queue("q", x_expires=100)
    client.world.sleep(50)
    client.send(Q.Delete(queue="q"))
    client.queue("q", x_expires=100)
    client.world.sleep(60)
    assert "q" in client.world.vhost.queues


# -- x-max-length-bytes


@pytest.mark.parametrize(
    ("limit", "left"), [(0, []), (3, [b"ccc"]), (5, [b"bb", b"ccc"]), (6, [b"a", b"bb", b"ccc"])]
)
def test_a_queue_holds_so_many_bytes_and_drops_its_oldest(limit: int, left: list[bytes]) -> None:
    client = World().amqp()
    client.queue("q", x_max_length_bytes=limit)
    for body in (b"a", b"bb", b"ccc"):
        client.publish("", "q", body, headers={"more": "than that"})
    assert read(client, "q") == left
    client.world.fates()


def test_bytes_that_left_make_room() -> None:
    client = World().amqp()
    client.queue("q", x_max_length_bytes=4, x_overflow="reject-publish")
    client.send(spec.Confirm.Select())
    assert names(client.publish("", "q", b"123")) == ["Basic.Ack"]
    assert names(client.publish("", "q", b"45")) == ["Basic.Nack"]
    assert names(client.publish("", "q", b"4")) == ["Basic.Ack"]
    client.send(B.Get(queue="q"))
    assert names(client.publish("", "q", b"567")) == ["Basic.Ack"]
    # A requeued message is never refused, so the queue is above its limit now.
    client.send(B.Nack(1, requeue=True))
    assert names(client.publish("", "q", b"")) == ["Basic.Nack"]
    client.send(Q.Purge(queue="q"))
    assert names(client.publish("", "q", b"8901")) == ["Basic.Ack"]
    client.world.fates()


def test_a_consumer_drains_the_bytes() -> None:
    client = World().amqp()
    client.queue("q", x_max_length_bytes=100)
    for _ in range(5):
        client.publish("", "q", b"x" * 10)
    client.send(B.Consume(queue="q", consumer_tag="t", no_ack=True))
    queue: Any = client.world.queue("q")
    assert (queue.depth, queue.waiting_bytes) == (0, 0)


# -- deliveries


def counted(client: Amqp, **arguments: Any) -> None:
    client.queue("dead_letters")
    client.queue(
        "q",
        durable=True,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead_letters",
        **arguments,
    )


def again(client: Amqp) -> Any:
    """Get a message, requeue it, and return the headers with which it was delivered."""
    frames = client.send(B.Get(queue="q"))
    [one] = deliveries(frames)
    client.send(B.Nack(one.number, requeue=True))
    return properties(frames).headers


@pytest.mark.parametrize(
    "arguments", [{"x_queue_type": "quorum", "x_delivery_limit": 2}, {"x_delivery_limit": 2}]
)
def test_deliveries_are_counted_and_limited(arguments: Any) -> None:
    client = World().amqp()
    counted(client, **arguments)
    client.publish("", "q", b"x", expiration="100000", headers={"mine": 1}, delivery_mode=2)
    assert [again(client) for _ in range(3)] == [
        {"mine": 1},
        {"mine": 1, "x-delivery-count": 1},
        {"mine": 1, "x-delivery-count": 2},
    ]
    client.world.turn()
    frames = client.send(B.Get(queue="dead_letters"))
    death = properties(frames).headers["x-death"][0]
    assert (death["reason"], death["queue"], death["original-expiration"]) == (
        "delivery_limit",
        "q",
        "100000",
    )
    assert client.world.queue("q").depth == 0
    client.world.fates()


@pytest.mark.parametrize("own", [{}, {"x-delivery-count": 7, "mine": 1}])
@pytest.mark.parametrize("limit", [5, 1])
def test_a_dead_letter_has_no_delivery_count_of_the_queue_that_it_left(
    limit: int, own: dict[str, Any]
) -> None:
    """Check that a dead letter has only `x-death` headers and the headers that its publisher set.

    The old queue's count `x-delivery-count` must be gone. The message is requeued once and then
    rejected, or it is requeued more often than the delivery limit allows.
    """
    world = World()
    client = world.amqp()
    client.queue("dead", "amq.fanout", x_delivery_limit=5)
    client.queue("q", x_delivery_limit=limit, x_dead_letter_exchange="amq.fanout")
    client.publish("", "q", b"m", headers=own)
    for requeue in (True, limit == 1):
        [one] = deliveries(client.send(B.Get(queue="q")))
        client.send(B.Reject(one.number, requeue=requeue))
    world.settle()
    [one] = deliveries(frames := client.send(B.Get(queue="dead")))
    headers: dict[str, Any] = properties(frames).headers
    assert not one.redelivered
    assert {name: headers[name] for name in headers if "death" not in name} == own
    client.send(B.Reject(one.number, requeue=True))
    assert properties(client.send(B.Get(queue="dead"))).headers["x-delivery-count"] == 1


def test_a_quorum_queue_delivers_twenty_times_again_unless_told_otherwise() -> None:
    client = World().amqp()
    counted(client, x_queue_type="quorum")
    client.publish("", "q", b"x")
    for _ in range(21):
        again(client)
    client.world.turn()
    assert client.world.queue("q").depth == 0 and read(client, "dead_letters") == [b"x"]


def test_a_negative_limit_is_none() -> None:
    client = World().amqp()
    counted(client, x_queue_type="quorum", x_delivery_limit=-1)
    client.publish("", "q", b"x")
    for _ in range(30):
        headers = again(client)
    assert headers == {"x-delivery-count": 29} and client.world.queue("q").depth == 1


def test_a_classic_queue_counts_nothing() -> None:
    client = World().amqp()
    counted(client, x_queue_type="classic")
    client.publish("", "q", b"x")
    assert [again(client) for _ in range(30)] == [None] * 30


def test_a_consumer_is_told_the_count_too_and_its_redeliveries_are_limited() -> None:
    client = World().amqp()
    counted(client, x_delivery_limit=1)
    client.send(B.Consume(queue="q", consumer_tag="t"))
    assert deliveries(client.publish("", "q", b"x"))[0].redelivered is False
    frames = client.send(B.Reject(1, requeue=True))
    assert deliveries(frames)[0].redelivered and properties(frames).headers == {
        "x-delivery-count": 1
    }
    assert deliveries(client.send(B.Reject(2, requeue=True))) == []
    client.world.turn()
    assert read(client, "dead_letters") == [b"x"]


@pytest.mark.parametrize(
    ("flags", "what"),
    [
        ({"durable": False}, "non-durable"),
        ({"durable": True, "exclusive": True}, "exclusive-owner"),
        ({"durable": True, "auto_delete": True}, "auto-delete"),
    ],
)
def test_a_quorum_queue_lasts(flags: Any, what: str) -> None:
    client = World().amqp()
    error = refusal(
        client.send(Q.Declare(queue="q", arguments={"x-queue-type": "quorum"}, **flags))
    )
    assert error[:2] == ("channel", 406) and error.text.startswith(
        f"PRECONDITION_FAILED - invalid property '{what}' for queue 'q' in vhost '/'"
    )


@pytest.mark.parametrize(
    "arguments",
    [
        {"x-expires": 0},
        {"x-expires": -1},
        {"x-expires": "1"},
        {"x-max-length-bytes": -1},
        {"x-max-priority": 256},
        {"x-max-priority": -1},
        {"x-max-priority": "9"},
        {"x-single-active-consumer": "yes"},
        {"x-queue-type": "none"},
        {"x-queue-type": 5},
        {"x-queue-mode": "x"},
        {"x-delivery-limit": "3"},
        {"x-overflow": 5},
        {"x-message-ttl": True},
    ],
)
def test_arguments_that_are_none_are_refused(arguments: Any) -> None:
    [name] = arguments
    error = refusal(World().amqp().send(Q.Declare(queue="q", durable=True, arguments=arguments)))
    assert error[:2] == ("channel", 406) and error[3:] == (50, 10)
    assert error.text.startswith(
        f"PRECONDITION_FAILED - invalid arg '{name}' for queue 'q' in vhost '/': "
    )
