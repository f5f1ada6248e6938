"""A small HTTP/1.1 server on h11, for metrics and health, which does not depend on the gateway.

A connection serves one request, and every step has a time limit. Bodies are never read. An
HttpRouter (trellis/http/routes.py) finds the handler for a method and a path.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import h11

from trellis.http.credentials import parse_basic, parse_bearer
from trellis.http.request_head import AmbiguousHead, header_table, origin_form
from trellis.http.routes import HttpRouter, Unrouted
from trellis.monitoring.http_counters import HttpListenerCounters

#: Largest request line with headers, in bytes.
MAX_REQUEST_HEAD: Final = 16 << 10
#: Number of bytes of a response that are sent in one turn of the event loop.
CHUNK_SIZE: Final = 1 << 16
#: Default for the largest number of open connections of a server. A further connection replaces the
#: connection that has waited longest without a complete request head; if there is no such
#: connection, the further connection is closed.
MAX_CONNECTIONS: Final = 64


class Request:
    """A request: the address of the client's transport, its line, headers, query and credentials.

    `line` has the method and the path. `user` and `password` come from basic authentication,
    `token` from a Bearer header. `user` is None without basic authentication.
    """

    def __init__(
        self, address: object, line: str, headers: dict[bytes, bytes], query: str = ""
    ) -> None:
        self.address = address
        self.line = line
        self.headers = headers
        self.query = query
        authorization = headers.get(b"authorization", b"")
        self.user, self.password = parse_basic(authorization)
        self.token = parse_bearer(authorization)


class Response:
    """An HTTP response.

    `challenge` requests basic authentication. For status 405, `allow` lists the path's methods.
    `location` is the header Location: the URL of the requested object; "" for none.
    """

    def __init__(
        self,
        status: int,
        body: bytes | bytearray,
        content_type: str = "text/plain; charset=utf-8",
        challenge: bool = False,
        allow: str = "",
        location: str = "",
    ) -> None:
        self.allow = allow
        self.location = location
        self.status = status
        self.body = body
        self.content_type = content_type
        self.challenge = challenge


Handler = Callable[[Request], Awaitable[Response]]


class HttpServer:
    """An HTTP server for the routes of one listener.

    Reading a request and running its handler may take `limit` seconds together, and sending the
    response another `limit` seconds.
    """

    def __init__(
        self,
        routes: HttpRouter[Handler],
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
        """Return the asyncio protocol for a newly accepted connection."""
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
            # This server has cancelled the task. The streams of Python 3.11 would report an error.
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
        """Read one request, and send its response. `task` is the task of the connection.

        Raises TimeoutError if the client reads too slowly, and OSError or h11.ProtocolError if the
        connection fails.
        """
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_REQUEST_HEAD)
        try:
            async with asyncio.timeout(self._seconds):
                response, head = await self._respond(connection, reader, writer, task)
        except TimeoutError:
            received = connection.their_state is not h11.IDLE
            text = b"time limit exceeded\n"
            response, head = Response(503 if received else 408, text), False
        async with asyncio.timeout(self._seconds):
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
        """Read a request. Return its response, and True if only its head must be sent (HEAD)."""
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
        try:
            headers = header_table(event.headers)
            target = origin_form(event.target, headers)
        except AmbiguousHead as error:
            return Response(400, f"{error}\n".encode()), head
        path, _, query = target.decode("ascii", "replace").partition("?")
        match = self._routes.find("GET" if head else method, path)
        if isinstance(match, Unrouted):
            return self._unrouted(match, method, path), head
        line = f"{method} {path}"
        request = Request(writer.get_extra_info("peername"), line, headers, query)
        return await match[0](request), head

    def _unrouted(self, match: Unrouted, method: str, path: str) -> Response:
        """Return the response for an unknown path, or a method that the path does not support."""
        if match.status == 404:
            paths = ", ".join(sorted(self._routes.paths))
            return Response(404, f"there is no path '{path}'; the paths are {paths}\n".encode())
        text = f"'{path}' does not support the method {method}; use one of {match.allow}\n"
        return Response(405, text.encode(), allow=match.allow)

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
                ("Content-Length", str(len(response.body))),
            ]
        if response.allow:
            headers.append(("Allow", response.allow))
        if response.location:
            headers.append(("Location", response.location))
        if response.challenge:
            headers.append(("WWW-Authenticate", 'Basic realm="trellis"'))
        writer.write(
            connection.send(h11.Response(status_code=response.status, headers=headers)) or b""
        )
        if not head:
            for at in range(0, len(response.body), CHUNK_SIZE):
                writer.write(
                    connection.send(h11.Data(data=bytes(response.body[at : at + CHUNK_SIZE])))
                    or b""
                )
                await writer.drain()
                # While the client reads fast, `drain` returns at once: a page of 10 MB would be
                # sent in one turn of the event loop.
                await asyncio.sleep(0)
        await writer.drain()


def _forget_frames(error: BaseException) -> None:
    """Remove the tracebacks of a handled exception and of the exceptions in its context.

    h11 and the stream reader store an exception in a local variable or an attribute. The traceback
    of the exception refers to frames, and the frames refer to the exception. Without this function,
    each broken connection would leave a reference cycle.
    """
    link: BaseException | None = error
    while link is not None:
        link.__traceback__ = None
        link = link.__context__
