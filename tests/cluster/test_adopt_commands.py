"""Tests of `trellis cluster adopt` and `trellis serve --adopt`, as operators use them.

The log is on kfake, an in-memory Kafka.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.cluster.conftest import cluster_on, created
from tests.cluster.nodes import (
    PATIENCE,
    QUEUE,
    NodeProcess,
    consume,
    node_on_kafka,
    publish,
    started,
)
from tests.cluster.programs import Kfake
from tests.cluster.test_commands import command, offline_lines
from tests.cluster.test_faults import delete
from trellis.app import MISCONFIGURED
from trellis.settings.cluster import ClusterSettings


@pytest.fixture
def cluster(kfake: Kfake, name: str) -> ClusterSettings:
    return created(cluster_on(kfake.servers, name, 1.5, 1.0, 0.2))


def adopt(cluster: ClusterSettings, directory: Path, *words: str) -> tuple[int, str, str]:
    """Run `trellis cluster adopt` for the node with this data directory.

    Return the exit code, standard output and standard error.
    """
    return command(
        cluster,
        *("adopt", *words, "--node-name", directory.name, "--data-dir", str(directory)),
        *("--cluster-silence", "1.5", "--cluster-lease", "1.0"),
    )


def adopted(cluster: ClusterSettings, directory: Path, *words: str) -> str:
    """Repeat `trellis cluster adopt` until it succeeds, and return its output.

    The command refuses as long as a node has reported in the last 12 s.
    """
    end = time.monotonic() + PATIENCE
    while True:
        code, output, errors = adopt(cluster, directory, "--yes", *words)
        if code == 0:
            return output
        assert "stop all nodes, and repeat this command after 12 s" in errors, errors
        assert time.monotonic() < end


@pytest.mark.long
def test_cluster_whose_topic_was_deleted_goes_on_with_the_farthest_directory(
    cluster: ClusterSettings, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = started(nodes, node_on_kafka(cluster, tmp_path / "first"), "active")
    second = started(nodes, node_on_kafka(cluster, tmp_path / "second"), "following")
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(100))
    end = time.monotonic() + PATIENCE
    while second.metrics()["batch"] < 50:
        assert time.monotonic() < end
    second.kill()
    publish(channel, range(100, 150))
    first.kill()
    delete(cluster)
    positions = []
    for name in ("first", "second"):
        code, output, errors = adopt(cluster, tmp_path / name, "--dry-run")
        assert (code, errors) == (0, "")
        positions.append(int(output.partition(" position ")[2].partition(",")[0]))
        assert (
            "the positions of the other nodes cannot be read from Kafka: cannot describe " in output
        )
    assert positions[0] > positions[1]
    created(cluster)
    output = adopted(cluster, tmp_path / "first")
    assert "start this node with `trellis serve`, then give each other node a copy" in output

    behind = started(nodes, node_on_kafka(cluster, tmp_path / "second"), "following")
    assert behind.process.wait(PATIENCE) == MISCONFIGURED
    assert "was deleted and created again" in behind.errors.read_text()
    first = started(nodes, node_on_kafka(cluster, tmp_path / "first"), "active")
    publish(first.channel(), range(150, 160))
    seed = command(
        cluster, "seed", "second", str(tmp_path / "copy"), "--data-dir", str(tmp_path / "first")
    )
    assert seed[0] == 0, seed
    shutil.rmtree(tmp_path / "second")
    (tmp_path / "copy").rename(tmp_path / "second")
    second = started(nodes, node_on_kafka(cluster, tmp_path / "second"), "following")
    publish(first.channel(), range(160, 170))
    first.kill()
    second.wait_for("ready")
    assert consume(second.channel(), 170) == list(range(170))


@pytest.mark.long
def test_plain_broker_joins_a_cluster_and_leaves_it(
    cluster: ClusterSettings, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    def plain(*more: str) -> NodeProcess:
        words = ["--config", os.devnull, "--data-dir", str(tmp_path / "data"), *more]
        ports = [word for name in ("amqp", "mqtt", "metrics", "http") for word in _port(name)]
        node = NodeProcess(tmp_path / "data", "trellis", "serve", *words, *ports)
        nodes.append(node)
        return node

    broker = plain()
    broker.wait_for("ready")
    channel = broker.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(30))
    broker.kill()
    node = started(nodes, node_on_kafka(cluster, tmp_path / "data"), "following")
    assert node.process.wait(PATIENCE) == MISCONFIGURED
    assert "begin a new cluster with it (`trellis cluster adopt`)" in node.errors.read_text()

    code, output, errors = adopt(cluster, tmp_path / "data")
    assert (code, output) == (2, ""), errors
    assert "begins with the data directory" in errors and "give --yes" in errors
    audit = tmp_path / "adopted.jsonl"
    assert "epoch 1000" in adopted(cluster, tmp_path / "data", "--log-audit", str(audit))
    (line,) = offline_lines(audit)
    assert (line["action"], line["kind"], line["name"]) == ("adopt", "cluster", cluster.name)
    assert line["facts"] == {
        "directory": str(tmp_path / "data"),
        "topic": cluster.log_topic,
        "epoch": 1000,
    }
    node = started(nodes, node_on_kafka(cluster, tmp_path / "data"), "active")
    publish(node.channel(), range(30, 40))
    node.kill()

    refused = plain()
    assert refused.process.wait(PATIENCE) == MISCONFIGURED
    assert "with `trellis serve --adopt`" in refused.errors.read_text()
    audit = tmp_path / "audit.jsonl"
    broker = plain("--adopt", "--log-audit", str(audit))
    broker.wait_for("ready")
    (line,) = offline_lines(audit)
    assert (line["action"], line["name"]) == ("adopt", str(tmp_path / "data"))
    assert (line["command"], line["facts"]) == ("trellis serve --adopt", {"cluster": cluster.name})
    assert consume(broker.channel(), 40) == list(range(40))
    assert "cluster_given_up" in broker.errors.read_text()


def _port(listener: str) -> tuple[str, str]:
    return f"--{listener}-port", "0"


def test_adopt_without_a_store_is_one_line(cluster: ClusterSettings, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    code, output, errors = adopt(cluster, tmp_path / "node", "--yes")
    assert (code, output) == (1, "")
    assert errors == (
        f"trellis: there is no store in {tmp_path / 'node'}, so there is nothing to adopt: start "
        "the node with `trellis serve`\n"
    )


def test_serve_with_a_cluster_refuses_to_adopt(tmp_path: Path) -> None:
    words = ("serve", "--adopt", "--config", os.devnull, "--data-dir", str(tmp_path / "node"))
    cluster = ("--cluster-name", "a", "--cluster-servers", "127.0.0.1:1", "--node-name", "node")
    node = NodeProcess(tmp_path / "node", "trellis", *words, *cluster)
    assert node.process.wait(PATIENCE) == MISCONFIGURED
    [line] = node.errors.read_text().splitlines()
    assert "so leave the section [cluster] out; to begin a new topic" in line
