"""A HAProxy process for tests."""

from __future__ import annotations

import os
import select
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
        # The main process tells this socket when it is ready, as it tells systemd. Its name is one
        # that the kernel chooses.
        self._notices = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notices.bind("")
        name = self._notices.getsockname().decode().replace("\0", "@")
        # Without -n, HAProxy needs the file descriptors of its maxconn. With -Ws, a main process
        # starts the workers, and a signal reloads the configuration, as in Debian's service.
        command = [require("haproxy"), "-Ws", "-f", str(path), "-db", "-n", "100"]
        self._log = directory / "haproxy.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command,
                preexec_fn=end_with_parent,
                stdout=log,
                stderr=log,
                env=os.environ | {"NOTIFY_SOCKET": name},
            )
        self._exited = os.pidfd_open(self._process.pid)
        self._wait_until_ready()

    def _wait_until_ready(self) -> None:
        """Wait until the main process has started a worker, and handles signals."""
        end = time.monotonic() + PATIENCE
        notice = b""
        while b"READY=1" not in notice:
            sources = [self._notices.fileno(), self._exited]
            readable, _, _ = select.select(sources, [], [], max(0.0, end - time.monotonic()))
            assert readable == sources[:1], self._log.read_text()
            notice = self._notices.recv(1_000)

    def wait_for_port(self, port: int, host: str = "127.0.0.1") -> None:
        """Wait until HAProxy accepts connections on the port `port` of the address `host`."""
        end = time.monotonic() + PATIENCE
        while True:
            try:
                socket.create_connection((host, port), PATIENCE).close()
                return
            except ConnectionRefusedError:
                assert time.monotonic() < end
                assert self._process.poll() is None

    def reload(self) -> None:
        """Reload the configuration: wait until a new worker has replaced the present one.

        Return when HAProxy's main process is ready for the next signal. HAProxy may lose a signal
        that comes before, even if its log says that a worker was loaded.
        """
        started = self._log.read_text().count(STARTED)
        self._process.send_signal(signal.SIGUSR2)
        self._wait_until_ready()
        log = self._log.read_text()
        assert log.count(STARTED) == started + 1, log

    def close(self) -> None:
        """End the HAProxy process and its workers."""
        self._process.terminate()
        self._process.wait(PATIENCE)
        os.close(self._exited)
        self._notices.close()
