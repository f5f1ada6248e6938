"""A RabbitMQ process on loopback, to compare Trellis with, or to link with Trellis."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any, Final

import pytest

from tests import foreign
from trellis.parent_process import end_with_parent

#: The directory into which `make` unpacks Debian's packages of RabbitMQ and Erlang, if RabbitMQ is
#: not installed.
_UNPACKED: Final = Path(__file__).parents[1] / "build" / "tools" / "rabbitmq" / "root"
#: RabbitMQ's own scripts. Debian's command on PATH needs root and changes to the user rabbitmq.
_SCRIPTS: Final = "usr/lib/rabbitmq/bin"
_ERLANG: Final = "usr/lib/erlang/bin"
_PATIENCE: Final = 240.0
_EMPTY: Final = "empty.conf"


class RabbitMq:
    """A RabbitMQ process in a directory of its own, with an Erlang name server of its own.

    Without RabbitMQ, the constructor skips the test. `plugins` has the names of further plugins to
    enable: `rabbitmq_prometheus` serves metrics on the port `metrics`, `rabbitmq_management` the
    HTTP API on the port `http`, and `rabbitmq_mqtt` MQTT 3.1.1 on the port `mqtt`.
    """

    def __init__(self, directory: Path, plugins: tuple[str, ...] = ()) -> None:
        self._scripts, self._erlang = _programs()
        self._directory = directory
        self.port, self.metrics, self.http, self.mqtt, names, distribution = _free_ports(6)
        self._write_files(plugins)
        self._environment = os.environ | self._variables(names, distribution)
        self._epmd = subprocess.Popen(
            [f"{self._erlang}/epmd", "-port", str(names), "-address", "127.0.0.1"],
            preexec_fn=end_with_parent,
        )
        self.start()

    @property
    def version(self) -> str:
        """The version of RabbitMQ, such as 3.10.8."""
        return Path(f"{self._scripts}/rabbitmq-server").resolve().parents[1].name.split("-")[-1]

    @property
    def amqp_url(self) -> str:
        """The AMQP URL of the virtual host `/` for the user guest."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}/%2F"

    def _write_files(self, plugins: tuple[str, ...]) -> None:
        host = "127.0.0.1"
        lines = {
            "listeners.tcp.1": f"{host}:{self.port}",
            "log.console": "true",
            "log.console.level": "error",
            "log.file": "false",
            "disk_free_limit.absolute": "50MB",
        }
        if "rabbitmq_prometheus" in plugins:
            lines |= {"prometheus.tcp.ip": host, "prometheus.tcp.port": str(self.metrics)}
        if "rabbitmq_management" in plugins:
            lines |= {"management.tcp.ip": host, "management.tcp.port": str(self.http)}
        if "rabbitmq_mqtt" in plugins:
            lines |= {"mqtt.listeners.tcp.1": f"{host}:{self.mqtt}"}
        text = "".join(f"{key} = {value}\n" for key, value in lines.items())
        (self._directory / "rabbitmq.conf").write_text(text)
        enabled = ", ".join(("rabbitmq_consistent_hash_exchange", *plugins))
        (self._directory / "enabled_plugins").write_text(f"[{enabled}].\n")
        (self._directory / _EMPTY).touch()

    def _variables(self, names: int, distribution: int) -> dict[str, str]:
        """Return the environment of RabbitMQ; `names` is the port of the Erlang name server."""
        directory = self._directory
        files = {
            "CONF_ENV_FILE": _EMPTY,
            "CONFIG_FILE": "rabbitmq.conf",
            "ADVANCED_CONFIG_FILE": "none.config",
            "GENERATED_CONFIG_DIR": "generated",
            "SCHEMA_DIR": "schema",
            "MNESIA_BASE": "mnesia",
            "LOG_BASE": "log",
            "ENABLED_PLUGINS_FILE": "enabled_plugins",
            "PID_FILE": "pid",
        }
        return {
            **{f"RABBITMQ_{name}": str(directory / file) for name, file in files.items()},
            "HOME": str(directory),
            "PATH": f"{self._erlang}:{os.environ['PATH']}",
            "ERL_EPMD_PORT": str(names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"trellis-test-{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            # With this variable, the script rabbitmq-server runs Erlang by `exec`. Erlang is then
            # the process that ends with its parent, and not a child of that process.
            "RUNNING_UNDER_SYSTEMD": "true",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "+S 1:1 +sbwt none +sbwtdcpu none +sbwtdio none "
                "-kernel inet_dist_use_interface {127,0,0,1}"
            ),
        }

    def start(self) -> None:
        """Start RabbitMQ, or restart it after `kill`, and wait until it serves clients."""
        with (self._directory / "output").open("ab") as output:
            self._server = subprocess.Popen(
                [f"{self._scripts}/rabbitmq-server"],
                preexec_fn=end_with_parent,
                env=self._environment,
                cwd=self._directory,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        end = time.monotonic() + _PATIENCE
        while not self._answers():
            if self._server.poll() is not None or time.monotonic() > end:
                self.stop()
                text = (self._directory / "output").read_text(errors="replace")[-2_000:]
                pytest.fail(f"RabbitMQ did not start:\n{text}")
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as sock:
                sock.sendall(b"AMQP\0\0\x09\x01")
                return bool(sock.recv(1))
        except OSError:
            return False

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the HTTP API; return the answer's JSON, or None if it has no body."""
        url = f"http://127.0.0.1:{self.http}/api/{path}"
        request = urllib.request.Request(url, method=method)
        request.add_header("Authorization", "Basic " + base64.b64encode(b"guest:guest").decode())
        if body is not None:
            request.add_header("Content-Type", "application/json")
            request.data = json.dumps(body).encode()
        with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def control(self, *words: str) -> str:
        """Run rabbitmqctl for this RabbitMQ; return what it prints."""
        command = [f"{self._scripts}/rabbitmqctl", "--quiet", *words]
        ended = subprocess.run(
            command,
            env=self._environment,
            cwd=self._directory,
            capture_output=True,
            text=True,
            timeout=_PATIENCE,
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    def kill(self) -> None:
        """Kill RabbitMQ's processes with SIGKILL; their files stay."""
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.wait()

    def stop(self) -> None:
        """Stop RabbitMQ and its name server."""
        for process in (self._server, self._epmd):
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _programs() -> tuple[str, str]:
    """Return the directories of RabbitMQ's scripts and of Erlang, or skip the test."""
    root = _UNPACKED if _UNPACKED.exists() else Path("/")
    for program in (root / _SCRIPTS / "rabbitmq-server", root / _ERLANG / "epmd"):
        if not program.exists():
            foreign.lacks("rabbitmq", "RabbitMQ is not installed (make rabbitmq)")
    return str(root / _SCRIPTS), str(root / _ERLANG)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
