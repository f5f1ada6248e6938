"""The cluster under test: two node processes over one replicated log, and their clients.

Faults (kinds.py) stop and kill the processes, fill their disks, and cut them off the log.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from broker.replication.timing import BEAT, LEASE, SILENCE
from tests.broker import environment
from tests.cluster.conftest import cluster_on
from tests.cluster.log_server import LogServer
from tests.cluster.programs import KafkaNodes, Kfake
from tests.cluster.rounds.client import Checker, ClientSession
from tests.cluster.rounds.exactly import ExactlyOnce
from trellis.cluster.topic import KafkaTopic
from trellis.parent_process import end_with_parent
from trellis.settings.cluster import ClusterSettings

#: Silence, lease and beat of a node, in seconds.
Times = tuple[float, float, float]
#: The times of the nodes in most rounds, and the default times of a node.
TIMES: Times = (1.5, 1.0, 0.2)
DEFAULT_TIMES: Times = (SILENCE, LEASE, BEAT)
#: Longest wait, in seconds, for a state of the cluster.
PATIENCE = 90.0
#: Seconds between two checks of the state.
LOOK_SECONDS = 0.02


class GaveUp(Exception):
    """Raised if the cluster does not reach a state, such as "a node is active", in time."""


class RoundNode:
    """A process of one node."""

    def __init__(
        self, directory: Path, given: dict[str, object], on_ready: Callable[[RoundNode], None]
    ) -> None:
        """Start the process.

        `given` are SETTINGS of node.py. `on_ready` is called with this node, in a thread, when the
        node becomes active.
        """
        self.directory = directory
        self.name = directory.name
        directory.mkdir(exist_ok=True)
        self._control = directory.parent / f"{self.name}.control"
        self._control.mkdir(exist_ok=True)
        self.resume_disk()
        self.forget_point()
        self.errors = directory.parent / f"{self.name}.log"
        settings = {"directory": str(directory), "control": str(self._control), **given}
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.rounds.node", json.dumps(settings)],
                preexec_fn=end_with_parent,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environment(),
            )
        #: The state of the process: starting, following, ready or ended.
        self.state = "starting"
        self.addresses: dict[str, str] = {}
        self._on_ready = on_ready
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            state, *words = line.split()
            if state in ("following", "ready"):
                self.addresses = dict(word.split("=", 1) for word in words)
                self.state = state
                if state == "ready":
                    self._on_ready(self)
        self.process.wait()
        self.state = "ended"

    @property
    def has_ended(self) -> bool:
        """True if the process has ended."""
        return self.state == "ended"

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        self.process.kill()
        self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.process.poll() is None:
            self.process.send_signal(number)

    @property
    def is_stopped(self) -> bool:
        """True while the process is suspended by SIGSTOP."""
        try:
            text = Path(f"/proc/{self.process.pid}/stat").read_text()
        except FileNotFoundError:
            return False
        return text.rpartition(")")[2].split()[0] == "T"

    def stop_at(self, point: str) -> None:
        """Make the process stop itself (SIGSTOP) at a point of its work (node.py)."""
        written = self._control / "point.new"
        written.write_text(point)
        os.replace(written, self._control / "point")

    def forget_point(self) -> None:
        """Cancel `stop_at`."""
        (self._control / "point").unlink(missing_ok=True)

    def fill_disk(self, error: int = errno.ENOSPC) -> None:
        """Make each write to the disk of this node fail; by default, the disk is full.

        With the error 0, writes do not end.
        """
        written = self._control / "full.new"
        written.write_text(str(error))
        os.replace(written, self._control / "full")

    def resume_disk(self) -> None:
        """Let writes to the disk of this node succeed again, after `fill_disk`."""
        (self._control / "full").unlink(missing_ok=True)

    def metric(self, name: str) -> float:
        """Return the metric `trellis_cluster_NAME` of the node; -1 if the node does not answer."""
        try:
            url = f"http://{self.addresses['metrics']}/metrics"
            with urllib.request.urlopen(url, timeout=5) as response:
                text = response.read().decode()
        except (OSError, KeyError):
            return -1.0
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == f"trellis_cluster_{name}":
                    return float(sample.value)
        return -1.0


class World:
    """The nodes `one` and `two`, their log, and their clients."""

    def __init__(self, directory: Path, log: str, seed: int, times: Times = TIMES) -> None:
        """Start the log, the nodes and the clients.

        `log` is "server" (a LogServer in the test's memory), "kfake" (an in-memory Kafka) or
        "kafka" (three real Kafka nodes). `times` are silence, lease and beat of the nodes.
        """
        self.directory = directory
        self.times = times
        self.checker = Checker()
        self._seed = seed
        self.kfake = Kfake() if log == "kfake" else None
        self.kafka = KafkaNodes(directory, 3) if log == "kafka" else None
        self.cluster: ClusterSettings | None = None
        self.servers: dict[str, LogServer] = {}
        kafka = self.kfake or self.kafka
        if kafka is not None:
            self.cluster = cluster_on(kafka.servers, "rounds", *times)
            KafkaTopic(self.cluster).create(3)
        self.sessions: list[ClientSession] = []
        self._lock = threading.Lock()
        self.nodes: dict[str, RoundNode] = {}
        for name in ("one", "two"):
            self.start(name)
        self.exactly = ExactlyOnce(self.mqtt_address)
        self.wait_for(lambda: self.active() is not None)
        self.exactly.start()

    def start(self, name: str, directory: Path | None = None) -> RoundNode:
        """Start the process of a node; its data directory may have data of an earlier run."""
        given: dict[str, object] = {"times": self.times, "cluster": "rounds"}
        if self.cluster is not None:
            given["kafka"] = self.cluster.servers
        else:
            given["server"] = self._server(name).port
        node = RoundNode(directory or self.directory / name, given, self._ready)
        self.nodes[name] = node
        return node

    def _server(self, name: str) -> LogServer:
        """Return the LogServer by which only this node reaches the log in memory.

        All LogServers share one log. A fault may stop one of them, to cut its node off the log.
        """
        if name not in self.servers:
            server = LogServer()
            for other in self.servers.values():
                server.log, server.lock = other.log, other.lock
            self.servers[name] = server
        return self.servers[name]

    def _ready(self, node: RoundNode) -> None:
        with self._lock:
            index = len(self.sessions)
            session = ClientSession(self.checker, node, index, self._seed * 1000 + index)
            self.sessions.append(session)
        session.start()

    # -- the states

    def active(self) -> RoundNode | None:
        """Return the running node that became active last, or None if there is none."""
        session = self._session()
        return None if session is None else session.node

    def _session(self) -> ClientSession | None:
        """Return the newest session whose node still runs; None if the nodes of all have ended.

        Sessions are in the order in which the nodes reported that they were ready. A node that
        owned the log only briefly may report after the next owner, and end: its session is skipped.
        """
        with self._lock:
            return next((one for one in reversed(self.sessions) if not one.node.has_ended), None)

    def standby(self) -> RoundNode | None:
        """Return a node that follows the log, or None if no node does."""
        return next((node for node in self.nodes.values() if node.state == "following"), None)

    def mqtt_address(self) -> str:
        node = self.active()
        return "" if node is None else node.addresses.get("mqtt", "")

    def pause(self, seconds: float) -> None:
        """Wait for some seconds, for example while a fault lasts."""
        threading.Event().wait(seconds)

    def wait_for(self, condition: Callable[[], bool], patience: float = PATIENCE) -> None:
        """Wait until a condition holds. Raises GaveUp after `patience` seconds."""
        end = time.monotonic() + patience
        while not condition():
            if time.monotonic() > end:
                states = {name: node.state for name, node in self.nodes.items()}
                raise GaveUp(f"{states}, {len(self.checker.confirmed)} confirmed")
            self.pause(LOOK_SECONDS)

    def wait_until_ready(self) -> None:
        """Start ended nodes again. Wait for an active node, a standby, and 10 confirms."""

        def is_ready() -> bool:
            for name in ("one", "two"):
                if self.nodes[name].has_ended:
                    self.start(name)
            return self.active() is not None and self.standby() is not None

        self.wait_for(is_ready)
        self.progress(10)

    @property
    def closed(self) -> int:
        """Number of connections of clients that ended, although the clients had not closed them."""
        return self.checker.closed + self.exactly.closed

    def progress(self, confirms: int) -> None:
        """Wait until the clients have got `confirms` further confirms."""
        wanted = len(self.checker.times) + confirms
        self.wait_for(lambda: len(self.checker.times) >= wanted)

    # -- the end

    def finish(self) -> None:
        """Stop the clients, and consume the remaining messages of the queue."""
        self.wait_until_ready()
        self.exactly.pause()
        for session in self.sessions:
            session.stop()
        serving = self._session()
        assert serving is not None
        self.wait_for(lambda: not serving.is_alive())
        serving.drain()
        with suppress(GaveUp):  # Missing messages count as lost.
            self.wait_for(lambda: not self.exactly.missing, 20.0)

    def close(self) -> None:
        """End all processes."""
        self.exactly.stop()
        for session in self.sessions:
            session.stop()
        for node in self.nodes.values():
            node.send(signal.SIGCONT)
            node.kill()
        for server in self.servers.values():
            server.close()
        for kafka in (self.kfake, self.kafka):
            if kafka is not None:
                kafka.close()
