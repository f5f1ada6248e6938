"""Node processes of a cluster, and AMQP clients that publish with confirms and consume."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pika
from pika.adapters.blocking_connection import BlockingChannel
from prometheus_client.parser import text_string_to_metric_families

from tests import forks
from tests.broker import environment
from tests.cluster.log_server import LogServer
from trellis.settings.cluster import ClusterSettings

#: Silence, lease and beat of the nodes, in seconds.
TIMES = "1.0,0.7,0.15"
#: Seconds after which a test gives up waiting.
PATIENCE = 30.0
STREAM = "s"
QUEUE = "work"


class NodeProcess:
    """A process of one node. Its lines on standard output are read by a thread."""

    def __init__(
        self, directory: Path, *command: str, variables: Mapping[str, str] | None = None
    ) -> None:
        """Start `python -m` with the arguments `command`; read its lines in a thread.

        `variables` are further environment variables.
        """
        directory.mkdir(exist_ok=True)
        self.errors = directory.parent / f"{directory.name}.log"
        with self.errors.open("ab") as errors:
            self.process = forks.start(
                *command,
                stderr=errors.fileno(),
                environment=environment() | dict(variables or {}),
            )
        self._lines: SimpleQueue[str] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.addresses: dict[str, str] = {}

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def wait_for(self, state: str) -> None:
        """Wait until the node prints that it is in `state`: `following` or `ready`.

        The printed line also has the addresses of the node; store them in `addresses`.
        """
        words = self._lines.get(timeout=PATIENCE).split()
        assert words[:1] == [state], f"{words}: {self.errors.read_text()}"
        self.addresses = dict(word.split("=", 1) for word in words[1:])

    @property
    def log(self) -> str:
        """The log that the node has written so far."""
        return self.errors.read_text()

    def health(self, path: str) -> int:
        """Return the status of a health request (`/healthz`, `/readyz`) to the node."""
        url = f"http://{self.addresses['metrics']}{path}"
        try:
            with urllib.request.urlopen(url, timeout=PATIENCE) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    def metrics(self) -> dict[Any, float]:
        """Return the node's metrics about the cluster, without the prefix `trellis_cluster_`.

        The metric of a state, such as `active`, has the key ("state", "active").
        """
        url = f"http://{self.addresses['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            text = response.read().decode()
        return {
            ("state", sample.labels["state"])
            if "state" in sample.labels
            else sample.name.removeprefix("trellis_cluster_"): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name.startswith("trellis_cluster_")
        }

    def channel(self) -> BlockingChannel:
        """Return a channel of a new connection, with publisher confirms."""
        host, _, port = self.addresses["amqp"].rpartition(":")
        channel = pika.BlockingConnection(pika.ConnectionParameters(host, int(port))).channel()
        channel.confirm_delivery()
        return channel

    def kill(self) -> int:
        """Kill the process, and return its exit code."""
        self.process.kill()
        return self.process.wait(PATIENCE)


def node_over(
    server: LogServer,
    directory: Path,
    times: str = TIMES,
    version: str = "",
    http_port: str = "0",
    remote_port: str = "",
) -> NodeProcess:
    """Start a node that uses the replicated log of a LogServer; do not wait until it is ready.

    `version` is "next" for a node of the next version, "" for the present one. The port of the
    listener `http` is any free one if `http_port` is 0. With a `remote_port`, the node has a bridge
    (node_process.py).
    """
    arguments = str(server.port), str(directory), times, version, http_port, remote_port
    return NodeProcess(directory, "tests.cluster.node_process", *arguments)


def start(
    nodes: list[NodeProcess], server: LogServer, directory: Path, times: str = TIMES
) -> NodeProcess:
    """Start a node over the log of a LogServer, and wait until it follows the log."""
    node = node_over(server, directory, times)
    nodes.append(node)
    node.wait_for("following")
    return node


def node_on_kafka(
    cluster: ClusterSettings,
    directory: Path,
    more: dict[str, str] | None = None,
    program: str = "trellis",
) -> NodeProcess:
    """Start `trellis serve` as a node whose log is on Kafka; `more` has further flags by name.

    `program` is the module to run in place of `trellis`.
    """
    flags = {
        "config": os.devnull,
        "data-dir": str(directory),
        "node-name": directory.name,
        "cluster-name": cluster.name,
        "cluster-servers": cluster.servers,
        "cluster-silence": str(cluster.silence),
        "cluster-lease": str(cluster.lease),
        "cluster-beat": str(cluster.beat),
        "cluster-unsafe": str(cluster.unsafe).lower(),
        **{f"{name}-port": "0" for name in ("amqp", "mqtt", "metrics", "http")},
        **(more or {}),
    }
    given = [word for name, value in flags.items() for word in (f"--{name}", value)]
    return NodeProcess(directory, program, "serve", *given)


def started(nodes: list[NodeProcess], node: NodeProcess, state: str) -> NodeProcess:
    """Add a node to `nodes`, which a fixture kills after the test; wait until it is in `state`."""
    nodes.append(node)
    node.wait_for("following")
    if state == "active":
        node.wait_for("ready")
    return node


@contextmanager
def pair_on_kafka(
    cluster: ClusterSettings, directory: Path, more: dict[str, str] | None = None
) -> Iterator[tuple[NodeProcess, NodeProcess]]:
    """Yield an active node and a standby whose log is on Kafka; kill them afterwards."""
    with ExitStack() as stack:
        first = node_on_kafka(cluster, directory / "first", more)
        stack.callback(first.kill)
        first.wait_for("following")
        first.wait_for("ready")
        second = node_on_kafka(cluster, directory / "second", more)
        stack.callback(second.kill)
        second.wait_for("following")
        yield first, second


def publish(channel: BlockingChannel, numbers: range) -> None:
    """Publish each number in a persistent message to QUEUE, and wait for its confirm."""
    for number in numbers:
        channel.basic_publish(
            "", QUEUE, b"%d" % number, pika.BasicProperties(delivery_mode=2), mandatory=True
        )


def consume(channel: BlockingChannel, count: int) -> list[int]:
    """Get and acknowledge `count` messages of the queue QUEUE; return their numbers."""
    numbers: list[int] = []
    for _ in range(count):
        method, _, body = channel.basic_get(QUEUE)
        assert method is not None and method.delivery_tag is not None
        assert body is not None
        channel.basic_ack(method.delivery_tag)
        numbers.append(int(body))
    return numbers


def consume_stream(channel: BlockingChannel, first: int, count: int) -> dict[int, bytes]:
    """Return offset -> body of `count` rows of a stream, from the offset `first` on."""
    rows: dict[int, bytes] = {}
    channel.basic_qos(prefetch_count=100)
    arguments = {"x-stream-offset": first}
    for method, properties, body in channel.consume(
        STREAM, arguments=arguments, inactivity_timeout=PATIENCE
    ):
        assert method is not None, f"only {len(rows)} of {count} rows were delivered"
        assert properties.headers is not None
        rows[properties.headers["x-stream-offset"]] = body
        channel.basic_ack(method.delivery_tag)
        if len(rows) == count:
            break
    channel.cancel()
    return rows
