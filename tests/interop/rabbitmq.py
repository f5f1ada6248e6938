"""A RabbitMQ process on loopback, to compare Trellis with, if Debian's package is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Final

import pytest

#: RabbitMQ's own scripts. Debian's command on PATH needs root and changes to the user rabbitmq.
_SCRIPTS: Final = "/usr/lib/rabbitmq/bin"
_PATIENCE: Final = 90.0


class RabbitMq:
    """A RabbitMQ process in a directory of its own, with an Erlang name server of its own.

    Without an installed RabbitMQ, the constructor skips the test. `plugins` has the names of
    further plugins to enable; `rabbitmq_prometheus` serves metrics on the port `metrics`.
    """

    def __init__(self, directory: Path, plugins: tuple[str, ...] = ()) -> None:
        server, epmd = shutil.which("rabbitmq-server", path=_SCRIPTS), shutil.which("epmd")
        if server is None or epmd is None:
            pytest.skip("RabbitMQ is not installed (apt-get install rabbitmq-server)")
        self.port, self.metrics, names, distribution = _free_ports(4)
        (directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            "log.console = true\nlog.console.level = error\n"
            "log.file = false\ndisk_free_limit.absolute = 50MB\n"
            + (
                f"prometheus.tcp.ip = 127.0.0.1\nprometheus.tcp.port = {self.metrics}\n"
                if "rabbitmq_prometheus" in plugins
                else ""
            )
        )
        enabled = ", ".join(("rabbitmq_consistent_hash_exchange", *plugins))
        (directory / "enabled_plugins").write_text(f"[{enabled}].\n")
        (directory / "empty.conf").touch()
        environment = os.environ | {
            "HOME": str(directory),
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"trellis-test-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONF_ENV_FILE": str(directory / "empty.conf"),
            "RABBITMQ_CONFIG_FILE": str(directory / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(directory / "none.config"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(directory / "generated"),
            "RABBITMQ_SCHEMA_DIR": str(directory / "schema"),
            "RABBITMQ_MNESIA_BASE": str(directory / "mnesia"),
            "RABBITMQ_LOG_BASE": str(directory / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(directory / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(directory / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+sbwt none -kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }
        self._epmd = subprocess.Popen([epmd, "-port", str(names), "-address", "127.0.0.1"])
        self._server = subprocess.Popen(
            [server],
            env=environment,
            cwd=directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        end = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > end:
                self.stop()
                pytest.skip("RabbitMQ is installed but did not start")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                sock.sendall(b"AMQP\0\0\x09\x01")
                return bool(sock.recv(1))
        except OSError:
            return False

    def stop(self) -> None:
        for process in (self._server, self._epmd):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
