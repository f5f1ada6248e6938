"""A small HTTP/1.1 server on h11: one request for each connection, and a time limit for every step.

A RouteTable (trellis/http/routes.py) finds the handler for a method and a path.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Awaitable, Callable
from typing import Final
from urllib.parse import parse_qsl

import h11

from trellis.http.stream_files import SegmentRange, SegmentSender
from trellis.monitoring.http_counters import HttpListenerCounters
from trellis.server.listener_context import peer_of

#: Largest request line with headers, in bytes.
MAX_REQUEST_HEAD: Final = 16 << 10
#: Largest body of a request, in bytes.
MAX_BODY: Final = 64 << 20
#: Bytes of a response that are sent in one turn of the event loop.
CHUNK_SIZE: Final = 1 << 16
#: Default for the largest number of open connections of a server. A further one replaces the
#: connection that has waited longest without a complete request head; if there is none, the further
#: one is closed.
MAX_CONNECTIONS: Final = 64


class Request:
    """An HTTP request.

    `path` does not include the query; `path_parameters` are the values of the names in braces in
    the route's path. `user` and `password` come from basic authentication (`user` is None without
    it), `token` from a Bearer header.
    """

    def __init__(
        self,
        method: str,
        path: str,
        address: str,
        local: bool,
        user: str | None,
        password: bytes,
        query: dict[str, str],
        body: bytes,
        parts: list[str],
        token: bytes,
    ) -> None:
        self.method = method
        #: True if a web page of another site sent the request. The browser may add the user's
        #: password without the user knowing.
        self.cross_origin = False
        self.path = path
        self.path_parameters = parts
        self.token = token
        self.query = query
        self.body = body
        self.address = address
        self.local = local
        self.user = user
        self.password = password


class Response:
    """An HTTP response.

    `challenge` requests basic authentication. For status 405, `allow` lists the path's methods.
    """

    def __init__(
        self,
        status: int,
        body: bytes,
        content_type: str = "text/plain; charset=utf-8",
        challenge: bool = False,
        allow: str = "",
    ) -> None:
        self.allow = allow
        self.status = status
        self.body = body
        self.content_type = content_type
        self.challenge = challenge


class RangeResponse(Response):
    """A response whose body is a range of a segment file, sent by the kernel."""

    def __init__(self, part: SegmentRange, sender: SegmentSender, content_type: str) -> None:
        super().__init__(200, b"", content_type)
        self.segment_range = part
        self.sender = sender


Handler = Callable[[Request], Awaitable[Response]]


class RouteTable:
    """Interface of a table that finds the handler of a request."""

    def find(self, method: str, path: str) -> tuple[Handler, list[str]] | Response:
        """Return the handler and the path parameters, or an error response without a handler."""
        raise NotImplementedError


class HttpServer:
    """An HTTP server for the routes of one listener.

    Reading a request and running its handler may take `limit` seconds, and sending the response as
    long again. Sending a range of a segment may take longer.
    """

    def __init__(
        self,
        routes: RouteTable,
        limit: float,
        counters: HttpListenerCounters,
        max_connections: int = MAX_CONNECTIONS,
    ) -> None:
        self._routes = routes
        self._max_connections = max_connections
        self._seconds = limit
        #: Tasks of the open connections.
        self._serving: set[asyncio.Task[None]] = set()
        #: Tasks of connections without a complete request head, in order of arrival.
        self._awaiting_request: dict[asyncio.Task[None], None] = {}
        self._counters = counters

    def protocol(self) -> asyncio.StreamReaderProtocol:
        """Return the protocol for a newly accepted connection."""
        return asyncio.StreamReaderProtocol(
            asyncio.StreamReader(limit=MAX_REQUEST_HEAD), self._serve
        )

    async def close(self) -> None:
        """Abort all requests that are being served."""
        for task in self._serving:
            task.cancel()
        if self._serving:
            await asyncio.wait(self._serving)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._serving) >= self._max_connections and not self._make_room():
            self._counters.closed["too_many"] += 1
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        self._awaiting_request[task] = None
        try:
            await self._exchange(reader, writer, task)
        except (OSError, h11.ProtocolError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and not writer.is_closing():
                raise  # uvloop raises RuntimeError for a transport that the client has reset.
            _forget_frames(error)
            self._counters.closed["timeout" if isinstance(error, TimeoutError) else "lost"] += 1
            writer.transport.abort()
        except asyncio.CancelledError:
            # Cancelled by this server. The streams of Python 3.11 would report it as an error.
            writer.transport.abort()
        finally:
            self._serving.discard(task)
            self._awaiting_request.pop(task, None)
            writer.close()

    def _make_room(self) -> bool:
        for task in self._awaiting_request:
            self._counters.closed["too_many"] += 1
            del self._awaiting_request[task]
            task.cancel()
            return True
        return False

    async def _exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, task: asyncio.Task[None]
    ) -> None:
        """Handle one request and its response. Raises OSError, h11.ProtocolError."""
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_HEAD)
        try:
            async with asyncio.timeout(self._seconds):
                response, head = await self._respond(connection, reader, writer, task)
        except TimeoutError:
            received = connection.their_state is not h11.IDLE
            text = b"time limit exceeded\n"
            response, head = Response(503 if received else 408, text), False
        # A segment range may be large; SegmentSender has a limit for clients that read nothing.
        async with asyncio.timeout(None if isinstance(response, RangeResponse) else self._seconds):
            await self._answer(connection, writer, response, head)
            if writer.can_write_eof():
                writer.write_eof()
            while await reader.read(MAX_REQUEST_HEAD):
                # After a close with input unread, the client's kernel would discard the response.
                pass

    async def _respond(
        self,
        connection: h11.Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        task: asyncio.Task[None],
    ) -> tuple[Response, bool]:
        """Read a request and return its response.

        Also return True if only the head of the response is to be sent.
        """
        try:
            event = connection.next_event()
            while event is h11.NEED_DATA:
                connection.receive_data(await reader.read(MAX_REQUEST_HEAD))
                event = connection.next_event()
        except h11.RemoteProtocolError as error:
            _forget_frames(error)
            return Response(error.error_status_hint, f"{error}\n".encode()), False
        if not isinstance(event, h11.Request):
            raise ConnectionError("the client closed the connection")
        self._awaiting_request.pop(task, None)
        head = event.method == b"HEAD"
        method = event.method.decode("ascii", "replace")
        path, _, query = event.target.decode("ascii", "replace").partition("?")
        match = self._routes.find("GET" if head else method, path)
        if isinstance(match, Response):
            return match, head
        handler, parts = match
        peer = peer_of(writer.get_extra_info("peername"))
        authorization = dict(event.headers).get(b"authorization", b"")
        user, password = parse_basic(authorization)
        body = await self._body(connection, reader)
        if body is None:
            return Response(413, f"the body has more than {MAX_BODY} bytes\n".encode()), head
        request = Request(
            method,
            path,
            peer.address,
            peer.local,
            user,
            password,
            dict(parse_qsl(query, keep_blank_values=True)),
            body,
            parts,
            parse_bearer(authorization),
        )
        headers = dict(event.headers)
        origin = headers.get(b"origin", b"")
        request.cross_origin = origin != b"" and origin.rpartition(b"//")[2] != headers.get(
            b"host", b""
        )
        return await handler(request), head

    async def _body(self, connection: h11.Connection, reader: asyncio.StreamReader) -> bytes | None:
        """Read the body of a request; return None if it is larger than MAX_BODY.

        Raises ConnectionError, h11.ProtocolError.
        """
        parts: list[bytes] = []
        size = 0
        while True:
            event = connection.next_event()
            if event is h11.NEED_DATA:
                connection.receive_data(await reader.read(CHUNK_SIZE))
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
                size += len(event.data)
                if size > MAX_BODY:
                    return None
            elif isinstance(event, h11.EndOfMessage):
                return b"".join(parts)
            else:
                raise ConnectionError("the client closed the connection")

    async def _answer(
        self,
        connection: h11.Connection,
        writer: asyncio.StreamWriter,
        response: Response,
        head: bool,
    ) -> None:
        if connection.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        responses = self._counters.responses
        responses[response.status] = responses.get(response.status, 0) + 1
        headers = [("Connection", "close"), ("Cache-Control", "no-store")]
        if response.status != 204:
            headers += [
                ("Content-Type", response.content_type),
                ("Content-Length", str(_size(response))),
            ]
        if response.allow:
            headers.append(("Allow", response.allow))
        if response.challenge:
            headers.append(("WWW-Authenticate", 'Basic realm="trellis"'))
        if isinstance(response, RangeResponse):
            headers += [
                ("X-Trellis-Durable", str(response.segment_range.durable)),
                ("Accept-Ranges", "none"),
            ]
            await self._send_range(connection, writer, response, headers, head)
            return
        writer.write(
            connection.send(h11.Response(status_code=response.status, headers=headers)) or b""
        )
        if not head:
            for at in range(0, len(response.body), CHUNK_SIZE):
                writer.write(
                    connection.send(h11.Data(data=response.body[at : at + CHUNK_SIZE])) or b""
                )
                await writer.drain()
        await writer.drain()

    async def _send_range(
        self,
        connection: h11.Connection,
        writer: asyncio.StreamWriter,
        response: RangeResponse,
        headers: list[tuple[str, str]],
        head: bool,
    ) -> None:
        """Send the head through the transport; then have the kernel send the range."""
        part = response.segment_range
        try:
            writer.transport.set_write_buffer_limits(0)
            writer.write(connection.send(h11.Response(status_code=200, headers=headers)) or b"")
            await writer.drain()
            if head:
                return
            if (
                writer.get_extra_info("sslcontext") is not None
                or writer.get_extra_info("socket") is None
            ):
                for chunk in part.read_chunks():  # The kernel cannot encrypt for TLS.
                    writer.write(chunk)
                    await writer.drain()
            else:
                await asyncio.wrap_future(
                    response.sender.start(writer.get_extra_info("socket").fileno(), part)
                )
        finally:
            part.close()


def _forget_frames(error: BaseException) -> None:
    """Remove the tracebacks of a handled exception.

    h11 and the stream reader keep the exception in a local variable or an attribute. Its traceback
    refers to the frames that refer to them: a reference cycle for each broken connection.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__


def _size(response: Response) -> int:
    return (
        response.segment_range.end - response.segment_range.start
        if isinstance(response, RangeResponse)
        else len(response.body)
    )


def parse_bearer(header: bytes) -> bytes:
    """Return the token of an Authorization header (RFC 6750); b"" if it has none."""
    scheme, _, token = header.partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""


def parse_basic(header: bytes) -> tuple[str | None, bytes]:
    """Return user and password of an Authorization header (RFC 7617).

    Return (None, b"") if the header has none, or is malformed.
    """
    scheme, _, token = header.partition(b" ")
    if scheme.lower() != b"basic":
        return None, b""
    try:
        user, colon, password = base64.b64decode(token.strip(), validate=True).partition(b":")
        return (user.decode(), password) if colon else (None, b"")
    except (binascii.Error, UnicodeDecodeError):
        return None, b""
