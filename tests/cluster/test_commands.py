"""Tests of `trellis cluster status`, `seed` and `forget`.

The brokers are started as users start them; Kafka is kfake, an in-memory Kafka.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import time
from pathlib import Path
from typing import Any

import pytest

import trellis
from broker.replication.records import ClusterState
from broker.replication.report import NodeReport
from broker.store.catalog import Catalog
from broker.store.opening import CATALOG, LOG
from tests.broker import run_command
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
from tests.top.commands import UNASKED
from trellis.cluster.kafka_log import group_name
from trellis.cluster.status import LOST, LOST_SECONDS, ClusterStatus
from trellis.cluster.topic import KafkaTopic, TopicFacts
from trellis.server.offline_audit import offline_path
from trellis.settings.cluster import ClusterSettings

OFTEN = {"cluster-keep-time": "1"}


@pytest.mark.parametrize(
    ("state", "text"),
    [
        ("opening", "no node is active yet: node 'b' is becoming active"),
        ("following", "no node is active: a standby takes over after 3.5 s"),
    ],
)
def test_status_says_which_node_becomes_active(state: str, text: str) -> None:
    facts = TopicFacts("id", partitions=1, replicas=3, in_sync=3, has_leader=True)
    rows: list[dict[str, object]] = [{"node": "a", "state": LOST}, {"node": "b", "state": state}]
    assert ClusterStatus(facts, 0, 9, rows).next_active(3.5) == text


@pytest.fixture
def cluster(kfake: Kfake, name: str) -> ClusterSettings:
    return created(cluster_on(kfake.servers, name, 1.5, 1.0, 0.2))


def command(cluster: ClusterSettings, *words: str) -> tuple[int, str, str]:
    """Run `trellis cluster`, and return its exit code and what it has printed."""
    done = run_command(
        *("cluster", *words, "--config", os.devnull),
        *("--cluster-name", cluster.name, "--cluster-servers", cluster.servers),
    )
    return done.returncode, done.stdout, done.stderr


def offline_lines(audit: Path) -> list[dict[str, Any]]:
    """Return the decoded lines of the file, beside the audit log, where commands log changes."""
    return [json.loads(line) for line in offline_path(audit).read_text().splitlines()]


@pytest.mark.long
def test_commands_record_their_changes_of_the_topic(
    kfake: Kfake, name: str, tmp_path: Path
) -> None:
    cluster = cluster_on(kfake.servers, name, 1.5, 1.0, 0.2)
    audit = tmp_path / "audit.jsonl"
    words = ("--log-audit", str(audit))
    for _ in range(2):  # The second command has nothing to create.
        code, output, errors = command(cluster, "check", "--create", *words)
        assert (code in (0, 1), errors) == (True, ""), output
    state = ClusterState(cluster.name).encode()
    (tmp_path / "data" / LOG).mkdir(parents=True)
    catalog = Catalog(str(tmp_path / "data" / CATALOG))
    catalog.write([], 0, state)
    catalog.close()
    seed = ("seed", "new", str(tmp_path / "new"), "--data-dir", str(tmp_path / "data"), *words)
    code, output, errors = command(cluster, *seed)
    assert (code, errors) == (0, "")
    # A command that is refused records nothing: the report of the new node is fresh.
    assert command(cluster, "forget", "new", "--yes", *words)[0] == 1
    lost = NodeReport(0, trellis.__version__, "following", wall=1)
    KafkaTopic(cluster).report(group_name(cluster, "new"), 0, lost.encode())
    assert command(cluster, "forget", "new", "--yes", *words)[0] == 0
    user = pwd.getpwuid(os.getuid()).pw_name
    assert [
        tuple(line[field] for field in ("action", "kind", "name", "user", "command"))
        for line in offline_lines(audit)
    ] == [
        ("create", "topic", cluster.log_topic, user, "trellis cluster check"),
        ("seed", "node", "new", user, "trellis cluster seed"),
        ("forget", "node", "new", user, "trellis cluster forget"),
    ]


def rows(cluster: ClusterSettings) -> tuple[int, dict[str, Any]]:
    """Return the exit code and the nodes of `trellis cluster status --json`, by name."""
    code, output, _ = command(cluster, "status", "--json")
    return code, {row["node"]: row for row in json.loads(output)["nodes"]}


def wait_for_rows(cluster: ClusterSettings, wanted: dict[str, str]) -> dict[str, Any]:
    """Wait until the nodes have these states, and return their rows."""
    end = time.monotonic() + PATIENCE
    node_rows: dict[str, Any] = {}
    while {name: row["state"] for name, row in node_rows.items()} != wanted:
        assert time.monotonic() < end, node_rows
        _, node_rows = rows(cluster)
    return node_rows


@pytest.mark.long
def test_node_is_seeded_from_a_running_one_and_takes_over(
    cluster: ClusterSettings, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    code, output, _ = command(cluster, "status")
    assert (code, f"no node of cluster '{cluster.name}' has reported" in output) == (1, True)
    first = started(nodes, node_on_kafka(cluster, tmp_path / "first", OFTEN), "active")
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(300))
    end = time.monotonic() + PATIENCE
    while first.metrics()["trimmed_offset"] < 100:
        assert time.monotonic() < end

    code, output, errors = command(
        cluster, "seed", "third", str(tmp_path / "third"), "--data-dir", str(tmp_path / "first")
    )
    assert (code, errors) == (0, "")
    assert "to the machine of node 'third' as its data directory" in output
    publish(channel, range(300, 400))
    third = started(nodes, node_on_kafka(cluster, tmp_path / "third", OFTEN), "following")
    node_rows = wait_for_rows(cluster, {"first": "active", "third": "following"})
    assert node_rows["first"]["host"] and not node_rows["third"]["must_be_seeded"]
    assert (node_rows["first"]["formats"], node_rows["third"]["version"]) == (
        "1",
        trellis.__version__,
    )
    code, output, _ = command(cluster, "status")
    assert (code, "3 of 3 replicas in sync" in output) == (0, True)

    first.kill()
    third.wait_for("ready")
    assert consume(third.channel(), 400) == list(range(400))


@pytest.mark.long
def test_forgotten_node_does_not_stop_trimming(
    cluster: ClusterSettings, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = started(nodes, node_on_kafka(cluster, tmp_path / "first", OFTEN), "active")
    second = started(nodes, node_on_kafka(cluster, tmp_path / "second", OFTEN), "following")
    node_rows = wait_for_rows(cluster, {"first": "active", "second": "following"})
    assert all(row["seconds_behind"] < LOST_SECONDS / 2 for row in node_rows.values()), node_rows
    code, _, errors = command(cluster, "forget", "second")
    assert (code, "reported a moment ago: stop it" in errors) == (1, True)
    second.kill()
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(100))
    lost = wait_for_rows(cluster, {"first": "active", "second": "lost"})
    assert lost["first"]["seconds_behind"] < LOST_SECONDS / 2 < lost["second"]["seconds_behind"]
    assert lost["second"]["batches_behind"] > 0
    before = first.metrics()
    assert before["nodes"] == 2
    code, output, errors = command(cluster, "forget", "second")
    lines = errors.splitlines()
    assert (code, output) == (2, "") and f"{errors.splitlines()[-1]}\n" == UNASKED, errors
    assert lines[0] == (
        "node 'second' will be removed from the list of nodes: the records that are kept for this "
        "node can be trimmed"
    )
    kept = re.fullmatch(
        r"the node's last report is \d+ s old; it lacks (\d+) records of the log, and the log is "
        r"kept for this node alone from offset (\d+) on: (\d+) records",
        lines[1],
    )
    assert kept is not None and int(kept[1]) >= int(kept[3]) > 0, lines
    assert "trellis cluster seed second TARGET" in lines[2]
    wait_for_rows(cluster, {"first": "active", "second": "lost"})
    code, output, errors = command(cluster, "forget", "second", "--yes")
    assert (code, errors) == (0, ""), output
    wait_for_rows(cluster, {"first": "active"})
    end = time.monotonic() + PATIENCE
    while first.metrics()["trimmed_offset"] < before["offset"]:
        assert time.monotonic() < end
    assert first.metrics()["nodes"] == 1


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("forget", "other"), "node 'other' has not reported; nodes that have reported: none"),
        (("seed", "new", "TARGET", "--data-dir", "EMPTY"), "cannot read the catalog"),
    ],
)
def test_refused_command_is_one_line(
    cluster: ClusterSettings, tmp_path: Path, words: tuple[str, ...], text: str
) -> None:
    (tmp_path / "EMPTY").mkdir()
    given = [str(tmp_path / word) if word.isupper() else word for word in words]
    code, output, errors = command(cluster, *given)
    assert (code, output, errors.count("\n"), text in errors) == (1, "", 1, True), errors


def test_directory_of_a_broker_without_a_cluster_is_not_seeded(
    cluster: ClusterSettings, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    Catalog(str(tmp_path / "data" / "catalog.sqlite")).close()
    code, _, errors = command(
        cluster, "seed", "new", str(tmp_path / "target"), "--data-dir", str(tmp_path / "data")
    )
    assert (code, "belongs to a broker without a cluster" in errors) == (1, True), errors
    assert not (tmp_path / "target").exists()
