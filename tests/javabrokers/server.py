"""MQTT brokers on the JVM, from Maven Central: HiveMQ Community Edition and Apache Artemis.

Each directory beside this file has a Maven project with a program that runs one broker.
"""

from __future__ import annotations

import functools
import os
import signal
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.addresses import free_port
from tests.foreign import require
from tests.interop.test_toolchains import BUILT, build
from trellis.parent_process import end_with_parent

#: The directory of each broker's Maven project, and the Java class of its program.
PROGRAMS: Final = {"hivemq": "HiveMq", "artemis": "Artemis"}
#: Little memory, and a quick start: a test sends few messages.
_JVM: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)
#: Largest MQTT packet in bytes, as MQTT 5 defines it.
_PACKET_MAX: Final = 268_435_455
#: Seconds within which the process must end after a signal.
_STOP: Final = 60


@functools.cache
def _class_path(name: str) -> str:
    """Build the program of a broker; return the class path with its libraries.

    The tests of one broker run in one process (xdist_group), so no other process builds it.
    """
    built = BUILT / name
    libraries = built / "class-path"
    build(
        [
            *(require("mvn"), "-q", "-B", f"-DbuildDirectory={built}"),
            *("compile", "dependency:build-classpath", f"-Dmdep.outputFile={libraries}"),
        ],
        Path(__file__).parent / name,
    )
    return os.pathsep.join([str(built / "classes"), libraries.read_text().strip()])


class JavaBroker:
    """A broker on 127.0.0.1 that keeps its sessions and messages in a directory.

    Without Maven or Java, the constructor skips the test. The broker accepts `receive_maximum`
    unacknowledged messages of a client of MQTT 5, and packets of `packet_max` bytes.
    """

    def __init__(
        self,
        name: str,
        directory: Path,
        receive_maximum: int = 1_000,
        packet_max: int = _PACKET_MAX,
    ) -> None:
        self.port = free_port()
        directory.mkdir()
        self._log = directory / "log"
        self._command = [
            *(require("java"), *_JVM, "-cp", _class_path(name), PROGRAMS[name]),
            *(str(self.port), str(directory), str(receive_maximum), str(packet_max), "file"),
        ]
        self.start()

    def start(self) -> None:
        """Start the broker, again after `kill` or `stop`, and wait until it serves clients."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, preexec_fn=end_with_parent, stdout=subprocess.PIPE, stderr=log
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            self.kill()
            text = self._log.read_text(errors="replace")[-2_000:]
            pytest.fail(f"{self._command[-6]} did not start:\n{text}")

    def kill(self) -> None:
        """Kill the broker with SIGKILL; its files stay."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the broker with SIGTERM, after which a JVM runs its shutdown hooks."""
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self._process.stdout is not None
        self._process.send_signal(number)
        self._process.wait(_STOP)
        self._process.stdout.close()
