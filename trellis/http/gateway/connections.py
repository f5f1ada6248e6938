"""Connections of the gateway: their limits, their HTTP protocol, and the server.

A new connection beyond a limit replaces an open connection that has no request, or else an open
connection whose user is not known yet. If there is no such connection, the new connection is
closed. RESERVED connections are kept for administrators: the requests of other users cannot use
them.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import Callable, Iterator
from typing import Any, Final

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from protocols.peer import network_of
from trellis.http.gateway.link import BrokerLink
from trellis.server.acceptor import Acceptor

#: Number of connections that are kept free for administrators.
RESERVED: Final = 4
#: Seconds for which a connection stays open without a request.
KEEP_ALIVE_SECONDS: Final = 30
#: Largest request line with headers, in bytes.
HEAD_MAX: Final = 16 << 10
#: Seconds without a request after which the gateway ends.
IDLE_SECONDS: Final = 600.0
#: States of a connection: without a request; with a request whose user is not known yet; with a
#: request of a known user.
IDLE, UNKNOWN, BUSY = range(3)


class Slot:
    """One open connection in the table OpenConnections: its address, state and tasks."""

    def __init__(self, address: str, network: str) -> None:
        self.address = address
        #: The name under which the limit per address counts the connection (`network_of`).
        self.network = network
        self.state = IDLE
        #: True if the connection has a request of a known user that is not an administrator.
        self.ordinary = False
        #: True if the connection was closed to make room for a new connection.
        self.replaced = False
        #: The task that accepts the connection, and the protocol of the accepted connection.
        self.accepting: asyncio.Task[None] | None = None
        self.protocol: GatewayProtocol | None = None
        #: The task of a request that has changed nothing so far; the task is cancelled if the
        #: client disconnects.
        self.cancellable: asyncio.Task[Any] | None = None

    def abort(self) -> None:
        """Close the connection at once."""
        if self.protocol is not None:
            self.protocol.transport.abort()
        elif self.accepting is not None:
            self.accepting.cancel()


class OpenConnections:
    """The open connections of the gateway, and their limits.

    At most `most` connections are open in all, and `per_address` connections from one address or
    IPv6 network.
    """

    def __init__(
        self,
        most: int,
        per_address: int,
        count_closed: Callable[[str], None],
        log_denied: Callable[[str, str], None],
    ) -> None:
        self._most = most
        self._per_address = per_address
        #: Counts a closed connection, or a pause in accepting connections, by reason.
        self.count_closed = count_closed
        #: Logs that a connection from an address was refused, and why.
        self.log_denied = log_denied
        #: The open connections, ordered by their arrival or by the end of their last request.
        self._slots: dict[Slot, None] = {}
        #: The connections by the client's address and port.
        self.by_client: dict[tuple[str, int], Slot] = {}
        #: Time of the end of the last request.
        self.active_at = asyncio.get_running_loop().time()

    def admit(self, address: str) -> Slot | None:
        """Return the slot of a new connection; None if a limit is reached and no room is made."""
        network = network_of(address)
        own = [slot for slot in self._slots if slot.network == network]
        refusal, crowd = "", own
        if len(own) >= self._per_address:
            refusal = f"the address has {len(own)} connections: raise http.address_connections"
        elif len(self._slots) >= self._most:
            refusal = f"all {len(self._slots)} HTTP connections are in use: raise http.connections"
            crowd = list(self._slots)
        if refusal and not self._replace(crowd):
            self.count_closed("too_many")
            self.log_denied(address, refusal)
            return None
        slot = Slot(address, network)
        self._slots[slot] = None
        return slot

    def _replace(self, crowd: list[Slot]) -> bool:
        for state in (IDLE, UNKNOWN):
            for slot in crowd:
                if slot.state == state:
                    self.count_closed("too_many")
                    self.remove(slot)
                    slot.replaced = True
                    slot.abort()
                    return True
        return False

    def remove(self, slot: Slot) -> None:
        """Remove a closed connection from the table."""
        self._slots.pop(slot, None)

    def begin(self, slot: Slot | None) -> None:
        """Record that a request has begun on a connection; its user is not known yet."""
        if slot is not None:
            slot.state = UNKNOWN

    def take(self, slot: Slot | None, administrator: bool) -> bool:
        """Record that a request's user is known; return True if the request may proceed.

        RESERVED connections are kept free for administrators. So requests of users without the tag
        administrator may use `most` - RESERVED connections; a further such request may not proceed.
        """
        if slot is None:
            return False
        slot.state = BUSY
        if administrator:
            return True
        if sum(each.ordinary for each in self._slots) >= self._most - RESERVED:
            return False
        slot.ordinary = True
        return True

    def finish(self, slot: Slot | None) -> None:
        """Record the end of a connection's request, and move the connection to the table's end.

        If a limit is reached, a new connection replaces the first connection in the table that has
        no request. So the connection that has been idle for the longest time is replaced.
        """
        self.active_at = asyncio.get_running_loop().time()
        if slot is not None:
            slot.state, slot.ordinary, slot.cancellable = IDLE, False, None
            if self._slots.pop(slot, self) is None:
                self._slots[slot] = None

    @property
    def idle_since(self) -> float | None:
        """The loop time at which the last request ended, in seconds; None while a request runs."""
        busy = any(slot.state != IDLE for slot in self._slots)
        return None if busy else self.active_at


class GatewayTransport:
    """A transport for uvicorn, whose method `close` calls `GatewayProtocol.end`."""

    def __init__(self, transport: asyncio.Transport, protocol: GatewayProtocol) -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """Close the connection in an orderly way: see `GatewayProtocol.end`."""
        self._protocol.end()

    def is_closing(self) -> bool:
        """True if no further response can be sent."""
        return self._protocol.ending or self._transport.is_closing()


class GatewayProtocol(H11Protocol):
    """One HTTP/1.1 connection: uvicorn's protocol, with time limits and answers to bad requests."""

    def __init__(
        self,
        config: uvicorn.Config,
        state: Any,
        link: BrokerLink,
        open_connections: OpenConnections,
        slot: Slot,
        seconds: float,
    ) -> None:
        super().__init__(config, state, {})
        self._link = link
        self._open = open_connections
        self._slot = slot
        self._seconds = seconds
        self._head_timer: asyncio.TimerHandle | None = None
        self._socket_transport: asyncio.Transport
        #: True after the last response, while further input of the client is discarded.
        self.ending = False
        self._end_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Register a new connection, and start the time limit for its first request."""
        self._socket_transport = transport
        super().connection_made(GatewayTransport(transport, self))  # type: ignore[arg-type]
        self._slot.protocol = self
        if self.client is not None:
            self._open.by_client[self.client] = self._slot
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the connection; count the connection if it ended without a response.

        An unanswered request is cancelled, except a request that may have changed something.
        """
        self._stop_timer()
        if self._end_timer is not None:
            self._end_timer.cancel()
        self._open.remove(self._slot)
        if self.client is not None:
            self._open.by_client.pop(self.client, None)
        if self._slot.replaced:
            pass  # `OpenConnections` counted this connection when another replaced it.
        elif self.cycle is None and self.conn.our_state is h11.IDLE:
            self._link.count_closed("lost")
        elif self.cycle is not None and not self.cycle.response_complete:
            self._link.count_closed("lost")
            if self._slot.cancellable is not None:
                self._slot.cancellable.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read a request, whose head must be complete within the time limit."""
        if self.ending:
            return
        before = self.cycle
        if self._head_timer is None and (before is None or before.response_complete):
            self._await_head()
        super().data_received(data)
        if self.cycle is not before:
            self._stop_timer()

    def eof_received(self) -> bool | None:  # type: ignore[override]
        """Handle the end of the client's input: refuse an incomplete request.

        A complete request is still answered, since the client may have closed only its sending
        side.
        """
        if self.ending:
            return None
        if self.conn.trailing_data[0] and self.conn.their_state is h11.IDLE:
            self._refuse(400, "the client closed the connection before its request was complete")
            return None
        if (
            self.cycle is not None
            and not self.cycle.response_complete
            and self.conn.their_state is not h11.SEND_BODY
        ):
            self.cycle.keep_alive = False
            return True
        return None

    def end(self) -> None:
        """Close the connection after the last response.

        If the client may still be sending, its input is discarded for a limited time, until the
        client closes its side. If the gateway closed the socket with unread input, TCP would
        send a reset, and the client could lose the response.
        """
        transport = self._socket_transport
        if self.ending or transport.is_closing():
            return
        received = self.conn.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)
        if received and not self.conn.trailing_data[0]:
            transport.close()
            return
        self.ending = True
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self._end_timer = self.loop.call_later(self._seconds, transport.close)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(self._seconds, self._refuse_slow)

    def _stop_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _refuse_slow(self) -> None:
        self._refuse(408, f"no complete request came within {self._seconds:g} s (limits.handshake)")

    def send_400_response(self, msg: str) -> None:
        """Refuse input that is not HTTP; uvicorn calls this method when h11 raises an error."""
        error = sys.exc_info()[1]
        if isinstance(error, h11.RemoteProtocolError):
            self._refuse(error.error_status_hint, str(error))
        else:
            self._refuse(400, msg)

    def _refuse(self, status: int, reason: str) -> None:
        """Send an error response to an incomplete or invalid request, and close the connection."""
        self._stop_timer()
        if self.transport.is_closing():
            return
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._link.count_response(status)
            if status != 408 or self.conn.trailing_data[0]:
                # A browser opens connections in advance, which may stay without a request.
                self._link.log_denied(self._slot.address, _without_input(reason), status)
            body = f"{reason}\n".encode()
            for event in (
                h11.Response(
                    status_code=status,
                    headers=[
                        ("Connection", "close"),
                        ("Content-Type", "text/plain; charset=utf-8"),
                        ("Content-Length", str(len(body))),
                    ],
                ),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def _without_input(reason: str) -> str:
    """Return the reason of a refusal for the log, without the client's input.

    h11 quotes a malformed line, for example `Authorization : Basic ...` with a password. The client
    gets the whole reason.
    """
    return reason.partition(": bytearray(")[0]


class GatewayAcceptor(Acceptor):
    """The acceptor of the connections of one socket: checks the limits first, then starts TLS."""

    LIMIT = "http.connections"

    def __init__(
        self,
        sock: socket.socket,
        make: Callable[[Slot], GatewayProtocol],
        open_connections: OpenConnections,
        tls: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        self._make_protocol = make
        self._open = open_connections
        self._tls = tls
        self._handshake = None if tls is None else seconds
        self._connecting: set[asyncio.Task[None]] = set()
        super().__init__(sock, open_connections.count_closed)

    def _make_transport(self, descriptor: int) -> None:
        task = self._loop.create_task(self._connect(self._socket(descriptor)))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)

    async def _connect(self, sock: socket.socket) -> None:
        slot: Slot | None = None
        try:
            address = str(sock.getpeername()[0])
            slot = self._open.admit(address)
            if slot is None:
                sock.close()
                return
            slot.accepting = asyncio.current_task()
            place = slot
            await self._loop.connect_accepted_socket(
                lambda: self._make_protocol(place),
                sock,
                ssl=self._tls,
                ssl_handshake_timeout=self._handshake,
            )
        except (OSError, asyncio.CancelledError) as error:
            # The client has disconnected, TLS has failed, or a new connection has replaced this
            # one.
            if isinstance(error, ssl.SSLError) and slot is not None:
                self._open.log_denied(slot.address, f"the TLS connection failed: {error}")
            sock.close()
            if slot is not None and slot.protocol is None:
                self._open.remove(slot)


class GatewayServer(uvicorn.Server):
    """The gateway's server: uvicorn on the listening sockets that the broker has opened.

    The server ends when it is idle, or when the broker asks it to end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        link: BrokerLink,
        open_connections: OpenConnections,
        tls: ssl.SSLContext | None,
        seconds: float,
    ) -> None:
        super().__init__(config)
        self._link = link
        self._open = open_connections
        self._tls = tls
        self._seconds = seconds
        self._acceptors: list[GatewayAcceptor] = []

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections of all listening sockets."""

        def make(slot: Slot) -> GatewayProtocol:
            return GatewayProtocol(
                self.config, self.server_state, self._link, self._open, slot, self._seconds
            )

        self.servers = []
        self._acceptors = [
            GatewayAcceptor(sock, make, self._open, self._tls, self._seconds)
            for sock in sockets or []
        ]
        self.started = True

    async def on_tick(self, counter: int) -> bool:
        """Return True if the server must end, because it is idle or the broker has asked it to end.

        uvicorn calls this method.
        """
        idle_since = self._open.idle_since
        now = asyncio.get_running_loop().time()
        idle = idle_since is not None and now - idle_since >= IDLE_SECONDS
        if await super().on_tick(counter) or idle or self._link.draining.is_set():
            for acceptor in self._acceptors:
                acceptor.close()
            return True
        return False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers: the gateway ignores signals, and the broker ends it."""
        yield
