"""Layered links: a PROXY header, TLS and WebSocket between the transport and the connection.

    transport -> [PROXY header] -> [TLS] -> [WebSocket] -> connection
    transport <-                   [TLS] <- [WebSocket] <- connection

A listener may use any combination. The PROXY header only carries the client's address, and is read
once, before the connection is opened. The connection's deadline for the login also covers the
handshakes of TLS and WebSocket. Input of these handshakes waits in the login queue, as all input
before a login does.

While a connection must wait, its link keeps two things that it has already read from the socket:
input that the layers have not decoded yet, and the end of a layer (such as close_notify of TLS)
after waiting input. A plain link stops reading, so waiting input and its end stay in the kernel.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mypy_extensions import i64

from protocols.connection import Connection
from protocols.layer import Layer
from protocols.peer import Peer
from protocols.proxy import HEADER_MAX, BadHeader, read_header
from trellis.server.link import Link
from trellis.server.listener_context import ListenerContext
from trellis.server.turn import SMALL_CHUNK

#: Reasons of an orderly end, which comes after all input of the client: close_notify of TLS, and a
#: close frame of WebSocket.
_ORDERLY: Final = ("lost", "websocket_closed")


class LayeredLink(Link):
    """The link of a client whose listener reads PROXY headers, or speaks TLS or WebSocket."""

    def __init__(self, context: ListenerContext) -> None:
        super().__init__(context)
        self._layers: list[Layer] = []
        #: The part of a PROXY header that was received so far; None when no header is awaited.
        self._header: bytes | None = None
        self._header_until: i64 = 0
        #: Input that the layers have not decoded, because the connection or the turn had no time.
        self._undecoded = b""
        #: Reason for which a layer has ended while the connection had input left over; "" if none.
        self._over = ""

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Open a connection, or await the PROXY header if the peer is a trusted proxy."""
        self._turn.schedule()
        peer = self._context.peer(transport)
        if not self._context.is_proxy(peer):
            self._open(transport, peer)
            return
        # Limits per address apply to the client's address, which the header contains. The limit on
        # all connections applies already.
        if self._context.admission.refusal_reason(peer.address, True, len(self._turn.links)):
            self.reject(transport)
            return
        self._header = b""
        self._header_until = self._turn.now() + self._context.handshake_ms
        self._transport = transport
        self._turn.add_link(self, self._header_until)

    def _open(self, transport: asyncio.Transport, peer: Peer) -> None:
        super()._open(transport, peer)
        if self._connection is not None:
            self._layers = self._context.layers(peer)

    def data_received(self, data: bytes) -> None:
        """Handle a chunk of input: first the PROXY header, if the link awaits one."""
        if self._header is not None:
            self._turn.schedule()
            data = self._read_header(self._header + data)
        if data:
            super().data_received(data)

    def _read_header(self, data: bytes) -> bytes:
        """Open the connection once the PROXY header is complete.

        Return the input behind the header; b"" if the header is incomplete or malformed.
        """
        transport = self._transport
        if transport is None or transport.is_closing():
            return b""
        try:
            size, address = read_header(data)
            if size == 0 and len(data) > HEADER_MAX:
                raise BadHeader
        except BadHeader:
            self._header = None
            self._context.admission.count_refusal(
                "proxy_header", self._context.peer(transport).address
            )
            self.reject(transport)
            return b""
        if size == 0:
            self._header = data
            return b""
        self._header = None
        self._turn.remove_link(self)
        peer = self._context.peer(transport)
        self._transport = None
        if address is not None:
            peer = self._context.proxied_peer(address, peer)
        self._open(transport, peer)
        return data[size:]

    def _receive(self, connection: Connection, data: bytes) -> None:
        """Pass input through the layers to the connection. Hot path, once per chunk."""
        if self._undecoded:
            data = self._undecoded + data
            self._undecoded = b""
        layers = self._layers
        at: i64 = 0
        size: i64 = len(data)
        # A finished connection handles no input, so there is no need to decode it.
        while at < size and not connection.finished:
            start: i64 = at
            at = layers[0].piece_end(data, start) if layers else size
            self._decode(connection, data if at - start == size else data[start:at])
            if at < size and self._must_wait(connection):
                self._keep_undecoded(connection, data[at:])
                return

    def _decode(self, connection: Connection, data: bytes) -> None:
        """Pass one piece of input through the layers to the connection."""
        over = ""
        for layer in self._layers:
            if data:
                data = layer.receive(data)
            if layer.speaks:
                connection.touch()
            over = over or layer.over
        if data:
            super()._receive(connection, data)
        if not over or connection.finished:
            return
        if over in _ORDERLY and (connection.behind or connection.stalled):
            # The end of the input waits behind the input, which the connection must handle first.
            self._over = over
            self._pause_reading()
        else:
            self._end(connection, over)

    def _end(self, connection: Connection, reason: str) -> None:
        """End the connection, because a layer has ended."""
        self._log_refusal(connection)
        connection.on_closed(reason)
        self._close_after_flush(connection)

    def _must_wait(self, connection: Connection) -> bool:
        """True if the rest of a chunk must wait for the connection, or for another turn."""
        return (
            self._in_leftover
            or connection.behind
            or connection.stalled
            or not connection.admitted
            or self._turn.has_no_input_time(SMALL_CHUNK + 1)
        )

    def _keep_undecoded(self, connection: Connection, rest: bytes) -> None:
        """Keep the rest of a chunk until it may be decoded, unless the connection has ended."""
        if connection.finished or self._over:
            return
        self._pause_reading()
        if connection.admitted or connection.behind or connection.stalled:
            connection.check_login_input(len(rest))
            if not connection.finished:
                self._undecoded = rest
                self._add_leftover(connection)
        else:
            self._unread_input = rest
            self._turn.add_to_login_queue(self)

    def resume(self) -> None:
        """Handle leftover input, then input that is not decoded yet, then the end of a layer."""
        super().resume()
        connection, transport = self._connection, self._transport
        if (
            connection is None
            or transport is None
            or connection.finished
            or self._in_leftover
            or connection.behind
            or connection.stalled
        ):
            return
        if self._undecoded:
            try:
                self._receive(connection, b"")
            except Exception as error:  # noqa: BLE001  the other links must get their turn
                self._fail(connection, error)
            if not connection.behind and not connection.stalled and not self._in_leftover:
                self._resume_reading(transport)
        elif self._over:
            self._end(connection, self._over)

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        """Read from the client again, unless the link still holds input or the end of the input."""
        connection = self._connection
        if connection is None or connection.finished:
            self._undecoded = b""  # A finished connection handles no input.
        elif self._undecoded or self._over or self._unread_input is not None:
            return
        super()._resume_reading(transport)

    def _log_refusal(self, connection: Connection) -> None:
        """Log why a layer has refused the client; log nothing if the client ended the stream."""
        for layer in self._layers:
            if layer.refusal and connection.admitted:
                connection.front.log_end(connection, layer.refusal)
            elif layer.refusal:
                connection.front.log_refusal("connection_refused", connection, layer.refusal)

    def flush(self) -> None:
        """Send the collected output through the layers in one write. Hot path, once per turn."""
        connection, transport = self._connection, self._transport
        if connection is None:
            return
        parts = connection.parts_to_send()
        if transport is None:
            return
        self._write(transport, parts)
        self._after_write(connection, transport)

    def _write(self, transport: asyncio.Transport, parts: list[bytes]) -> None:
        """Encode output with every layer, and write the result to the transport at once."""
        layers = self._layers
        at: i64 = len(layers) - 1
        while at >= 0:
            layer = layers[at]
            if parts or layer.speaks:
                parts = layer.send(parts)
            at -= 1
        if len(parts) == 1:
            transport.write(parts[0])
        elif parts:
            transport.writelines(parts)

    def _close_layers(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Write the closing message of each layer, from the top down."""
        layers = self._layers
        at: i64 = len(layers) - 1
        while at >= 0:
            layers[at].close(connection.reason)
            self._write(transport, [])
            at -= 1

    def advance(self, now: int) -> None:
        """Handle the client's deadlines that have passed, also the deadline of the PROXY header.

        `now` is the time in ms.
        """
        if self._header is None:
            super().advance(now)
        elif self._header_until <= now:
            self._header = None
            transport = self._transport
            if transport is not None:
                address = self._context.peer(transport).address
                self._context.admission.count_refusal("proxy_header", address)
            self.abort()

    def next_deadline(self) -> i64:
        return super().next_deadline() if self._header is None else self._header_until

    def excuse(self, pause: int) -> None:
        """Move the client's deadlines `pause` ms later, also the deadline of the PROXY header."""
        self._header_until += pause
        super().excuse(pause)

    def close(self) -> None:
        """Close the connection in an orderly way; abort a link that awaits a PROXY header."""
        if self._header is None:
            super().close()
        else:
            self.abort()

    def on_closed(self) -> None:
        """Release the connection and its layers, because the transport is closed.

        A transport that closes before its PROXY header is complete counts as refused. The log does
        not show this refusal: proxies open and close such connections to test whether the broker
        runs.
        """
        connection = self._connection
        if self._header is not None:
            self._header = None
            self._context.admission.count_refusal("proxy_header")
        super().on_closed()
        for layer in self._layers:
            layer.on_closed(connection.reason or "lost" if connection is not None else "lost")
        self._layers = []
