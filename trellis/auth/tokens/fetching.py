"""Documents of an OpenID provider over HTTP: its discovery document and its JWKS.

A fetch is limited in time and in size, follows no redirects, and verifies the provider's
certificate. A fetch runs in a thread and an event loop of its own, so that the broker's event loop
neither waits for a provider nor parses its documents.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import msgspec

import trellis
from trellis.auth.tokens.keys import Key, parse_provider_keys
from trellis.settings import SettingsError
from trellis.settings.tokens import Jwt, url_fault

#: Seconds that a fetch may take: discovery and JWKS together. The time is shorter than the limit of
#: a handshake, so that a client whose login waits for the keys gets an answer.
FETCH_SECONDS: Final = 5.0
#: Largest document of a provider, in bytes.
MAX_DOCUMENT: Final = 128 << 10
#: Path of the discovery document below the issuer (OpenID Connect Discovery 1.0, section 4).
DISCOVERY_PATH: Final = "/.well-known/openid-configuration"
_CHUNK: Final = 16 << 10
_PORTS: Final = {"https": 443, "http": 80}


class FetchError(Exception):
    """Raised if the keys of a provider cannot be fetched. The text names the URL and the reason."""


class KeyFetcher:
    """Fetches the keys of a provider. Raises SettingsError if jwt.ca cannot be read."""

    def __init__(self, settings: Jwt) -> None:
        self._issuer = settings.issuer
        self._jwks_url = settings.jwks_url
        self._tls = ssl.create_default_context()
        if settings.ca:
            path = Path(settings.ca).expanduser()
            try:
                self._tls = ssl.create_default_context(cafile=str(path))
            except (OSError, ssl.SSLError) as error:
                raise SettingsError(
                    f"jwt.ca: {path}: cannot read certificates in PEM ({error.strerror or error})"
                ) from None

    def fetch(self) -> list[Key]:
        """Fetch and return the provider's keys, in up to FETCH_SECONDS. Raises FetchError."""
        try:
            return asyncio.run(self._fetch_in_time())
        except TimeoutError:
            url = self._jwks_url or self._issuer
            raise FetchError(f"{url}: no complete answer within {FETCH_SECONDS:g} s") from None

    async def _fetch_in_time(self) -> list[Key]:
        async with asyncio.timeout(FETCH_SECONDS):
            url = self._jwks_url or await self._discovered()
            document = await self._get(url)
        try:
            return parse_provider_keys(document)
        except (ValueError, RecursionError) as error:
            raise FetchError(f"{url}: {error or type(error).__name__}") from None

    async def _discovered(self) -> str:
        """Return the URL of the JWKS in the discovery document of the issuer. Raises FetchError."""
        url = self._issuer.removesuffix("/") + DISCOVERY_PATH
        try:
            document: Any = msgspec.json.decode(await self._get(url))
        except (ValueError, RecursionError):
            raise FetchError(f"{url}: the answer is not JSON") from None
        fields = document if isinstance(document, dict) else {}
        if fields.get("issuer") != self._issuer:  # Section 4.3 requires equal issuers.
            raise FetchError(
                f"{url}: the provider names the issuer {fields.get('issuer')!r:.200}, and "
                f"jwt.issuer is {self._issuer!r}; both must be equal"
            )
        jwks_url = fields.get("jwks_uri")
        fault = url_fault(jwks_url) if isinstance(jwks_url, str) else "must be a URL"
        if fault or not isinstance(jwks_url, str):
            raise FetchError(f"{url}: the field `jwks_uri` {fault}")
        return jwks_url

    async def _get(self, url: str) -> bytes:
        """Fetch a URL and return the body of the answer. Raises FetchError."""
        try:
            return await self._answer(url)
        except ssl.SSLError as error:
            reason = getattr(error, "verify_message", "") or error.reason or error
            raise FetchError(
                f"{url}: TLS failed: {reason}; check jwt.ca, the trusted certificate authorities"
            ) from None
        except (OSError, h11.RemoteProtocolError, ValueError) as error:
            if isinstance(error, TimeoutError):
                raise
            raise FetchError(f"{url}: {error or type(error).__name__}") from None

    async def _answer(self, url: str) -> bytes:
        parts = urlsplit(url)
        host, secure = parts.hostname or "", parts.scheme == "https"
        reader, writer = await asyncio.open_connection(
            host,
            parts.port or _PORTS[parts.scheme],
            ssl=self._tls if secure else None,
            limit=_CHUNK,
        )
        try:
            connection = h11.Connection(h11.CLIENT)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            request = h11.Request(
                method="GET",
                target=target,
                headers=[
                    ("Host", parts.netloc.rpartition("@")[2]),
                    ("Accept", "application/json"),
                    ("User-Agent", f"trellis/{trellis.__version__}"),
                    ("Connection", "close"),
                ],
            )
            for event in (request, h11.EndOfMessage()):
                writer.write(connection.send(event) or b"")
            return await _body(url, reader, connection)
        finally:
            writer.transport.abort()


async def _body(url: str, reader: asyncio.StreamReader, connection: h11.Connection) -> bytes:
    """Return the body of an answer with status 200.

    Raises FetchError for another status or a body that is too large, and h11.RemoteProtocolError.
    """
    body = bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            data = await reader.read(_CHUNK)
            if not data and connection.their_state is h11.SEND_RESPONSE:
                raise FetchError(f"{url}: the connection was closed without an answer")
            connection.receive_data(data)
        elif isinstance(event, h11.Response) and event.status_code != 200:
            moved = dict(event.headers).get(b"location", b"").decode("ascii", "replace")
            hint = f", a redirect to {moved[:200]}; set the URL without redirects" if moved else ""
            raise FetchError(f"{url}: the answer has the status {event.status_code}{hint}")
        elif isinstance(event, h11.Data):
            body += event.data
            if len(body) > MAX_DOCUMENT:
                raise FetchError(f"{url}: the answer is larger than {MAX_DOCUMENT} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return bytes(body)
