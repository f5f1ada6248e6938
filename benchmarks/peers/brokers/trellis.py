"""Runs Trellis as a peer of the comparison."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from peers.peer import ROOT, PeerBroker, Running
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


class TrellisPeer(PeerBroker):
    """Trellis, installed with `make run`."""

    name = "trellis"
    title = "Trellis"
    protocols = frozenset({"amqp", "mqtt"})
    settings = ("default settings, on free ports; log of warnings only",)
    #: Additional flags of `trellis serve`, to measure a feature.
    flags: tuple[str, ...] = ()
    #: Seconds that a start may take.
    patience: float = 20

    def missing(self) -> str:
        """Return which program is missing and how to install it; "" if nothing is missing."""
        if self.tools.trellis is None:
            return (
                "Trellis is not installed; install it into .run with `make run`, or give --trellis "
                "COMMAND"
            )
        return ""

    def version(self) -> str:
        """Return the version of Trellis and its runtime."""
        facts = self._facts()
        compiled = "compiled" if facts["compiled"] else "NOT COMPILED"
        return (
            f"{facts['version']}, {compiled}, on Python {facts['python']} and uvloop "
            f"{facts['uvloop']}"
        )

    def warning(self) -> str:
        """Return a warning if Trellis is not compiled; "" if it is compiled."""
        return (
            ""
            if self._facts()["compiled"]
            else "Trellis is NOT COMPILED here: its figures do not represent the product"
        )

    def launch(self, directory: Path, running: Running) -> None:
        """Start `trellis serve`, and wait until the broker prints that it is ready."""
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

        child.wait_until(read, self.patience)
        ports = {name: int(port) for name, port in re.findall(r"(\w+)=\S*:(\d+)", ready[0])}
        running.amqp, running.mqtt = ports["amqp"], ports["mqtt"]

    @property
    def _program(self) -> Path:
        if self.tools.trellis is None:
            raise Failed(self.missing())
        return self.tools.trellis

    def _facts(self) -> dict[str, Any]:
        output = first_words([self._program, "version", "--json"])
        try:
            facts = json.loads(output)
        except ValueError:
            facts = None
        if not isinstance(facts, dict):
            raise Failed(f"{self._program} version --json printed no JSON object: {output[-200:]}")
        return facts


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the arguments of a program that measures Trellis only, and return them.

    Add the option --trellis to the parser first. Exit with an error if --trellis names a command
    that does not exist.
    """
    parser.add_argument(
        "--trellis",
        type=Path,
        default=ROOT / ".run" / "bin" / "trellis",
        metavar="COMMAND",
        help="command of the broker [.run/bin/trellis]",
    )
    options = parser.parse_args()
    if not options.trellis.exists():
        sys.exit(
            f"{parser.prog}: {options.trellis} does not exist; `make run ARGS=--help` installs it, "
            "or give --trellis"
        )
    return options
