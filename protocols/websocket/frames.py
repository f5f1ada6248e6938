"""WebSocket frames (RFC 6455, section 5.2).

FIN(1 bit) RSV(3) opcode(4)  MASK(1) length(7)  [length(16 or 64)]  [key(32)]  payload
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i64_le, write_i64_le
from mypy_extensions import i64, u8

CONTINUATION: Final[i64] = 0
TEXT: Final[i64] = 1
BINARY: Final[i64] = 2
CLOSE: Final[i64] = 8
PING: Final[i64] = 9
PONG: Final[i64] = 10

#: Size of the largest payload of a control frame, in bytes (section 5.5).
CONTROL_MAX: Final[i64] = 125

#: Close codes (section 7.4.1).
NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED: Final = 1003
INVALID: Final = 1007
POLICY: Final = 1008
TOO_LARGE: Final = 1009
#: The close codes that the protocol defines and that may be sent. Libraries and applications may
#: use the codes 3000 to 4999 as well.
_CODES: Final = (1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014)

#: True if this module is not compiled. A step of eight bytes in `unmask` then costs as much as
#: `unmasked` for a whole small frame.
_INTERPRETED: Final = __file__.endswith(".py")


def head(opcode: int, size: int) -> bytes:
    """Return the header of an unmasked, final frame with a payload of `size` bytes."""
    if size <= 125:
        return bytes([0x80 | opcode, size])
    if size <= 0xFFFF:
        return bytes([0x80 | opcode, 126]) + size.to_bytes(2, "big")
    return bytes([0x80 | opcode, 127]) + size.to_bytes(8, "big")


def close(code: int) -> bytes:
    """Return a close frame with the close code `code`, or without a close code if `code` is 0."""
    return head(int(CLOSE), 2) + code.to_bytes(2, "big") if code else head(int(CLOSE), 0)


def read_close(payload: bytes) -> int:
    """Return the close code for the answer to a close frame with this payload.

    The result is the code in the payload if the payload is valid (section 7.4), 0 for an empty
    payload, and PROTOCOL_ERROR or INVALID for an invalid payload.
    """
    if not payload:
        return 0
    if len(payload) == 1:
        return PROTOCOL_ERROR
    try:
        payload[2:].decode()
    except UnicodeDecodeError:
        return INVALID
    code = int.from_bytes(payload[:2], "big")
    return code if code in _CODES or 3000 <= code < 5000 else PROTOCOL_ERROR


def unmask(out: BytesWriter, data: bytes, start: i64, end: i64, key: bytes, phase: i64) -> None:
    """Write data[start:end] without its mask; the first byte is masked with byte `phase` of `key`.

    Hot path: the whole layer, this function included, takes 0.05 us for a message of 100 bytes
    (benchmarks/transports.py).
    """
    if _INTERPRETED:
        out.write(unmasked(data[start:end], key, phase))
        return
    key = key[phase:] + key + key + key[:phase]
    mask: i64 = read_i64_le(key, 0)
    at: i64 = start
    while at + 8 <= end:
        write_i64_le(out, read_i64_le(data, at) ^ mask)
        at += 8
    first: i64 = at
    while at < end:
        out.append(u8(i64(data[at]) ^ i64(key[at - first])))
        at += 1


def unmasked(data: bytes, key: bytes, phase: int) -> bytes:
    """Return the data without its mask, by one XOR of two large integers.

    The first byte is masked with byte `phase` of `key`. This function is for interpreted Python,
    where a loop as in `unmask` would be slow.
    """
    size = len(data)
    keys = (key[phase:] + key * (size // 4 + 1))[:size]
    return (int.from_bytes(data, "little") ^ int.from_bytes(keys, "little")).to_bytes(
        size, "little"
    )
