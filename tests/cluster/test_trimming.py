"""Tests of broker processes whose replicated log is trimmed: old records are removed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, QUEUE, TIMES, NodeProcess, consume, publish, start
from trellis.app import MISCONFIGURED

#: Silence, lease, beat and keep_time of a node, in seconds; with this keep_time, the owner appends
#: a mark each second.
OFTEN = f"{TIMES},1"


def wait_for_trim(owner: NodeProcess, offset: int) -> None:
    end = time.monotonic() + PATIENCE
    while owner.metrics()["trimmed_offset"] <= offset:
        assert time.monotonic() < end


@pytest.mark.long
def test_standby_over_a_trimmed_log_takes_over_and_an_empty_node_asks_to_be_seeded(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first", OFTEN)
    first.wait_for("ready")
    second = start(nodes, server, tmp_path / "second", OFTEN)
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(100))
    tip = server.log.tip
    wait_for_trim(first, tip)
    publish(channel, range(100, 150))
    metrics = first.metrics()
    assert metrics["trimmed_offset"] > tip
    assert (metrics["nodes"], metrics["nodes_struck"]) == (2, 0)

    empty = start(nodes, server, tmp_path / "empty", OFTEN)
    assert empty.process.wait(PATIENCE) == MISCONFIGURED
    assert "trellis cluster seed" in empty.errors.read_text()

    assert first.kill()
    second.wait_for("ready")
    again = second.channel()
    assert consume(again, 150) == list(range(150))
    back = start(nodes, server, tmp_path / "first", OFTEN)
    tip = server.log.tip
    publish(again, range(150, 160))
    wait_for_trim(second, tip)
    assert back.process.poll() is None
