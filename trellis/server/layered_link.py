"""A link with layers: between its socket and its connection stand a PROXY header, TLS, WebSocket,
or several of them.

    socket -> [PROXY header] -> [TLS] -> [WebSocket] -> connection -> [WebSocket] -> [TLS] -> socket

The header only says who is there, and is gone. Only then is there a connection; its time for the
login covers the handshakes of the layers, and they wait in the lobby like every word of somebody
who has not logged in.
"""

from __future__ import annotations

import asyncio

from mypy_extensions import i64

from protocols.connection import Connection, Peer
from protocols.layer import Layer
from protocols.proxy import HEADER_MAX, BadHeader, read_header
from trellis.server.link import Link
from trellis.server.listener_context import ListenerContext


class LayeredLink(Link):
    """Between one socket and one connection, with what the entrance asks for in between."""

    def __init__(self, entrance: ListenerContext) -> None:
        super().__init__(entrance)
        self._layers: list[Layer] = []
        #: What came of a PROXY header; None when there is none to come.
        self._header: bytes | None = None
        self._header_until: i64 = 0

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._turn.schedule()
        peer = self._entrance.peer(transport)
        if not self._entrance.is_proxy(peer):
            self._enter(transport, peer)
            return
        # Whoever the proxy brings is judged when it has said whom. The proxy itself is known, but
        # has a bound, too.
        if self._admission.judge("", True, len(self._turn.links)):
            transport.abort()
            return
        self._header = b""
        self._header_until = self._turn.now() + self._entrance.handshake_ms
        self._transport = transport
        self._turn.links[self] = None

    def _enter(self, transport: asyncio.Transport, peer: Peer) -> None:
        super()._enter(transport, peer)
        if self._connection is not None:
            self._layers = self._entrance.layers(peer)

    def data_received(self, data: bytes) -> None:
        if self._header is not None:
            self._turn.schedule()
            data = self._take_header(self._header + data)
        if data:
            super().data_received(data)

    def _take_header(self, data: bytes) -> bytes:
        """Who is there, once the header is complete; returns what came after it."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return b""
        try:
            size, address = read_header(data)
            if size == 0 and len(data) > HEADER_MAX:
                raise BadHeader
        except BadHeader:
            self._header = None
            self._admission.refuse("proxy_header")
            transport.abort()
            return b""
        if size == 0:
            self._header = data
            return b""
        self._header = None
        self._turn.links.pop(self, None)
        peer = self._entrance.peer(transport)
        self._transport = None
        self._enter(transport, peer if address is None else self._entrance.peer_at(address))
        return data[size:]

    def _receive(self, connection: Connection, data: bytes) -> None:
        """Hot path, once per chunk."""
        if connection.finished:
            return  # It is not heard any more, so nobody need understand it.
        over = ""
        for layer in self._layers:
            if data:
                data = layer.receive(data)
            if layer.speaks:
                connection.touch()
            over = over or layer.over
        if data:
            super()._receive(connection, data)
        if over and not connection.finished:
            connection.on_closed(over)
            self._end(connection)

    def flush(self) -> None:
        """Send what was collected. Hot path."""
        connection, transport = self._connection, self._transport
        if connection is None:
            return
        parts = connection.parts_to_send()
        if transport is None:
            return
        self._write(transport, parts)
        self._settle(connection, transport)

    def _write(self, transport: asyncio.Transport, parts: list[bytes]) -> None:
        """One write, whatever stands between."""
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

    def _last_words(self, connection: Connection, transport: asyncio.Transport) -> None:
        """The layers say goodbye, from the top down."""
        layers = self._layers
        at: i64 = len(layers) - 1
        while at >= 0:
            layers[at].close(connection.reason)
            self._write(transport, [])
            at -= 1

    def connection_lost(self, error: Exception | None) -> None:
        connection = self._connection
        if self._header is not None:
            self._header = None
            self._admission.refuse("proxy_header")
            self._turn.schedule()
        super().connection_lost(error)
        for layer in self._layers:
            layer.on_closed(connection.reason or "lost" if connection is not None else "lost")
        self._layers = []

    def shut_down(self) -> None:
        if self._header is None:
            super().shut_down()
        else:
            self.abort()

    def advance(self, now: int) -> None:
        if self._header is None:
            super().advance(now)
        elif self._header_until <= now:
            self.abort()
