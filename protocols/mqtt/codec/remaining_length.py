"""The remaining length of an MQTT packet."""

from __future__ import annotations

from mypy_extensions import i64

from protocols.mqtt.codec.packets import (
    MalformedPacket,
)


def read_remaining_length(data: bytes, at: i64) -> tuple[i64, i64]:
    """Return the remaining length at position `at`, and the position after it.

    Return (0, 0) if the remaining length is incomplete. Raises MalformedPacket if it is invalid.
    """
    length: i64 = 0
    shift: i64 = 0
    while at < len(data):
        digit: i64 = data[at]
        at += 1
        length |= (digit & 127) << shift
        if digit < 128:
            if digit == 0 and shift > 0:
                raise MalformedPacket("the remaining length has more bytes than necessary")
            return length, at
        shift += 7
        if shift > 21:
            raise MalformedPacket("the remaining length has more than four bytes")
    return 0, 0
