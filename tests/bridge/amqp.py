"""Two brokers, and AMQP clients of pika at each, for the tests of shovels."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.bridge.running import PATIENCE, BridgingBroker

#: A message that a client has received: routing key, body, properties.
Got = tuple[str, bytes, pika.BasicProperties]


def channel(
    broker: BridgingBroker, user: str = "guest", password: str = "guest"
) -> BlockingChannel:
    login = pika.PlainCredentials(user, password)
    return pika.BlockingConnection(
        pika.ConnectionParameters(*broker.amqp, credentials=login)
    ).channel()


def take(client: BlockingChannel, queue: str, count: int) -> list[Got]:
    """Wait for the next `count` messages of a queue, acknowledge them, and return them."""
    got: list[Got] = []
    for message in messages(client, queue):
        got.append(message)
        if len(got) == count:
            break
    client.cancel()
    return got


def messages(client: BlockingChannel, queue: str) -> Iterator[Got]:
    """Yield and acknowledge the messages of a queue; wait for those that have not arrived yet."""
    for method, properties, body in client.consume(queue, inactivity_timeout=PATIENCE):
        assert method is not None, "no message came"
        client.basic_ack(method.delivery_tag)
        yield method.routing_key, body, properties


class AmqpPair:
    """Two brokers with a client at each; shovels run at the local broker."""

    def __init__(self, folder: Path) -> None:
        self.remote = BridgingBroker(folder / "remote")
        self.local = BridgingBroker(folder / "local")
        self.near, self.far = channel(self.local), channel(self.remote)

    @property
    def remote_uri(self) -> str:
        host, port = self.remote.amqp
        return f"amqp://guest:guest@{host}:{port}"

    def put(self, name: str, component: str = "shovel", **value: Any) -> None:
        """Set a parameter at the local broker. The keywords are the keys of its value (`_` for
        `-`).
        """
        named = {key.replace("_", "-"): each for key, each in value.items()}
        self.local.request("PUT", f"parameters/{component}/%2F/{name}", {"value": named})

    def shovel(self, name: str, **value: Any) -> None:
        """Start a shovel at the local broker, and wait until it runs."""
        self.put(name, **value)
        self.local.wait_up(name)

    def wait_gone(self, name: str) -> None:
        """Wait until a shovel is deleted."""
        end = time.monotonic() + PATIENCE
        while name in self.local.links() and time.monotonic() < end:
            pass
        assert name not in self.local.links()

    def close(self) -> None:
        for client in (self.near, self.far):
            client.connection.close()
        self.local.stop()
        self.remote.stop()
