"""A content that does not come in one piece."""

from __future__ import annotations

from mypy_extensions import i64

from protocols.amqp.codec.contents import FIXED_HEADER
from protocols.amqp.codec.frames import BODY, HEADER
from protocols.amqp.errors import AmqpError


class Assembly:
    """A content that comes frame by frame."""

    def __init__(self, address: bytes, flags: i64) -> None:
        self.address = address
        self.flags: i64 = flags
        #: Octets of the body that are still to come; -1 before the header.
        self.left: i64 = -1
        #: Octets of the body.
        self.size: i64 = 0
        self._content = bytearray()

    def add(self, kind: i64, frame: bytes) -> bool:
        """Take a frame; whether the content is complete now. Raises AmqpError."""
        if kind != (HEADER if self.left < 0 else BODY):
            raise AmqpError(505, "expected content header or body")
        if kind == HEADER:
            if len(frame) < FIXED_HEADER + 8:
                raise AmqpError(501, "content header is cut off")
            if frame[7:9] != b"\x00\x3c":
                raise AmqpError(505, "content header of another class than basic")
            self.size = self.left = int.from_bytes(frame[11:19], "big", signed=True)
            if self.left < 0:
                raise AmqpError(501, "negative body size")
        else:
            self.left -= len(frame) - 8
            if self.left < 0:
                raise AmqpError(501, "body longer than declared")
            if len(frame) == 8:
                return False  # An empty body frame says nothing.
        self._content += frame
        return self.left == 0

    @property
    def held(self) -> i64:
        """Octets that came so far, frames and all."""
        return len(self._content)

    @property
    def content(self) -> bytes:
        return bytes(self._content)
