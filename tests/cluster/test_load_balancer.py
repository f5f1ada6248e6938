"""Tests of two nodes behind HAProxy, configured as in docker-compose.ha.yml.

Their replicated log is on kfake, an in-memory Kafka.
"""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from tests.cluster.balancer import CONFIGURATION, LoadBalancer, flags_behind
from tests.cluster.conftest import cluster_on, created
from tests.cluster.nodes import PATIENCE, QUEUE, NodeProcess, consume, pair_on_kafka, publish
from tests.cluster.programs import Kfake
from tests.foreign import require


@pytest.fixture
def nodes(kfake: Kfake, name: str, tmp_path: Path) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """Start an active node and a standby, both on kfake."""
    require("haproxy")
    cluster = created(cluster_on(kfake.servers, name, 1.5, 1.0, 0.2))
    with pair_on_kafka(cluster, tmp_path, flags_behind()) as pair:
        yield pair


@pytest.fixture
def balancer(nodes: tuple[NodeProcess, NodeProcess], tmp_path: Path) -> Iterator[LoadBalancer]:
    balancer = LoadBalancer(nodes, tmp_path)
    balancer.wait_for_port("amqp")
    yield balancer
    balancer.close()


def connected(balancer: LoadBalancer) -> BlockingChannel:
    """Return a channel through the load balancer, with publisher confirms."""
    host, port = balancer.addresses["amqp"]
    end = time.monotonic() + PATIENCE
    while True:
        try:
            channel = pika.BlockingConnection(pika.ConnectionParameters(host, port)).channel()
        except AMQPError:
            assert time.monotonic() < end
        else:
            channel.confirm_delivery()
            return channel


def test_configuration_of_the_load_balancer_is_valid() -> None:
    command = [require("haproxy"), "-c", "-f", str(CONFIGURATION)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "fault", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.long)]
)
def test_clients_reach_the_new_active_node_and_nothing_is_lost(
    nodes: tuple[NodeProcess, NodeProcess], balancer: LoadBalancer, fault: signal.Signals
) -> None:
    channel = connected(balancer)
    channel.queue_declare(QUEUE, durable=True)
    publish(channel, range(50))
    nodes[0].process.send_signal(fault)
    # A stopped node sends nothing: the load balancer must close the connection.
    with pytest.raises(AMQPError):
        channel.connection.sleep(PATIENCE)
    nodes[1].wait_for("ready")
    again = connected(balancer)
    publish(again, range(50, 60))
    assert consume(again, 60) == list(range(60))
    host, port = balancer.addresses["http"]
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"http://{host}:{port}/api/overview", timeout=PATIENCE)


def test_nodes_see_the_addresses_of_the_clients(
    nodes: tuple[NodeProcess, NodeProcess], balancer: LoadBalancer
) -> None:
    channel = connected(balancer)
    own = channel.connection._impl._transport._sock.getsockname()
    request = urllib.request.Request(
        f"http://{nodes[0].addresses['http']}/api/connections",
        headers={"Authorization": f"Basic {base64.b64encode(b'guest:guest').decode()}"},
    )
    with urllib.request.urlopen(request, timeout=PATIENCE) as response:
        [row] = json.load(response)
    assert (row["peer_host"], row["peer_port"]) == own
