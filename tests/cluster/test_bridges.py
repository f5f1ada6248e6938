"""Bridges in a cluster: only the active node runs them, and the next active node continues."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bridge.running import BridgingBroker, Recorder, workers
from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, TIMES, NodeProcess, node_over


@pytest.mark.long
def test_only_the_active_node_runs_a_bridge_and_the_next_one_continues_its_session(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    remote = BridgingBroker(tmp_path / "remote")
    publisher = Recorder(remote.mqtt.port, "publisher")

    def start(name: str) -> NodeProcess:
        port = str(remote.mqtt.port)
        nodes.append(node_over(server, tmp_path / name, TIMES, remote_port=port))
        nodes[-1].wait_for("following")
        return nodes[-1]

    def arrives(node: NodeProcess, body: bytes) -> None:
        consumer = node.channel()
        for method, _, got in consumer.consume("to", auto_ack=True, inactivity_timeout=PATIENCE):
            assert method is not None, node.errors.read_text()
            assert got == body
            break
        consumer.connection.close()

    first = start("first")
    first.wait_for("ready")
    channel = first.channel()
    channel.queue_declare("to", durable=True)
    channel.queue_bind("to", "amq.topic", "in.#")
    # A retained message reaches the bridge as soon as it has connected.
    publisher.publish("in/n", b"first", retain=True)
    arrives(first, b"first")
    publisher.publish("in/n", b"", retain=True)
    arrives(first, b"")
    second = start("second")
    assert workers(first.process.pid)
    assert not workers(second.process.pid)

    first.kill()
    # The remote broker keeps this message in the session of the first node's bridge.
    publisher.publish("in/n", b"between")
    second.wait_for("ready")
    arrives(second, b"between")
    assert workers(second.process.pid)
    publisher.close()
    second.kill()
    remote.stop()
