"""The app of the gateway: asks the broker about each request, and builds the response.

The order is the same for every request: find the route, check the origin, ask the broker to check
the user, check the limit on requests of users without the tag administrator, read the body, answer.
So the gateway reads a body only after the broker has accepted the user.
"""

from __future__ import annotations

import asyncio
import gzip
import traceback
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any, Final

import msgspec
from starlette.responses import Response, StreamingResponse

from trellis import logs
from trellis.http import contract
from trellis.http.credentials import parse_basic, parse_bearer
from trellis.http.gateway.bodies import Disconnected, cut_document
from trellis.http.gateway.connections import OpenConnections
from trellis.http.gateway.incoming import Incoming
from trellis.http.gateway.link import (
    BrokerLink,
    CallExchange,
    HttpRefusal,
    OpenFile,
    bad_request,
    method_not_allowed,
)
from trellis.http.gateway.openapi import FILES, OPENAPI_PATH, describe
from trellis.http.gateway.paging import (
    PageQuery,
    encode,
    encode_messages,
    encode_page,
    encode_rows,
)
from trellis.http.gateway.web_page import WebPage, is_page
from trellis.http.gateway.web_page_login import session_of
from trellis.http.origins import is_direct
from trellis.http.routes import HttpRouter, Unrouted

JSON: Final = "application/json"
#: Seconds within which a definitions document must arrive.
UPLOAD_SECONDS: Final = 300.0
#: Largest number of definitions documents that are read and imported at the same time.
UPLOADS_MAX: Final = 2
#: Number of bytes of a file that are read and sent at once, and seconds that a client has to read
#: them.
FILE_CHUNK: Final = 256 << 10
FILE_SECONDS: Final = 30.0
#: Size in bytes of the smallest response that is compressed, and the compression level, which
#: favours speed.
COMPRESS_MIN: Final = 1 << 10
COMPRESS_LEVEL: Final = 1

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Gateway:
    """The ASGI application of the gateway: answers each HTTP request by asking the broker."""

    def __init__(
        self, link: BrokerLink, greeting: contract.Greeting, connections: OpenConnections
    ) -> None:
        self._link = link
        self._greeting = greeting
        self._connections = connections
        self._hosts = frozenset(greeting.http.host_names)
        self._router: HttpRouter[int] = HttpRouter()
        for number, route in enumerate(greeting.routes):
            self._router.add(route.method, route.path, number)
        self._description = encode(describe(greeting))
        self._compressed_description = gzip.compress(self._description)
        self._uploads = 0
        self._page = WebPage(link, self._router, self._hosts, greeting.seconds)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request (the ASGI entry point)."""
        slot = self._connections.by_client.get(scope["client"])
        self._connections.begin(slot)
        incoming = Incoming(scope, receive, slot)
        try:
            if slot is not None:
                slot.cancellable = asyncio.current_task()
            await self._send(incoming, await self._respond(incoming), scope, receive, send)
        except Disconnected:
            return
        except TimeoutError:
            self._link.count_closed("timeout")
            if slot is not None:
                slot.abort()
        finally:
            if incoming.file is not None:
                incoming.file.close()
            self._connections.finish(slot)

    async def _respond(self, incoming: Incoming) -> Response:
        """Return the response to a request.

        If the request is refused or fails, the response says so.
        """
        try:
            return await self._answer(incoming)
        except HttpRefusal as refusal:
            if not refusal.by_broker:
                self._log(incoming, refusal)
            return _refused(refusal, incoming.is_of_page)
        except TimeoutError:
            reason = (
                f"the broker did not answer within {self._greeting.seconds:g} s (limits.handshake)"
            )
            reason += (
                "; try again"
                if incoming.reads
                else "; the change may take effect nevertheless: check this before you try again"
            )
            late = HttpRefusal(503, "timeout", reason)
            self._log(incoming, late)
            return _refused(late)
        except (Disconnected, asyncio.CancelledError):
            raise
        except Exception:  # noqa: BLE001 - any failure is an answer with status 500
            identifier = uuid.uuid4().hex[:12]
            logs.error(
                "http_request_failed",
                id=identifier,
                request=f"{incoming.method} {incoming.path}",
                traceback=traceback.format_exc(),
            )
            reason = (
                "the HTTP API failed to answer this request; the broker's log has the reason, in "
                f"the line with id={identifier}"
            )
            return _refused(HttpRefusal(500, "internal_error", reason))

    def _log(self, incoming: Incoming, refusal: HttpRefusal) -> None:
        """Let the broker log a refusal of the gateway; the 404 for a GET or HEAD is not logged."""
        if refusal.status != 404 or not incoming.reads:
            request = f"{incoming.method} {incoming.path}"
            self._link.log_denied(incoming.client[0], refusal.reason, refusal.status, request)

    async def _answer(self, incoming: Incoming) -> Response:
        """Ask the broker about a request, and return the response.

        Raises HttpRefusal if the request is refused, TimeoutError if the broker or the body takes
        too long, and Disconnected if the client disconnects before the end of the body.
        """
        incoming.check_head()
        path = incoming.path.rstrip("/") or "/"  # Flower (for Celery) requests /api/queues//.
        method = "GET" if incoming.method == "HEAD" else incoming.method
        if method == "GET" and path == OPENAPI_PATH:
            return self._describe(incoming)
        if is_page(path):
            return await self._page.answer(incoming, method)
        try:
            route = self._router.find(method, path)
        except UnicodeDecodeError as error:
            name = bytes(error.object).decode("utf-8", "backslashreplace")
            raise bad_request(f"the part '{name}' of the path is not valid UTF-8") from None
        if isinstance(route, Unrouted):
            raise _unrouted(route, incoming)
        incoming.check_origin()
        number, parts = route
        await self._link.writable(self._greeting.seconds)
        exchange = self._call(incoming, number, path, parts)
        try:
            accepted = await exchange.next(self._greeting.seconds)
            if incoming.slot is not None and not incoming.reads:
                # From here on the request may change something, so a disconnect of the client does
                # not cancel it.
                incoming.slot.cancellable = None
            if not self._connections.take(incoming.slot, accepted.administrator):
                raise HttpRefusal(
                    503,
                    "busy",
                    "all HTTP connections for users without the tag 'administrator' are busy; try "
                    "again, or raise http.connections",
                )
            if incoming.body.present:
                await self._send_body(incoming, exchange, self._greeting.routes[number].body)
            return await self._result(incoming, exchange, self._greeting.routes[number].path)
        finally:
            exchange.close()

    def _call(self, incoming: Incoming, route: int, path: str, parts: list[str]) -> CallExchange:
        authorization = incoming.headers.get(b"authorization", b"")
        user, password = parse_basic(authorization)
        return self._link.begin(
            lambda number: contract.ApiCall(
                number,
                route,
                path,
                parts,
                incoming.query,
                user,
                password,
                parse_bearer(authorization),
                *incoming.client,
                is_direct(incoming.headers, self._hosts),
                incoming.body.present,
                "" if authorization else session_of(incoming.headers),
            )
        )

    # -- bodies

    async def _send_body(self, incoming: Incoming, exchange: CallExchange, kind: int) -> None:
        """Read the body of a request, and send the body to the broker.

        `kind` is the kind of the body, such as SMALL_BODY. Raises HttpRefusal, TimeoutError.
        """
        if kind == contract.SMALL_BODY:
            data = await incoming.body.read(contract.BODY_MAX, self._greeting.seconds)
            self._link.send(contract.Body(exchange.number, data))
            return
        if self._uploads >= UPLOADS_MAX:
            raise HttpRefusal(
                503,
                "busy",
                f"{UPLOADS_MAX} imports of definitions are running, which is the limit; try again "
                "later",
            )
        self._uploads += 1
        try:
            data = await incoming.body.read(contract.DOCUMENT_MAX, UPLOAD_SECONDS, "")
            cut = cut_document(data, self._greeting.sections)
            loop = asyncio.get_running_loop()
            while (part := await loop.run_in_executor(None, next, cut, None)) is not None:
                self._link.send(contract.Part(exchange.number, *part))
                await exchange.next_of_change(self._greeting.seconds)
            self._link.send(contract.Finish(exchange.number))
        finally:
            self._uploads -= 1

    # -- results

    async def _result(self, incoming: Incoming, exchange: CallExchange, path: str) -> Response:
        """Collect the broker's rows for a request, and return the response.

        `path` is the path template of the route.

        A call that may change something has no time limit while the broker runs, because the call
        must not stop halfway. The broker limits the time of each step of the call, and its answer
        names the completed steps. Raises HttpRefusal, and TimeoutError as `_next` does.
        """
        wanted: PageQuery | None = None
        rows: list[Any] = []
        payload: list[bytes] = []
        sections: dict[str, list[Any]] = {}
        if incoming.reads:
            wanted = PageQuery(incoming.query)
        while True:
            message = await self._next(incoming, exchange)
            if isinstance(message, contract.Rows):
                decoded = [msgspec.msgpack.decode(row) for row in message.rows]
                if payload:
                    decoded[0]["payload"] = b"".join(payload)
                    payload.clear()
                if message.section:
                    sections.setdefault(message.section, []).extend(decoded)
                else:
                    rows += decoded
            elif isinstance(message, contract.PayloadPart):
                payload.append(message.data)
            elif isinstance(message, OpenFile):
                return self._file(incoming, message, FILES[path][0])
            else:
                break
        if message.shape == contract.EMPTY:
            headers = {"Location": message.location} if message.location else {}
            return Response(status_code=message.status, headers=headers)
        loop = asyncio.get_running_loop()
        if message.shape == contract.VALUE:
            data = encode(msgspec.msgpack.decode(message.value))
        elif message.shape == contract.PLAIN:
            data = await loop.run_in_executor(None, encode_rows, rows)
        elif message.shape == contract.MESSAGES:
            data = await loop.run_in_executor(None, encode_messages, rows)
        elif message.shape == contract.PAGED:
            assert wanted is not None, "only GET returns listings"
            data = await loop.run_in_executor(None, encode_page, rows, wanted)
        else:
            document = msgspec.msgpack.decode(message.value)
            data = await loop.run_in_executor(None, _document, document, sections)
        return await self._body(incoming, data, message.status)

    async def _next(self, incoming: Incoming, exchange: CallExchange) -> Any:
        """Wait for the broker's next message for the API call of a request, and return the message.

        Raises HttpRefusal if the broker refuses the call. For a call that only reads, raises
        TimeoutError if the message does not come within the time limit. For a call that may change
        something, raises TimeoutError only if the broker sends nothing at all during the limit. In
        this case the broker may still complete the change, but its later messages are ignored.
        """
        if incoming.reads:
            return await exchange.next(self._greeting.seconds)
        try:
            return await exchange.next_of_change(self._greeting.seconds)
        except TimeoutError:
            exchange.leave()
            raise

    def _describe(self, incoming: Incoming) -> Response:
        """Return the OpenAPI description of the API, compressed if the client allows gzip."""
        headers = {"Vary": "Accept-Encoding"}
        if not incoming.takes_gzip:
            return Response(self._description, 200, headers, JSON)
        headers["Content-Encoding"] = "gzip"
        return Response(self._compressed_description, 200, headers, JSON)

    async def _body(self, incoming: Incoming, data: bytes, status: int = 200) -> Response:
        """Return a response with the JSON text `data`, compressed if the client allows gzip."""
        headers = {"Vary": "Accept-Encoding"}
        if len(data) >= COMPRESS_MIN and incoming.takes_gzip:
            data = await asyncio.get_running_loop().run_in_executor(
                None, gzip.compress, data, COMPRESS_LEVEL
            )
            headers["Content-Encoding"] = "gzip"
        return Response(data, status, headers, JSON)

    def _file(self, incoming: Incoming, file: OpenFile, media_type: str) -> Response:
        """Return a response with a range of a file of a stream. `__call__` closes the file."""
        incoming.file = file

        async def chunks() -> AsyncIterator[bytes]:
            loop = asyncio.get_running_loop()
            at = file.start
            try:
                while at < file.end and incoming.method != "HEAD":
                    chunk = await loop.run_in_executor(None, file.read, at, FILE_CHUNK)
                    at += len(chunk)
                    yield chunk
            finally:
                file.close()
                self._link.count_response(0, at - file.start)

        headers = {
            "Content-Length": str(file.end - file.start),
            "X-Trellis-Durable": str(file.durable),
            "Accept-Ranges": "none",
        }
        return StreamingResponse(chunks(), 200, headers, media_type)

    # -- sending

    async def _send(
        self, incoming: Incoming, response: Response, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send a response to the client. Raises TimeoutError if the client reads too slowly.

        If the body of the request was not read, the connection is closed after the response.
        """
        response.headers["Cache-Control"] = "no-store"
        response.headers["X-Content-Type-Options"] = "nosniff"
        if not incoming.body.finished:
            response.headers["Connection"] = "close"
        streams = isinstance(response, StreamingResponse)
        self._link.count_response(response.status_code)

        async def timed(message: MutableMapping[str, Any]) -> None:
            async with asyncio.timeout(FILE_SECONDS if streams else self._greeting.seconds):
                await send(message)

        await response(scope, receive, timed)


def _document(value: dict[str, Any], rows: dict[str, list[Any]]) -> bytes:
    """Return a definitions document as JSON. Slow: call this in a thread.

    `value` has the fields of the head and the names of the sections; `rows` the rows by section.
    """
    parts = [encode(value["head"])[1:-1]]
    for section in value["sections"]:
        parts.append(encode(section) + b":" + encode_rows(rows.get(section, [])))
    return b"{" + b",".join(parts) + b"}"


def _refused(refusal: HttpRefusal, of_page: bool = False) -> Response:
    """Return the HTTP response for a refusal, in RabbitMQ's format.

    For a request of the web page (`of_page`), the response has no challenge: the browser would open
    a login window, but the page has a login form.
    """
    headers: dict[str, str] = {}
    if refusal.challenge and not of_page:
        headers["WWW-Authenticate"] = 'Basic realm="trellis"'
    if refusal.allow:
        headers["Allow"] = refusal.allow
        # The client may speak another protocol, such as HTTP/2. Then its next bytes are not a
        # request.
        headers["Connection"] = "close"
    value = {"error": refusal.error, "reason": refusal.reason}
    return Response(encode(value), refusal.status, headers, JSON)


def _unrouted(unrouted: Unrouted, incoming: Incoming) -> HttpRefusal:
    """Return the refusal of an unknown path, or of a method that the path does not support."""
    if unrouted.status == 404:
        return HttpRefusal(
            404,
            "Object Not Found",
            f"there is no path '{incoming.path}'; GET {OPENAPI_PATH} lists the paths",
        )
    return method_not_allowed(incoming.method, incoming.path, unrouted.allow)
