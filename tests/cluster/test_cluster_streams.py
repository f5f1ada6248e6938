"""Tests of streams in a cluster with a replicated log: the nodes' processes are killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pika.adapters.blocking_connection import BlockingChannel

from tests.broker import run_command
from tests.cluster.conftest import cluster_on, created
from tests.cluster.log_server import LogServer
from tests.cluster.nodes import (
    PATIENCE,
    STREAM,
    NodeProcess,
    consume_stream,
    node_on_kafka,
    start,
)
from tests.cluster.test_kafka_failover import KAFKA
from tests.cluster.test_trimming import OFTEN, wait_for_trim

#: The arguments of the stream: segments of 20 kB, of which retention keeps about 100 kB.
SMALL = {
    "x-queue-type": "stream",
    "x-stream-max-segment-size-bytes": 20_000,
    "x-max-length-bytes": 100_000,
}


def declare(channel: BlockingChannel, arguments: dict[str, Any]) -> None:
    channel.queue_declare(STREAM, durable=True, arguments=arguments)


def publish(channel: BlockingChannel, numbers: range, size: int = 0) -> None:
    """Publish messages to the stream; each is confirmed before the next one is published."""
    for number in numbers:
        channel.basic_publish("", STREAM, body(number, size), mandatory=True)


def body(number: int, size: int = 0) -> bytes:
    return b"%d" % number + bytes(size)


def segments(node: Path) -> dict[str, bytes]:
    """Return file name -> content of the stream's segments, without Arrow's end-of-stream mark."""
    directory = node / "streams" / "%2F" / STREAM
    mark = b"\xff\xff\xff\xff\0\0\0\0"
    return {path.name: path.read_bytes().removesuffix(mark) for path in directory.glob("*.arrow")}


def run(*words: str) -> str:
    """Run a command of Trellis, and return its output."""
    done = run_command(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("servers", ["kfake", pytest.param("kafka_node", marks=KAFKA)])
def test_a_new_active_node_has_all_confirmed_rows_and_the_journal(
    servers: str,
    request: pytest.FixtureRequest,
    name: str,
    nodes: list[NodeProcess],
    tmp_path: Path,
) -> None:
    kafka = request.getfixturevalue(servers).servers
    cluster = created(cluster_on(kafka, name, 1.5, 1.0, 0.2), 3 if servers == "kfake" else 1)
    for node in ("first", "second"):
        nodes.append(node_on_kafka(cluster, tmp_path / node))
        nodes[-1].wait_for("following")
        if node == "first":
            nodes[0].wait_for("ready")
    first, second = nodes
    channel = first.channel()
    journal = {"x-queue-type": "stream", "x-journal": True}
    channel.queue_declare("all", durable=True, arguments=journal)
    declare(channel, {"x-queue-type": "stream"})
    publish(channel, range(300))
    first.kill()

    second.wait_for("ready")
    channel = second.channel()
    assert consume_stream(channel, 0, 300) == {n: body(n) for n in range(300)}
    publish(channel, range(300, 310))
    assert consume_stream(channel, 295, 15) == {n: body(n) for n in range(295, 310)}

    url = f"http://{second.addresses['http']}"
    listed = run("stream", "list", "--url", url)
    assert {"all", "$topology", STREAM} <= set(listed.split())
    exported = tmp_path / "all.arrows"
    run("stream", "export", "all", str(exported), "--to", "310", "--url", url)
    with pyarrow.OSFile(os.fspath(exported)) as file:
        rows = pyarrow.ipc.open_stream(file).read_all().to_pylist()
    assert [row["body"] for row in rows] == [body(n) for n in range(310)]
    events = run("stream", "head", "$topology", "--count", "1000", "--url", url).splitlines()
    assert any(STREAM in json.dumps(json.loads(event)) for event in events)


def test_retention_of_the_owner_removes_the_segments_of_all_nodes(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    second = start(nodes, server, tmp_path / "second")
    channel = first.channel()
    declare(channel, SMALL)
    publish(channel, range(300), 1_000)
    channel.queue_declare("last", durable=True)
    while first.metrics()["batch"] != second.metrics()["batch"]:
        assert second.process.poll() is None
    kept = segments(tmp_path / "first")
    assert 1 < len(kept) < 10
    assert segments(tmp_path / "second") == kept
    first.kill()
    second.wait_for("ready")
    # When a node becomes the owner, it applies retention again. The active segment counts then, so
    # the oldest segment may be removed.
    offset = sorted(int(name.partition("-")[2].partition(".")[0]) for name in kept)[1]
    rows = consume_stream(second.channel(), offset, 300 - offset)
    assert rows == {n: body(n, 1_000) for n in range(offset, 300)}


@pytest.mark.long
def test_a_seeded_node_has_the_rows_of_a_trimmed_log(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first", OFTEN)
    first.wait_for("ready")
    channel = first.channel()
    declare(channel, SMALL)
    publish(channel, range(200), 500)
    wait_for_trim(first, server.log.tip)
    run("store", "backup", str(tmp_path / "second"), "--data-dir", str(tmp_path / "first"))
    publish(channel, range(200, 210), 500)
    second = start(nodes, server, tmp_path / "second", OFTEN)
    while first.metrics()["batch"] != second.metrics()["batch"]:
        assert second.process.poll() is None
    assert segments(tmp_path / "second") == segments(tmp_path / "first")
    first.kill()
    second.wait_for("ready")
    rows = consume_stream(second.channel(), 195, 15)
    assert rows == {n: body(n, 500) for n in range(195, 210)}


def test_a_standby_with_other_rows_stops(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    second = start(nodes, server, tmp_path / "second")
    channel = first.channel()
    declare(channel, {"x-queue-type": "stream"})
    publish(channel, range(10))
    channel.queue_declare("last", durable=True)
    while first.metrics()["batch"] != second.metrics()["batch"]:
        assert second.process.poll() is None
    second.kill()
    [segment] = (tmp_path / "second" / "streams" / "%2F" / STREAM).glob("*.arrow")
    data = bytearray(segment.read_bytes())
    data[-3] ^= 1
    segment.write_bytes(data)
    publish(channel, range(10, 11))
    second = start(nodes, server, tmp_path / "second")
    assert second.process.wait(PATIENCE) == 2
    text = second.errors.read_text()
    assert "streams/%2F/s: the rows from offset 10 on belong after" in text
    assert "trellis cluster seed" in text
    assert first.process.poll() is None
