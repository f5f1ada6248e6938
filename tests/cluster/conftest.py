"""Fixtures: Kafka clusters, and replicated logs on them, which are closed after the test."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.cluster.log_server import LogServer
from tests.cluster.nodes import NodeProcess
from tests.cluster.programs import KafkaNodes
from trellis.cluster import topic
from trellis.cluster.kafka_log import KafkaLog
from trellis.cluster.topic import IN_SYNC, KafkaTopic
from trellis.settings.cluster import ClusterSettings

#: The type of a function that opens the replicated log of a cluster for the node with this name.
OpenLog = Callable[[ClusterSettings, str], KafkaLog]


@pytest.fixture(scope="session")
def kafka_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaNodes]:
    """Start one real Kafka node for many tests; each test uses a topic of its own."""
    nodes = KafkaNodes(tmp_path_factory.mktemp("kafka"), 1)
    yield nodes
    nodes.close()


@pytest.fixture
def kafka_nodes(tmp_path: Path) -> Iterator[KafkaNodes]:
    """Start three real Kafka nodes for one test, which may kill some of them."""
    nodes = KafkaNodes(tmp_path, 3)
    yield nodes
    nodes.close()


@pytest.fixture
def nodes() -> Iterator[list[NodeProcess]]:
    """A list to which a test adds its nodes; they are killed after the test."""
    started: list[NodeProcess] = []
    yield started
    for node in started:
        node.kill()


@pytest.fixture
def server() -> Iterator[LogServer]:
    """Start a replicated log in memory for one test."""
    server = LogServer()
    yield server
    server.close()


@pytest.fixture
def name(unique: str) -> str:
    """Return a broker name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9-]", "-", unique)[-40:].strip("-")


@pytest.fixture
def open_log() -> Iterator[OpenLog]:
    """Return a function that opens replicated logs; close the logs after the test."""
    logs: list[KafkaLog] = []

    def opened(cluster: ClusterSettings, node: str) -> KafkaLog:
        log = KafkaLog(cluster, node)
        logs.append(log)
        log.connect()
        return log

    yield opened
    for log in logs:
        log.close()


@pytest.fixture
def brief_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the timeout of requests to Kafka to 2 s."""
    monkeypatch.setattr(topic, "REQUEST_SECONDS", 2.0)


def cluster_on(
    servers: str, name: str, silence: float = 0.5, lease: float = 0.3, beat: float = 0.1
) -> ClusterSettings:
    """Return the settings of a cluster on these Kafka servers, with short times for the tests.

    The times are in seconds: `beat` between two records of an idle active node, `lease` for which
    an active node may act after its last record, `silence` after which a standby takes over.
    """
    return ClusterSettings(name=name, servers=servers, silence=silence, lease=lease, beat=beat)


def created(cluster: ClusterSettings, replicas: int = 3) -> ClusterSettings:
    """Create the Kafka topic of a cluster with `replicas` replicas; return the cluster's settings.

    With the returned settings, nodes accept the topic although it may have only one replica.
    """
    KafkaTopic(cluster).create(replicas)
    return replace(cluster, unsafe=replicas < IN_SYNC)
