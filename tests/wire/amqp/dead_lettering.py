"""Helpers for the tests of dead letters and of queue limits."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec

from tests.clients import Amqp, World, marshal, publication
from tests.wire.amqp.speech import Frame, split

Q, B, X = spec.Queue, spec.Basic, spec.Exchange


def got(client: Amqp, queue: str, no_ack: bool = True) -> list[Frame]:
    """Run a turn of the broker, which routes dead letters. Then send basic.get, and return the
    frames of the reply.
    """
    client.world.turn()
    client.connection.receive_data(marshal(1, B.Get(queue=queue, no_ack=no_ack)))
    return split(client.read_bytes())


def numbered(client: Amqp, queue: str, count: int, first: int = 0, **given: Any) -> None:
    """Publish `count` messages to a queue. Their bodies are numbers, from `first` on."""
    client.connection.receive_data(
        b"".join(
            publication("", queue, b"%d" % number, **given)
            for number in range(first, first + count)
        )
    )
    client.read()


def dead_lettering(**arguments: Any) -> Amqp:
    """Return a client with a queue `q` that has these arguments.

    Dead letters of `q` go to the queue `dead_letters`.
    """
    client = World().amqp()
    client.queue("dead_letters", "amq.fanout")
    client.queue("q", x_dead_letter_exchange="amq.fanout", **arguments)
    return client
