"""A HAProxy process for tests."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.foreign import require
from trellis.parent_process import end_with_parent

#: Seconds within which HAProxy must listen.
PATIENCE: Final = 30.0


class HaproxyProcess:
    """A running HAProxy with a given configuration."""

    def __init__(self, configuration: str, directory: Path) -> None:
        path = directory / "haproxy.cfg"
        path.write_text(configuration)
        # Without -n, HAProxy needs the file descriptors of its maxconn.
        command = [require("haproxy"), "-f", str(path), "-db", "-n", "100"]
        with (directory / "haproxy.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, preexec_fn=end_with_parent, stdout=log, stderr=log
            )

    def wait_for_port(self, port: int, host: str = "127.0.0.1") -> None:
        """Wait until HAProxy accepts connections on a port of this address."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection((host, port), PATIENCE).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < end
                assert self._process.poll() is None

    def close(self) -> None:
        """End the HAProxy process."""
        self._process.kill()
        self._process.wait(PATIENCE)
