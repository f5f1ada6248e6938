"""How do we run the floors: benchmarks/relay, which passes octets on unread?"""

from __future__ import annotations

import re
from pathlib import Path
from typing import ClassVar

from peers.peer import ROOT, Peer, Running
from peers.process import Child, Failed, first_words, speaks_mqtt
from peers.workloads import Case
from trellis.bench import amqp, mqtt

_VERSION = "import platform, uvloop; print('uvloop', uvloop.__version__, 'on Python', platform.python_version())"
_PROGRAM = ROOT / "benchmarks" / "relay" / "relay.py"


#: For an AMQP workload the one of MQTT that has its shape.
_SHAPES: dict[str, str] = {
    "amqp-fan10": "mqtt-fan10",
    "amqp-50pub": "mqtt-50pub",
    "amqp-pingpong": "mqtt-pingpong",
}


def shape(case: Case) -> list[str]:
    """The load tool's words for a case. It takes only deliveries for deliveries, and those an AMQP
    broker has to write: so for AMQP it sends the relay MQTT messages that are as long as the
    workload's publications, from and to as many.
    """
    workload = case.workload
    if workload.publish == "mqtt":
        return [workload.name]
    names = "bench-000000", "b000000.room.0000.temp"
    octets = len(amqp.publish(*names, b"-" * workload.size, 131_072))
    return [_SHAPES.get(workload.name, "mqtt-qos0"), "--size", str(mqtt_body(names[1], octets))]


def mqtt_body(topic: str, octets: int) -> int:
    """How large the body of a QoS 0 PUBLISH is that has so many octets in all."""
    size = octets - len(mqtt.publish(topic, b""))
    while len(mqtt.publish(topic, b"-" * size)) > octets:  # a longer packet has a longer length
        size -= 1
    return size


class Relay(Peer):
    """Every chunk through uvloop's transports to every subscriber."""

    name = "relay"
    title = "blind relay"
    protocols = frozenset({"mqtt"})
    settings: ClassVar[tuple[str, ...]] = (
        "uvloop; octets in, the same octets out to every subscriber, unread; only handshakes are answered",
        "for AMQP workloads it gets MQTT packets that are as long as the publications",
    )
    floor = True
    flags: ClassVar[tuple[str, ...]] = ()

    def missing(self) -> str:
        return (
            ""
            if self._python()
            else "uvloop is not installed beside Trellis (make run installs both into .run; else --trellis COMMAND)"
        )

    def version(self) -> str:
        return first_words([self._there(), "-c", _VERSION])

    def refusal(self, case: Case) -> str:
        if not case.blind:
            return "would have to read what it relays"
        return ""

    def launch(self, directory: Path, running: Running) -> None:
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
        """The Python that runs Trellis: it has uvloop."""
        if self.tools.trellis is None:
            return None
        python = self.tools.trellis.parent / "python"
        return python if python.exists() else None

    def _there(self) -> Path:
        python = self._python()
        if python is None:
            raise Failed(self.missing())
        return python


class Writer(Relay):
    """Every chunk by one send(2) to every subscriber's socket."""

    name = "writer"
    title = "blind writer"
    settings = ("as the blind relay, but by one send(2) for each subscriber, past the event loop",)
    flags = ("--writer",)
