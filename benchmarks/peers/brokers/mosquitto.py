"""Runs the MQTT broker mosquitto as a peer."""

from __future__ import annotations

import re
from pathlib import Path

from peers.peer import PeerBroker, Running
from peers.process import LOOPBACK, Child, Failed, first_words, free_ports, speaks_mqtt

_CONFIGURATION = """\
listener {port} {host}
allow_anonymous true
persistence false
set_tcp_nodelay true
max_queued_messages 0
max_inflight_messages 0
max_connections -1
sys_interval 0
log_type error
log_dest stderr
"""


class MosquittoPeer(PeerBroker):
    """The MQTT broker mosquitto."""

    name = "mosquitto"
    title = "mosquitto"
    protocols = frozenset({"mqtt"})
    settings = (
        (
            "`max_queued_messages 0`, `max_inflight_messages 0`: it drops no message, and waits "
            "for no "
            "acknowledgement"
        ),
        (
            "`set_tcp_nodelay true`, `persistence false`, `sys_interval 0`, log of errors only, "
            "anonymous clients"
        ),
    )

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        return (
            ""
            if self.tools.program("mosquitto")
            else "mosquitto is not installed; run apt-get install mosquitto"
        )

    def version(self) -> str:
        """Return the version of mosquitto."""
        output = first_words([self.program_path("mosquitto"), "-h"])
        match = re.search(r"mosquitto version (\S+)", output)
        if match is None:
            raise Failed(f"mosquitto -h prints no version: {output[:80]}")
        return match[1]

    def launch(self, directory: Path, running: Running) -> None:
        """Write mosquitto.conf, start mosquitto, and wait until it answers MQTT."""
        [running.mqtt] = free_ports(1)
        configuration = directory / "mosquitto.conf"
        configuration.write_text(_CONFIGURATION.format(port=running.mqtt, host=LOOPBACK))
        child = Child([self.program_path("mosquitto"), "-c", configuration], directory)
        running.children.append(child)
        child.wait_until(lambda: speaks_mqtt(running.mqtt), 10)
