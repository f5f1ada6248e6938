"""Queues with many messages, and turns of the agenda, for the tests of bulk work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pamqp.commands import Basic as B

from tests.clients import Amqp, World, marshal, publication, unmarshal

MANY = 12_000
QOS = B.Qos(0, 10, False)
#: Number of messages that a test lets expire, moves, settles or drops in one turn.
TURN_MAX = 5_000


def fill(client: Amqp, queue: str, count: int, **properties: Any) -> None:
    """Publish `count` messages to a queue, each with its number as the body."""
    for at in range(0, count, 1_000):
        client.connection.receive_data(
            b"".join(
                publication("", queue, b"%d" % number, **properties)
                for number in range(at, min(count, at + 1_000))
            )
        )
        client.world.settle(client.connection)


def deliver_many(world: World, client: Amqp) -> None:
    """Deliver MANY messages of the queue `q` to the consumer `t` of a client."""
    fill(client, "q", MANY)
    client.connection.receive_data(marshal(1, B.Consume(queue="q", consumer_tag="t")))
    while world.queue("q").unacked < MANY:
        client.read_bytes()


def expire(world: World, milliseconds: int) -> None:
    """Advance the clock without running a turn."""
    agenda = world.broker.agenda
    agenda.advance(int(agenda.now) + milliseconds, agenda.wall + milliseconds / 1_000)


def turns(world: World, done: Callable[[], bool]) -> int:
    """Run turns of the agenda until `done`, and return their number."""
    for count in range(1_000):
        if done():
            return count
        world.broker.agenda.turn()
    raise AssertionError("the work has not ended after 1,000 turns")


def unmarshalled(client: Amqp) -> list[Any]:
    """Return the frames that a connection has written, without running a turn."""
    return unmarshal(client.connection.data_to_send())
