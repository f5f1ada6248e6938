"""Requests to the HTTP service of a webhook."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Sequence
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

import aiohttp

from trellis.connect.addresses import public_socket
from trellis.connect.message import BrokerMessage, batch_of, request_of
from trellis.connect.settings import WebhookSection
from trellis.connect.signing import safe_identifier, signed_headers

#: Largest number of bytes of an answer that are read; after a longer answer, the link closes the
#: connection.
ANSWER_MAX: Final = 64 << 10
_ANSWER_SHOWN: Final = 200
#: Characters of an error that are shown.
_REASON_SHOWN: Final = 400
#: Longest pause in seconds after an answer with Retry-After; a longer Retry-After is reduced to it.
RETRY_AFTER_MAX: Final = 3_600.0
GONE: Final = 410
#: The statuses whose Retry-After is a pause of the whole link: the service has too much work.
_BUSY: Final = (429, 503)


class HttpAnswer(NamedTuple):
    """The answer to a request. `status` is 0 if there was no answer; then `text` says why.

    `retry_after` is the pause in seconds that the service asked for; None if it asked for none.
    """

    status: int
    text: str
    retry_after: float | None = None

    @property
    def accepted(self) -> bool:
        """True if the service has accepted the messages: the status is 200 to 299."""
        return 200 <= self.status < 300


class HttpTarget:
    """A client that sends signed requests to one URL.

    Redirects are never followed, because a redirect could lead to a private address. Cookies and
    proxies of the environment are not used.
    """

    def __init__(self, section: WebhookSection, keys: Sequence[bytes]) -> None:
        """Prepare the client; `keys` sign each request. Raises OSError if `ca` is unreadable."""
        self._section: Final = section
        self._keys: Final = keys
        context: ssl.SSLContext | bool = True
        if section.ca:
            context = ssl.create_default_context(cafile=section.ca)
        self._session: Final = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=section.in_flight,
                socket_factory=None if section.allow_private else public_socket,
                ssl=context,
                ttl_dns_cache=10,
            ),
            timeout=aiohttp.ClientTimeout(total=section.timeout),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
        )

    async def send(self, messages: Sequence[BrokerMessage]) -> HttpAnswer:
        """Send one request with the messages; return the answer."""
        if self._section.batch == 1:
            [message] = messages
            identifier = message.identifier
            body, headers = request_of(message)
        else:
            identifier = safe_identifier("\n".join(each.identifier for each in messages))
            body, headers = batch_of(messages)
        headers |= {name.lower(): value for name, value in self._section.headers.items()}
        headers |= signed_headers(identifier, int(time.time()), body, self._keys)
        headers.setdefault("user-agent", "trellis-connect")
        try:
            async with self._session.post(
                self._section.url, data=body, headers=headers, allow_redirects=False
            ) as response:
                return await _answer(response)
        except TimeoutError:
            return HttpAnswer(0, f"no answer within {self._section.timeout:g} s")
        except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as error:
            return HttpAnswer(0, _reason(error))

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()


def _reason(error: Exception) -> str:
    """Return the reason why there was no answer, in one line.

    The reason leaves out the path and the query of the URL, which may be secret: /health and the
    headers of dead letters show the reason.
    """
    text = str(error)
    if isinstance(error, aiohttp.ClientResponseError):
        text = error.message
    elif isinstance(error, aiohttp.InvalidURL):
        text = f"the setting `url` is invalid: {error.description or 'not a URL'}"
    return " ".join(f"{type(error).__name__}: {text}".split())[:_REASON_SHOWN]


async def _answer(response: aiohttp.ClientResponse) -> HttpAnswer:
    """Return the answer of the service in a response whose body is not read yet.

    An unreadable body is ignored, because the status decides.
    """
    text = b""
    try:
        text = await response.content.read(ANSWER_MAX)
        if not response.content.at_eof():
            response.close()
    except (aiohttp.ClientError, OSError):
        response.close()
    shown = " ".join(text[:_ANSWER_SHOWN].decode(errors="replace").split())
    retry_after = None
    if response.status in _BUSY:
        retry_after = seconds_of(response.headers.get("retry-after", ""), time.time())
    return HttpAnswer(
        response.status, f"{response.status} {response.reason or ''} {shown}", retry_after
    )


def seconds_of(text: str, now: float) -> float | None:
    """Return the pause in seconds that a header Retry-After asks for [RFC 9110, 10.2.3].

    `text` is a number of seconds or a date; `now` is in seconds since 1970. The result is at most
    RETRY_AFTER_MAX; None if the header is absent or invalid.
    """
    try:
        seconds = (
            float(text)
            if text.strip().isdigit()
            else (parsedate_to_datetime(text).timestamp() - now)
        )
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), RETRY_AFTER_MAX)
