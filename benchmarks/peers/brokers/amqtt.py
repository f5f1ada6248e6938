"""Runs amqtt's own broker as a peer."""

from __future__ import annotations

from pathlib import Path

from peers.peer import HERE, PeerBroker, Running
from peers.process import Child, first_words, free_ports, speaks_mqtt

_VERSION = """\
import platform
from importlib.metadata import version
print(version("amqtt"), "on Python", platform.python_version(), "and uvloop", version("uvloop"))
"""


class AmqttPeer(PeerBroker):
    """The MQTT broker amqtt on Python."""

    name = "amqtt"
    title = "amqtt"
    protocols = frozenset({"mqtt"})
    settings = (
        (
            "on uvloop (asyncio's own loop by default), without its plugins for logs and $SYS, "
            "anonymous clients"
        ),
    )

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        return (
            ""
            if self._python.exists()
            else "amqtt is not installed; run benchmarks/peers/install.sh amqtt (needs PyPI)"
        )

    def version(self) -> str:
        """Return the versions of amqtt, Python and uvloop."""
        return first_words([self._python, "-c", _VERSION])

    def launch(self, directory: Path, running: Running) -> None:
        """Start amqtt_serve.py, and wait until it answers MQTT."""
        [running.mqtt] = free_ports(1)
        child = Child(
            [self._python, "-P", HERE / "amqtt_serve.py", str(running.mqtt)],
            directory,
            name="amqtt",
        )
        running.children.append(child)
        child.wait_until(lambda: speaks_mqtt(running.mqtt), 20)

    @property
    def _python(self) -> Path:
        return self.tools.installed / "amqtt" / "bin" / "python"
