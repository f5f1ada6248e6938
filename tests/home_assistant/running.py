"""The program of the app as a process, and an HTTP server in the place of the Supervisor."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import Queue
from typing import Any, Final

from tests.broker import ROOT, environment
from trellis.parent_process import end_with_parent

APP: Final = ROOT / "packaging" / "home-assistant" / "trellis"
TOKEN: Final = "token-of-the-app"
#: Seconds after which a waiting test fails.
PATIENCE: Final = 60.0
LISTENERS: Final = ("amqp", "amqps", "mqtt", "mqtts", "ws", "wss", "http", "metrics")


class SupervisorServer(ThreadingHTTPServer):
    """An HTTP server that answers as the Supervisor. It checks the token and keeps requests."""

    def __init__(self, *statuses: int) -> None:
        """Start the server; it answers the first requests with `statuses`, and others with 200."""
        super().__init__(("127.0.0.1", 0), _Handler)
        #: Method, path and JSON body of each request.
        self.requests: Queue[tuple[str, str, Any]] = Queue()
        self.statuses = list(statuses)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.server_port}"

    def next(self) -> tuple[str, str, Any]:
        """Wait for the next request; return its method, path and JSON body."""
        return self.requests.get(timeout=PATIENCE)


class _Handler(BaseHTTPRequestHandler):
    server: SupervisorServer

    def do_POST(self) -> None:
        """Keep the request, and answer it."""
        text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        status = self.server.statuses.pop(0) if self.server.statuses else 200
        if self.headers["Authorization"] != f"Bearer {TOKEN}":
            status = 401
        # The request is kept before the answer is sent, so that the order of requests is known.
        self.server.requests.put((self.command, self.path, json.loads(text) if text else None))
        answer: dict[str, Any] = {"result": "ok", "data": {}}
        if status != 200:
            answer = {"result": "error", "message": "There is already a MQTT service in use"}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_DELETE = do_POST

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class App:
    """A running app: `python -m addon`, with the lines that it prints."""

    def __init__(
        self,
        directory: Path,
        options: Mapping[str, Any],
        url: str,
        *more: str,
        python: str = sys.executable,
    ) -> None:
        """Write the options, and start the program with listeners on free ports.

        `url` is the address of the Supervisor. `more` has further arguments of the program.
        """
        for name in ("data", "ssl", "config"):
            (directory / name).mkdir(parents=True, exist_ok=True)
        (directory / "data" / "options.json").write_text(json.dumps(options))
        folders = [
            word
            for name in ("data", "ssl", "run", "config")
            for word in (f"--{name}", str(directory / name))
        ]
        ports = {f"TRELLIS_{name.upper()}_PORT": "0" for name in LISTENERS}
        hosts = {f"TRELLIS_{name.upper()}_HOST": "127.0.0.1" for name in LISTENERS}
        path = os.pathsep.join((str(APP), str(ROOT), sysconfig.get_path("purelib")))
        self.process = subprocess.Popen(
            [python, "-m", "addon", "--supervisor", url, *folders, *more],
            preexec_fn=end_with_parent,
            env=environment()
            | ports
            | hosts
            | {"PYTHONPATH": path, "SUPERVISOR_TOKEN": TOKEN, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []

    def line(self, begin: str) -> str:
        """Read lines until one begins with `begin`, and return it."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith(begin):
                return line
        raise AssertionError(f"no line begins with {begin!r}: {self.lines} {self.errors()}")

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Wait until the broker is ready; return host and port of each listener."""
        words = self.line("ready ").split()[1:]
        pairs = (word.split("=", 1) for word in words)
        split = {name: address.rpartition(":") for name, address in pairs}
        return {name: (host, int(port)) for name, (host, _, port) in split.items()}

    def errors(self) -> str:
        """Return what the program has written to standard error; the program must have ended."""
        return self.process.communicate(timeout=PATIENCE)[1]

    def stop(self) -> int:
        """Stop the app as Home Assistant does, with SIGTERM; return its exit code."""
        self.process.terminate()
        return self.process.wait(PATIENCE)


@contextmanager
def running(
    directory: Path,
    options: Mapping[str, Any],
    url: str,
    *more: str,
    python: str = sys.executable,
) -> Iterator[App]:
    """Run the app with the arguments of App, and end it after the test."""
    app = App(directory, options, url, *more, python=python)
    try:
        yield app
    finally:
        app.process.terminate()
        app.process.communicate(timeout=PATIENCE)
