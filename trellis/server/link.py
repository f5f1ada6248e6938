"""A link ties a transport to a connection.

Quacks like asyncio.Protocol, so that it can be compiled.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mypy_extensions import i64

from protocols.connection import HELD_MAX, SHUTDOWN, Connection, Peer
from trellis.server.listener_context import ListenerContext
from trellis.server.turn import TurnLink

#: Milliseconds that a finished connection's peer has to take our last words and hang up.
LINGER_MS: Final = 2_000
#: Seconds that a peer who asked for the end has to read our answer and hang up. (lapin takes an end
#: that comes with the answer for an error.)
ANSWER_S: Final = 0.1
#: How many answers of the largest size a client may leave unread, beyond the mark at which queues
#: stop: in octets.
UNREAD: Final = 4


class Link(TurnLink):
    """Between one socket and one connection.

    A finished connection is half-closed first: were the socket closed with input unread, the peer's
    kernel would throw our last words away (RFC 1122 section 4.2.2.13).
    """

    def __init__(self, entrance: ListenerContext) -> None:
        self._entrance = entrance
        self._turn = entrance.turn
        self._admission = entrance.admission
        self._unread_max = entrance.high_mark + UNREAD * entrance.front.broker.limits.message
        self._connection: Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._linger_until: i64 = 0
        self._reading = True
        #: What came from a client that has not logged in, or in a turn that had no time for it, and
        #: was not heard yet.
        self._unread_input: bytes | None = None
        #: Whether the turn knows that input is left over.
        self._behind = False

    def _wake(self) -> None:
        self._turn.dirty(self)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._turn.schedule()
        self._enter(transport, self._entrance.peer(transport))

    def _enter(self, transport: asyncio.Transport, peer: Peer) -> None:
        """It is known who comes: a connection, unless it is turned away."""
        reason = self._admission.judge(peer.address, peer.local, len(self._turn.links))
        if reason:
            transport.abort()
            return
        transport.set_write_buffer_limits(self._entrance.high_mark)
        self._transport = transport
        connection = self._connection = self._entrance.front.connect(peer)
        connection.wake = self._wake
        connection.backlog = transport.get_write_buffer_size
        self._admission.enter(connection)
        self._turn.links[self] = None

    def data_received(self, data: bytes) -> None:
        """Hot path, once per chunk."""
        connection = self._connection
        if connection is None:
            return
        self._turn.schedule()
        if connection.admitted or connection.finished or len(data) > HELD_MAX:
            if self._unread_input is not None or self._turn.full(len(data)):
                self._unread_input = (
                    data if self._unread_input is None else self._unread_input + data
                )
                self._pause_reading()
                if not self._behind:
                    self._behind = True
                    self._turn.behind(self)
            else:
                self._receive(connection, data)
        else:
            # One chunk waits; the next is not read before this one is heard.
            self._unread_input = data if self._unread_input is None else self._unread_input + data
            self._pause_reading()
            self._turn.wait(self)

    def read_waiting(self) -> None:
        """The turn has time for what waited."""
        data, self._unread_input = self._unread_input, None
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or data is None:
            return
        self._receive(connection, data)
        if not connection.behind and not connection.stalled:
            self._resume_reading(transport)

    def _receive(self, connection: Connection, data: bytes) -> None:
        connection.receive_data(data)
        if connection.finished:
            self._end(connection)
        elif connection.behind or connection.stalled:
            self._pause_reading()
            self._leave_over(connection)
        elif (connection.persists or self._turn.recording) and self._turn.backlogged:
            # The disk is slower than this publisher: what it sends next waits at its end.
            self._pause_reading()
            self._behind = True
            self._turn.crowd(self)

    def _end(self, connection: Connection) -> None:
        """The connection is finished: hang up after a flush, also when there is nothing to say."""
        if not self._linger_until and not connection.dirty:
            connection.touch()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        if self._connection is not None:
            self._connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._turn.schedule()
        self._transport = None
        self._turn.links.pop(self, None)
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._turn.full(0):
                self._turn.on_closed(connection)
            else:
                connection.on_closed()
            self._admission.leave(connection)

    # -- the turn

    def flush(self) -> None:
        """Send what was collected: one write per turn. Hot path."""
        connection = self._connection
        if connection is None:
            return
        parts = connection.parts_to_send()
        transport = self._transport
        if transport is None:
            return
        if len(parts) == 1:
            transport.write(parts[0])
        elif parts:
            transport.writelines(parts)
        self._settle(connection, transport)

    def _settle(self, connection: Connection, transport: asyncio.Transport) -> None:
        """After a write: hang up, give up, or come back to what is left over."""
        if connection.finished:
            self._close_transport(connection, transport)
        elif connection.paused and transport.get_write_buffer_size() > self._unread_max:
            # Queues have stopped long ago: it asks and asks, and reads no answer.
            connection.abort("reads_nothing")
            transport.abort()
        elif not self._reading:
            self._leave_over(connection)

    def _close_transport(self, connection: Connection, transport: asyncio.Transport) -> None:
        if self._linger_until:
            return
        self._linger_until = self._turn.now() + LINGER_MS
        if transport.is_closing():
            return
        self._unread_input = None
        self._resume_reading(transport)
        if connection.answers_last:
            asyncio.get_running_loop().call_later(ANSWER_S, self._half_close, connection)
        else:
            self._half_close(connection)

    def _half_close(self, connection: Connection) -> None:
        """Say that nothing more comes."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._last_words(connection, transport)
        try:
            transport.write_eof()
        except (OSError, NotImplementedError):
            transport.abort()  # The peer hung up first, and asyncio says so.

    def _last_words(self, connection: Connection, transport: asyncio.Transport) -> None:
        """What is to be said beyond what the connection said: nothing."""

    def resume(self) -> None:
        """Go on with input that was left over."""
        self._behind = False
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or self._reading:
            return
        if self._unread_input is not None:
            self.read_waiting()
            return
        connection.resume()
        if connection.finished:
            self._end(connection)
        elif connection.behind:
            self._leave_over(connection)
        elif not connection.stalled:
            self._resume_reading(transport)

    def advance(self, now: int) -> None:
        connection = self._connection
        if connection is None:
            return
        if connection.finished:
            if 0 < self._linger_until <= now and self._transport is not None:
                self._transport.abort()
            return
        if 0 < connection.expires <= now:
            connection.expires = 0
            connection.review()
        if 0 < connection.deadline <= now and not connection.finished:
            connection.advance(now)

    def shut_down(self) -> None:
        """The broker stops. May be said again; one who has gone already is not told."""
        connection = self._connection
        if connection is not None and not connection.finished:
            connection.close(SHUTDOWN)

    def abort(self) -> None:
        """The broker waits no longer."""
        if self._transport is not None:
            self._transport.abort()

    def _pause_reading(self) -> None:
        transport = self._transport
        if self._reading and transport is not None and not transport.is_closing():
            self._reading = False
            transport.pause_reading()

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        if not self._reading and not transport.is_closing():
            self._reading = True
            transport.resume_reading()

    def _leave_over(self, connection: Connection) -> None:
        """Have the turn come back to input that is left over: once, however many ask."""
        if not self._behind and not connection.stalled and self._unread_input is None:
            self._behind = True
            self._turn.behind(self)
