"""A small HTTP/1.1 server on h11: GET only, one request a connection, everything within a time limit."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Final

import h11

from trellis.link import peer_of

#: Octets of the longest request line and headers.
REQUEST_MAX: Final = 16 << 10
#: Connections served at once; more are closed.
CLIENTS: Final = 64


class Request:
    """What is asked: `path` without its query, `user` and `password` of basic authentication or None."""

    def __init__(self, path: str, address: str, local: bool, user: str | None, password: bytes) -> None:
        self.path = path
        self.address = address
        self.local = local
        self.user = user
        self.password = password


class Response:
    """What is answered."""

    def __init__(self, status: int, body: bytes, content_type: str = "text/plain; charset=utf-8", challenge: bool = False) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.challenge = challenge


Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """Serves paths. `limit` is the seconds a client has for its request and for taking the answer, each."""

    def __init__(self, routes: dict[str, Handler], limit: float) -> None:
        self._routes = routes
        self._limit = limit
        self._clients = 0
        #: Requests by status, and connections turned away.
        self.answered: dict[int, int] = {}
        self.refused = 0

    def protocol(self) -> asyncio.StreamReaderProtocol:
        """For create_server."""
        return asyncio.StreamReaderProtocol(asyncio.StreamReader(limit=REQUEST_MAX), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._clients >= CLIENTS:
            self.refused += 1
            writer.transport.abort()
            return
        self._clients += 1
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=REQUEST_MAX)
        try:
            async with asyncio.timeout(self._limit):
                response, head = await self._respond(connection, reader, writer)
            async with asyncio.timeout(self._limit):
                await self._answer(connection, writer, response, head)
                if writer.can_write_eof():
                    writer.write_eof()
                await reader.read(REQUEST_MAX)
        except (TimeoutError, ConnectionError, h11.ProtocolError):
            writer.transport.abort()
        finally:
            self._clients -= 1
            writer.close()

    async def _respond(self, connection: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[Response, bool]:
        """The answer to the request that comes, and whether only its head is wanted."""
        try:
            event = connection.next_event()
            while event is h11.NEED_DATA:
                connection.receive_data(await reader.read(REQUEST_MAX))
                event = connection.next_event()
        except h11.RemoteProtocolError as error:
            return Response(error.error_status_hint, f"{error}\n".encode()), False
        if not isinstance(event, h11.Request):
            raise h11.LocalProtocolError("the client went away")
        head = event.method == b"HEAD"
        if event.method not in (b"GET", b"HEAD"):
            return Response(405, b"only GET and HEAD are served\n"), False
        path = event.target.decode("ascii", "replace").partition("?")[0]
        handler = self._routes.get(path)
        if handler is None:
            known = ", ".join(sorted(self._routes))
            return Response(404, f"no such page; there are {known}\n".encode()), head
        peer = peer_of(writer.get_extra_info("peername"))
        user, password = basic(dict(event.headers).get(b"authorization", b""))
        return await handler(Request(path, peer.address, peer.local, user, password)), head

    async def _answer(self, connection: h11.Connection, writer: asyncio.StreamWriter, response: Response, head: bool) -> None:
        self.answered[response.status] = self.answered.get(response.status, 0) + 1
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        headers = [("Content-Type", response.content_type), ("Content-Length", str(len(response.body))), ("Connection", "close"),
                   ("Cache-Control", "no-store")]
        if response.challenge:
            headers.append(("WWW-Authenticate", 'Basic realm="trellis"'))
        octets = connection.send(h11.Response(status_code=response.status, headers=headers)) or b""
        if not head:
            octets += connection.send(h11.Data(data=response.body)) or b""
        writer.write(octets)
        await writer.drain()


def basic(header: bytes) -> tuple[str | None, bytes]:
    """User and password of an Authorization header (RFC 7617); (None, b"") when there is none that we can read."""
    scheme, _, token = header.partition(b" ")
    if scheme.lower() != b"basic":
        return None, b""
    try:
        user, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else (None, b"")
    except (binascii.Error, UnicodeDecodeError):
        return None, b""
