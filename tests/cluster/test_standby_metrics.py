"""The metrics of a standby need a login if the setting `metrics.login` is on."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from asyncio import to_thread
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from joserfc.jwk import KeySet

from broker.replication.contract import Timing
from tests.cluster.log_server import SocketLog
from tests.cluster.nodes import PATIENCE
from tests.top.providers import rsa_key, signed
from trellis.auth.passwords import HASHER
from trellis.auth.settings_users import authenticator_from_settings
from trellis.cluster.membership import Membership
from trellis.server.listener import BoundListener
from trellis.settings import Settings
from trellis.standby import StandbyServer

KEY = rsa_key("one")
USERS: list[dict[str, Any]] = [
    {"name": "prometheus", "password_hash": HASHER.hash("seen"), "tags": ["monitoring"]},
    {"name": "app", "password_hash": HASHER.hash("seen"), "tags": []},
]


@asynccontextmanager
async def standby(folder: Path, **metrics: Any) -> AsyncIterator[str]:
    """Yield the URL of the metrics port of a standby."""
    off = {"enabled": False}
    keys = folder / "keys.json"
    keys.write_text(json.dumps(KeySet([KEY]).as_dict(private=False)))
    sections: dict[str, Any] = {
        "amqp": off,
        "mqtt": off,
        "http": off,
        "metrics": {"port": 0, "host": "127.0.0.1", **metrics},
        "jwt": {"keys": str(keys)},
        "users": USERS,
    }
    settings = msgspec.convert(sections, Settings)
    accounts = authenticator_from_settings(settings, None)
    membership = Membership("broker", Timing(1.0, 0.7, 0.15), lambda: SocketLog(0, "standby"))
    server = StandbyServer(settings, accounts, membership)
    bound: dict[str, BoundListener] = {}
    server.open(bound)
    try:
        yield f"http://{bound['metrics'].address}"
    finally:
        await server.close()
        for ports in bound.values():
            ports.close()
        accounts.close()


async def status(url: str, authorization: str = "") -> int:
    request = urllib.request.Request(url)
    if authorization:
        request.add_header("Authorization", authorization)

    def send() -> int:
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as response:
                return int(response.status)
        except urllib.error.HTTPError as error:
            return error.code

    return await to_thread(send)


def basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def bearer(scope: str) -> str:
    return "Bearer " + signed(KEY, scope=scope)


async def test_metrics_need_the_tag_monitoring(tmp_path: Path) -> None:
    async with standby(tmp_path, login=True) as url:
        metrics = f"{url}/metrics"
        assert await status(metrics) == 401
        assert await status(metrics, basic("prometheus", "wrong")) == 401
        assert await status(metrics, basic("app", "seen")) == 403
        assert await status(metrics, basic("prometheus", "seen")) == 200
        assert await status(metrics, bearer("read:*/*")) == 403
        assert await status(metrics, bearer("read:*/* tag:monitoring")) == 200
        # Orchestrators ask for the health without a login.
        assert (await status(f"{url}/healthz"), await status(f"{url}/readyz")) == (200, 503)


async def test_metrics_need_no_login_by_default(tmp_path: Path) -> None:
    async with standby(tmp_path) as url:
        assert await status(f"{url}/metrics") == 200
