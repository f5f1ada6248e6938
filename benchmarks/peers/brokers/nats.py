"""Runs NATS, with its support of MQTT, as a peer."""

from __future__ import annotations

from pathlib import Path

from peers.brokers.mochi import GO
from peers.peer import PeerBroker, Running
from peers.process import LOOPBACK, Child, Failed, first_words, free_ports, speaks_mqtt

_DEBIAN = Path("/usr/sbin/nats-server")
_CONFIGURATION = """\
server_name: bench
listen: "{host}:{nats}"
max_pending: 1GB
max_payload: 8MB
write_deadline: "60s"
max_connections: 65536
jetstream {{ store_dir: "{directory}/jetstream" }}
mqtt {{ listen: "{host}:{mqtt}", max_ack_pending: 16384, consumer_memory_storage: true }}
"""


class NatsPeer(PeerBroker):
    """The current NATS server, installed by `go install`."""

    name = "nats"
    title = "NATS"
    protocols = frozenset({"mqtt"})
    settings = (
        (
            "JetStream on (its MQTT requires it, and stores QoS 1 and 2 in files), "
            "`consumer_memory_storage true`"
        ),
        (
            "`max_ack_pending 16384` (1,024 by default; a session may have 65,535 in all): it "
            "waits "
            "for no acknowledgement"
        ),
        "`max_pending 1GB`, `write_deadline 60s`: it does not drop a slow consumer; `GOGC=400`",
    )

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        if self._program() is not None:
            return ""
        return (
            "the current nats-server is not installed; install it with "
            "benchmarks/peers/install.sh nats (needs Go)"
        )

    def version(self) -> str:
        """Return the version of NATS."""
        log_end = first_words([self._there(), "--version"])
        return log_end.rpartition(" v")[2] or log_end

    def launch(self, directory: Path, running: Running) -> None:
        """Write nats.conf, start the NATS server, and wait until it answers MQTT."""
        running.mqtt, nats = free_ports(2)
        configuration = directory / "nats.conf"
        configuration.write_text(
            _CONFIGURATION.format(host=LOOPBACK, nats=nats, mqtt=running.mqtt, directory=directory)
        )
        child = Child([self._there(), "--config", configuration], directory, GO)
        running.children.append(child)
        child.wait_until(lambda: speaks_mqtt(running.mqtt), 20)

    def _program(self) -> Path | None:
        ours = self.tools.installed / "bin" / "nats-server"
        return ours if ours.is_file() else None

    def _there(self) -> Path:
        program = self._program()
        if program is None:
            raise Failed(self.missing())
        return program


class DebianNatsPeer(NatsPeer):
    """The NATS server of Debian's package, an older version."""

    name = "nats-debian"
    title = "NATS (Debian)"
    highest_qos = 1  # NATS supports QoS 2 since version 2.10.

    def missing(self) -> str:
        return (
            ""
            if self._program()
            else "Debian's nats-server is not installed; run apt-get install nats-server"
        )

    def _program(self) -> Path | None:
        return _DEBIAN if _DEBIAN.is_file() else None
