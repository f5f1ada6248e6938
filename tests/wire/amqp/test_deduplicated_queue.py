"""The queue argument x-message-deduplication."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pamqp.commands as spec
import pytest

from broker.queues.duplicate_filter import ENTRY_SIZE
from tests.clients import Amqp, World, publication
from tests.store.homes import Home
from tests.wire.amqp.speech import refusal

Q, B = spec.Queue, spec.Basic
#: Seeds of random histories; most of them run with the slow tests.
SEEDS: list[Any] = [
    *range(2),
    *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 30)),
]
KEY = "x-deduplication-header"


def deduplicating(world: World, durable: bool = False, **arguments: Any) -> Amqp:
    client = world.amqp()
    client.queue("q", durable=durable, x_message_deduplication=True, **arguments)
    return client


def publish(client: Amqp, body: bytes, value: Any, **properties: Any) -> list[Any]:
    return client.publish("", "q", body, headers={KEY: value}, **properties)


def got(client: Amqp, no_ack: bool = True) -> list[bytes]:
    """Fetch all messages of the queue `q` by basic.get, and return their bodies."""
    bodies: list[bytes] = []
    while fetched := client.bodies(client.send(B.Get(queue="q", no_ack=no_ack))):
        bodies += fetched
    return bodies


def test_a_message_is_dropped_while_one_with_the_same_value_is_in_the_queue() -> None:
    world = World()
    client = deduplicating(world)
    client.send(spec.Confirm.Select())
    assert [type(frame) for frame in publish(client, b"1", "a")] == [B.Ack]
    assert [type(frame) for frame in publish(client, b"2", "a", message_id="m")] == [B.Ack]
    publish(client, b"3", "b")
    client.publish("", "q", b"without")
    client.publish("", "q", b"without")
    assert got(client) == [b"1", b"3", b"without", b"without"]
    publish(client, b"4", "a")
    assert got(client) == [b"4"]
    fates = world.copies()
    assert (fates["repeated"], fates["auto_acknowledged"]) == (1, 5)
    world.fates()


def test_a_message_that_a_consumer_holds_is_still_in_the_queue() -> None:
    world = World()
    client, other = deduplicating(world), world.amqp()
    publish(client, b"1", "a")
    assert client.bodies(client.send(B.Get(queue="q"))) == [b"1"]
    publish(client, b"2", "a")
    client.send(B.Nack(1, requeue=True))
    publish(client, b"3", "a")
    assert client.bodies(client.send(B.Get(queue="q"))) == [b"1"]
    client.send(B.Ack(2))
    publish(client, b"4", "a")
    assert got(other) == [b"4"]
    world.fates()


@pytest.mark.parametrize("consumer", ["ready", "none"])
def test_a_message_that_is_delivered_at_once_is_remembered(consumer: str) -> None:
    world = World()
    client, reader = deduplicating(world), world.amqp()
    if consumer == "ready":
        reader.send(B.Consume(queue="q"))
    client.connection.receive_data(publication("", "q", b"1", headers={KEY: 7}) * 3)
    client.read()
    assert world.copies()["repeated"] == 2
    reader.send(B.Ack(0, multiple=True)) if consumer == "ready" else got(reader)
    publish(client, b"2", 7)
    assert world.queue("q").depth + world.queue("q").unacked == 1
    world.fates()


@pytest.mark.parametrize(
    ("arguments", "end"),
    [
        ({}, lambda world, client: client.send(Q.Purge(queue="q"))),
        ({}, lambda world, client: client.send(B.Get(queue="q"), B.Reject(1, requeue=False))),
        ({"x_message_ttl": 100}, lambda world, client: world.sleep(200)),
        ({"x_max_length": 1}, lambda world, client: client.publish("", "q", b"pushes it out")),
        (
            {"x_delivery_limit": 0},
            lambda world, client: client.send(B.Get(queue="q"), B.Nack(1, requeue=True)),
        ),
        (
            {"x_dead_letter_exchange": "", "x_dead_letter_routing_key": "dead"},
            lambda world, client: client.send(B.Get(queue="q"), B.Reject(1, requeue=False)),
        ),
    ],
    ids=["purged", "rejected", "expired", "over limit", "delivery limit", "dead letter"],
)
@pytest.mark.parametrize("durable", [False, True])
def test_a_value_is_free_again_when_its_message_leaves_the_queue(
    arguments: dict[str, Any], end: Any, durable: bool
) -> None:
    world = World()
    client = deduplicating(world, durable, **arguments)
    client.queue("dead")
    publish(client, b"1", "a", delivery_mode=2)
    publish(client, b"2", "a", delivery_mode=2)
    end(world, client)
    world.turn()
    publish(client, b"3", "a", delivery_mode=2)
    publish(client, b"4", "a", delivery_mode=2)
    assert got(client)[-1:] == [b"3"]
    assert world.copies()["repeated"] == 2
    world.fates()


def test_a_purge_forgets_a_message_that_a_consumer_holds() -> None:
    """Check that a purge frees the deduplication values of the messages that consumers hold.

    A new message may then have the same value. When the old message is acknowledged, the value of
    the new message must still be blocked.
    """
    world = World()
    client = deduplicating(world, True)
    publish(client, b"1", "a", delivery_mode=2)
    client.send(B.Get(queue="q"))
    client.send(Q.Purge(queue="q"))
    publish(client, b"2", "a", delivery_mode=2)
    client.send(B.Ack(1))
    publish(client, b"3", "a", delivery_mode=2)
    assert got(client) == [b"2"]
    world.fates()


@pytest.mark.parametrize("arguments", [{}, {"x_queue_type": "quorum"}, {"x_message_ttl": 10**6}])
@pytest.mark.parametrize("seed", SEEDS)
def test_any_history_with_restarts_equals_a_model(
    tmp_path: Path, arguments: dict[str, Any], seed: int
) -> None:
    random = Random(seed)
    home = Home(tmp_path / "d")
    home.store.window = random.choice((2, 10, 4_096))
    client = deduplicating(home, True, **arguments)
    values: dict[bytes, int] = {}  # The messages of the model, in order.
    held: dict[int, bytes] = {}
    tags = 0
    for step in range(150):
        choice = random.random()
        if choice < 0.5:
            body, value = b"%d" % step, random.randrange(12)
            publish(client, body, value, delivery_mode=2)
            if value not in values.values():
                values[body] = value
        elif choice < 0.7:
            waiting = [body for body in values if body not in held.values()]
            fetched = client.bodies(client.send(B.Get(queue="q")))
            assert fetched == waiting[:1]
            for body in fetched:
                tags += 1
                held[tags] = body
        elif choice < 0.9 and held:
            tag = random.choice(list(held))
            body = held.pop(tag)
            client.send(B.Ack(tag))
            del values[body]
        elif choice > 0.96:
            home.crash()
            home = Home(tmp_path / "d")
            client = home.amqp()
            held.clear()
            tags = 0
    assert home.vhost.declarations.deduplicated["q"].entries == len(values)
    home.crash()


def test_values_are_bounded() -> None:
    world = World()
    client = deduplicating(world)
    world.vhost.declarations.deduplicated["q"].values_max = 10
    for number in range(25):
        publish(client, b"%d" % number, number)
    known = world.vhost.declarations.deduplicated["q"]
    before = known.memory_bytes()
    assert known.entries == 10
    publish(client, b"known", 24)
    publish(client, b"forgotten", 3)
    assert got(client) == [b"%d" % number for number in range(25)] + [b"forgotten"]
    assert known.entries == 0
    assert known.memory_bytes() <= before - 10 * int(ENTRY_SIZE)
    client.send(Q.Delete(queue="q"))
    assert not world.vhost.declarations.deduplicated


def test_a_refused_repetition_does_not_make_the_queue_forget_the_value() -> None:
    """Check that the queue refuses a second repetition after it has refused a first one.

    The first repetition comes while the original message waits in the queue, the second one while a
    client holds the original message unacknowledged.
    """
    world = World()
    client = deduplicating(
        world,
        x_max_length=1,
        x_overflow="reject-publish-dlx",
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead",
    )
    client.queue("dead")
    publish(client, b"1", "a")
    publish(client, b"2", "a")
    assert client.bodies(client.send(B.Get(queue="dead"))) == [b"2"]
    assert got(client, no_ack=False) == [b"1"]
    publish(client, b"3", "a")
    assert got(client) == []
    assert world.copies()["repeated"] == 1
    world.fates()


def test_declaration_checks_its_arguments() -> None:
    world = World()
    client = world.amqp()
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"x-message-deduplication": "yes"}, "must be true or false"),
        (
            {"x-message-deduplication": True, "x-max-priority": 3},
            "cannot be combined with 'x-max-priority'",
        ),
    ]
    for arguments, text in wrong:
        close = refusal(client.send(Q.Declare(queue="q", arguments=arguments)))
        assert close.code == 406 and text in close.text
        client = world.amqp()
    client.queue("plain", x_message_deduplication=False)
    assert not world.vhost.declarations.deduplicated
    deduplicating(world)
    close = refusal(world.amqp().send(Q.Declare(queue="q")))
    assert close.code == 406 and "x-message-deduplication" in close.text
