"""Runs HiveMQ Community Edition and Apache Artemis with the Java programs of tests/javabrokers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar, Final

from peers.peer import PeerBroker, Running
from peers.process import Child, Failed, first_words, free_ports, speaks_mqtt

#: The heap of a broker, and a log of errors only: Artemis logs two warnings for each subscription.
_JVM: Final = ("-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
#: The largest window of unacknowledged messages, and the largest packet in bytes, of MQTT 5.
_LIMITS: Final = ("65535", "268435455")


class JvmPeer(PeerBroker):
    """The base class of the brokers on the JVM, which `install.sh` builds with Maven."""

    protocols = frozenset({"mqtt"})
    start_seconds = 8.0
    settings = (
        "in memory, the largest window of unacknowledged messages, anonymous clients; `-Xmx512m`",
    )
    program: ClassVar[str]  # The Java class that runs the broker.
    library: ClassVar[str]  # The name of the broker's JAR file without its version.

    @property
    def _installed(self) -> Path:
        return self.tools.installed / self.name

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        if self.tools.program("java") and (self._installed / "classes").is_dir():
            return ""
        return (
            f"{self.title} is not built; build it with benchmarks/peers/install.sh {self.name} "
            "(needs Java 17 and Maven)"
        )

    def version(self) -> str:
        """Return the versions of the broker and of Java."""
        names = [path.stem for path in (self._installed / "lib").glob(f"{self.library}-*.jar")]
        if len(names) != 1:
            raise Failed(f"{self._installed / 'lib'} has {len(names)} files {self.library}-*.jar")
        output = first_words([self.program_path("java"), "-version"])
        java = re.search(r'version "([^"]+)"', output)
        if java is None:
            raise Failed(f"java -version prints no version: {output[:80]}")
        return f"{names[0].removeprefix(self.library + '-')} on Java {java[1]}"

    def launch(self, directory: Path, running: Running) -> None:
        """Start the Java program of the broker, and wait until it answers MQTT."""
        [running.mqtt] = free_ports(1)
        paths = f"{self._installed / 'classes'}:{self._installed / 'lib'}/*"
        child = Child(
            [
                *(self.program_path("java"), *_JVM, "-cp", paths, self.program),
                *(str(running.mqtt), str(directory / "data"), *_LIMITS, "in-memory"),
            ],
            directory,
            name=self.name,
        )
        running.children.append(child)
        child.wait_until(lambda: speaks_mqtt(running.mqtt), 60)


class HiveMqPeer(JvmPeer):
    """The MQTT broker HiveMQ Community Edition."""

    name = "hivemq"
    title = "HiveMQ CE"
    program = "HiveMq"
    library = "hivemq-community-edition-embedded"


class ArtemisPeer(JvmPeer):
    """The broker Apache Artemis with its MQTT protocol."""

    name = "artemis"
    title = "Artemis"
    program = "Artemis"
    library = "artemis-server"
