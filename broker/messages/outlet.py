"""The output buffer of a connection: the bytes that deliveries write during one turn.

Backpressure begins here: if the client reads more slowly than queues deliver, the outlet refuses
deliveries, and messages wait in their queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

#: Size of an outlet's buffer in bytes at which queues stop delivering to the outlet in this turn.
#: So a long queue drains in slices that fit into the processor's cache, and the buffer stays small.
TURN_BYTES: Final[i64] = 1 << 18
#: Bodies from this size on, in bytes, are sent without being copied into the buffer.
LARGE_BODY: Final[i64] = 1 << 14


#: The value of `Outlet._parts` in all outlets without parts: one shared list, never changed.
_NO_PARTS: Final[list[bytes]] = []


class Sender:
    """Sends the output of an outlet, for example over a socket. This base class sends nothing.

    This is a base class and not a Protocol, because compiled code calls methods of a base class
    faster. An outlet refers to one object and not to its bound methods, because each bound method
    takes 64 bytes for each connection.
    """

    def output_ready(self) -> None:
        """Send the output soon: the outlet has got its first output of this turn."""

    def backlog(self) -> int:
        """Return the size in bytes of the output that left the outlet and is not sent yet."""
        return 0

    def local_address(self) -> tuple[str, int]:
        """Return the address and port of this machine to which the client has connected; ("", 0)
        for a Unix socket, and without a socket.
        """
        return "", 0

    def deadline_set(self, when: i64) -> None:
        """Call the connection's `advance` at the time `when`, in ms of Agenda.now."""


class FunctionSender(Sender):
    """Calls a function when an outlet without a socket gets output."""

    def __init__(self, function: Callable[[], object]) -> None:
        self._function = function

    def output_ready(self) -> None:
        self._function()


#: The sender of all outlets that are not connected yet.
_NO_SENDER: Final = Sender()


class Outlet:
    """The output buffer of one connection.

    `sender` sends the output. `out` is the buffer of this turn. `_parts` are finished buffers and
    large bodies, which are sent before `out` and without being copied.
    """

    def __init__(self) -> None:
        self.out = BytesWriter()
        self.sender = _NO_SENDER
        self.dirty = False
        self.paused = False
        self.deliveries_paused = False
        self.bytes_out: i64 = 0
        self._parts = _NO_PARTS
        self._parts_size: i64 = 0

    def open(self) -> bool:
        """True if queues may deliver to this connection now.

        If the result is False, `deliveries_paused` is set, so that `resume_deliveries` is called
        when the connection accepts deliveries again.
        """
        if self.paused or len(self.out) + self._parts_size >= TURN_BYTES:
            self.deliveries_paused = True
            return False
        return True

    def client_names(self) -> tuple[str, ...]:
        """Return the client's names for operators: its identifier and its address."""
        return ()

    def touch(self) -> None:
        """Tell the sender, at most once per turn, that there is output to send."""
        if not self.dirty:
            self.dirty = True
            self.sender.output_ready()

    def attach(self, data: bytes) -> None:
        """Append bytes, such as a large body, to the output without copying them."""
        out = self.out
        if len(out) > 0:
            self._close_buffer()
        self._add_part(data)

    def _close_buffer(self) -> None:
        """Append the contents of the buffer `out` to `_parts`, and empty the buffer."""
        data = self.out.getvalue()
        self.out.truncate(0)
        self._add_part(data)

    def _add_part(self, data: bytes) -> None:
        """Append bytes to `_parts`."""
        if self._parts is _NO_PARTS:
            self._parts = [data]
        else:
            self._parts.append(data)
        self._parts_size += len(data)
        self.bytes_out += len(data)

    def parts_to_send(self) -> list[bytes]:
        """Return the bytes that were collected, in order, and empty the outlet. The caller must not
        change the list.

        If queues stopped delivering because the buffer was full, schedule their drains again.
        """
        self.dirty = False
        if len(self.out) > 0:
            self._close_buffer()
        parts, self._parts = self._parts, _NO_PARTS
        self._parts_size = 0
        if self.deliveries_paused and not self.paused:
            self.deliveries_paused = False
            self.resume_deliveries()
        return parts

    def data_to_send(self) -> bytes:
        """Return the result of `parts_to_send` as one bytes object."""
        return b"".join(self.parts_to_send())

    def pause_writing(self) -> None:
        """Refuse deliveries, because the client reads more slowly than the broker writes."""
        self.paused = True

    def resume_writing(self) -> None:
        """Accept deliveries again, because the client has read enough."""
        self.paused = False
        if self.deliveries_paused:
            self.deliveries_paused = False
            self.resume_deliveries()

    def resume_deliveries(self) -> None:
        """Schedule a drain of every queue that delivers to this connection."""
        raise NotImplementedError

    def resume_publishing(self) -> None:
        """Read the publisher's connection again, after a pause because of too many dead letters."""
        raise NotImplementedError

    def unblock(self) -> None:
        """Read the connection again, because the alarm that blocked it is over."""
        raise NotImplementedError
