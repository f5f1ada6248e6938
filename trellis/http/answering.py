"""Answers the API calls that the gateway, the process of the HTTP API, sends to the broker.

For each call, this module authenticates the user, runs the handler, and sends the answer. Long
answers are made in slices. The module contract defines the messages between gateway and broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import traceback
import uuid
from collections.abc import AsyncIterator
from typing import Final, cast

from msgspec import Raw

from broker.access.identity import Identity
from broker.errors import BrokerError
from protocols.peer import Peer
from trellis import logs
from trellis.http import contract
from trellis.http.logins import authenticate, tags_of
from trellis.http.management.answers import (
    ApiBackend,
    ApiRefusal,
    ApiRequest,
    Call,
    Empty,
    Failure,
    HandedOver,
    Listing,
    SectionedRows,
    refusal_of,
)
from trellis.http.management.api import ADMINISTRATOR, ROUTES
from trellis.http.refusals import log_refused_request
from trellis.http.slices import Slice
from trellis.http.stream_files import SegmentRange
from trellis.monitoring.http_counters import HttpListenerCounters
from trellis.server.listener_context import peer_of

#: Size of the rows in bytes at which a Rows message is full and is sent.
ROWS_BYTES: Final = 32 << 10
#: The broker sends no further rows while the gateway has not read more than this number of bytes
#: that the broker has sent.
UNREAD_MAX: Final = 256 << 10


class OpenCall:
    """An API call that is being answered: its task, and the received messages with its body."""

    def __init__(self, call: contract.ApiCall) -> None:
        self.call = call
        self.task: asyncio.Task[None] | None = None
        self.body: asyncio.Queue[contract.Body | contract.Part | contract.Finish] = asyncio.Queue()


class CallServer(asyncio.Protocol):
    """The broker's end of the connection to one gateway.

    File descriptors are passed through `files`, a datagram socket.
    """

    def __init__(
        self, backend: ApiBackend, counters: HttpListenerCounters, files: socket.socket
    ) -> None:
        self._backend = backend
        self._counters = counters
        self._files = files
        self._reader = contract.FrameReader(contract.FromGateway, contract.FRAME_MAX)
        self._transport: asyncio.Transport | None = None
        self._calls: dict[int, OpenCall] = {}
        self._writable = asyncio.Event()
        self._writable.set()
        #: Set when the gateway has closed its end.
        self.lost = asyncio.Event()
        #: True if the gateway has announced its end (`Bye`).
        self.has_announced_end = False

    # -- the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, and limit its write buffer to UNREAD_MAX bytes."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(UNREAD_MAX)

    def data_received(self, data: bytes) -> None:
        """Handle the messages of the gateway.

        An invalid message ends the connection to the gateway.
        """
        try:
            for message in self._reader.feed(data):
                self._on_message(message)
        except contract.ContractError as error:
            logs.error("http_gateway_broke_contract", error=error)
            self.abort()

    def pause_writing(self) -> None:
        """Make the answers wait, because the gateway does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Make the answers continue, because the gateway reads again."""
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all calls, because the gateway has ended."""
        self._writable.set()
        for call in self._calls.values():
            if call.task is not None:
                call.task.cancel()
        self.lost.set()

    def abort(self) -> None:
        """Close the connection to the gateway, which then ends."""
        if self._transport is not None:
            self._transport.abort()

    def send(self, message: object) -> None:
        """Send a message to the gateway."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(contract.frame(message))

    def _send_in_lease(self, message: object) -> None:
        """Send a message with a part of an answer to the gateway.

        Raises ApiRefusal if this node's lease has ended since the call began.
        """
        self._backend.check_lease()
        self.send(message)

    async def finish(self) -> None:
        """Wait until all calls have ended."""
        tasks = [call.task for call in self._calls.values() if call.task is not None]
        if tasks:
            await asyncio.wait(tasks)

    # -- messages

    def _on_message(self, message: object) -> None:
        if isinstance(message, contract.ApiCall):
            self._begin(message)
        elif isinstance(message, contract.Tally):
            self._count(message)
        elif isinstance(message, contract.Bye):
            self.has_announced_end = True
        elif isinstance(message, contract.Ping):
            self.send(contract.Pong())
        elif isinstance(message, contract.Denied):
            self._log_denied(message)
        elif isinstance(message, contract.Cancel):
            cancelled = self._calls.get(message.number)
            if cancelled is not None and cancelled.task is not None:
                cancelled.task.cancel()
        elif isinstance(message, contract.Body | contract.Part | contract.Finish):
            open_call = self._calls.get(message.number)
            if open_call is not None and not open_call.body.empty():
                raise contract.ContractError(
                    f"the gateway sent a part of the body of call {message.number} before the "
                    "broker took the previous part"
                )
            if open_call is not None:
                open_call.body.put_nowait(message)

    def _begin(self, call: contract.ApiCall) -> None:
        if call.number in self._calls:
            raise contract.ContractError(
                f"the gateway began call {call.number}, but a call with this number is open"
            )
        if not 0 <= call.route < len(ROUTES):
            raise contract.ContractError(
                f"the gateway began call {call.number} of route {call.route}, but the routes have "
                f"the numbers 0 to {len(ROUTES) - 1}"
            )
        if len(self._calls) >= contract.CALLS_MAX:
            # A cancelled call counts as open until its task has ended.
            busy = ApiRefusal(
                503,
                "busy",
                f"the HTTP API has {contract.CALLS_MAX} open requests, which is the limit; try "
                "again later",
            )
            self._refuse(call.number, busy)
            return
        open_call = self._calls[call.number] = OpenCall(call)
        task = open_call.task = asyncio.get_running_loop().create_task(self._serve(open_call))
        task.add_done_callback(lambda _: self._calls.pop(call.number, None))

    def _count(self, tally: contract.Tally) -> None:
        for status, count in tally.responses.items():
            responses = self._counters.responses
            responses[status] = responses.get(status, 0) + count
        for reason, count in tally.closed.items():
            if reason in self._counters.closed:
                self._counters.closed[reason] += count
        self._backend.counters.segment_bytes_sent += tally.segment_bytes

    def _log_denied(self, denied: contract.Denied) -> None:
        """Log that the gateway has refused a client itself, without a call to the broker."""
        node, address, note = self._backend.node, denied.address, denied.note
        if denied.status:
            log_refused_request(node, address, denied.request, denied.status, note)
        else:
            node.refusals.add("connection_refused", {"address": address, "note": note})

    # -- calls

    async def _serve(self, open_call: OpenCall) -> None:
        number = open_call.call.number
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await self._answer(open_call)
        except (ApiRefusal, BrokerError, ValueError, TimeoutError) as error:
            # A local variable for the refusal would form a reference cycle with the refusal's
            # traceback.
            self._refuse(number, refusal_of(error), open_call.call)
        except Exception:  # noqa: BLE001 - any failure of a handler is an answer with status 500
            identifier = uuid.uuid4().hex[:12]
            logs.error(
                "http_call_failed",
                id=identifier,
                call=f"{ROUTES[open_call.call.route][0]} {ROUTES[open_call.call.route][1]}",
                traceback=traceback.format_exc(),
            )
            self.send(
                contract.Refused(
                    number,
                    500,
                    "internal_error",
                    "the broker failed to answer this request; its log has the reason, in the line "
                    f"with id={identifier}",
                )
            )

    def _refuse(
        self, number: int, refusal: ApiRefusal, call: contract.ApiCall | None = None
    ) -> None:
        """Tell the gateway that the call `number` is refused, and log the refusal.

        Three kinds of refusals are not logged: of an unknown call (`call` is None); of a GET for an
        object that does not exist, because tools send a GET to test if an object exists; and of a
        login, because the check of the password or token has logged the refusal.
        """
        unknown = refusal.status == 401
        # The web page shows a login form. A challenge would make the browser open a login window,
        # too.
        challenge = unknown and not (call is not None and call.session)
        method = "" if call is None else ROUTES[call.route][0]
        if call is not None and not unknown and (method, refusal.status) != ("GET", 404):
            log_refused_request(
                self._backend.node,
                call.address,
                f"{method} {call.path}",
                refusal.status,
                refusal.reason,
                call.user or "",
            )
        self.send(
            contract.Refused(number, refusal.status, refusal.error, refusal.reason, challenge)
        )

    async def _answer(self, open_call: OpenCall) -> None:
        """Check the user of a call, wait for its body, and answer the call. Raises ApiRefusal."""
        call = open_call.call
        method, _, tags, answer = ROUTES[call.route]
        identity = await self._identity(call)
        check_tags(identity, tags)
        self.send(contract.Accepted(call.number, "administrator" in tags_of(identity)))
        request = ApiRequest(
            method, call.path, call.parts, call.query, str(Peer(call.address, call.port))
        )
        request.session, request.local = call.session, _is_local(call)
        if call.has_body:
            first = await open_call.body.get()
            if isinstance(first, contract.Body):
                request.body = first.data
            else:
                request.rows = self._document(open_call, first)
            identity = self._still(identity)
            check_tags(identity, tags)
        await self._send_result(call.number, await answer(Call(self._backend, request, identity)))

    async def _identity(self, call: contract.ApiCall) -> Identity:
        """Authenticate the user of a call, by session, password or token. Raises ApiRefusal."""
        if call.session and call.user is None and not call.token:
            known = self._backend.page_sessions.find(call.session, _is_local(call))
            if known is None:
                raise ApiRefusal(
                    401, "not_authorised", "the session of the web page has ended: log in again"
                )
            return known
        verdict = await authenticate(
            self._backend.node,
            self._backend.counters,
            (call.user, call.password, call.token),
            (call.address, call.port),
            call.direct,
        )
        if verdict.identity is None:
            if verdict.busy:
                raise ApiRefusal(503, "busy", verdict.reason)
            raise ApiRefusal(401, "not_authorised", verdict.reason)
        return verdict.identity

    def _still(self, identity: Identity) -> Identity:
        """Return the identity of a user with the user's present permissions and tags.

        Permissions and tags may have changed while the body of the request arrived. Raises
        ApiRefusal if the user was deleted while the body arrived.
        """
        renewed = self._backend.node.broker.authenticator.renew(identity)
        if renewed is None:
            raise ApiRefusal(
                401, "not_authorised", f"user '{identity.name}' was deleted during the request"
            )
        return renewed

    async def _document(
        self, open_call: OpenCall, message: contract.Part | contract.Finish
    ) -> AsyncIterator[tuple[str, str, list[bytes]]]:
        """Yield the rows of a definitions document in batches, as the gateway sends them.

        A batch is (section, error in the section or "", rows as JSON). `message` is the first
        message with rows, or the end of an empty document.
        """
        while isinstance(message, contract.Part):
            yield message.section, message.fault, message.rows
            self.send(contract.Taken(open_call.call.number))
            received = await open_call.body.get()
            assert not isinstance(received, contract.Body), (
                "the gateway sent a whole body after a part of a definitions document"
            )
            message = received

    # -- results

    async def _send_result(self, number: int, result: object) -> None:
        if isinstance(result, Listing):
            await self._send_rows(number, ((("", row)) async for row in result.rows))
            self._send_in_lease(contract.Answer(number, 200, result.shape))
        elif isinstance(result, SectionedRows):
            await self._send_rows(number, _asynchronous(result))
            value = contract.pack({"head": result.head, "sections": result.sections})
            self._send_in_lease(contract.Answer(number, 200, contract.SECTIONS, value))
        elif isinstance(result, SegmentRange):
            self._send_file(number, result)
        elif isinstance(result, Empty):
            answer = contract.Answer(
                number, result.status, contract.EMPTY, location=result.location
            )
            self._send_in_lease(answer)
        elif isinstance(result, HandedOver):
            value = contract.pack(result.value)
            self.send(contract.Answer(number, 200, contract.VALUE, value))
        else:
            status = result.status if isinstance(result, Failure) else 200
            value = contract.pack(result.value if isinstance(result, Failure) else result)
            self._send_in_lease(contract.Answer(number, status, contract.VALUE, value))

    async def _send_rows(self, number: int, rows: AsyncIterator[tuple[str, object]]) -> None:
        """Send the rows of the answer to call `number`, in slices. Raises ApiRefusal.

        Wait while the gateway does not read.
        """
        packed: list[Raw] = []
        section, size = "", 0
        async with Slice(self._backend.slices) as work:
            async for name, row in rows:
                if work.over or not self._writable.is_set():
                    await work.pause(self._writable)
                if isinstance(row, asyncio.Event):
                    await work.pause(row)
                    continue
                if row is None:
                    continue
                if packed and (isinstance(row, bytes) or name != section or size >= ROWS_BYTES):
                    self._send_in_lease(contract.Rows(number, section, packed))
                    packed, size = [], 0
                if isinstance(row, bytes):
                    self._send_in_lease(contract.PayloadPart(number, row))
                    continue
                section = name
                packed.append(contract.pack(row))
                size += len(packed[-1])
        if packed:
            self._send_in_lease(contract.Rows(number, section, packed))

    def _send_file(self, number: int, part: SegmentRange) -> None:
        """Pass the descriptor of a stream segment to the gateway, with the range to send.

        `number` is the number of the call. Raises ApiRefusal if this node has lost its lease, or if
        the descriptor cannot be passed.
        """
        try:
            self._backend.check_lease()
            socket.send_fds(self._files, [number.to_bytes(8, "big")], [part.descriptor])
        except OSError as error:
            raise ApiRefusal(
                503,
                "busy",
                "cannot pass the file of the stream segment to the HTTP gateway: "
                f"{error.strerror}; try again",
            ) from None
        finally:
            part.close()
        self.send(contract.FileRange(number, part.start, part.end, part.durable))


def check_tags(identity: Identity, tags: frozenset[str]) -> None:
    """Raise ApiRefusal unless the user has one of the tags. An empty set permits every user."""
    if tags and not tags & tags_of(identity):
        needed = "administrator" if tags == ADMINISTRATOR else "' or '".join(sorted(tags))
        raise ApiRefusal(
            403,
            "not_authorised",
            f"user '{identity.name}' lacks the tag '{needed}', which this request requires",
        )


def _is_local(call: contract.ApiCall) -> bool:
    return call.direct and peer_of((call.address, call.port)).local


async def _asynchronous(document: SectionedRows) -> AsyncIterator[tuple[str, object]]:
    for row in document.rows:
        yield ("", None) if row is None else row
