"""Measures how long a cluster confirms no message while a standby takes over.

    .venv/bin/python benchmarks/takeover.py
        --trellis COMMAND      the broker [.run/bin/trellis]
        --messages N,N,...     messages in the queue at the takeover [300000,1000000]
        --body N               size of a message in bytes [16]
        --how HOW,...          `switch` (planned) and `kill` (SIGKILL of the active node) [both]
        --runs N               takeovers of each kind and number [3]
        --times S,L,B          silence, lease and beat in seconds [1.0,0.7,0.15]
        --servers HOST:PORT    a Kafka cluster that runs; by default kfake, an in-memory Kafka (Go)
        --replicas N           replicas of the log's topic [3]

A client publishes persistent messages one by one, waits for each confirm, and connects again at
once, to both nodes in turn, when its connection is lost. The figure `gap` is the longest time
between two confirms. `ready` is the time from the switch or the kill until the standby prints its
line `ready`, and `cpu` the CPU time of its processes in this time, which depends less on the load
of the machine. Afterwards the queue must have all confirmed messages. Needs the packages of the
tests; see docs/high-availability.md for figures.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT))

from tests.cluster.conftest import cluster_on, created  # noqa: E402
from tests.cluster.programs import Kfake  # noqa: E402
from trellis.bench import amqp  # noqa: E402
from trellis.bench.client import AmqpClient  # noqa: E402
from trellis.bench.errors import BenchError, Unreachable  # noqa: E402
from trellis.bench.processes import Processes  # noqa: E402
from trellis.bench.target import parse  # noqa: E402
from trellis.settings.cluster import ClusterSettings  # noqa: E402

QUEUE: Final = "kept"
FRAME_MAX: Final = 131_072
#: Publications sent before their confirms are read, and the largest number of their bytes.
RUN: Final = 2_000
RUN_BYTES: Final = 4 << 20
#: Seconds after which a measurement gives up waiting, and seconds of probes before and after.
PATIENCE: Final = 300.0
PROBED: Final = 1.0
MB: Final = 1_000_000
ACK: Final = (60, 80)
ERRORS: Final = (BenchError, Unreachable, OSError)


class Node:
    """A process of one node; a thread reads the lines that it prints.

    If `cluster` is None, the process is a broker without a cluster.
    """

    def __init__(self, command: str, cluster: ClusterSettings | None, directory: Path) -> None:
        flags = {
            "config": os.devnull,
            "data-dir": str(directory),
            "node-name": directory.name,
            "limits-disk-free": "0",
            **{f"{name}-port": "0" for name in ("amqp", "mqtt", "metrics", "http")},
        }
        if cluster is not None:
            flags |= {
                "cluster-name": cluster.name,
                "cluster-servers": cluster.servers,
                "cluster-silence": str(cluster.silence),
                "cluster-lease": str(cluster.lease),
                "cluster-beat": str(cluster.beat),
            }
        given = [word for name, value in flags.items() for word in (f"--{name}", value)]
        self.errors = directory.with_suffix(".log")
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [command, "serve", *given], stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._lines: SimpleQueue[tuple[float, str]] = SimpleQueue()
        self.addresses: dict[str, str] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put((time.perf_counter(), line))
        self._lines.put((0.0, ""))

    def wait_for(self, state: str) -> float:
        """Wait until the node prints the line of a state, such as `ready`.

        Return the time at which the line was printed, in seconds of time.perf_counter.
        """
        at, line = self._lines.get(timeout=PATIENCE)
        words = line.split()
        if words[:1] != [state]:
            sys.exit(
                f"takeover: the node should have printed '{state}', but printed: "
                f"{line}{self.errors.read_text()}"
            )
        self.addresses = dict(word.split("=", 1) for word in words[1:])
        return at

    def figure(self, name: str) -> float:
        """Return the node's metric `trellis_cluster_NAME`; 0 if the node has no such metric."""
        url = f"http://{self.addresses['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE) as response:
            for line in response.read().decode().splitlines():
                if line.startswith(f"trellis_cluster_{name}{{"):
                    return float(line.rpartition(" ")[2])
        return 0.0  # An older broker has no such metric.

    def client(self) -> AmqpClient:
        """Connect a client with publisher confirms. Raises one of ERRORS."""
        client = AmqpClient(parse("amqp", self.amqp_url), "client")
        client.ask(amqp.confirm_select(), amqp.SELECT_OK)
        return client

    def switch(self) -> None:
        """Ask this node to hand the replicated log over to the standby (a planned takeover)."""
        login = base64.b64encode(b"guest:guest").decode()
        request = urllib.request.Request(
            f"http://{self.addresses['http']}/api/trellis/cluster/switch",
            b"{}",
            {"Authorization": f"Basic {login}", "Content-Type": "application/json"},
            method="POST",
        )
        urllib.request.urlopen(request, timeout=PATIENCE).close()

    @property
    def amqp_url(self) -> str:
        """The URL of the AMQP port."""
        return f"amqp://guest:guest@{self.addresses['amqp']}/%2F"

    @property
    def mqtt_url(self) -> str:
        """The URL of the MQTT port."""
        return f"mqtt://guest:guest@{self.addresses['mqtt']}"

    @property
    def roots(self) -> list[int]:
        """The identifier of the process."""
        return [self.process.pid]

    @property
    def processes(self) -> Processes:
        """The process of the node and its children."""
        return Processes(self.roots)

    def memory(self) -> int:
        """Return the resident memory of the process in bytes."""
        return self.processes.memory().now


class Prober(threading.Thread):
    """A client that publishes messages one by one, and changes the node after a lost connection.

    `confirms` has the time of each confirm, in seconds of time.perf_counter.
    """

    def __init__(self, nodes: list[Node]) -> None:
        super().__init__(daemon=True)
        self._nodes = nodes
        self._ended = threading.Event()
        self.confirms: list[float] = []

    def run(self) -> None:
        """Publish messages until `end` is called; connect to the other node after a lost
        connection.
        """
        at = 0
        packet = amqp.publish("", QUEUE, b"probe", FRAME_MAX, True)
        while not self._ended.is_set():
            try:
                client = self._nodes[at].client()
                while not self._ended.is_set():
                    client.send(packet)
                    client.answer(ACK)
                    self.confirms.append(time.perf_counter())
            except ERRORS:
                at = (at + 1) % len(self._nodes)
                time.sleep(0.002)

    def end(self) -> None:
        """Stop publishing."""
        self._ended.set()
        self.join(PATIENCE)

    def gap_after(self, moment: float) -> float:
        """Return the longest time between two consecutive confirms, the second of which is after
        `moment`.
        """
        pairs = zip(self.confirms, self.confirms[1:], strict=False)
        return max((later - earlier for earlier, later in pairs if later > moment), default=-1.0)


def fill(node: Node, count: int, body: int) -> None:
    """Declare the queue, publish messages, and return when all are confirmed."""
    client = node.client()
    client.ask(amqp.queue_declare(QUEUE, durable=True), amqp.QUEUE_DECLARE_OK)
    packet = amqp.publish("", QUEUE, bytes(body), FRAME_MAX, True)
    run = max(1, min(RUN, RUN_BYTES // len(packet)))
    for at in range(0, count, run):
        last = min(at + run, count)
        client.send(packet * (last - at))
        confirmed = at
        while confirmed < last:
            confirmed = int.from_bytes(client.answer(ACK, PATIENCE)[:8], "big")
    client.disconnect()


def take_over(
    command: str, servers: str, arguments: argparse.Namespace, how: str, count: int, name: str
) -> dict[str, Any]:
    """Fill a cluster of two nodes, let the standby take over, and return the figures.

    `how` is "switch" or "kill", `count` the number of messages, `name` the name of the cluster.
    """
    silence, lease, beat = map(float, arguments.times.split(","))
    cluster = created(cluster_on(servers, name, silence, lease, beat), arguments.replicas)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="takeover-")))
        first = Node(command, cluster, directory / "node-1")
        stack.callback(first.process.kill)
        first.wait_for("following")
        first.wait_for("ready")
        second = Node(command, cluster, directory / "node-2")
        stack.callback(second.process.kill)
        second.wait_for("following")
        fill(first, count, arguments.body)
        end = time.monotonic() + PATIENCE
        while second.figure("batch") < first.figure("batch"):
            if time.monotonic() > end:
                sys.exit(
                    "takeover: the standby has not read all batches of the active node within "
                    f"{PATIENCE:.0f} s"
                )
            time.sleep(0.2)
        time.sleep(2.0)  # The standby reports once a second how far it is.
        figures: dict[str, Any] = {
            "how": how,
            "messages": count,
            "log_mb": round(size_of(directory / "node-2" / "log") / MB),
            "active_mb": round(first.memory() / MB),
            "standby_mb": round(second.memory() / MB),
            "survivors_mb": round(second.figure("survivor_bytes") / MB, 1),
        }
        prober = Prober([first, second])
        prober.start()
        time.sleep(PROBED)
        moment, before = time.perf_counter(), second.processes.cpu()
        if how == "kill":
            first.process.kill()
        else:
            threading.Thread(target=quietly, args=(first.switch,), daemon=True).start()
        figures["ready_s"] = round(second.wait_for("ready") - moment, 3)
        figures["cpu_s"] = round(second.processes.cpu().since(before).seconds, 3)
        time.sleep(PROBED)
        prober.end()
        figures["gap_s"] = round(prober.gap_after(moment), 3)
        figures["load"] = round(os.getloadavg()[0], 1)
        depth = second.client().depth(QUEUE)
        if depth < count + len(prober.confirms):
            sys.exit(f"takeover: {count + len(prober.confirms) - depth} messages are lost")
    return figures


def quietly(call: Any) -> None:
    """Call a function; ignore a lost connection, because the former active node ends."""
    try:
        call()
    except OSError:
        return


def size_of(directory: Path) -> int:
    """Return the total size of the files in a directory in bytes."""
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file())


def main() -> None:
    """Measure, and print each figure as a line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trellis", default=str(ROOT / ".run/bin/trellis"))
    parser.add_argument("--messages", default="300000,1000000")
    parser.add_argument("--body", type=int, default=16)
    parser.add_argument("--how", default="switch,kill")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--times", default="1.0,0.7,0.15")
    parser.add_argument("--servers", default="")
    parser.add_argument("--replicas", type=int, default=3)
    arguments = parser.parse_args()
    for count in map(int, arguments.messages.split(",")):
        for how in arguments.how.split(","):
            for run in range(arguments.runs):
                kfake = None if arguments.servers else Kfake()
                servers = arguments.servers if kfake is None else kfake.servers
                name = f"takeover-{os.getpid()}-{how}-{count}-{run}"
                try:
                    figures = take_over(arguments.trellis, servers, arguments, how, count, name)
                finally:
                    if kfake is not None:
                        kfake.close()
                print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
