"""A standby tells clients of each protocol the address of the active node."""

from __future__ import annotations

import http.client
import signal
import threading
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from pika.exceptions import AMQPConnectionError

from tests.broker import run_command
from tests.cluster.log_server import LogServer
from tests.cluster.nodes import PATIENCE, QUEUE, NodeProcess, consume, publish, start

USE_ANOTHER_SERVER, SERVER_UNAVAILABLE = 0x9C, 0x88


def connack(node: NodeProcess, listener: str, protocol: MQTTProtocolVersion) -> tuple[int, Any]:
    """Send a CONNECT to a node; return reason code and properties of the CONNACK."""
    answers: SimpleQueue[tuple[int, Any]] = SimpleQueue()
    client = paho.Client(
        CallbackAPIVersion.VERSION2,
        "device",
        protocol=protocol,
        transport="websockets" if listener == "ws" else "tcp",
        reconnect_on_failure=False,
    )
    client.on_connect = lambda _client, _data, _flags, code, properties: answers.put(
        (code.value, properties)
    )
    host, _, port = node.addresses[listener].rpartition(":")
    client.connect(host, int(port))
    client.loop_start()
    try:
        return answers.get(timeout=PATIENCE)
    finally:
        client.loop_stop()


def refusal(node: NodeProcess) -> str:
    """Return the text of the error with which a node refuses a connection of pika."""
    with pytest.raises(AMQPConnectionError) as refused:
        node.channel()
    return repr(refused.value)


def answer(node: NodeProcess, path: str) -> tuple[int, str | None, str]:
    """Return status, Location header and body of the node's response on its HTTP port."""
    connection = http.client.HTTPConnection(node.addresses["http"], timeout=PATIENCE)
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.getheader("Location"), response.read().decode()
    connection.close()
    return answer


def health(node: NodeProcess, *words: str) -> tuple[int, str]:
    """Return the exit code and the output of `trellis health` for a node."""
    url = f"http://{node.addresses['metrics']}"
    done = run_command("health", "--url", url, *words)
    return done.returncode, done.stdout


def port(node: NodeProcess, listener: str) -> str:
    return node.addresses[listener].rpartition(":")[2]


def test_standby_names_the_active_node_to_clients_of_each_protocol(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    second = start(nodes, server, tmp_path / "second")
    wait_for_owner(second)

    amqp = f"127.0.0.1:{port(first, 'amqp')}"
    assert "this node is a standby of cluster" in refusal(second)
    assert f"connect to {amqp}, which is active" in refusal(second)
    for listener in ("mqtt", "ws"):
        code, properties = connack(second, listener, MQTTProtocolVersion.MQTTv5)
        assert code == USE_ANOTHER_SERVER
        assert properties.ServerReference == f"127.0.0.1:{port(first, listener)}"
    # return code 3
    assert connack(second, "mqtt", MQTTProtocolVersion.MQTTv311)[0] == SERVER_UNAVAILABLE
    status, location, text = answer(second, "/api/queues/%2F?page=1")
    assert status == 503
    assert location == f"http://127.0.0.1:{port(first, 'http')}/api/queues/%2F?page=1"
    assert "which is active" in text
    assert second.metrics()["redirected_total"] == 5
    assert health(first) == (0, f"ready: http://{first.addresses['metrics']}/readyz\n")
    assert health(first, "--active")[0] == 0
    code, text = health(second)
    assert code == 0
    assert text.startswith("standby: this node is following, and another node serves the clients")
    assert health(second, "--active") == (1, "")


def wait_for_owner(node: NodeProcess) -> None:
    """Wait until a standby has read the claim in the log that made the other node active."""
    while not node.metrics()["epoch"]:
        pass


def test_standby_without_an_active_node_says_so(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    server.moves.clear()  # The log answers nothing, so no node can claim it.
    node = start(nodes, server, tmp_path / "first")
    assert "no active node is known" in refusal(node)
    code, properties = connack(node, "mqtt", MQTTProtocolVersion.MQTTv5)
    assert (code, hasattr(properties, "ServerReference")) == (SERVER_UNAVAILABLE, False)
    status, location, _ = answer(node, "/")
    assert (status, location) == (503, None)
    server.moves.set()
    node.wait_for("ready")
    assert node.channel().is_open


@pytest.mark.long
def test_ports_of_a_standby_serve_its_clients_after_a_takeover(
    server: LogServer, nodes: list[NodeProcess], tmp_path: Path
) -> None:
    first = start(nodes, server, tmp_path / "first")
    first.wait_for("ready")
    channel = first.channel()
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(20))
    second = start(nodes, server, tmp_path / "second")
    wait_for_owner(second)
    before = dict(second.addresses)
    host, _, number = before["amqp"].rpartition(":")
    connected: SimpleQueue[pika.BlockingConnection] = SimpleQueue()

    def connect() -> None:
        """Connect as clients do: again and again, until the node is active."""
        while True:
            try:
                connected.put(pika.BlockingConnection(pika.ConnectionParameters(host, int(number))))
                return
            except AMQPConnectionError:
                continue

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    first.process.send_signal(signal.SIGKILL)
    second.wait_for("ready")
    assert second.addresses == before
    again = connected.get(timeout=PATIENCE).channel()
    again.confirm_delivery()
    assert consume(again, 20) == list(range(20))
