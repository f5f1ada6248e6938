"""Test that hostile web pages change nothing over the HTTP API, in a headless Chromium."""

from __future__ import annotations

import base64
import json
import socket
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.broker import BrokerProcess
from tests.foreign import require

HERE = Path(__file__).parent

pytestmark = pytest.mark.long


def names(port: int, kind: str) -> set[str]:
    """Return the names of all virtual hosts or users (`kind`) in the HTTP API's list."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{kind}")
    login = base64.b64encode(b"guest:guest").decode()
    request.add_header("Authorization", f"Basic {login}")
    with urllib.request.urlopen(request) as answer:
        return {row["name"] for row in json.load(answer)}


def test_hostile_pages_change_nothing() -> None:
    require("browser")
    broker = BrokerProcess()
    port = broker.addresses["http"].port
    try:
        before = names(port, "vhosts"), names(port, "users")
        with socket.create_server(("127.0.0.1", 0)) as site:
            attacked = subprocess.run(
                ["node", "hostile.mjs", str(site.getsockname()[1]), str(port)],
                cwd=HERE,
                capture_output=True,
                text=True,
                timeout=120,
            )
        assert attacked.returncode == 0, attacked.stderr
        assert json.loads(attacked.stdout) == {
            "rebinding PUT /api/vhosts/rebound": 401,
            "rebinding PUT /api/users/rebound": 401,
            "rebinding GET /api/definitions": 401,
            "cross-origin PUT": "TypeError",
            "cross-origin POST without preflight": "opaque",
            "cross-origin GET": "TypeError",
            "WebSocket": "error",
            "form with a password in its address": 403,
            "own page PUT": 201,
        }
        assert (names(port, "vhosts"), names(port, "users")) == (before[0] | {"own"}, before[1])
        broker.stop()
    finally:
        broker.kill()
