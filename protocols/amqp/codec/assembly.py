"""Assembles a content whose frames arrive in several chunks of input."""

from __future__ import annotations

from mypy_extensions import i64

from protocols.amqp.codec.contents import FIXED_HEADER
from protocols.amqp.codec.frames import BODY, HEADER, OVERHEAD
from protocols.amqp.errors import AmqpError


class Assembly:
    """A content that arrives frame by frame, with the arguments of its basic.publish.

    `address` is the exchange and routing key as encoded in the method, `flags` are the mandatory
    and immediate bits of the method. `frame_max` is the publisher's frame_max in bytes. A larger
    body frame is accepted, and divided into frames of at most this size.
    """

    def __init__(self, address: bytes, flags: i64, frame_max: i64) -> None:
        self.address = address
        self.flags: i64 = flags
        #: Size of the missing part of the body, in bytes; -1 until the header frame has arrived.
        self.left: i64 = -1
        #: Size of the whole body, in bytes; 0 until the header frame has arrived.
        self.size: i64 = 0
        self._content = bytearray()
        self._room: i64 = frame_max - OVERHEAD

    def add(self, kind: i64, frame: bytes) -> bool:
        """Add a frame to the content; return True if the content is complete.

        `kind` is the type of the frame: HEADER or BODY. The first frame must be a HEADER, every
        later frame a BODY. Raises AmqpError for a frame of the wrong type, or an invalid frame.
        """
        if kind != (HEADER if self.left < 0 else BODY):
            raise AmqpError(505, "content header and body frames are in the wrong order")
        if kind == HEADER:
            if len(frame) < FIXED_HEADER + 8:
                raise AmqpError(501, "content header is cut off")
            if frame[7:9] != b"\x00\x3c":
                raise AmqpError(505, "the class of the content header must be basic (60)")
            self.size = self.left = int.from_bytes(frame[11:19], "big", signed=True)
            if self.left < 0:
                raise AmqpError(501, "content header has a negative body size")
        else:
            self.left -= len(frame) - 8
            if self.left < 0:
                raise AmqpError(501, "body is longer than its content header declares")
            if len(frame) == 8:
                return False  # An empty body frame is dropped.
            if len(frame) > self._room + OVERHEAD:
                self._content += _divided(frame, int(self._room))
                return self.left == 0
        self._content += frame
        return self.left == 0

    @property
    def held(self) -> i64:
        """Total size of the frames of the content that have arrived, in bytes."""
        return len(self._content)

    @property
    def content(self) -> bytes:
        """The frames of the content that have arrived, without empty body frames."""
        return bytes(self._content)


def _divided(frame: bytes, room: int) -> bytes:
    """Return a body frame divided into body frames with payloads of at most `room` bytes.

    The broker accepts a payload of frame_max bytes from a publisher. Such a frame, header and end
    included, is larger than frame_max, so it must not be sent to a consumer.
    """
    payload = frame[7:-1]
    parts: list[bytes] = []
    for at in range(0, len(payload), room):
        part = payload[at : at + room]
        parts += [frame[:3], len(part).to_bytes(4, "big"), part, frame[-1:]]
    return b"".join(parts)
