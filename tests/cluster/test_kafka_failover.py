"""Tests of two broker processes, as users start them, with a replicated log on Kafka.

Each test runs on kfake (an in-memory Kafka) and on a real Kafka node.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.conftest import cluster_on, created
from tests.cluster.nodes import PATIENCE, QUEUE, NodeProcess, consume, node_on_kafka, publish
from tests.cluster.programs import Kfake
from tests.cluster.test_faults import delete
from trellis.app import MISCONFIGURED
from trellis.settings.cluster import ClusterSettings

#: Pytest marks of tests on a real Kafka: all these tests run in one process, which starts the node
#: once.
KAFKA = [pytest.mark.long, pytest.mark.xdist_group("kafka")]


@pytest.fixture(params=["kfake", pytest.param("kafka_node", marks=KAFKA)])
def cluster(request: pytest.FixtureRequest, name: str) -> ClusterSettings:
    """Return the settings of a cluster whose topic exists."""
    servers = request.getfixturevalue(request.param).servers
    return created(cluster_on(servers, name, 1.5, 1.0, 0.2), 3 if request.param == "kfake" else 1)


def test_the_standby_of_a_killed_broker_goes_on(
    cluster: ClusterSettings, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    for name in ("first", "second"):
        nodes.append(node_on_kafka(cluster, tmp_path / name))
        nodes[-1].wait_for("following")
        if name == "first":
            nodes[0].wait_for("ready")
    first, second = nodes
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(200))
    assert consume(channel, 20) == list(range(20))
    publish(channel, range(200, 210))
    assert second.health("/readyz") == 503
    first.kill()
    second.wait_for("ready")
    assert second.health("/readyz") == 200
    assert consume(second.channel(), 190) == list(range(20, 210))


@pytest.mark.long
def test_standby_with_other_limits_logs_the_difference(
    kfake: Kfake, name: str, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    cluster = created(cluster_on(kfake.servers, name, 1.5, 1.0, 0.2))
    nodes.append(node_on_kafka(cluster, tmp_path / "first"))
    nodes[0].wait_for("following")
    nodes[0].wait_for("ready")
    for other, more in (("same", {"log-level": "debug"}), ("other", {"limits-queues": "7"})):
        nodes.append(node_on_kafka(cluster, tmp_path / other, more))
        nodes[-1].wait_for("following")
        while "node=first" not in nodes[-1].errors.read_text():
            assert nodes[-1].process.poll() is None
    same, other_log = (node.errors.read_text() for node in nodes[1:])
    assert "cluster_settings_differ" not in same
    assert "cluster_settings_differ" in other_log


def test_node_refuses_a_topic_that_was_made_anew_while_the_node_was_stopped(
    kfake: Kfake, name: str, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    cluster = created(cluster_on(kfake.servers, name, 1.5, 1.0, 0.2))
    nodes.append(node_on_kafka(cluster, tmp_path / "first"))
    nodes[0].wait_for("following")
    nodes[0].wait_for("ready")
    nodes[0].channel().queue_declare(QUEUE, durable=True)
    nodes[0].kill()
    delete(cluster)
    created(cluster)
    nodes.append(node_on_kafka(cluster, tmp_path / "first"))
    nodes[1].wait_for("following")
    assert nodes[1].process.wait(PATIENCE) == MISCONFIGURED
    [line] = [
        line for line in nodes[1].errors.read_text().splitlines() if line.startswith("trellis:")
    ]
    assert "was deleted and created again" in line
