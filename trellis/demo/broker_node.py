"""One node of the broker: a child process `trellis serve`."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from trellis.demo.errors import DemoError
from trellis.demo.logs import last_line
from trellis.parent_process import end_with_parent
from trellis.settings.cluster import ClusterSettings

#: Seconds in which a node must reach its next state.
_SECONDS: Final = 60.0
_HOST: Final = "127.0.0.1"


class DemoNode:
    """A node of a cluster, on free ports of the loopback address.

    A thread reads the output of the node's process.
    """

    def __init__(self, name: str, directory: Path, cluster: ClusterSettings) -> None:
        """Start the node; its data directory and its log file are made in `directory`."""
        self.name = name
        self._log = directory / f"{name}.log"
        flags = {
            "config": os.devnull,
            "data-dir": str(directory / name),
            "node-name": name,
            "cluster-name": cluster.name,
            "cluster-servers": cluster.servers,
            "cluster-silence": f"{cluster.silence:g}",
            "cluster-lease": f"{cluster.lease:g}",
            "cluster-beat": f"{cluster.beat:g}",
            "cluster-advertised": _HOST,
            "cluster-unsafe": str(cluster.unsafe).lower(),
            **{f"{listener}-host": _HOST for listener in ("amqp", "metrics")},
            **{f"{listener}-port": "0" for listener in ("amqp", "metrics")},
            **{f"{listener}-enabled": "false" for listener in ("mqtt", "http")},
        }
        given = [word for flag, value in flags.items() for word in (f"--{flag}", value)]
        environment = {
            key: value for key, value in os.environ.items() if not key.startswith("TRELLIS_")
        }
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "trellis", "serve", *given],
                preexec_fn=end_with_parent,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=environment,
                start_new_session=True,
            )
        #: HOST:PORT of each listener by name.
        self.addresses: dict[str, str] = {}
        #: The lines that the node has printed, with their times.
        self._lines: SimpleQueue[tuple[float, str]] = SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, state: str) -> float:
        """Wait for the node's next line of output, and store the addresses in the line.

        The line must begin with the word `state`, "following" or "ready". Return the time of the
        line, in seconds of time.monotonic. Raises DemoError.
        """
        try:
            at, line = self._lines.get(timeout=_SECONDS)
        except Empty:
            raise DemoError(
                f"{self.name} is not {state} after {_SECONDS:g} s{self._end()}"
            ) from None
        words = line.split()
        if words[:1] != [state]:
            raise DemoError(f"{self.name} has ended before it was {state}{self._end()}")
        self.addresses = dict(word.split("=", 1) for word in words[1:])
        return at

    def kill(self) -> None:
        """Kill the process with SIGKILL, unless it has ended."""
        self.process.kill()
        self.process.wait()

    def _end(self) -> str:
        """Return ": " and the last line of the node's log, to append to an error; "" if there is
        no line.
        """
        return last_line(self._log)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put((time.monotonic(), line))
        self._lines.put((time.monotonic(), ""))
