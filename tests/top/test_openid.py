"""Logins with the tokens of a real OpenID provider: oidc-provider, which runs on Node."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shlex
import subprocess
import textwrap
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pika
import pytest
from joserfc.jwk import RSAKey
from paho.mqtt.enums import CallbackAPIVersion

from tests.foreign import require
from tests.top.commands import Commands
from tests.top.conftest import Start
from tests.top.running import PATIENCE, Running

PROGRAM = Path(__file__).parents[1] / "openid" / "provider.js"
PAGE = Path(__file__).parents[2] / "docs" / "tokens.md"
#: The issuer in the examples of the page.
ISSUER = "https://id.example"
EVERYTHING = "configure:*/* read:*/* write:*/*"

pytestmark = pytest.mark.long


class OpenIdProvider:
    """A process with a provider. At each start, its signing key is new and its port is the same."""

    def __init__(self, directory: Path) -> None:
        self._node = require("openid")
        self._keys = directory / "provider-keys.json"
        self._process: subprocess.Popen[str] | None = None
        self.port = 0

    @property
    def issuer(self) -> str:
        return f"http://localhost:{self.port}"

    def start(self, kid: str) -> None:
        key = RSAKey.generate_key(2048, {"kid": kid, "use": "sig", "alg": "RS256"})
        self._keys.write_text(json.dumps({"keys": [key.as_dict(private=True)]}))
        self._process = subprocess.Popen(
            [self._node, str(PROGRAM), str(self._keys), str(self.port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line.startswith("ready "), line
        self.port = int(line.split()[1])

    def stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin is not None and self._process.stdout is not None
            self._process.stdin.close()
            assert self._process.wait(PATIENCE) == 0
            self._process.stdout.close()
            self._process = None

    def token(self, scope: str, audience: str = "trellis") -> str:
        """Return an access token of the client `pump-7`, by client credentials."""
        fields = {
            "grant_type": "client_credentials",
            "scope": scope,
            "resource": f"urn:{audience}",
        }
        request = urllib.request.Request(
            f"{self.issuer}/token",
            urllib.parse.urlencode(fields).encode(),
            {"Authorization": "Basic " + base64.b64encode(b"pump-7:drip").decode()},
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return str(json.load(answer)["access_token"])


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[OpenIdProvider]:
    provider = OpenIdProvider(tmp_path)
    provider.start("first")
    yield provider
    provider.stop()


def publish_with_pika(port: int, token: str) -> None:
    """Log in with a token, publish a message to a queue, get it back, and renew the token."""
    parameters = pika.ConnectionParameters(
        "127.0.0.1", port, credentials=pika.PlainCredentials("", token)
    )
    with pika.BlockingConnection(parameters) as connection:
        channel = connection.channel()
        channel.queue_declare("openid")
        channel.basic_publish("", "openid", b"hello")
        assert channel.basic_get("openid", auto_ack=True)[2] == b"hello"
        # A client of RabbitMQ renews its token with this method.
        connection.update_secret(token, "renewed")
        channel.basic_publish("", "openid", b"again")


def connect_with_paho(port: int, token: str) -> int:
    """Log in with a token as the password; return the reason code of the CONNACK."""
    codes: list[int] = []
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.username_pw_set("pump-7", token)

    def on_connect(client: Any, data: Any, flags: Any, code: Any, properties: Any) -> None:
        codes.append(code.value)
        client.disconnect()

    client.on_connect = on_connect
    client.connect("127.0.0.1", port)
    client.loop_forever()
    return codes[0]


async def code_of(running: Running, token: str) -> int:
    return await asyncio.to_thread(connect_with_paho, running.port("mqtt"), token)


async def test_real_tokens_let_clients_in_and_keys_rotate(
    start: Start, provider: OpenIdProvider
) -> None:
    running = await start(jwt={"issuer": provider.issuer, "discovery": True, "refetch": 1})
    first = await asyncio.to_thread(provider.token, EVERYTHING)
    await asyncio.to_thread(publish_with_pika, running.port("amqp"), first)
    assert await code_of(running, first) == 0
    admin = await asyncio.to_thread(provider.token, "tag:administrator")
    status, body = await running.get("http", "/api/whoami", f"Authorization: Bearer {admin}\r\n")
    assert (status, json.loads(body)["name"]) == (200, "pump-7")
    other = await asyncio.to_thread(provider.token, EVERYTHING, "billing")
    assert await code_of(running, other) == 0x86
    await asyncio.to_thread(provider.stop)
    assert await code_of(running, first) == 0  # The cached key is used.
    await asyncio.to_thread(provider.start, "second")
    second = await asyncio.to_thread(provider.token, EVERYTHING)
    async with asyncio.timeout(PATIENCE):
        while await code_of(running, second) != 0:
            pass
    assert await code_of(running, first) == 0x86


async def test_topic_rules_of_a_real_token(start: Start, provider: OpenIdProvider) -> None:
    running = await start(
        jwt={
            "issuer": provider.issuer,
            "discovery": True,
            "vhost": "tenant",
            "rules": "acl",
            "scopes": "",
        }
    )
    token = await asyncio.to_thread(provider.token, "read:*/*")
    client = await running.mqtt("c", user=f"x/{token}")
    await client.subscribe("plant/pump-7/#")
    tokens = running.node.tokens
    assert tokens is not None and tokens.accepted == 1
    (connection,) = running.node.mqtt.connections
    identity = connection.identity  # type: ignore[attr-defined]
    here = identity.for_vhost("/")
    assert here.may_publish(b"plant/pump-7/x") and not here.may_publish(b"plant/pump-8/x")


async def test_the_first_command_of_the_page(
    start: Start,
    provider: OpenIdProvider,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Run the command of the page with the provider's issuer, for a valid and a refused token.

    For the refused token, the output must begin with the output that the page shows.
    """
    page = PAGE.read_text()
    command = re.search(r"^    \.run/bin/trellis (auth check-token (\S+) .*)$", page, re.MULTILINE)
    assert command is not None
    words = [
        provider.issuer if word == ISSUER else word
        for word in shlex.split(command[1], comments=True)
    ]
    assert provider.issuer in words
    monkeypatch.chdir(tmp_path)
    token = tmp_path / command[2]
    commands = Commands(await start(), capsys, monkeypatch)
    token.write_text(await asyncio.to_thread(provider.token, EVERYTHING))
    code, out, err = await commands.run_alone(*words)
    assert (code, err) == (0, "") and "accepted: user 'pump-7'" in out
    token.write_text(await asyncio.to_thread(provider.token, EVERYTHING, "billing"))
    code, out, _ = await commands.run_alone(*words)
    shown = re.search(r"^    refused: .*\n(?:    .*\n)+", page, re.MULTILINE)
    assert shown is not None
    assert code == 1 and out.startswith(textwrap.dedent(shown[0])), out


async def test_the_settings_of_the_page(start: Start, provider: OpenIdProvider) -> None:
    block = re.search(r"^    \[jwt\]\n(?:    .*\n)+", PAGE.read_text(), re.MULTILINE)
    assert block is not None
    section = tomllib.loads(textwrap.dedent(block[0]))["jwt"]
    assert section["issuer"] == ISSUER
    running = await start(jwt=section | {"issuer": provider.issuer})
    assert await code_of(running, await asyncio.to_thread(provider.token, EVERYTHING)) == 0
    other = await asyncio.to_thread(provider.token, EVERYTHING, "billing")
    assert await code_of(running, other) == 0x86
