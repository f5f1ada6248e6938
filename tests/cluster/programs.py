"""The Kafka clusters of the tests: kfake (in memory, in Go), and real nodes from Maven Central.

Each program listens on free ports of the loopback interface, and ends when its test ends.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from tests.addresses import own_address
from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build
from trellis.demo.download import fetch_kafka
from trellis.demo.errors import DemoError
from trellis.demo.kafka_node import SMALL_JVM, KafkaProgram, free_ports, write_settings
from trellis.parent_process import end_with_parent

HERE: Final = Path(__file__).parent
#: Seconds that the start and the stop of a Kafka node may take.
PATIENCE: Final = 60.0
#: Timeout of one attempt to reach the nodes, and the pause between two attempts, in seconds.
ATTEMPT: Final = 0.2


class Kfake:
    """A kfake process: an in-memory Kafka of three nodes."""

    def __init__(self, *settings: str) -> None:
        """Start kfake; each of `settings` is the text NAME=VALUE of a setting of its nodes.

        The nodes listen on own_address(), and not on 127.0.0.1. The reason: if a test leaves a
        client of Kafka open, this client connects again and again to the ports of a kfake that has
        ended, and a program of another test may listen on such a port of 127.0.0.1.
        """
        self._process = subprocess.Popen(
            [_kfake(), f"host={own_address()}", *settings],
            preexec_fn=end_with_parent,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.servers = self._line()

    def tell(self, command: str) -> None:
        """Send a command to kfake (tests/go/kfake/main.go), and wait until it is done."""
        assert self._process.stdin is not None
        print(command, file=self._process.stdin, flush=True)
        assert self._line() == "ok"

    def pause(self) -> None:
        """Stop all nodes of kfake from answering; connections stay open."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the nodes answer again."""
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End the kfake process."""
        self._process.kill()
        self._process.communicate(timeout=PATIENCE)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class KafkaNodes:
    """Real Kafka nodes; each is a broker and a controller."""

    def __init__(
        self,
        directory: Path,
        count: int,
        settings: Mapping[str, object] | None = None,
        jvm: Sequence[str] = SMALL_JVM,
    ) -> None:
        """Start nodes; `settings` overrides the settings of trellis/demo/kafka_node.py.

        `jvm` has options of the JVM.
        """
        self._directory = directory
        self._program = _program(tuple(jvm))
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        host = own_address()
        self._ports = {node: free_ports(host) for node in range(1, count + 1)}
        self.servers = ",".join(f"{host}:{port}" for port, _ in self._ports.values())
        try:
            for node in self._ports:
                home = directory / f"node-{node}"
                write_settings(home, node, self._ports, settings or {}, host)
                self.start(node)
            self._wait_for_nodes()
        except BaseException:
            self.close()
            raise

    def start(self, node: int) -> None:
        """Start a node with the data of its last run.

        Call this method in the main thread: the node ends with the thread that starts it.
        """
        self._processes[node] = self._program.start(self._directory / f"node-{node}")

    @property
    def pids(self) -> list[int]:
        """The process identifiers of the nodes."""
        return [process.pid for process in self._processes.values()]

    def kill(self, node: int) -> None:
        """Kill a node with SIGKILL."""
        self._processes[node].kill()
        self._processes[node].wait(PATIENCE)

    def pause(self) -> None:
        """Stop all nodes from answering; connections stay open."""
        for process in self._processes.values():
            process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let the nodes answer again."""
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """End all nodes.

        A single node ends by SIGTERM, so that Java can write its archive of loaded classes, which
        makes the next start faster. Several nodes are killed.
        """
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


def _program(jvm: tuple[str, ...]) -> KafkaProgram:
    """Fetch Kafka's files; skip the test if they cannot be downloaded."""
    java = require("java")
    try:
        files = fetch_kafka(BUILT / "kafka", lambda _: None)
    except DemoError as error:
        pytest.skip(str(error))
    return KafkaProgram(java, os.pathsep.join(map(str, files)), BUILT, jvm)
