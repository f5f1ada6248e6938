"""Functions for tests of restarts that declare, bind or subscribe durable objects."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pamqp.commands as spec

from tests.clients import World
from tests.wire.mqtt.client import DISCONNECT, Client, connect

Step = Callable[[World], object]


def amqp(*methods: Any) -> Step:
    """Return a step that sends methods on channel 1 of a new connection.

    The step returns the reply, which may be a refusal.
    """
    return lambda world: world.amqp().send(*methods)


def exchange(name: str, kind: str = "topic", **more: Any) -> Any:
    return spec.Exchange.Declare(exchange=name, exchange_type=kind, durable=True, **more)


def queue(name: str, **arguments: Any) -> Any:
    return spec.Queue.Declare(
        queue=name,
        durable=True,
        arguments={name.replace("_", "-"): value for name, value in arguments.items()},
    )


def bind(source: str, name: str, key: str = "", **more: Any) -> Any:
    return spec.Queue.Bind(exchange=source, queue=name, routing_key=key, **more)


def visit(world: World, name: str, packet: bytes) -> None:
    Client(world, connect(name, clean=False)).send(packet, DISCONNECT)
