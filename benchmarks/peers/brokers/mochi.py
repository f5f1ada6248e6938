"""How do we run mochi-mqtt, a library of which go/main.go makes a broker?"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from peers.peer import Peer, Running
from peers.process import LOOPBACK, Child, first_words, free_ports, speaks_mqtt

#: Go collects garbage when the heap has doubled; when it is five times as large, a message costs a
#: quarter less or better.
GO: Final = {"GOGC": "400"}


class Mochi(Peer):
    name = "mochi"
    title = "mochi-mqtt"
    protocols = frozenset({"mqtt"})
    settings = (
        "network buffers of 64 KiB (2 KiB by default), 131,072 messages may wait for a client (it drops beyond)",
        "the largest window of unacknowledged messages, no $SYS messages, log of errors only, nobody logs in; `GOGC=400`",
    )

    def missing(self) -> str:
        return (
            ""
            if self.tools.program("mochi")
            else "mochi-mqtt is not built (with Go: benchmarks/peers/install.sh mochi)"
        )

    def version(self) -> str:
        return first_words([self.found("mochi"), "--version"])

    def launch(self, directory: Path, running: Running) -> None:
        [running.mqtt] = free_ports(1)
        child = Child(
            [self.found("mochi"), "--address", f"{LOOPBACK}:{running.mqtt}"], directory, GO
        )
        running.children.append(child)
        child.wait_until(lambda: speaks_mqtt(running.mqtt), 10)
