"""Puts load on a broker with `trellis bench load`, one process per measurement."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any, Final

from peers.peer import Running
from peers.process import Failed
from peers.results import Figures
from peers.rounds import WrongPeerAnswer
from peers.workloads import Case

#: Longest time in seconds that the load tool may run for a measurement. (Some workloads first
#: create 100,000 bindings, which takes minutes.)
PATIENCE: Final = 600.0
#: The version of the load tool's JSON that this module reads.
FORMAT: Final = 1
#: The beginning of the load tool's errors about wrong answers. An error that begins with neither
#: _WRONG nor _MISSING means that the broker gave no answer.
_WRONG: Final = "wrong answer at "
#: The beginning of the load tool's errors about missing messages, also with QoS 0.
_MISSING: Final = "no progress for "


class BenchLoad:
    """Runs `trellis bench load` for a number of seconds or of messages."""

    def __init__(self, trellis: Path, seconds: float | None, messages: int | None) -> None:
        self._trellis = trellis
        self._effort = ["--messages", str(messages)] if messages else ["--seconds", f"{seconds:g}"]
        #: The load tool's description of itself and the machine, from its last answer.
        self.environment: dict[str, Any] = {}

    def about(self) -> dict[str, Any]:
        """Return the load tool's command and description, for the results."""
        known = ("trellis", "python", "generator_compiled")
        command = " ".join(["trellis", "bench", "load", "WORKLOAD", *self._effort, "--rounds", "1"])
        return {
            "command": command,
            **{name: self.environment[name] for name in known if name in self.environment},
        }

    def measure(self, case: Case, broker: Running, rate: float | None) -> Figures:
        """Run one measurement of a case, at `rate` messages per second if given; return its
        figures.

        Raises WrongPeerAnswer, Failed.
        """
        name, *further = broker.load(case)
        command = [
            str(self._trellis),
            "bench",
            "load",
            name,
            *further,
            *self._effort,
            "--rounds",
            "1",
            "--json",
            "-",
        ]
        command += ["--pid", ",".join(str(pid) for pid in broker.roots), "--children"]
        for protocol, url in (("amqp", broker.amqp_url), ("mqtt", broker.mqtt_url)):
            if url:
                command += [f"--{protocol}", url]
        if rate is not None:
            command += ["--rate", f"{rate:.0f}"]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=PATIENCE,
                check=False,
                cwd="/",
            )
        except subprocess.TimeoutExpired:
            raise Failed(f"the load tool did not end within {PATIENCE:.0f} s") from None
        if not broker.alive:
            raise Failed(f"the broker ended unexpectedly: {broker.log_end()}")
        return self._read(done)

    def _read(self, done: subprocess.CompletedProcess[str]) -> Figures:
        try:
            document = json.loads(done.stdout)
        except ValueError:
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            raise Failed(
                f"the load tool printed no result: {lines[-1].removeprefix('trellis: ')}"
            ) from None
        if document["format"] != FORMAT:
            raise Failed(
                f"the load tool writes format {document['format']}, but this program reads format "
                f"{FORMAT}: install the load tool of the same version of Trellis"
            )
        self.environment = document["environment"]
        return figures(document["workloads"][0])


def figures(result: dict[str, Any]) -> Figures:
    """Return the figures in the load tool's JSON for one workload, which must have one round.

    Raises WrongPeerAnswer, Failed.
    """
    error = result["error"] or ""
    if error.startswith(_WRONG):
        raise WrongPeerAnswer(error.removeprefix(_WRONG))
    if error.startswith(_MISSING):
        raise WrongPeerAnswer(f"messages are missing: {error}")
    if error:
        raise Failed(error)
    [measured] = result["rounds"]
    broker, latency = measured["broker"], measured["latency"] or {}
    if broker is None:
        raise Failed("the load tool reported no CPU time of the broker's processes")
    return Figures(
        messages=measured["messages"],
        rate=measured["messages"] / measured["seconds"],
        cpu=broker["cpu"] / measured["messages"] * 1e6,
        resident=broker["rss_after"],
        peak=broker["rss_peak"],
        p50=latency.get("p50"),
        p99=latency.get("p99"),
        p999=latency.get("p999"),
    )
