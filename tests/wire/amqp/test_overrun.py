"""Publishers wait if they fill a queue faster than the broker publishes its dead letters."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec
import pytest

from broker.messages.memory import MESSAGE_SIZE
from broker.queues.policies import Policy
from broker.queues.slices import MESSAGES_PER_SLICE
from broker.vhost.dead_letters import MOVES_MAX
from tests.clients import World, mqtt_publish, publication

#: Messages that a publisher sends in one turn; messages of all publishers in the whole test.
BURST = 2_500
MANY = 2 * MOVES_MAX
PUBLISHERS = 3


def full_world(**arguments: Any) -> World:
    """Return a broker with a full queue `q`, whose dead letters go to the queue `dead_letters`."""
    world = World()
    client = world.amqp()
    client.queue("dead_letters", x_max_length=10)
    client.queue(
        "q",
        "amq.topic",
        "k",
        x_max_length=10,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead_letters",
        **arguments,
    )
    return world


def publish_all(world: World, clients: list[Any], chunk: bytes) -> int:
    """Publish MANY messages; return the largest number of dead letters that waited at one time.

    In each turn, each client sends a chunk unless the broker has paused its connection.
    """
    sent = most = 0
    while sent < MANY or not world.broker.agenda.idle:
        for client in clients:
            connection = client.connection
            if connection.behind and not connection.stalled:
                connection.resume()
            elif not connection.stalled and sent < MANY:
                connection.receive_data(chunk)
                sent += BURST
        world.broker.agenda.turn()
        most = max(most, sum(job.waiting for job in world.vhost.moves.values()))
    world.settle(*[client.connection for client in clients])
    return most


@pytest.mark.parametrize(
    "mode",
    [
        "default",
        "mqtt1",
        *[
            pytest.param(mode, marks=pytest.mark.long)
            for mode in ("topic", "persistent", "confirm", "mqtt0")
        ],
    ],
)
def test_the_dead_letters_of_a_full_queue_are_bounded(mode: str) -> None:
    world = full_world(durable=mode == "persistent")
    clients: list[Any] = [
        world.mqtt(f"c{number}") if mode.startswith("mqtt") else world.amqp()
        for number in range(PUBLISHERS)
    ]
    if mode == "mqtt0":
        one = mqtt_publish("k", b"x")
    elif mode == "mqtt1":
        one = mqtt_publish("k", b"x", 1, 7)
    elif mode == "topic":
        one = publication("amq.topic", "k", b"x")
    else:
        one = publication("", "q", b"x", delivery_mode=2 if mode == "persistent" else 1)
    if mode == "confirm":
        for client in clients:
            client.send(spec.Confirm.Select())
    most = publish_all(world, clients, one * BURST)
    assert MOVES_MAX <= most <= MOVES_MAX + PUBLISHERS * (BURST + 1)
    # All messages are published, and no client waits any more.
    assert not world.vhost.held_publishers
    assert not any(client.connection.stalled for client in clients)
    assert world.copies()["dead_lettered"] == MANY - 10
    assert not world.queue("q").behind  # type: ignore[attr-defined]
    world.fates()
    # After the overrun, a publisher is not delayed: a whole chunk is handled in one turn.
    before = int(world.vhost.contexts.internal.received)
    clients[0].connection.receive_data(one * 1_000)
    assert world.copies()["dead_lettered"] == MANY - 10 + 1_000
    world.settle(clients[0].connection)
    assert world.vhost.contexts.internal.received == before + 1_000


@pytest.mark.parametrize("durable", [pytest.param(False, marks=pytest.mark.long), True])
def test_messages_that_expire_at_once_wait_in_their_queue_for_the_dead_letters(
    durable: bool,
) -> None:
    world = World()
    client = world.amqp()
    client.queue("dead_letters", x_max_length=10)
    client.queue(
        "q",
        durable=durable,
        x_message_ttl=0,
        x_dead_letter_exchange="",
        x_dead_letter_routing_key="dead_letters",
    )
    one = publication("", "q", b"x", delivery_mode=2 if durable else 1)
    most = publish_all(world, [world.amqp() for _ in range(PUBLISHERS)], one * BURST)
    assert MOVES_MAX <= most <= MOVES_MAX + MESSAGES_PER_SLICE
    assert world.copies()["dead_lettered"] == MANY and not world.vhost.moves
    assert (world.queue("q").depth, world.queue("dead_letters").depth) == (0, 10)
    world.fates()


@pytest.mark.parametrize("end", ["queue", "connection", "policy"])
def test_publishers_that_wait_continue_when_the_queue_ends_or_has_room(end: str) -> None:
    world = full_world()
    client, other = world.amqp(), world.amqp()
    while not client.connection.stalled:
        client.connection.receive_data(publication("", "q", b"x") * BURST)
        if client.connection.behind:
            client.connection.resume()
        world.broker.agenda.turn()
    [waiting] = world.vhost.moves.values()
    assert waiting.memory_bytes() >= MOVES_MAX * MESSAGE_SIZE
    # A client that publishes to another queue is not delayed.
    other.publish("", "dead_letters", b"y")
    assert not other.connection.stalled
    if end == "queue":
        world.vhost.delete_queue(world.queue("q"))
    elif end == "connection":
        client.connection.on_closed()
        assert not world.vhost.held_publishers
    else:
        policy = Policy("/", "p", "q", "queues", 0, {"max-length": 5})
        world.vhost.applied_policies.set_policy(policy)
    world.settle(client.connection, other.connection)
    assert not world.vhost.held_publishers and not world.vhost.moves
    assert not client.connection.stalled
    world.fates()


@pytest.mark.long
def test_queues_that_dead_letter_to_each_other_do_not_stand_still() -> None:
    world = World()
    client, other = world.amqp(), world.amqp()
    for name, target in (("a", "b"), ("b", "a")):
        client.queue(
            name, x_max_length=1, x_dead_letter_exchange="", x_dead_letter_routing_key=target
        )
    for publisher, name in ((client, "a"), (other, "b")):
        for _ in range(8):
            publisher.connection.receive_data(publication("", name, b"x") * BURST)
    world.settle(client.connection, other.connection)
    assert not world.vhost.held_publishers and not world.vhost.moves
    assert not client.connection.stalled and not other.connection.stalled
    world.fates()
