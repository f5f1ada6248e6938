"""Two brokers, and AMQP clients of pika at each, for the tests of shovels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import pika
from pika.adapters.blocking_connection import BlockingChannel

from tests.bridge.running import PATIENCE, BridgingBroker, wait_for

#: A message that a client has received: routing key, body, properties.
Got = tuple[str, bytes, Any]


def channel(
    broker: BridgingBroker, user: str = "guest", password: str = "guest"
) -> BlockingChannel:
    return channel_at(broker.amqp_url_of(user, password))


def channel_at(url: str) -> BlockingChannel:
    return pika.BlockingConnection(pika.URLParameters(url)).channel()


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
    """Yield and acknowledge the messages of a queue; wait for messages that have not arrived
    yet.
    """
    for method, properties, body in client.consume(queue, inactivity_timeout=PATIENCE):
        assert method is not None, "no message came"
        client.basic_ack(method.delivery_tag)
        yield method.routing_key, body, properties


class Remote(Protocol):
    """A broker to which the local broker has shovels."""

    @property
    def amqp_url(self) -> str: ...

    def stop(self) -> None: ...


R = TypeVar("R", bound=Remote)


class AmqpPair(Generic[R]):
    """Two brokers with a client at each; shovels run at the local broker, a Trellis."""

    def __init__(self, local: BridgingBroker, remote: R) -> None:
        self.local, self.remote = local, remote
        self.near, self.far = channel(local), channel_at(remote.amqp_url)

    @property
    def remote_uri(self) -> str:
        """The URI of the remote broker, without a virtual host."""
        return self.remote.amqp_url.removesuffix("/%2F")

    @property
    def outward(self) -> dict[str, Any]:
        """Keywords of `put` and `shovel` for a shovel from the local to the remote broker."""
        return {"src_uri": "amqp://", "dest_uri": self.remote_uri}

    @property
    def inward(self) -> dict[str, Any]:
        """Keywords of `put` and `shovel` for a shovel from the remote to the local broker."""
        return {"src_uri": self.remote_uri, "dest_uri": "amqp://"}

    def put(self, name: str, component: str = "shovel", **value: Any) -> None:
        """Set the parameter `name` at the local broker.

        The keywords are the keys of the parameter's value, with `_` for `-`.
        """
        named = {key.replace("_", "-"): each for key, each in value.items()}
        self.local.request("PUT", f"parameters/{component}/%2F/{name}", {"value": named})

    def shovel(self, name: str, **value: Any) -> None:
        """Start a shovel at the local broker, and wait until it runs."""
        self.put(name, **value)
        self.local.wait_up(name)

    def wait_gone(self, name: str) -> None:
        """Wait until a shovel is deleted."""
        wait_for(lambda: name not in self.local.links())

    def federate(self, exchange: str, kind: str, upstream: str, **value: Any) -> None:
        """Declare an exchange of type `kind` at both brokers, and federate the local one.

        The remote broker becomes its upstream, with the name `upstream`; `value` has further keys
        of the upstream. Wait until the federation link runs.
        """
        for client in (self.near, self.far):
            client.exchange_declare(exchange, kind, durable=True)
        given = {"uri": self.remote_uri, "reconnect_delay": 0.2, **value}
        self.put(upstream, "federation-upstream", **given)
        policy = {
            "pattern": f"^{exchange}$",
            "definition": {"federation-upstream": upstream},
            "apply-to": "exchanges",
        }
        self.local.request("PUT", f"policies/%2F/{upstream}", policy)
        self.local.wait_up(f"{upstream} -> {exchange}")

    def close(self) -> None:
        for client in (self.near, self.far):
            client.connection.close()
        self.local.stop()
        self.remote.stop()


#: Two Trellis brokers.
TrellisPair = AmqpPair[BridgingBroker]


def trellis_pair(folder: Path) -> TrellisPair:
    """Start two Trellis brokers."""
    return AmqpPair(BridgingBroker(folder / "local"), BridgingBroker(folder / "remote"))
