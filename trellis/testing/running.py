"""A running broker of a test, with helpers over its HTTP API."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from trellis.testing.starting import BrokerFailure, Spawner

#: Flags of every broker of a test: free ports on this machine, and no settings of the user.
FLAGS: Final = (
    *("--config", os.devnull),
    *("--amqp-host", "127.0.0.1", "--amqp-port", "0"),
    *("--mqtt-host", "127.0.0.1", "--mqtt-port", "0"),
    *("--http-host", "127.0.0.1", "--http-port", "0"),
    *("--metrics-host", "127.0.0.1", "--metrics-port", "0"),
    *("--shutdown-grace", "0.2"),
)
#: Seconds between two requests of a helper that waits.
POLL_SECONDS: Final = 0.01
#: Seconds for which a helper waits, unless the caller gives a time.
PATIENCE: Final = 5.0
_FATE: Final = re.compile(
    r'^trellis_(messages|copies)_total\{fate="(\w+)"\} ([0-9.e+]+)$', re.MULTILINE
)


class RunningBroker:
    """A broker of a test: its addresses, and helpers for tests of any client.

    Clients log in as user `guest` with the password `guest`, or over MQTT without a user.
    """

    def __init__(self, spawner: Spawner, directory: Path, settings: dict[str, Any]) -> None:
        """Prepare and start a broker.

        `settings` are flags of `trellis serve`, such as `mqtt_retained=0`. With `data_dir=True`,
        the broker stores its data in `directory`, so that the data survive a restart; without it,
        the broker keeps its data in memory. Raises BrokerFailure.
        """
        self._spawner = spawner
        self._log = directory / "broker.log"
        self._flags = list(FLAGS)
        settings = dict(settings)
        if settings.pop("data_dir", False) is True:
            settings["data_dir"] = str(directory / "data")
        self._flags += ["--data-dir", str(settings.pop("data_dir", ":memory:"))]
        for name, value in settings.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self._flags += [f"--{name.replace('_', '-')}", text]
        self._pid = 0
        #: Sockets that reserve the ports while the broker does not run.
        self._reserved: list[socket.socket] = []
        #: Addresses (HOST:PORT) by listener.
        self.addresses: dict[str, str] = {}
        self.start()

    # -- start and stop

    def start(self) -> None:
        """Start the broker again on the same ports, after `stop` or `kill`."""
        flags = list(self._flags)
        for listener, address in self.addresses.items():
            flags += [f"--{listener}-port", address.rpartition(":")[2]]
        if not sys.platform.startswith("linux"):
            self._release_ports()  # Only Linux lets the broker bind a port that is bound here.
        try:
            answer = self._spawner.ask(start=flags, log=str(self._log))
        finally:
            self._release_ports()
        self._pid, self.addresses = answer["pid"], answer["addresses"]

    def stop(self) -> None:
        """Stop the broker as an operator does (SIGTERM)."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the broker, as a crash does (SIGKILL)."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop the broker, and start it on the same ports."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker for good: other programs may use its ports."""
        self.stop()
        self._release_ports()

    def _end(self, number: signal.Signals) -> None:
        if self._pid:
            pid, self._pid = self._pid, 0
            self._spawner.ask(end=pid, signal=int(number))
            self._reserve_ports()

    def _reserve_ports(self) -> None:
        """Keep the system from giving a port of the stopped broker to another program.

        The sockets do not listen, so the port refuses clients.
        """
        for listener in self.addresses:
            sock = socket.socket()
            self._reserved.append(sock)
            # Connections of the stopped broker that are in TIME_WAIT would refuse a plain bind.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):  # `start` reports that another program has the port.
                sock.bind((self.host, self._port(listener)))

    def _release_ports(self) -> None:
        for sock in self._reserved:
            sock.close()
        self._reserved.clear()

    @property
    def log(self) -> str:
        """The text that the broker has written to its log so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    # -- addresses

    @property
    def host(self) -> str:
        """Host of all listeners."""
        return "127.0.0.1"

    @property
    def amqp_port(self) -> int:
        """Port for AMQP 0-9-1."""
        return self._port("amqp")

    @property
    def mqtt_port(self) -> int:
        """Port for MQTT 3.1, 3.1.1 and 5."""
        return self._port("mqtt")

    @property
    def amqp_url(self) -> str:
        """URL for AMQP clients, with user, password and the virtual host `/`."""
        return f"amqp://guest:guest@{self.host}:{self.amqp_port}/%2F"

    @property
    def mqtt_url(self) -> str:
        """URL for MQTT clients."""
        return f"mqtt://{self.host}:{self.mqtt_port}"

    @property
    def http_url(self) -> str:
        """URL of the HTTP API, without a path."""
        return f"http://{self.addresses['http']}"

    def _port(self, listener: str) -> int:
        return int(self.addresses[listener].rpartition(":")[2])

    # -- helpers

    def api(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to `/api/PATH`; return the decoded answer. Raises BrokerFailure."""
        # The commands' client (trellis.cli.api_client) would double the CPU time of this module's
        # import (31 ms, then 61 ms), in the test process of each user of the plugin: it imports
        # msgspec, the settings and the parsers of commands.
        request = urllib.request.Request(
            f"{self.http_url}/api/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": "Basic " + base64.b64encode(b"guest:guest").decode()},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                data = answer.read()
        except urllib.error.HTTPError as error:
            reason = error.read().decode(errors="replace")
            raise BrokerFailure(f"{method} /api/{path}: status {error.code}: {reason}") from None
        return json.loads(data) if data else None

    def declare(self, queue: str, exchange: str = "", key: str = "", **arguments: Any) -> None:
        """Declare a queue with these arguments; bind it if an exchange is given."""
        options = {name.replace("_", "-"): value for name, value in arguments.items()}
        self.api("PUT", f"queues/%2F/{quote(queue, '')}", {"arguments": options})
        if exchange:
            path = f"bindings/%2F/e/{quote(exchange, '')}/q/{quote(queue, '')}"
            self.api("POST", path, {"routing_key": key})

    def publish(
        self, exchange: str, key: str, payload: bytes | str = b"", **properties: Any
    ) -> bool:
        """Publish a message; return True if it reached a queue or a session.

        `exchange` may be "" for the default exchange. A message for MQTT clients goes to the
        exchange `amq.topic`, with `.` instead of `/` in its topic.
        """
        data = payload.encode() if isinstance(payload, str) else payload
        answer = self.api(
            "POST",
            f"exchanges/%2F/{quote(exchange or 'amq.default', '')}/publish",
            {
                "routing_key": key,
                "payload": base64.b64encode(data).decode(),
                "payload_encoding": "base64",
                "properties": properties,
            },
        )
        return bool(answer["routed"])

    def expect(self, queue: str, timeout: float = PATIENCE) -> bytes:
        """Take the next message of a queue, and return its payload.

        Raises AssertionError if no message comes within `timeout` seconds.
        """
        wanted = {"ackmode": "ack_requeue_false", "count": 1, "encoding": "base64"}
        until = time.monotonic() + timeout
        while not (messages := self.api("POST", f"queues/%2F/{quote(queue, '')}/get", wanted)):
            if time.monotonic() > until:
                raise AssertionError(f"no message came to queue '{queue}' within {timeout:g} s")
            time.sleep(POLL_SECONDS)
        return base64.b64decode(messages[0]["payload"])

    def fates(self) -> dict[str, int]:
        """Return how messages and their copies ended: {"routed": 3, "acknowledged": 2, ...}.

        Fates with the count 0 are left out.
        """
        url = f"http://{self.addresses['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=30) as answer:
            page = answer.read().decode()
        counts: dict[str, int] = {}
        for _, fate, count in _FATE.findall(page):
            counts[fate] = counts.get(fate, 0) + int(float(count))
        return {fate: count for fate, count in counts.items() if count}
