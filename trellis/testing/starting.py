"""The process that starts brokers, as a test run sees it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import Any


class BrokerFailure(Exception):
    """Raised if a broker of a test does not start, or refuses a request of a helper."""


class Spawner:
    """The process that forks brokers for tests (spawner.py)."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process if it does not run, without waiting until it has loaded the broker."""
        if self._process is None:
            environment = {
                name: value for name, value in os.environ.items() if not name.startswith("TRELLIS_")
            }
            self._process = subprocess.Popen(
                [sys.executable, "-m", "trellis.testing.spawner"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                # Ctrl-C interrupts the test run, which then ends the brokers.
                start_new_session=True,
            )

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request to the process, and return its answer. Raises BrokerFailure."""
        self.start()
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        line = b""
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        if not line:
            raise BrokerFailure(
                f"the process that starts brokers ended with exit code {process.wait()}"
            )
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise BrokerFailure(answer["error"])
        return answer

    def close(self) -> None:
        """End the process, and with it all its brokers."""
        if self._process is not None:
            self._process.communicate()
            self._process = None
