"""Runs ../node/aedes.js, a broker built with aedes, an MQTT library for Node."""

from __future__ import annotations

import json
from pathlib import Path

from peers.peer import HERE, PeerBroker, Running
from peers.process import LOOPBACK, Child, first_words, free_ports, speaks_mqtt

_PACKAGE = HERE / "node" / "node_modules" / "aedes" / "package.json"


class AedesPeer(PeerBroker):
    """The MQTT broker aedes on Node."""

    name = "aedes"
    title = "aedes"
    protocols = frozenset({"mqtt"})
    settings = (
        (
            "in memory, Nagle's delay off, 65,535 unacknowledged messages with QoS 2 (1,000 by "
            "default), anonymous clients"
        ),
    )

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        if self.tools.program("node") is None:
            return "aedes needs Node, and node is not on PATH"
        return (
            ""
            if _PACKAGE.is_file()
            else "aedes is not installed; run benchmarks/peers/install.sh aedes (needs npm)"
        )

    def version(self) -> str:
        """Return the versions of aedes and Node."""
        version = json.loads(_PACKAGE.read_text())["version"]
        node_version = first_words([self.program_path("node"), "--version"]).removeprefix("v")
        return f"{version} on Node {node_version}"

    def launch(self, directory: Path, running: Running) -> None:
        """Start the broker `aedes.js` in Node.js, and wait until it answers MQTT."""
        [running.mqtt] = free_ports(1)
        program, environment = HERE / "node" / "aedes.js", {"NODE_ENV": "production"}
        child = Child(
            [self.program_path("node"), program, LOOPBACK, str(running.mqtt)],
            directory,
            environment,
            name="aedes",
        )
        running.children.append(child)
        child.wait_until(lambda: speaks_mqtt(running.mqtt), 20)
