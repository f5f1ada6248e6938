"""A client of the HTTP API for tests, and the settings of a broker with users of each tag."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any, Final

from tests.top.running import KNOWN, Running

ADMIN: Final = KNOWN | {
    "name": "admin",
    "administrator": True,
    "vhosts": ("/", "v/1", "a", "b", "gone"),
}
WATCHER: Final = KNOWN | {"name": "watcher", "tags": ("monitoring",)}
GUEST: Final = KNOWN | {"name": "plain"}


def users() -> dict[str, Any]:
    return {
        "users": [
            KNOWN | {"tags": ("management",)},
            ADMIN,
            WATCHER,
            GUEST,
            KNOWN | {"name": "polly", "tags": ("policymaker",)},
        ]
    }


def journaled(directory: Path) -> dict[str, Any]:
    """Return the settings of these tests with a journal: the stream `all` of the vhost `/`."""
    return users() | {
        "stream": {"journals": ["/=all"]},
        "data": {"dir": str(directory / "data")},
    }


async def api(
    running: Running,
    method: str,
    path: str,
    body: Any = None,
    user: str = "admin",
    password: str = "known",
) -> tuple[int, Any]:
    """Call the HTTP API; return status and decoded JSON of the answer (None if it has no body)."""
    data = b"" if body is None else json.dumps(body).encode()
    token = base64.b64encode(f"{user}:{password}".encode()).decode()
    head = (
        f"{method} /api/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Basic "
        f"{token}\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    status, _, answer = await running.ask("http", head.encode() + data)
    return status, json.loads(answer) if answer else None
