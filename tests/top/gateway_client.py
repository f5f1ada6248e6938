"""Requests to the process that serves the HTTP API, and its responses."""

from __future__ import annotations

import base64
from typing import Final

from tests.top.api_client import ADMIN
from tests.top.running import KNOWN, Running, Socket
from trellis.http.gateway_process import GatewayProcess

PLAIN: Final = KNOWN | {"name": "plain", "tags": ("management",)}
LOOPBACK: Final = ADMIN | {"name": "here", "loopback_only": True}


def login(user: str = "admin", password: str = "known") -> str:
    return f"Authorization: Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}\r\n"


def get(path: str, headers: str = "", user: str = "admin", host: str = "localhost") -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: {host}\r\n{login(user)}{headers}\r\n".encode()


def gateway_of(running: Running) -> GatewayProcess:
    gateway = running.http.gateway
    assert gateway is not None
    return gateway


async def response(client: Socket) -> tuple[int, dict[str, str], bytes]:
    """Return the next response of a connection that stays open."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = await client.read()
        assert more, f"closed after {data!r}"
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {
        name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    while len(body) < int(headers.get("content-length", "0")):
        body += await client.read()
    return int(first.split()[1]), headers, body
