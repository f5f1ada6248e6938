"""Runs benchmarks/relay, which forwards bytes without parsing them. The relay's cost is a lower
bound of a broker's cost, and is shown beside the brokers.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from peers.peer import ROOT, PeerBroker, Running
from peers.process import Child, Failed, first_words, speaks_mqtt
from peers.workloads import Case
from trellis.bench import amqp, mqtt

_VERSION = (
    "import platform, uvloop; print('uvloop', uvloop.__version__, 'on Python', "
    "platform.python_version())"
)
_PROGRAM = ROOT / "benchmarks" / "relay" / "relay.py"


#: For each AMQP workload, the MQTT workload of the same shape.
_SHAPES: dict[str, str] = {
    "amqp-fan10": "mqtt-fan10",
    "amqp-50pub": "mqtt-50pub",
    "amqp-pingpong": "mqtt-pingpong",
}


def shape(case: Case) -> list[str]:
    """Return the arguments with which the load tool runs a case on the relay.

    The relay only forwards bytes, and AMQP deliveries differ from publications. For an AMQP
    workload, the relay therefore gets MQTT packets of the same size, from as many clients.
    """
    workload = case.workload
    if workload.publish == "mqtt":
        return [workload.name]
    names = "bench-000000", "b000000.room.0000.temp"
    size = len(amqp.publish(*names, b"-" * workload.size, 131_072))
    return [_SHAPES.get(workload.name, "mqtt-qos0"), "--size", str(mqtt_body(names[1], size))]


def mqtt_body(topic: str, total: int) -> int:
    """Return the size of the body, in bytes, of a QoS 0 PUBLISH packet that has `total` bytes."""
    size = total - len(mqtt.publish(topic, b""))
    # A longer packet may have a longer length field, so the first size may be too large.
    while len(mqtt.publish(topic, b"-" * size)) > total:
        size -= 1
    return size


class RelayPeer(PeerBroker):
    """The blind relay: forwards every chunk unparsed to every subscriber by uvloop's transports."""

    name = "relay"
    title = "blind relay"
    protocols = frozenset({"mqtt"})
    settings: ClassVar[tuple[str, ...]] = (
        (
            "uvloop; it sends received bytes to every subscriber without parsing them, and answers "
            "only handshakes"
        ),
        "for AMQP workloads it gets MQTT packets of the same size",
    )
    floor = True
    flags: ClassVar[tuple[str, ...]] = ()

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        return (
            ""
            if self._python()
            else (
                "uvloop is not installed; install Trellis and uvloop into .run with `make run`, or "
                "give --trellis COMMAND"
            )
        )

    def version(self) -> str:
        """Return the versions of uvloop and Python."""
        return first_words([self._there(), "-c", _VERSION])

    def refusal(self, case: Case) -> str:
        """Return the reason why the relay cannot run a workload; "" if it can."""
        if not case.blind:
            return "it does not parse the bytes that it forwards"
        return ""

    def launch(self, directory: Path, running: Running) -> None:
        """Start the relay, and wait until it prints its port."""
        child = Child([self._there(), _PROGRAM, *self.flags], directory, name=self.name)
        running.children.append(child)
        ports: list[int] = []

        def read() -> bool:
            ports[:] = [
                int(port)
                for port in re.findall(r"^ready (\d+)$", child.log.read_text(), re.MULTILINE)
            ]
            return bool(ports)

        running.load = shape
        child.wait_until(read, 20)
        running.mqtt = ports[0]
        child.wait_until(lambda: speaks_mqtt(running.mqtt), 10)

    def _python(self) -> Path | None:
        """Return the path of the Python that runs Trellis, which has uvloop; None if missing."""
        if self.tools.trellis is None:
            return None
        python = self.tools.trellis.parent / "python"
        return python if python.exists() else None

    def _there(self) -> Path:
        python = self._python()
        if python is None:
            raise Failed(self.missing())
        return python


class WriterPeer(RelayPeer):
    """The blind writer: writes every chunk unparsed to each subscriber's socket by one write(2)."""

    name = "writer"
    title = "blind writer"
    settings = (
        (
            "like the blind relay, but it calls write(2) once per subscriber, not through the "
            "event loop"
        ),
    )
    flags = ("--writer",)
