"""Tests of the HTTP API over TLS: server certificates and client certificates."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.authority import Authority
from tests.top.api_client import ADMIN
from tests.top.conftest import Start
from tests.top.gateway_client import gateway_of, get
from tests.top.running import Running, Socket, parsed, settings
from trellis.settings import SettingsError


def secure(authority: Authority, **http: Any) -> dict[str, Any]:
    certificate = str(authority.sign("localhost", "127.0.0.1"))
    return {
        "users": [ADMIN],
        "tls": {"certificate": certificate, "ca": str(authority.file)},
        "http": {"tls": True} | http,
    }


async def over_tls(running: Running, context: ssl.SSLContext) -> int:
    client = await running.tls("http", context)
    await client.send(get("/api/whoami", "Connection: close\r\n"))
    return parsed(await client.read_to_end())[0]


async def test_the_api_speaks_https_and_uses_a_new_certificate_after_a_reload(
    start: Start, tmp_path: Path
) -> None:
    authority, other = Authority(tmp_path / "a"), Authority(tmp_path / "b")
    broker = await start(**secure(authority))
    assert await over_tls(broker, authority.client()) == 200
    # The gateway closes the connection of a client that speaks no TLS, and serves other clients.
    assert await (await talk(broker, get("/api/whoami"))).read_to_end() == b""
    with pytest.raises(ssl.SSLCertVerificationError):
        await over_tls(broker, other.client())
    await broker.reload(settings(**secure(other)))
    await broker.until(lambda: gateway_of(broker).pid == 0)
    assert await over_tls(broker, other.client()) == 200


async def test_a_gateway_uses_the_certificates_of_the_last_reload_after_its_files_have_changed(
    start: Start, authority: Authority
) -> None:
    """Check that a gateway gets the contents of the certificates that the broker read last.

    An idle gateway ends, and a later request starts the next one. At that time, the files may be
    incomplete, because an operator is just writing them.
    """
    name = str(authority.sign("other.example"))
    chosen = secure(authority)
    chosen["tls"] |= {"names": {"other.example": {"certificate": name}}}
    broker = await start(**chosen)
    for file in (chosen["tls"]["certificate"], name):
        os.truncate(file, 100)
    assert await over_tls(broker, authority.client()) == 200


async def test_the_api_asks_for_client_certificates(start: Start, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    broker = await start(**secure(authority, client_certificate="required"))
    with pytest.raises((ssl.SSLError, ConnectionError, IndexError)):
        await over_tls(broker, authority.client())
    signed = authority.client(authority.sign("client"))
    assert await over_tls(broker, signed) == 200


async def test_a_wrong_certificate_ends_the_start(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "no.pem"
    file.write_text("nothing")
    with pytest.raises(SettingsError, match=r"tls\.certificate"):
        await start(users=[ADMIN], tls={"certificate": str(file)}, http={"tls": True})


async def talk(running: Running, request: bytes) -> Socket:
    client = await running.socket("http")
    await client.send(request)
    return client
