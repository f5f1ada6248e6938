"""A HAProxy process for tests."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.foreign import require
from trellis.parent_process import end_with_parent

#: Seconds within which HAProxy must listen.
PATIENCE: Final = 30.0
#: The line in the log of HAProxy after a worker has started.
STARTED: Final = "Loading success."


class HaproxyProcess:
    """A running HAProxy with a given configuration."""

    def __init__(self, configuration: str, directory: Path) -> None:
        path = directory / "haproxy.cfg"
        path.write_text(configuration)
        # Without -n, HAProxy needs the file descriptors of its maxconn. With -W, a main process
        # starts the workers, and a signal reloads the configuration, as in Debian's service.
        command = [require("haproxy"), "-W", "-f", str(path), "-db", "-n", "100"]
        self._log = directory / "haproxy.log"
        with self._log.open("wb") as log:
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

    def reload(self) -> None:
        """Reload the configuration: wait until a new worker has replaced the present one."""
        started = self._log.read_text().count(STARTED)
        self._process.send_signal(signal.SIGUSR2)
        end = time.monotonic() + PATIENCE
        while self._log.read_text().count(STARTED) == started:
            assert time.monotonic() < end
            assert self._process.poll() is None

    def close(self) -> None:
        """End the HAProxy process and its workers."""
        self._process.terminate()
        self._process.wait(PATIENCE)
