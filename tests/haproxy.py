"""A HAProxy process for tests."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.foreign import require

#: Seconds within which HAProxy must listen.
PATIENCE: Final = 30.0


class HaproxyProcess:
    """A running HAProxy with a configuration whose ports are on 127.0.0.1."""

    def __init__(self, configuration: str, directory: Path) -> None:
        path = directory / "haproxy.cfg"
        path.write_text(configuration)
        # Without -n, HAProxy needs the file descriptors of its maxconn.
        command = [require("haproxy"), "-f", str(path), "-db", "-n", "100"]
        with (directory / "haproxy.log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_for_port(self, port: int) -> None:
        """Wait until HAProxy accepts connections on a port."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), PATIENCE).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < end
                assert self._process.poll() is None

    def close(self) -> None:
        """End the HAProxy process."""
        self._process.kill()
        self._process.wait(PATIENCE)


def free_port() -> int:
    """Return a port of 127.0.0.1 that was free a moment ago."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
