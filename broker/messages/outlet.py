"""The output buffer of a connection: the bytes that deliveries write during one turn.

It is where backpressure begins: if the client reads more slowly than queues deliver, the outlet
closes, and messages wait in their queues.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

#: Number of bytes in the buffer above which queues stop delivering to an outlet in this turn. A
#: backlog then drains in slices that fit into the processor's cache, and its memory does not depend
#: on its length.
TURN_BYTES: Final[i64] = 1 << 18
#: Bodies from this size on, in bytes, are sent as a part of their own instead of being copied.
LARGE_BODY: Final[i64] = 1 << 14


def _ignore() -> None:
    """Do nothing: the `wake` of an outlet without a server, as in tests."""


class Outlet:
    """The output buffer of one connection. `wake` is called once per turn, with the first bytes.

    `out` is the buffer of this turn. `_parts` are finished buffers and large bodies that stand
    before it, which are sent without being copied.
    """

    def __init__(self) -> None:
        self.out = BytesWriter()
        self.wake: Callable[[], None] = _ignore
        self.dirty = False
        self.paused = False
        self.deliveries_paused = False
        self.bytes_out: i64 = 0
        self._parts: list[bytes] = []
        self._parts_size: i64 = 0

    def open(self) -> bool:
        """True if queues may deliver to this connection now.

        If not, `deliveries_paused` notes that a queue was refused, and `resume_deliveries` is
        called later.
        """
        if self.paused or len(self.out) + self._parts_size >= TURN_BYTES:
            self.deliveries_paused = True
            return False
        return True

    def touch(self) -> None:
        """Have the server send what was written: call `wake`, once per turn."""
        if not self.dirty:
            self.dirty = True
            self.wake()

    def attach(self, data: bytes) -> None:
        """Send these bytes next, without copying them."""
        out = self.out
        if len(out) > 0:
            self._close_buffer()
        self._parts.append(data)
        self._parts_size += len(data)
        self.bytes_out += len(data)

    def _close_buffer(self) -> None:
        """Append the buffer to the parts, and begin an empty one."""
        data = self.out.getvalue()
        self.out.truncate(0)
        self._parts.append(data)
        self._parts_size += len(data)
        self.bytes_out += len(data)

    def parts_to_send(self) -> list[bytes]:
        """Return the parts that were collected, in order, and remove them.

        Queues that were refused because the buffer was full deliver again.
        """
        self.dirty = False
        if len(self.out) > 0:
            self._close_buffer()
        parts, self._parts = self._parts, []
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

    def unblock(self) -> None:
        """Read the connection again, because the alarm that blocked it is over."""
        raise NotImplementedError
