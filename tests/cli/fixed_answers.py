"""An HTTP server in place of a broker, for the tests of the commands that query a broker."""

import base64
import json
from http.server import BaseHTTPRequestHandler
from typing import ClassVar

from trellis.cli.table import Row

ROWS: list[Row] = [
    {"name": "sensors", "messages": 12, "durable": True, "policy": None},
    {"name": "a\x1b[2J\nb", "messages": 3000, "durable": False, "policy": "x"},
]


class Answers(BaseHTTPRequestHandler):
    """An HTTP server in place of a broker, with a fixed status and body for each path.

    Paths below /api/ need a login.
    """

    pages: ClassVar[dict[str, tuple[int, bytes]]] = {
        "/readyz": (200, b"ready\n"),
        "/draining/readyz": (503, b"draining\x1b[2J\n"),
        "/api/trellis/queues": (200, json.dumps(ROWS).encode()),
        "/api/trellis/sessions": (200, b"[]"),
        "/api/trellis/exchanges": (200, b'{"not": "a list"}'),
        "/api/trellis/bindings": (200, b"<html>\xff"),
        "/api/trellis/connections": (500, b""),
        "/api/trellis/policies": (404, b"no such path\n"),
    }
    users = ("ann:s3cret é", "guest:guest")

    def do_GET(self) -> None:
        status, body = self.pages.get(self.path, (404, b""))
        known = ["Basic " + base64.b64encode(user.encode()).decode() for user in self.users]
        if self.path.startswith("/api/") and self.headers["Authorization"] not in known:
            status, body = 401, b""
        # The metrics port of the broker sends no text after the status.
        self.send_response(status, "" if body == b"no such path\n" else None)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        pass
