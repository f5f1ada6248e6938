"""The sending side of a connection as the core sees it: octets collected during one turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from librt.strings import BytesWriter
from mypy_extensions import i64

#: Octets collected in one turn before queues stop delivering to an outlet. A backlog then drains in
#: slices that stay in the processor's cache, and its memory does not depend on its length.
TURN_BYTES: Final[i64] = 1 << 18
#: Octets from which a body is sent as a part of its own instead of being copied.
LARGE_BODY: Final[i64] = 1 << 14


def _ignore() -> None:
    """Wakes nobody: an outlet without a server, as in tests."""


class Outlet:
    """Where deliveries are written. `wake` is called once per turn, when the first octets come.

    out      octets of this turn, in one buffer          parts    what stands before them: older
                                                                  buffers and large bodies, as they are
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
        """Whether a queue may deliver now. A refusal is remembered, and answered by `unchoke`."""
        if self.paused or len(self.out) + self._parts_size >= TURN_BYTES:
            self.deliveries_paused = True
            return False
        return True

    def touch(self) -> None:
        """Say that there is something to send."""
        if not self.dirty:
            self.dirty = True
            self.wake()

    def attach(self, data: bytes) -> None:
        """Send these octets next without copying them."""
        out = self.out
        if len(out) > 0:
            self._close_buffer()
        self._parts.append(data)
        self._parts_size += len(data)
        self.bytes_out += len(data)

    def _close_buffer(self) -> None:
        """Close the buffer; what comes after it is another part."""
        octets = self.out.getvalue()
        self.out.truncate(0)
        self._parts.append(octets)
        self._parts_size += len(octets)
        self.bytes_out += len(octets)

    def parts_to_send(self) -> list[bytes]:
        """Take what was collected, in order. What was refused for lack of room may come now."""
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
        """`parts_to_send` as one."""
        return b"".join(self.parts_to_send())

    def pause_writing(self) -> None:
        """The peer reads more slowly than we write."""
        self.paused = True

    def resume_writing(self) -> None:
        self.paused = False
        if self.deliveries_paused:
            self.deliveries_paused = False
            self.resume_deliveries()

    def resume_deliveries(self) -> None:
        """Stir every queue that delivers here."""
        raise NotImplementedError

    def unblock(self) -> None:
        """The alarm for which this connection waits is over."""
        raise NotImplementedError
