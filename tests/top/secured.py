"""Settings, clients and counts of TLS listeners, for the tests of TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from typing import Any

import pytest

from tests.authority import Authority
from tests.clients import connect_packet
from tests.top.running import Running


def secure(authority: Authority, **tls: Any) -> dict[str, Any]:
    """Return settings with both protocols over TLS, and a certificate for this host."""
    listener = {"enabled": True, "port": 0, "host": "127.0.0.1"}
    certificate = str(authority.sign("localhost", "127.0.0.1"))
    return {
        "amqps": listener,
        "mqtts": listener,
        "tls": {"certificate": certificate, "ca": str(authority.file)} | tls,
    }


def mutual(authority: Authority, need: str, **mqtts: Any) -> dict[str, Any]:
    """Return the settings of `secure`, with listeners that also request client certificates.

    `need` is the value of the setting `client_certificate`.
    """
    chosen = secure(authority)
    for listener in ("amqps", "mqtts"):
        chosen[listener] = (
            chosen[listener] | {"client_certificate": need} | (mqtts if listener == "mqtts" else {})
        )
    return chosen


def failures(running: Running, listener: str) -> dict[str, int]:
    """Return reason -> number of connections of a listener that TLS errors have ended."""
    return {
        reason: count
        for reason, count in running.node.listener_contexts[listener].tls.failures.items()
        if count
    }


async def refused(running: Running, context: ssl.SSLContext) -> None:
    """Expect a failed handshake, or with TLS 1.3 a failed read after it."""

    def ask() -> bytes:
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", running.port("mqtts"))),
            server_hostname="localhost",
        ) as client:
            client.sendall(connect_packet("refused"))
            return client.recv(1)

    with pytest.raises((ssl.SSLError, ConnectionError)):
        await asyncio.to_thread(ask)
