"""Queues with numbered messages, for the tests of consumers."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec

from tests.clients import Amqp, World, publication
from tests.wire.amqp.speech import deliveries

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
