"""Links: a link joins the transport of one client and the client's connection.

A link has the methods of asyncio.Protocol, but not the base class, so that it can be compiled. The
table shows the ways in which a link ends. The rows are events, the columns the states of a link.
Only a LayeredLink (`layered_link.py`) awaits a PROXY header.

    event               awaiting header     open                     finished             closed
    close()             abort()             connection.close()       -                    -
    abort()             transport aborted   transport aborted        transport aborted    -
    reject()            transport aborted   -                        -                    -
    on_closed()         refusal counted     connection.on_closed()   no effect            -
    connection finishes -                   flush, half-close        -                    -
    client reads        -                   connection.abort(),      -                    -
      nothing                               transport aborted
    deadline            abort()             connection.advance()     abort()              -

    close       the broker stops: the connection tells its client, as far as the protocol can
    abort       close the transport at once; unsent output is lost
    reject      abort a transport that gets no connection: too many are open, or a bad PROXY header
    on_closed   the transport is closed, by either side (asyncio's `connection_lost`)

A finished connection (an orderly end, a protocol error, an operator's request) is flushed and then
half-closed: after a full close with input unread, the client's kernel would discard the last output
(RFC 1122 section 4.2.2.13). The client has LINGER_MS to close its side.
"""

from __future__ import annotations

import asyncio
from typing import Final

from mypy_extensions import i64

from protocols.connection import Connection
from protocols.end_reasons import INTERNAL_ERROR, INTERNAL_ERROR_TEXT, SHUTDOWN
from protocols.login_input import LOGIN_INPUT_MAX
from protocols.peer import Peer
from trellis.server.listener_context import ListenerContext
from trellis.server.turn_link import TurnLink

#: Milliseconds that the client of a finished connection has to read the last output and close.
LINGER_MS: Final = 2_000
#: Seconds between the answer to a client's request to close and the half-close. (The client library
#: lapin reports an error if the end of input arrives together with that answer.)
CLOSE_DELAY: Final = 0.1


class Link(TurnLink):
    """The link between the transport of one client and its connection.

    Backpressure works in both directions. Towards the broker, the link stops reading from the
    transport while the connection has input left over, waits for a login or for the store, or while
    the disk is slower than this publisher. Towards the client, asyncio calls `pause_writing` once
    the transport holds more than `backpressure_bytes`, and the connection gets no more deliveries.
    """

    def __init__(self, context: ListenerContext) -> None:
        super().__init__()
        self._context = context
        self._turn = context.turn
        self._connection: Connection | None = None
        self._transport: asyncio.Transport | None = None
        self._linger_until: i64 = 0
        # Compiled code stores flags that are assigned one after the other in the same 8 bytes.
        self._reading = True
        #: True while this link is in the turn's list of links with leftover input.
        self._in_leftover = False
        #: Input not yet handled, because the client has not logged in or the turn had no time for
        #: it.
        self._unread_input: bytes | None = None

    # -- the sender of the connection's output

    def output_ready(self) -> None:
        self._turn.add_dirty(self)

    def backlog(self) -> int:
        return 0 if self._transport is None else int(self._transport.get_write_buffer_size())

    def local_address(self) -> tuple[str, int]:
        name = None if self._transport is None else self._transport.get_extra_info("sockname")
        if isinstance(name, tuple) and len(name) >= 2:
            return str(name[0]), int(name[1])
        return "", 0

    def deadline_set(self, when: i64) -> None:
        if self._connection is not None:
            self._turn.deadlines.enter(self, when)

    # -- asyncio.Protocol

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Open a connection for a new transport, unless the connection limits refuse it."""
        self._turn.schedule()
        self._open(transport, self._context.peer(transport))

    def _open(self, transport: asyncio.Transport, peer: Peer) -> None:
        """Open the connection of a peer, unless the connection limits refuse the peer."""
        if self._context.admission.refusal_reason(peer.address, peer.local, len(self._turn.links)):
            self.reject(transport)
            return
        transport.set_write_buffer_limits(self._context.backpressure_bytes)
        self._transport = transport
        connection = self._connection = self._context.front.connect(peer)
        connection.sender = self
        self._context.admission.add(connection)
        self._turn.add_link(self, connection.deadline)

    def data_received(self, data: bytes) -> None:
        """Handle a chunk of input, or keep it for a later turn. Hot path, once per chunk."""
        connection = self._connection
        if connection is None:
            return
        self._turn.schedule()
        if connection.admitted or connection.finished or len(data) > LOGIN_INPUT_MAX:
            if self._unread_input is not None or self._turn.has_no_input_time(len(data)):
                self._unread_input = (
                    data if self._unread_input is None else self._unread_input + data
                )
                self._pause_reading()
                if not self._in_leftover:
                    self._in_leftover = True
                    self._turn.add_leftover(self)
            else:
                try:
                    self._receive(connection, data)
                except Exception as error:  # noqa: BLE001  the client must get a reason
                    self._fail(connection, error)
        elif self._unread_input is None:
            # This chunk waits for its turn. If the present turn has no time for it, the turn calls
            # `hold_input`, and the link reads the next chunk after this chunk is handled.
            self._unread_input = data
            self._turn.add_to_login_queue(self)
        else:
            self._unread_input += data
            self._pause_reading()

    def hold_input(self) -> None:
        self._pause_reading()

    def handle_unread_input(self) -> None:
        """Handle the stored input that `data_received` did not handle at once."""
        data, self._unread_input = self._unread_input, None
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or data is None:
            return
        try:
            self._receive(connection, data)
        except Exception as error:  # noqa: BLE001  the other links must get their turn
            self._fail(connection, error)
        if not connection.behind and not connection.stalled and not self._in_leftover:
            self._resume_reading(transport)

    def _receive(self, connection: Connection, data: bytes) -> None:
        """Pass input to the connection, then stop reading if the client must wait."""
        connection.receive_data(data)
        if connection.finished:
            self._close_after_flush(connection)
        elif connection.behind or connection.stalled:
            self._pause_reading()
            self._add_leftover(connection)
        elif (connection.persists or self._turn.journaling) and self._turn.backlogged:
            # Backpressure: the disk is slower than this publisher, so its next input is not read.
            self._pause_reading()
            self._in_leftover = True
            self._turn.add_backlogged(self)

    def _fail(self, connection: Connection, error: Exception) -> None:
        """Close a connection because of an unexpected exception in its work, and log the error."""
        message = (
            f"{connection.front.name} connection of {connection.peer} is closed: "
            "unexpected exception while its input was handled"
        )
        loop = asyncio.get_running_loop()
        loop.call_exception_handler({"message": message, "exception": error})
        try:
            connection.close(INTERNAL_ERROR, INTERNAL_ERROR_TEXT)
        except Exception as failure:  # noqa: BLE001  the transport must close in any case
            loop.call_exception_handler({"message": message, "exception": failure})
            self.abort()
        if connection.finished:
            self._close_after_flush(connection)

    def _close_after_flush(self, connection: Connection) -> None:
        """Schedule a flush of a finished connection: the flush half-closes its transport."""
        if not self._linger_until and not connection.dirty:
            connection.touch()

    def eof_received(self) -> bool:
        """Return False: asyncio closes the transport once the client has closed its side."""
        return False

    def pause_writing(self) -> None:
        """Begin backpressure: the client reads too slowly to get more deliveries."""
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """End backpressure: the client has caught up."""
        if self._connection is not None:
            self._connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        """Handle the end of the transport (asyncio's name for `on_closed`)."""
        self._turn.schedule()
        self.on_closed()

    # -- the turn

    def flush(self) -> None:
        """Send the collected output in one write. Hot path, once per turn."""
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
        self._after_write(connection, transport)

    def _after_write(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Close a finished or unread connection, or resume leftover input.

        A connection is unread if its client reads nothing while the output grows.
        """
        if connection.finished:
            self._close_transport(connection, transport)
        elif connection.paused and transport.get_write_buffer_size() > self._context.unread_max:
            # Deliveries stopped long ago, so this output consists of answers to requests of the
            # client, which does not read them.
            connection.abort("reads_nothing")
            transport.abort()
        elif not self._reading:
            self._add_leftover(connection)

    def _close_transport(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Half-close the transport of a finished connection; the client has LINGER_MS to close."""
        if self._linger_until:
            return
        self._linger_until = self._turn.now() + LINGER_MS
        self.deadline_set(self._linger_until)
        if transport.is_closing():
            return
        self._unread_input = None
        self._resume_reading(transport)
        if connection.answers_last:
            asyncio.get_running_loop().call_later(CLOSE_DELAY, self._half_close, connection)
        else:
            self._half_close(connection)

    def _half_close(self, connection: Connection) -> None:
        """Close the sending side of the transport; the client's input is still read."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        self._close_layers(connection, transport)
        try:
            transport.write_eof()
        except (OSError, NotImplementedError):
            transport.abort()  # asyncio raises an error if the client has closed its side first.

    def _close_layers(self, connection: Connection, transport: asyncio.Transport) -> None:
        """Write the closing messages of layers; a plain link has no layers."""

    def resume(self) -> None:
        """Handle leftover input, then read from the client again unless the client must wait."""
        self._in_leftover = False
        connection, transport = self._connection, self._transport
        if connection is None or transport is None or self._reading:
            return
        if self._unread_input is not None:
            self.handle_unread_input()
            return
        try:
            connection.resume()
        except Exception as error:  # noqa: BLE001  the other links must get their turn
            self._fail(connection, error)
        if connection.finished:
            self._close_after_flush(connection)
        elif connection.behind:
            self._add_leftover(connection)
        elif not connection.stalled:
            # The broker did not read from the client for a while. So the time without input,
            # which the keep-alive limits, begins now.
            connection.last_input_at = connection.agenda.now
            self._resume_reading(transport)

    def advance(self, now: int) -> None:
        """Handle deadlines that have passed at time `now`, in ms."""
        connection = self._connection
        if connection is None:
            return
        if connection.finished:
            if 0 < self._linger_until <= now:
                self.abort()
            return
        if 0 < connection.expires <= now:
            connection.expires = 0
            connection.reauthorize()
        if not self._reading:
            # Input may wait in the socket, so the client counts as active.
            connection.last_input_at = now
        if 0 < connection.deadline <= now and not connection.finished:
            connection.advance(now)

    def next_deadline(self) -> i64:
        connection = self._connection
        if connection is None:
            return 0
        if connection.finished:
            return self._linger_until
        deadline, expires = connection.deadline, connection.expires
        return expires if deadline == 0 or 0 < expires < deadline else deadline

    def excuse(self, pause: int) -> None:
        """Move the client's deadlines `pause` ms later, because no input was read for this time."""
        if self._linger_until:
            self._linger_until += pause
        if self._connection is not None:
            self._connection.excuse(pause)

    # -- the four ways to end, as in the table above

    def close(self) -> None:
        """Close the connection in an orderly way, because the broker stops.

        The caller may repeat the call until the connection has ended.
        """
        connection = self._connection
        if connection is not None and not connection.finished:
            connection.close(SHUTDOWN)

    def abort(self) -> None:
        """Close the transport at once; unsent output is lost."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def unsent(self) -> int:
        return 0 if self._connection is None else self._connection.unsent

    @property
    def descriptor(self) -> int:
        sock = None if self._transport is None else self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    @property
    def label(self) -> str:
        connection = self._connection
        if connection is None:
            return ""
        user = connection.describe()["user"]
        return f"{connection.front.name}:{connection.peer}" + (f":{user}" if user else "")

    def reject(self, transport: asyncio.Transport) -> None:
        """Abort the transport of a client that gets no connection.

        The caller has counted the refusal with its reason (`Admission.refused`).
        """
        transport.abort()

    def on_closed(self) -> None:
        """Release the connection: the transport is closed, by the client, the broker or an error.

        `on_closed` of the connection is called now, or in the next turn if this turn has no time
        left.
        """
        self._transport = None
        self._turn.remove_link(self)
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._turn.has_no_input_time(0):
                self._turn.on_closed(connection)
            else:
                connection.on_closed()
            self._context.admission.remove(connection)

    # -- backpressure towards the client's writes

    def _pause_reading(self) -> None:
        transport = self._transport
        if self._reading and transport is not None and not transport.is_closing():
            self._reading = False
            transport.pause_reading()

    def _resume_reading(self, transport: asyncio.Transport) -> None:
        if not self._reading and not transport.is_closing():
            self._reading = True
            transport.resume_reading()

    def _add_leftover(self, connection: Connection) -> None:
        """Add this link to the turn's list of links with leftover input, unless it is there."""
        if not self._in_leftover and not connection.stalled and self._unread_input is None:
            self._in_leftover = True
            self._turn.add_leftover(self)
