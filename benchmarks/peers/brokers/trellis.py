"""How do we run Trellis?"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from peers.peer import Peer, Running
from peers.process import Child, Failed, first_words

_FLAGS = (
    "--config",
    os.devnull,
    "--log-level",
    "warning",
    "--amqp-port",
    "0",
    "--mqtt-port",
    "0",
    "--metrics-port",
    "0",
    "--http-port",
    "0",
)


class Trellis(Peer):
    name = "trellis"
    title = "Trellis"
    protocols = frozenset({"amqp", "mqtt"})
    settings = ("its defaults, on free ports; log of warnings only",)
    #: Further flags, for whoever measures one of its features.
    flags: tuple[str, ...] = ()

    def missing(self) -> str:
        if self.tools.trellis is None:
            return (
                "Trellis is not installed (make run installs it into .run; else --trellis COMMAND)"
            )
        return ""

    def version(self) -> str:
        facts = self._facts()
        compiled = "compiled" if facts["compiled"] else "NOT COMPILED"
        return f"{facts['version']}, {compiled}, on Python {facts['python']} and uvloop {facts['uvloop']}"

    def warning(self) -> str:
        return (
            ""
            if self._facts()["compiled"]
            else "Trellis is NOT COMPILED here: its figures say nothing about the product"
        )

    def launch(self, directory: Path, running: Running) -> None:
        child = Child(
            [self._program, "serve", "--data-dir", str(directory / "data"), *_FLAGS, *self.flags],
            directory,
            name="trellis",
        )
        running.children.append(child)
        running.login = "guest:guest@"
        ready: list[str] = []

        def read() -> bool:
            ready[:] = re.findall(
                r"^ready .*$", child.log.read_text(errors="replace"), re.MULTILINE
            )
            return bool(ready)

        child.wait_until(read, 20)
        ports = {name: int(port) for name, port in re.findall(r"(\w+)=\S*:(\d+)", ready[0])}
        running.amqp, running.mqtt = ports["amqp"], ports["mqtt"]

    @property
    def _program(self) -> Path:
        if self.tools.trellis is None:
            raise Failed(self.missing())
        return self.tools.trellis

    def _facts(self) -> dict[str, Any]:
        said = first_words([self._program, "version", "--json"])
        try:
            facts = json.loads(said)
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise Failed(f"{self._program} version --json says no JSON object: {said[-200:]}")
        return facts
