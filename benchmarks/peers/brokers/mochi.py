"""Runs ../go/main.go, a broker built with mochi-mqtt, an MQTT library for Go."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from peers.peer import PeerBroker, Running
from peers.process import LOOPBACK, Child, first_words, free_ports, speaks_mqtt

#: By default, Go collects garbage when the heap has doubled. If the heap may grow to five times its
#: size, a message costs at least a quarter less.
GO: Final = {"GOGC": "400"}


class MochiPeer(PeerBroker):
    """The MQTT broker mochi-mqtt on Go."""

    name = "mochi"
    title = "mochi-mqtt"
    protocols = frozenset({"mqtt"})
    settings = (
        (
            "network buffers of 64 KiB (2 KiB by default), 131,072 queued messages per client "
            "(further messages are dropped)"
        ),
        (
            "the largest window of unacknowledged messages, no $SYS messages, log of errors only, "
            "anonymous clients; `GOGC=400`"
        ),
    )

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        return (
            ""
            if self.tools.program("mochi")
            else "mochi-mqtt is not built; run benchmarks/peers/install.sh mochi (needs Go)"
        )

    def version(self) -> str:
        """Return the version of mochi-mqtt."""
        return first_words([self.program_path("mochi"), "--version"])

    def launch(self, directory: Path, running: Running) -> None:
        """Start the Go program with mochi-mqtt, and wait until it answers MQTT."""
        [running.mqtt] = free_ports(1)
        child = Child(
            [self.program_path("mochi"), "--address", f"{LOOPBACK}:{running.mqtt}"], directory, GO
        )
        running.children.append(child)
        child.wait_until(lambda: speaks_mqtt(running.mqtt), 10)
