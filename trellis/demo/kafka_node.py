"""A Kafka node on this machine, which is a Kafka broker and a controller: settings and process."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from trellis.demo.errors import DemoError
from trellis.demo.logs import last_line
from trellis.parent_process import end_with_parent

#: Settings of a small Kafka node that starts fast, with the timeouts that Trellis recommends.
SETTINGS: Final[Mapping[str, object]] = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": 400,
    "broker.session.timeout.ms": 2000,
    "controller.quorum.election.timeout.ms": 500,
    "controller.quorum.fetch.timeout.ms": 1000,
    "controller.quorum.request.timeout.ms": 1000,
    "group.initial.rebalance.delay.ms": 0,
    "log.cleaner.dedupe.buffer.size": 4194304,
    "log.initial.task.delay.ms": 1000,
    "message.max.bytes": 16777216,
    "num.io.threads": 2,
    "num.network.threads": 2,
    "num.recovery.threads.per.data.dir": 1,
    "num.replica.fetchers": 1,
    "offsets.topic.num.partitions": 3,
    "replica.fetch.max.bytes": 16777216,
    "share.coordinator.state.topic.num.partitions": 1,
    "transaction.state.log.num.partitions": 1,
}
#: Logging settings of the Kafka node: warnings and errors on standard output.
_LOGGING: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %p %c %m%n
"""
#: Options of the JVM for a small node that starts fast.
SMALL_JVM: Final = ("-Xms128m", "-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
#: The host of all listeners.
HOST: Final = "127.0.0.1"

#: Seconds that the start and the end of a Kafka node may take, and seconds between two attempts to
#: connect.
_PATIENCE: Final = 60.0
_RETRY: Final = 0.05

#: The ports of a node: for clients, and for controllers.
Ports = tuple[int, int]


class KafkaProgram:
    """The command that starts a Kafka node: Java, Kafka's files, and the JVM's class archive.

    The class archive has the classes that Kafka loads, and makes the start of the JVM three times
    as fast. The first node that ends without being killed writes the archive into `cache`. `jvm`
    has options of the JVM.
    """

    def __init__(
        self, java: str, class_path: str, cache: Path, jvm: Sequence[str] = SMALL_JVM
    ) -> None:
        cache.mkdir(parents=True, exist_ok=True)
        done = subprocess.run([java, "-version"], capture_output=True, text=True, check=True)
        key = hashlib.sha256(f"{class_path} {done.stderr}".encode()).hexdigest()[:16]
        self._archive = cache / f"kafka-{key}.jsa"
        self._java = java
        self._jvm = jvm
        self._class_path = class_path

    def start(self, home: Path) -> subprocess.Popen[bytes]:
        """Start the Kafka node in a directory that `write_settings` has prepared."""
        share = "SharedArchiveFile" if self._archive.exists() else "ArchiveClassesAtExit"
        command = [
            *(self._java, *self._jvm, "-Xlog:cds=off", "-Xlog:cds+dynamic=off"),
            f"-XX:{share}={self._archive}",
            f"-Dlog4j2.configurationFile={home / 'log4j2.properties'}",
            *("-cp", self._class_path, "kafka.Kafka", str(home / "server.properties")),
        ]
        with (home / "output").open("ab") as output:
            return subprocess.Popen(
                command,
                preexec_fn=end_with_parent,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def write_settings(
    home: Path,
    node: int,
    ports: Mapping[int, Ports],
    more: Mapping[str, object],
    host: str = HOST,
) -> None:
    """Write the settings and the identity of a node into a new directory.

    `ports` has the ports of all nodes, by the number of the node. All nodes listen on the address
    `host`. `more` overrides SETTINGS.
    """
    (home / "data").mkdir(parents=True)
    identity = f"version=1\ncluster.id=4L6g3nShT-eMCtK--X86sw\nnode.id={node}\n"
    (home / "data" / "meta.properties").write_text(identity)
    (home / "log4j2.properties").write_text(_LOGGING)
    port, controller = ports[node]
    voters = ",".join(f"{number}@{host}:{port}" for number, (_, port) in ports.items())
    settings = {
        **SETTINGS,
        "node.id": node,
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}",
        "controller.quorum.voters": voters,
        "log.dirs": home / "data",
        "offsets.topic.replication.factor": len(ports),
        **more,
    }
    lines = "".join(f"{name}={value}\n" for name, value in settings.items())
    (home / "server.properties").write_text(lines)


def free_ports(host: str = HOST) -> Ports:
    """Return two free ports of an address."""
    with socket.socket() as one, socket.socket() as other:
        one.bind((host, 0))
        other.bind((host, 0))
        return int(one.getsockname()[1]), int(other.getsockname()[1])


@contextmanager
def kafka_on_this_machine(program: KafkaProgram, directory: Path) -> Iterator[str]:
    """Start one Kafka node, yield its HOST:PORT, and stop the node at the end of the context.

    Raises DemoError.
    """
    home, ports = directory / "kafka", free_ports()
    write_settings(home, 1, {1: ports}, {})
    process = program.start(home)
    try:
        _wait_for_port(process, ports[0], home / "output")
        yield f"{HOST}:{ports[0]}"
    finally:
        _end(process)


def _wait_for_port(process: subprocess.Popen[bytes], port: int, output: Path) -> None:
    """Wait until a Kafka node accepts connections. Raises DemoError."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection((HOST, port), _PATIENCE).close()
            return
        except OSError:
            time.sleep(_RETRY)
    raise DemoError(f"the Kafka node did not start{last_line(output)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Stop a Kafka node; kill its process if it does not end within _PATIENCE (in seconds).

    The JVM writes its class archive (see KafkaProgram) only if the node is not killed.
    """
    process.terminate()
    try:
        process.wait(_PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
