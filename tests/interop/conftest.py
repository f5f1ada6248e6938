"""Clients for the tests, closed behind them."""

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
from tests.interop.rabbitmq import RabbitMq

T = TypeVar("T")


class AmqpPeers(Protocol):
    """Connects a client of this library, to the shared broker if no URL says otherwise."""

    def __call__(self, name: str, *, url: str = "", heartbeat: int = 60) -> AmqpClient: ...


class MqttPeers(Protocol):
    """Connects a client of this library with what Login holds; the client identifier is made up if
    none is given.
    """

    def __call__(self, name: str, **login: Any) -> MqttClient: ...


@pytest.fixture(scope="session")
def node() -> Iterator[Callable[[], Node]]:
    """The Node process, started when it is asked for."""
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
    """A RabbitMQ to compare with."""
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
    """Each AMQP library in turn."""
    return str(request.param)


@pytest.fixture
def amqp(amqp_name: str, amqp_peer: AmqpPeers) -> AmqpClient:
    """A client of each AMQP library in turn."""
    return amqp_peer(amqp_name)


@pytest.fixture(params=clients.MQTT)
def mqtt_name(request: pytest.FixtureRequest) -> str:
    """Each MQTT library in turn."""
    return str(request.param)


@pytest.fixture
def mqtt(mqtt_name: str, mqtt_peer: MqttPeers) -> MqttClient:
    """A client of each MQTT library in turn."""
    return mqtt_peer(mqtt_name)


@pytest.fixture
def every_amqp(amqp_peer: AmqpPeers) -> dict[str, AmqpClient]:
    """A client of every AMQP library whose runtime is here."""
    return _here(clients.AMQP, amqp_peer)


@pytest.fixture
def every_mqtt(mqtt_peer: MqttPeers) -> dict[str, MqttClient]:
    """A client of every MQTT library whose runtime is here."""
    return _here(clients.MQTT, mqtt_peer)


def _here(names: tuple[str, ...], connect: Callable[[str], T]) -> dict[str, T]:
    found: dict[str, T] = {}
    for name in names:
        try:
            found[name] = connect(name)
        except pytest.skip.Exception:
            continue  # The tests of that library say what is missing.
    return found
