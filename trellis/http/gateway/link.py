"""The gateway's end of the connection to the broker."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable
from typing import Any, Final, cast

from trellis.http import contract
from trellis.server.refusals import FIELD_MAX

#: Largest frame that the gateway accepts, in bytes: an answer with one single value may be large.
ANSWER_MAX: Final = 64 << 20
#: Size of unread messages, in bytes, above which new calls wait until the broker reads.
UNREAD_MAX: Final = 64 << 10


class HttpRefusal(Exception):
    """Raised if a request is refused. `error` is RabbitMQ's name of the error.

    `challenge` is True if the response asks for a login. `by_broker` is True if the broker has
    refused the request, and has logged the refusal. `allow` has the methods that the path supports,
    for status 405.
    """

    def __init__(
        self,
        status: int,
        error: str,
        reason: str,
        challenge: bool = False,
        by_broker: bool = False,
        allow: str = "",
    ) -> None:
        super().__init__(reason)
        self.status = status
        self.error = error
        self.reason = reason
        self.challenge = challenge
        self.by_broker = by_broker
        self.allow = allow


def bad_request(reason: str) -> HttpRefusal:
    """Return the refusal for a malformed request: status 400, with a reason."""
    return HttpRefusal(400, "bad_request", reason)


def method_not_allowed(method: str, path: str, allow: str) -> HttpRefusal:
    """Return the refusal of a method, for a path that supports the methods `allow`."""
    reason = f"'{path}' does not support the method {method}; use one of {allow}"
    return HttpRefusal(405, "method_not_allowed", reason, allow=allow)


class OpenFile:
    """A range of a file whose descriptor the broker has passed."""

    def __init__(self, descriptor: int, place: contract.FileRange) -> None:
        self.descriptor = descriptor
        self.start = place.start
        self.end = place.end
        #: The offset after the last durable row of the stream.
        self.durable = place.durable

    def read(self, at: int, size: int) -> bytes:
        """Return up to `size` bytes from offset `at`. Raises ConnectionError if the file ends."""
        data = os.pread(self.descriptor, min(size, self.end - at), at)
        if not data:
            raise ConnectionError("the file of the stream segment is shorter than recorded")
        return data

    def close(self) -> None:
        """Close the file, unless it is closed."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


class CallExchange:
    """One API call: its number, and the queue of the broker's messages that answer it.

    The caller must `close` the exchange at the end.
    """

    def __init__(self, link: BrokerLink, number: int) -> None:
        self._link = link
        self.number = number
        self.messages: asyncio.Queue[Any] = asyncio.Queue()
        #: True if the last message of the call has arrived.
        self.ended = False

    async def next_of_change(self, seconds: float) -> Any:
        """Wait for the broker's next message for a call that changes something, and return it.

        This method sends Pings, and waits without a limit as long as the broker answers the Pings.
        Raises TimeoutError if no message of the broker arrives for `seconds`, for this call or any
        other. Raises HttpRefusal if the broker refuses the call.
        """
        while True:
            received = self._link.received
            self._link.ping()
            try:
                return await self.next(seconds)
            except TimeoutError:
                if self._link.received == received:
                    raise

    async def next(self, seconds: float) -> Any:
        """Wait up to `seconds` for the broker's next message for this call, and return it.

        Raises HttpRefusal if the broker refuses the call, and TimeoutError after `seconds`.
        """
        async with asyncio.timeout(seconds):
            message = await self.messages.get()
        if isinstance(message, contract.Refused):
            self.ended = True
            raise HttpRefusal(
                message.status, message.error, message.reason, message.challenge, True
            )
        self.ended = isinstance(message, contract.Answer | OpenFile)
        return message

    def leave(self) -> None:
        """Ignore all further messages for this call. The broker completes the call's change."""
        self.ended = True

    def close(self) -> None:
        """End the exchange. Cancel the call if its last message has not arrived."""
        self._link.exchanges.pop(self.number, None)
        if not self.ended:
            self._link.send(contract.Cancel(self.number))
        while not self.messages.empty():
            message = self.messages.get_nowait()
            if isinstance(message, OpenFile):
                message.close()


class BrokerLink(asyncio.Protocol):
    """The gateway's connection to the broker.

    `on_lost` is called when the broker has closed the connection.
    """

    def __init__(self, files: socket.socket, on_lost: Callable[[], None]) -> None:
        self._files = files
        self._on_lost = on_lost
        self._reader = contract.FrameReader(contract.FromBroker, ANSWER_MAX)
        self._transport: asyncio.Transport | None = None
        self._last = 0
        #: Set while the broker reads. While the broker does not read, at most UNREAD_MAX bytes wait
        #: in the buffer, plus the messages of the calls that are already open.
        self._writable = asyncio.Event()
        self._writable.set()
        #: Counts to send to the broker: responses by status, closed connections by reason, bytes of
        #: stream segments.
        self._responses: dict[int, int] = {}
        self._closed: dict[str, int] = {}
        self._segment_bytes = 0
        #: True if a Ping was sent and nothing has come from the broker since.
        self._pinged = False
        #: Number of times that data has come from the broker.
        self.received = 0
        #: The exchanges of the open calls, by number.
        self.exchanges: dict[int, CallExchange] = {}
        self.greeting: asyncio.Future[contract.Greeting] = (
            asyncio.get_running_loop().create_future()
        )
        #: Set when the broker asks the gateway to end.
        self.draining = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport, and limit its write buffer to UNREAD_MAX bytes."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(UNREAD_MAX)

    def pause_writing(self) -> None:
        """Make new calls wait, because the broker does not read."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Start the waiting calls and send the waiting counts, because the broker reads again."""
        self._writable.set()
        self._send_counts()

    async def writable(self, seconds: float) -> None:
        """Wait until the broker reads. Raises TimeoutError after `seconds`."""
        async with asyncio.timeout(seconds):
            await self._writable.wait()

    def data_received(self, data: bytes) -> None:
        """Handle the broker's messages: pass each answer to the CallExchange of its API call.

        A Greeting, Drain or Pong belongs to no call. An answer to a closed call is dropped.
        """
        self.received += 1
        self._pinged = False
        for message in self._reader.feed(data):
            if isinstance(message, contract.Greeting):
                self.greeting.set_result(message)
            elif isinstance(message, contract.Drain):
                self.draining.set()
            elif isinstance(message, contract.Pong):
                continue
            else:
                exchange = self.exchanges.get(message.number)
                if isinstance(message, contract.FileRange):
                    message = self._receive_file(message)
                    if exchange is None:
                        message.close()
                if exchange is not None:
                    exchange.messages.put_nowait(message)

    def _receive_file(self, place: contract.FileRange) -> OpenFile:
        """Take the file descriptor that the broker has passed for this FileRange message."""
        data, descriptors, _, _ = socket.recv_fds(self._files, 8, 1)
        if int.from_bytes(data, "big") != place.number or len(descriptors) != 1:
            raise RuntimeError(f"no file descriptor came with the FileRange of call {place.number}")
        return OpenFile(descriptors[0], place)

    def connection_lost(self, exc: Exception | None) -> None:
        """Call `on_lost`: the broker has ended or closed the connection."""
        self._on_lost()

    def send(self, message: object) -> None:
        """Send a message to the broker."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(contract.frame(message))

    def begin(self, make: Callable[[int], contract.ApiCall]) -> CallExchange:
        """Send a new call to the broker, and return its exchange.

        `make` gets the number of the call and returns its message. Raises HttpRefusal if too many
        calls are open.
        """
        if len(self.exchanges) >= contract.CALLS_MAX // 2:
            raise HttpRefusal(
                503,
                "busy",
                f"the HTTP API has {contract.CALLS_MAX // 2} open requests, which is the limit; "
                "try again later",
            )
        self._last += 1
        exchange = self.exchanges[self._last] = CallExchange(self, self._last)
        self.send(make(self._last))
        return exchange

    def ping(self) -> None:
        """Send a Ping to the broker, unless an earlier Ping is not answered yet."""
        if not self._pinged:
            self._pinged = True
            self.send(contract.Ping())

    def count_response(self, status: int, segment_bytes: int = 0) -> None:
        """Count a response, and the bytes of stream segments in it, for the broker's metrics."""
        if status:
            self._responses[status] = self._responses.get(status, 0) + 1
        self._segment_bytes += segment_bytes
        self._send_counts()

    def log_denied(self, address: str, note: str, status: int = 0, request: str = "") -> None:
        """Let the broker log a refusal of the gateway (contract.Denied).

        If `status` is 0, the gateway has refused the connection, not a request. While the broker
        does not read, no refusals are logged.
        """
        if self._writable.is_set():
            self.send(contract.Denied(address, request[:FIELD_MAX], status, note[:FIELD_MAX]))

    def count_closed(self, reason: str) -> None:
        """Count a connection that ended without a response, for the broker's metrics."""
        self._closed[reason] = self._closed.get(reason, 0) + 1
        self._send_counts()

    def _send_counts(self) -> None:
        """Send the counts to the broker; keep them while the broker does not read."""
        if self._writable.is_set() and (self._responses or self._closed or self._segment_bytes):
            self.send(contract.Tally(self._responses, self._closed, self._segment_bytes))
            self._responses, self._closed, self._segment_bytes = {}, {}, 0
