"""An OpenID provider for tests: its discovery document and its keys over HTTP, and its tokens."""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from typing import Any

from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey
from joserfc.jws import JWSRegistry

from trellis.auth.tokens.fetching import DISCOVERY_PATH


def rsa_key(kid: str) -> RSAKey:
    return RSAKey.generate_key(2048, {"kid": kid})


def signed(key: Any, algorithm: str = "RS256", header: Any = (), **claims: Any) -> str:
    """Return a token of the user `ann` with all permissions, signed with this key.

    `claims` replace the usual claims; `header` has fields that replace those of the header.
    """
    payload = {
        "sub": "ann",
        "aud": "trellis",
        "exp": int(time.time()) + 100,
        "scope": "configure:*/* write:*/* read:*/*",
    } | claims
    head = {"alg": algorithm, "kid": key.kid} | dict(header)
    registry = JWSRegistry(algorithms=[algorithm], strict_check_header=False)
    return jwt.encode(head, payload, key, registry=registry)


def answer_of(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n"
    return head.encode() + body


class Provider:
    """A provider on a port of 127.0.0.1, in the event loop of the test.

    `answers` returns the bytes of the answer to a path, or None to send nothing and wait.
    """

    def __init__(self, *keys: Any, context: ssl.SSLContext | None = None) -> None:
        self.keys = keys
        #: Paths of the requests.
        self.paths: list[str] = []
        self.answers: Callable[[str], bytes | None] = self.usual
        #: Answers wait until this event is set.
        self.open = asyncio.Event()
        self.open.set()
        self.port = 0
        self._context = context
        self._server: asyncio.Server | None = None

    @property
    def issuer(self) -> str:
        return f"http{'s' if self._context else ''}://localhost:{self.port}"

    @property
    def jwks(self) -> bytes:
        return json.dumps(KeySet(list(self.keys)).as_dict(private=False)).encode()

    def usual(self, path: str) -> bytes | None:
        if path == DISCOVERY_PATH:
            document = {"issuer": self.issuer, "jwks_uri": f"{self.issuer}/keys"}
            return answer_of(json.dumps(document).encode())
        return answer_of(self.jwks) if path == "/keys" else answer_of(b"", "404 Not Found")

    async def start(self, port: int = 0) -> None:
        self._server = await asyncio.start_server(
            self._serve, "127.0.0.1", port, ssl=self._context, reuse_address=True
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()
            self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1].decode()
            self.paths.append(path)
            await self.open.wait()
            answer = self.answers(path)
            if answer is None:
                await reader.read()
            else:
                writer.write(answer)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()
