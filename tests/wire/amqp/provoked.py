"""A client with the channels and queues that the tests of error replies need."""

from __future__ import annotations

from typing import Any

import pamqp.commands as spec

from broker.limits import BrokerLimits
from tests.clients import Amqp, World, marshal
from tests.wire.amqp.speech import open_channel

Q, X = spec.Queue, spec.Exchange


def exclusive(world: World) -> None:
    world.amqp().send(Q.Declare(queue="theirs", exclusive=True))


def prepared(limit: int = 0) -> Amqp:
    """Return a client with channels 1 and 2, and with queues and exchanges for methods that must
    fail.

    Queue `q` has one message, `full` is full, `taken` has an exclusive consumer; there is an
    exchange `x`, and an exclusive queue of another connection. `limit` is the largest size of a
    message in bytes; 0 means the default.
    """
    limits = BrokerLimits()
    if limit:
        limits.message = limit
    world = World(limits)
    exclusive(world)
    client = world.amqp()
    client.queue("q")
    client.queue("full")
    client.queue("taken")
    client.send(spec.Basic.Consume(queue="taken", exclusive=True))
    client.publish("", "full", b"waits")
    client.send(
        X.Declare(exchange="x", exchange_type="direct"),
        X.Declare(exchange="inside", exchange_type="fanout", internal=True),
        Q.Bind(queue="q", exchange="x", routing_key="k"),
    )
    client.publish("", "q", b"waits")
    client.queue("single", x_single_active_consumer=True)
    client.send(X.Declare(exchange="hash", exchange_type="x-consistent-hash"))
    open_channel(client, 2)
    return client


NO_LAST = "NOT_FOUND - no previously declared queue"


def data(provocation: Any, channel: int) -> bytes:
    return provocation if isinstance(provocation, bytes) else marshal(channel, provocation)
