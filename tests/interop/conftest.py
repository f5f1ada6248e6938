"""Fixtures that connect clients of each library, and close them after the test."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar

import pytest

from tests.broker import BrokerProcess
from tests.interop import clients
from tests.interop.amqp_client import AmqpClient
from tests.interop.mqtt_client import Login, MqttClient
from tests.interop.node import Node
from tests.rabbitmq import RabbitMq

T = TypeVar("T")


class AmqpPeers(Protocol):
    """A function that connects a client of an AMQP library, by default to the shared broker."""

    def __call__(self, name: str, *, url: str = "", heartbeat: int = 60) -> AmqpClient: ...


class MqttPeers(Protocol):
    """A function that connects a client of an MQTT library with the fields of Login.

    Without `client_id`, the client gets an identifier that no other client uses.
    """

    def __call__(self, name: str, **login: Any) -> MqttClient: ...


@pytest.fixture(scope="session")
def node() -> Iterator[Callable[[], Node]]:
    """Return a function that returns the process of Node.js, and starts it at the first call."""
    started: list[Node] = []

    def start() -> Node:
        if not started:
            started.append(Node())
        return started[0]

    yield start
    for process in started:
        process.close()


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMq]:
    """Start a RabbitMQ to compare Trellis with."""
    process = RabbitMq(tmp_path_factory.mktemp("rabbitmq"))
    yield process
    process.stop()


@pytest.fixture
def amqp_peer(broker: BrokerProcess, node: Callable[[], Node]) -> Iterator[AmqpPeers]:
    with ExitStack() as stack:

        def connect(name: str, *, url: str = "", heartbeat: int = 60) -> AmqpClient:
            client = clients.connect_amqp(name, url or broker.amqp_url, node, heartbeat)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture
def mqtt_peer(broker: BrokerProcess, node: Callable[[], Node], unique: str) -> Iterator[MqttPeers]:
    numbers = itertools.count(1)
    with ExitStack() as stack:

        def connect(name: str, **login: Any) -> MqttClient:
            login.setdefault("client_id", f"{unique}-{next(numbers)}")
            client = clients.connect_mqtt(name, broker, Login(**login), node)
            stack.callback(client.close)
            return client

        yield connect


@pytest.fixture(params=clients.AMQP)
def amqp_name(request: pytest.FixtureRequest) -> str:
    """Return the name of an AMQP library. Tests with this fixture run once for each library."""
    return str(request.param)


@pytest.fixture
def amqp(amqp_name: str, amqp_peer: AmqpPeers) -> AmqpClient:
    """Return a client of an AMQP library. Tests with this fixture run once for each library."""
    return amqp_peer(amqp_name)


@pytest.fixture(params=clients.MQTT)
def mqtt_name(request: pytest.FixtureRequest) -> str:
    """Return the name of an MQTT library. Tests with this fixture run once for each library."""
    return str(request.param)


@pytest.fixture
def mqtt(mqtt_name: str, mqtt_peer: MqttPeers) -> MqttClient:
    """Return a client of an MQTT library. Tests with this fixture run once for each library."""
    return mqtt_peer(mqtt_name)


@pytest.fixture
def every_amqp(amqp_peer: AmqpPeers) -> dict[str, AmqpClient]:
    """Return a client of every AMQP library whose runtime is installed, by library."""
    return _connect_installed(clients.AMQP, amqp_peer)


@pytest.fixture
def every_mqtt(mqtt_peer: MqttPeers) -> dict[str, MqttClient]:
    """Return a client of every MQTT library whose runtime is installed, by library."""
    return _connect_installed(clients.MQTT, mqtt_peer)


def _connect_installed(names: tuple[str, ...], connect: Callable[[str], T]) -> dict[str, T]:
    clients: dict[str, T] = {}
    for name in names:
        try:
            clients[name] = connect(name)
        except pytest.skip.Exception:
            continue  # The library's own tests report the missing runtime.
    return clients
