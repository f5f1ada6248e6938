"""The Kafka clusters of the tests: kfake (in memory, in Go), and real nodes from Maven Central.

Each program listens on free ports of 127.0.0.1, and ends when its test ends.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build

HERE: Final = Path(__file__).parent
#: Seconds that a start and a stop may take.
PATIENCE: Final = 60.0
#: Seconds of one attempt to reach the nodes, and between two attempts.
ATTEMPT: Final = 0.2


class Kfake:
    """A kfake process: an in-memory Kafka of three nodes."""

    def __init__(self, *settings: str) -> None:
        """Start kfake; each of `settings` is the text NAME=VALUE of a setting of its nodes."""
        self._process = subprocess.Popen(
            [_kfake(), *settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.servers = self._line()

    def tell(self, command: str) -> None:
        """Send a command to kfake (tests/go/kfake/main.go), and wait until it is done."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        assert self._line() == "ok"

    def pause(self) -> None:
        """Stop all nodes; connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the stopped nodes."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class KafkaNodes:
    """Real Kafka nodes; each is a broker and a controller."""

    def __init__(
        self, directory: Path, count: int, settings: Mapping[str, object] | None = None
    ) -> None:
        """Start nodes; `settings` overrides the settings in kafka/server.properties."""
        self._settings = settings or {}
        self._directory = directory
        self._class_path = _class_path()
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._ports = {node: _free_ports() for node in range(1, count + 1)}
        self.servers = ",".join(f"127.0.0.1:{port}" for port, _ in self._ports.values())
        try:
            for node in self._ports:
                self._format(node)
                self.start(node)
            self._wait_for_nodes()
        except BaseException:
            self.close()
            raise

    def start(self, node: int) -> None:
        """Start a node with the data of its last run."""
        home = self._directory / f"node-{node}"
        with (home / "output").open("ab") as output:
            self._processes[node] = subprocess.Popen(
                [*self._java(), "kafka.Kafka", str(home / "server.properties")],
                stdout=output,
                stderr=output,
            )

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL."""
        self._processes[node].kill()
        self._processes[node].wait(PATIENCE)

    def pause(self) -> None:
        """Stop all nodes; connections stay open."""
        for process in self._processes.values():
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the stopped nodes."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End all nodes. A node that runs alone ends in order, and may write the class archive."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            if len(self._ports) == 1:
                process.terminate()
            else:
                process.kill()
        for process in self._processes.values():
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()

    def _format(self, node: int) -> None:
        """Write the settings and the identity of a node."""
        home = self._directory / f"node-{node}"
        (home / "data").mkdir(parents=True)
        identity = f"version=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\nnode.id={node}\n"
        (home / "data" / "meta.properties").write_text(identity)
        port, controller = self._ports[node]
        voters = ",".join(f"{n}@127.0.0.1:{port}" for n, (_, port) in self._ports.items())
        own = {
            "node.id": node,
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": voters,
            "log.dirs": home / "data",
            "offsets.topic.replication.factor": len(self._ports),
            **self._settings,
        }
        lines = "".join(f"{name}={value}\n" for name, value in own.items())
        common = (HERE / "kafka" / "server.properties").read_text()
        (home / "server.properties").write_text(common + lines)

    def _java(self) -> list[str]:
        """Return the command of a JVM.

        An archive of the loaded classes makes the start of the JVM three times as fast. The first
        node that ends in order writes the archive.
        """
        key = hashlib.sha256(f"{self._class_path} {_java_version()}".encode()).hexdigest()[:16]
        archive = BUILT / f"kafka-{key}.jsa"
        share = "SharedArchiveFile" if archive.exists() else "ArchiveClassesAtExit"
        return [
            require("java"),
            *("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
            *("-Xlog:cds=off", "-Xlog:cds+dynamic=off", f"-XX:{share}={archive}"),
            f"-Dlog4j2.configurationFile={HERE / 'kafka' / 'log4j2.properties'}",
            *("-cp", self._class_path),
        ]

    def _wait_for_nodes(self) -> None:
        """Wait until all nodes are members of the cluster."""
        admin = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                if len(admin.list_topics(timeout=ATTEMPT).brokers) == len(self._ports):
                    return
                admin.poll(ATTEMPT)
            except KafkaException:
                for node, process in self._processes.items():
                    output = self._directory / f"node-{node}" / "output"
                    assert process.poll() is None, output.read_text()[-2000:]
        raise AssertionError(f"Kafka did not start within {PATIENCE:g} s")


@cache
def _kfake() -> str:
    """Build kfake; return its path. Several test processes may build it at the same time."""
    program = BUILT / "kfake"
    built = f"{program}-{os.getpid()}"
    build([require("go"), "build", "-o", built, "."], HERE.parent / "go" / "kfake")
    os.replace(built, program)
    return str(program)


def _class_path() -> str:
    """Fetch Kafka and its libraries; return their class path."""
    path = BUILT / "kafka-class-path"
    goal = ["dependency:build-classpath", f"-Dmdep.outputFile={path}", "-DincludeScope=runtime"]
    pom = HERE / "kafka" / "pom.xml"
    if not path.exists() or path.stat().st_mtime < pom.stat().st_mtime:
        build([require("mvn"), "-q", "-B", *goal], pom.parent)
    return path.read_text().strip()


def _java_version() -> str:
    done = subprocess.run([require("java"), "-version"], capture_output=True, text=True, check=True)
    return done.stderr


def _free_ports() -> tuple[int, int]:
    """Return two free ports."""
    with socket.socket() as one, socket.socket() as other:
        one.bind(("127.0.0.1", 0))
        other.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])
