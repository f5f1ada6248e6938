"""Two broker processes over one replicated log: one is killed, and the other takes over."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from datetime import UTC
from pathlib import Path

import pytest
from pika.exceptions import AMQPError

from broker.replication.records import (
    BEAT,
    CLAIM,
    DIGEST_SIZE,
    Claim,
    ClusterState,
    LogRecord,
)
from tests.cluster.log_server import LogServer
from tests.cluster.nodes import (
    PATIENCE,
    QUEUE,
    NodeProcess,
    consume,
    publish,
    start,
)
from trellis.cluster.membership import FENCED
from trellis.monitoring.cluster_metrics import STATES


def check_metrics(active: NodeProcess, standby: NodeProcess) -> None:
    """Wait until the standby has the active node's last batch, and check both nodes' metrics."""
    end = time.monotonic() + PATIENCE
    here, there = active.metrics(), standby.metrics()
    while here["batch"] != there["batch"] and time.monotonic() < end:
        here, there = active.metrics(), standby.metrics()
    assert here["batch"] == there["batch"] > 0
    assert (here["state", "active"], there["state", "following"]) == (1, 1)
    assert sum(here["state", state] for state in STATES) == 1
    assert sum(there["state", state] for state in STATES) == 1
    assert here["epoch"] == there["epoch"] == 1
    assert here["batches_appended_total"] >= 1 > there["batches_appended_total"]
    assert here["append_seconds_total"] > 0 == there["append_seconds_total"]
    assert here["lease_seconds"] > 0 == there["lease_seconds"]
    assert here["silence_seconds"] == 0


def test_a_standby_takes_over_with_all_confirmed_messages(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    second = start(nodes, server, tmp_path / "second")
    assert [first.health("/healthz"), first.health("/readyz")] == [200, 200]
    assert [second.health("/healthz"), second.health("/readyz")] == [200, 503]
    assert second.addresses.keys() == {"amqp", "mqtt", "ws", "metrics", "http"}
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(100))
    check_metrics(first, second)
    assert consume(channel, 10) == list(range(10))
    # The confirms of these later messages prove that the acknowledgements are durable.
    publish(channel, range(100, 110))
    first.kill()

    second.wait_for("ready")
    assert [second.health("/healthz"), second.health("/readyz")] == [200, 200]
    channel = second.channel()
    assert channel.queue_declare(QUEUE, passive=True).method.message_count == 100
    publish(channel, range(110, 120))
    first = start(nodes, server, tmp_path / "first")
    publish(channel, range(120, 130))
    second.kill()

    first.wait_for("ready")
    assert consume(first.channel(), 120) == list(range(10, 130))


@pytest.mark.long
def test_clock_of_a_new_owner_does_not_go_behind_the_last_record(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    # The former owner's clock is 100 s ahead of the clock of the node that takes over.
    ahead = int(time.time()) + 100
    state = ClusterState("broker", salt=1, format=1)
    server.log.append(Claim(CLAIM, 1, 5, ahead * 1000, -1, state, bytes(DIGEST_SIZE)).encode())
    server.log.append(LogRecord(BEAT, 1, 5, ahead * 1000 + 500).encode())
    node = start(nodes, server, tmp_path / "node")
    node.wait_for("ready")
    channel = node.channel()
    channel.queue_declare("dead")
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "dead"}
    channel.queue_declare(QUEUE, arguments={"x-message-ttl": 0, **dead})
    channel.basic_publish("", QUEUE, b"x")
    _, properties, _ = next(channel.consume("dead", inactivity_timeout=PATIENCE))
    assert properties is not None and properties.headers is not None
    assert properties.headers["x-death"][0]["time"].replace(tzinfo=UTC).timestamp() >= ahead
    assert "cluster_clock_behind" in node.errors.read_text()


@pytest.mark.long
def test_a_clean_stop_of_the_active_node_hands_over(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(5))
    second = start(nodes, server, tmp_path / "second")
    first.process.send_signal(signal.SIGTERM)
    assert first.process.wait(PATIENCE) == 0
    second.wait_for("ready")
    assert consume(second.channel(), 5) == list(range(5))
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(PATIENCE) == 0


@pytest.mark.long
def test_a_standby_stops_cleanly(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    second = start(nodes, server, tmp_path / "second")
    second.process.send_signal(signal.SIGTERM)
    assert second.process.wait(PATIENCE) == 0


def test_a_paused_owner_is_replaced_and_ends_without_a_word(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(5))
    second = start(nodes, server, tmp_path / "second")
    first.process.send_signal(signal.SIGSTOP)
    second.wait_for("ready")
    publish(second.channel(), range(5, 8))
    first.process.send_signal(signal.SIGCONT)
    with suppress(AMQPError):
        publish(channel, range(100, 101))
    assert first.process.wait(PATIENCE) == FENCED
    assert "fenced: another node owns the replicated log" in first.errors.read_text()
    assert consume(second.channel(), 8) == list(range(8))


def test_a_log_that_stands_still_freezes_the_owner_and_loses_no_connection(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    # The lease ends long before the deadline at which connections are aborted.
    first = start(nodes, server, tmp_path / "first", "3.0,0.5,0.15")
    first.wait_for("ready")
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    server.moves.clear()
    threading.Timer(1.0, server.moves.set).start()
    publish(channel, range(3))  # The confirms wait for the log.
    assert server.moves.is_set()
    assert consume(channel, 3) == list(range(3))


@pytest.mark.long
def test_a_log_that_stands_still_for_long_aborts_the_connections(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    server.moves.clear()
    with pytest.raises(AMQPError):
        publish(channel, range(1))
    assert first.health("/healthz") == 200
    assert first.health("/readyz") == 503
    server.moves.set()
    channel = first.channel()
    # The log has the message, although its confirm was never sent.
    assert consume(channel, 1) == [0]
